"""A call that is prepared once and made for every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from . import _arrays, _core
from ._arrays import LEAST_ADDRESS, Meta, View
from ._call import Call, Caller, Ready, cross, library_of, pair
from ._ffi import ffi, lib
from ._frameworks import load
from ._step import refuse_gradients
from ._untraced import untraced

A = TypeVar("A")
B = TypeVar("B")

_ndarray = _arrays.ndarray
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_buffers = lib.prepared_buffers
_addresses = lib.prepared_addresses
_NAMES = ("q", "k", "out of q", "out of k")
_FORM = ("shape", "strides", "dtype")  # what a Meta is
_NO_SLOTS = (0, 0, 0, 0)


class PreparedCall:
    """What Rope.prepare_qk returns: rotates the arrays of every layer by the same positions.

    It keeps the Rope, the pool, cosines and sines, and no arrays. Any number of threads may use one
    at the same time.
    """

    __slots__ = (
        "_call", "_compact", "_forms", "_in_place", "_new", "_nothing", "_owners", "_torch", "_words",
    )  # fmt: skip

    def __init__(self, call: Any, ready: Ready, new: tuple[bool, bool], owners: object) -> None:
        """call: rope_prepared*. ready: what it was made of. new: whether the output of q, and that of
        k, is a new array."""
        self._call, self._new, self._owners = call, new, owners
        # Of q, k and their outputs: the forms, in the words of their library, which are compared
        # first, and in those of this package.
        views, self._forms = ready.views[:4], ready.template.forms
        self._words: list[Any] = [None if v is None else v[0] for v in views]
        self._in_place = self._forms[:2] == self._forms[2:]
        arrays: list[Any] = [None if v is None else v[4] for v in views]
        self._nothing = ready.template.batch == 0  # C takes no address then
        # The short way of NumPy arrays without gaps: shapes and dtypes of q and k describe all four.
        self._compact: tuple[Any, ...] | None = None
        dense = all(type(x) is _ndarray and x.flags.c_contiguous for x in arrays)
        if dense and self._in_place and not self._nothing:
            q, k = arrays[:2]
            self._compact = (q.shape, k.shape, q.dtype, k.dtype)
        # That of torch tensors.
        self._torch: Any = None
        if not self._nothing and all(x is None or _arrays.framework(x) == "torch" for x in arrays):
            self._torch = load("torch")

    @overload
    def apply_qk(
        self, q: A, k: None = None, *, out: tuple[Any, Any] | None = None
    ) -> tuple[A, None]: ...

    @overload
    def apply_qk(self, q: A, k: B, *, out: tuple[Any, Any] | None = None) -> tuple[A, B]: ...

    def apply_qk(
        self, q: Any, k: Any = None, *, out: tuple[Any, Any] | None = None
    ) -> tuple[Any, Any]:
        """Rotates q and k into new arrays, or into out. On an error nothing has been written.

        Args:
            q, k: arrays of the shapes, dtypes and strides that were prepared; None where None was.
            out: (q_out, k_out), each an array of the shape, dtype and strides that were prepared for
                it. Required where prepare_qk was given an out.

        Returns:
            (q, k): new arrays; out where it is given.

        Raises:
            ValueError: a shape or strides that were not prepared; an array that is missing, or was
                not prepared; arrays that overlap; a read-only output.
            TypeError: a dtype that was not prepared; JAX arrays.
            NotImplementedError: torch tensors under a gradient, in compiled code or under a
                transform; CUDA arrays.
            RuntimeError: an output that requires a gradient.
        """
        q_out, k_out = pair(out)
        if type(q) is type(k) is _ndarray and self._fits_compact(q, k):
            if out is None and all(self._new):
                q_out, k_out = _arrays.np.empty(q.shape, q.dtype), _arrays.np.empty(k.shape, k.dtype)
                self._run_compact(q, k, q_out, k_out)
                return q_out, k_out
            if type(q_out) is type(k_out) is _ndarray and self._fits_compact(q_out, k_out):
                if self._run_compact(q, k, q_out, k_out):
                    return q_out, k_out
        torch, forms = self._torch, self._words
        if torch is not None and torch.fits(q, k, forms[0], forms[1]):
            if out is None and all(self._new):
                q_out = None if q is None else torch.new_like(q, forms[2][1])
                k_out = None if k is None else torch.new_like(k, forms[3][1])
                if self._run_tensors(q, k, q_out, k_out):
                    return q_out, k_out
                q_out = k_out = None
            elif torch.fits(q_out, k_out, forms[2], forms[3]) and self._run_tensors(q, k, q_out, k_out):
                torch.announce(q_out, k_out)
                return q_out, k_out
        refuse(q, k)
        return self._all_arrays(q, k, q_out, k_out)

    @untraced
    def _all_arrays(self, q: Any, k: Any, q_out: Any, k_out: Any) -> tuple[Any, Any]:
        """The way of all arrays."""
        views = [self._read(0, q), self._read(1, k)]
        announce = _arrays.announcer(q_out, k_out)
        if q_out is None and q is not None:
            q_out = self._empty(0, q)
        if k_out is None and k is not None:
            k_out = self._empty(1, k)
        self._run([*views, self._read(2, q_out), self._read(3, k_out)])
        if announce is not None:
            announce()
        return q_out, k_out

    def apply_qk_(self, q: Any, k: Any = None) -> None:
        """Rotates q and k in place. Arguments and errors as for apply_qk.

        Raises ValueError also if the outputs were prepared with other shapes or strides than q and k:
        for calls in place prepare_qk is given out=(q, k).
        """
        if type(q) is type(k) is _ndarray and self._fits_compact(q, k):
            if self._run_compact(q, k, q, k, "apply_qk_"):
                return
        torch, forms = self._torch, self._words
        if torch is not None and self._in_place and torch.fits(q, k, forms[0], forms[1]):
            if self._run_tensors(q, k, q, k, who="apply_qk_"):
                torch.announce(q, k)
                return
        refuse(q, k)
        self._all_in_place(q, k)

    @untraced
    def _all_in_place(self, q: Any, k: Any) -> None:
        views = [self._read(0, q, True), self._read(1, k, True)]
        if not self._in_place:
            raise other_place(self._forms)
        announce = _arrays.announcer(q, k)
        self._run([*views, *views], "apply_qk_")
        if announce is not None:
            announce()

    @untraced
    def _run_compact(self, q: Any, k: Any, q_out: Any, k_out: Any, who: str = "apply_qk") -> bool:
        """False for outputs that are read-only: the way of all arrays says so."""
        try:
            c, d = _from_buffer(_BYTES, q_out, True), _from_buffer(_BYTES, k_out, True)
        except (BufferError, ValueError):
            return False
        a = c if q is q_out else _from_buffer(_BYTES, q)
        b = d if k is k_out else _from_buffer(_BYTES, k)
        status = _buffers(self._call, a, b, c, d)
        if status:
            raise _core.error(status, who)
        return True

    def _run_tensors(self, *tensors: Any, who: str = "apply_qk") -> bool:
        """False for views of a freed storage: the way of all arrays says so."""
        q, k, q_out, k_out = [0 if x is None else x.data_ptr() for x in tensors]
        if (
            0 < q < LEAST_ADDRESS or 0 < k < LEAST_ADDRESS or 0 < q_out < LEAST_ADDRESS or 0 < k_out < LEAST_ADDRESS
        ):  # fmt: skip
            return False
        status = _addresses(self._call, q, k, q_out, k_out)
        if status:
            if any(x is not None and not x.data_ptr() for x in tensors):  # a freed storage, which C does not know
                return False
            raise _core.error(status, who)
        return True

    def _fits_compact(self, q: Any, k: Any) -> bool:
        return (
            (q.shape, k.shape, q.dtype, k.dtype) == self._compact
            and q.flags.c_contiguous
            and k.flags.c_contiguous
        )

    def _read(self, n: int, x: Any, write: bool = False) -> View | None:
        """q, k or an output, if it has the form that was prepared."""
        return read_prepared(x, _NAMES[n], self._words[n], self._forms[n], write or n > 1)

    def _empty(self, n: int, x: Any) -> Any:
        return new_output(x, _NAMES[n], self._new[n])

    def _run(self, views: list[View | None], who: str = "apply_qk") -> None:
        nothing = self._nothing
        cross(_addresses, self._call, *[0 if v is None or nothing else v[2] for v in views], who=who)

    def __reduce__(self) -> Any:
        raise TypeError("a librope.PreparedCall cannot be pickled: prepare one in each process")


def read_prepared(x: Any, name: str, words: Any, form: Meta | None, write: bool) -> View | None:
    """An array of a layer, if it has the form that was prepared; words: that in the words of its library."""
    if x is None or form is None:
        if x is None and form is None:
            return None
        given, prepared = ("None", "one") if x is None else ("an array", "None")
        raise ValueError(f"{name} is {given}, and the call was prepared for {prepared}")
    view = _arrays.read(x, name, write)
    if view[0] != words:
        _check_form(name, view[1](view[0], name), form)
    if view[3] >= 0:
        raise unavailable_on(name, view[3])
    return view


def new_output(x: Any, name: str, new: bool) -> Any:
    """new: whether the call was prepared for new arrays."""
    if not new:
        raise ValueError(f"out of {name} is required: prepare_qk was given one")
    return _arrays.empty_like(x, name)


def other_place(forms: Sequence[Meta | None], stored: bool = False) -> ValueError:
    """Of a call in place whose q or k has another form than its output. forms: of _NAMES, as prepared. stored:
    whether k goes to a cache, and stays as it is."""
    q, k = forms[:2]
    n = int(q == forms[2])
    found, prepared = forms[n], forms[n + 2]
    assert found is not None and prepared is not None
    what = next(i for i in range(3) if found[i] != prepared[i])
    out = f"({'None' if q is None else 'q'}, {'None' if k is None or stored else 'k'})"
    return ValueError(
        f"{_NAMES[n]} has {_FORM[what]} {found[what]}, and its output was prepared with {prepared[what]}: for calls "
        f"in place, prepare_qk(..., out={out})"
    )


def _check_form(name: str, found: Meta, form: Meta) -> None:
    for what, has, must in zip(_FORM, found, form, strict=True):
        if has != must:
            error = TypeError if what == "dtype" else ValueError
            raise error(f"{name} has {what} {has}, and the call was prepared for {must}")


def unavailable_on(name: str, device: int) -> NotImplementedError:
    return NotImplementedError(
        f"{name} is on {_arrays.place(device)}, and prepared calls are for the CPU: use apply_qk_ of the "
        "Rope, which a CUDA graph can capture"
    )


def refuse(q: Any, k: Any, *beside: Any) -> str:
    """Refuses arrays whose library would have to see the call. beside: what there is beside q and k, which matters
    where they are tensors. Returns library_of the others."""
    library = library_of(q, k)
    if library == "torch":
        load("torch").refuse_prepared(q, k, *beside)
    elif library == "jax":
        raise TypeError(
            "q or k is a JAX array, and prepared calls are for arrays of memory: use apply_qk of "
            "the Rope, under jax.jit"
        )
    return library


def prepare_call(rope: Caller, call: Call, q_out: Any, k_out: Any) -> PreparedCall:
    """call: with examples of q and k. q_out, k_out: examples, or None for new arrays."""
    if refuse(call.q, call.k, call.positions, *call.rows()) != "torch":
        refuse_gradients(call)
    return _prepared_call(rope, call, q_out, k_out)


@untraced
def _prepared_call(rope: Caller, call: Call, q_out: Any, k_out: Any) -> PreparedCall:
    new = (q_out is None, k_out is None)
    prepared, ready = create(rope, call, q_out, k_out)
    return PreparedCall(prepared, ready, new, (rope, call.pool))


def create(
    rope: Caller, call: Call, q_out: Any, k_out: Any, v_out: Any = None, rest_out: Any = None
) -> tuple[Any, Ready]:
    """The rope_prepared* of a call, and what it was made of."""
    if q_out is None and call.q is not None:
        q_out = _arrays.empty_like(call.q, "q")
    if k_out is None and call.k is not None and not call.stores_k:
        k_out = _arrays.empty_like(call.k, "k")
    ready = rope._run(call, q_out, k_out, v_out, rest_out, ready=True)
    if ready.device >= 0:
        raise unavailable_on("k" if call.q is None else "q", ready.device)
    out = ffi.new("rope_prepared**")
    template, addresses = ready.template, ready.addresses
    fused = ffi.NULL if template.fused is None else template.fused
    _core.check(
        lib.prepare_call(
            rope._cpu, template.args, template.rows, fused, template.cache, template.norms or ffi.NULL,
            ready.offset, ready.runner, *addresses[4:9], *(addresses[13:17] or _NO_SLOTS), out,
        )
    )  # fmt: skip
    return ffi.gc(out[0], lib.rope_prepared_destroy), ready
