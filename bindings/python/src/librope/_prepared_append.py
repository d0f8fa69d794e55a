"""A call with v, a cache, rest, norms or scales that is prepared once and made for every layer."""

from __future__ import annotations

from typing import Any, TypeVar

from . import _arrays, _core
from ._arrays import LEAST_ADDRESS
from ._call import Call, Caller, cross, outputs
from ._ffi import ffi, lib
from ._frameworks import load
from ._kv_cache import KVCache, checked, scales_of
from ._norm import NAMES as NORM_NAMES
from ._norm import NO_NORMS, Norms, check_arrays, check_settings, checked_norms, norm_arrays, norm_settings
from ._prepared import create, new_output, other_place, read_prepared, refuse
from ._rules import both_layouts
from ._scale import DATA_NAMES, Scales, checked_scales, other_scales, scale_arrays, scale_forms, written_scales
from ._step import note_memory, numpy_stays, refuse_gradients
from ._untraced import untraced

A = TypeVar("A")

_ndarray = _arrays.ndarray
_HOST = (_ndarray, type(None))
_from_buffer = ffi.from_buffer
_BYTES, _POINTERS, _ADDRESSES = map(ffi.typeof, ("char[]", "void*[]", "uintptr_t[]"))
_NULL = ffi.NULL
_COMPLETE, _NO_WAY = -1, -2  # beside the forms of caches
_append, _step, _all = lib.prepared_append, lib.prepared_step, lib.prepared_all
# In the order of rope_qk_data.
_NAMES = (
    "q", "k", "out of q", "out of k", "v", "out of v", "cache.k", "cache.v", "rest", "out of rest", *DATA_NAMES,
    *NORM_NAMES,
)  # fmt: skip
_NORMS = _NAMES.index(NORM_NAMES[0])
_READ = tuple(_NAMES.index(name) for name in ("q", "k", "v", "rest", *NORM_NAMES))


class PreparedAppend:
    """What Rope.prepare_qk returns for a call that does more than rotate: each layer brings its arrays, its
    cache, its norms, and its scales.

    It keeps the Rope, the pool, cosines and sines, where in a cache the tokens go, and no arrays. Any
    number of threads may use one at the same time.
    """

    __slots__ = (
        "_call", "_compact", "_form", "_forms", "_layout", "_new", "_norms", "_nothing", "_owners",
        "_scales", "_torch", "_words",
    )  # fmt: skip

    def __init__(self, rope: Caller, call: Call, out: tuple[Any, Any, Any, Any]) -> None:
        """call: with examples of all arrays. out: examples, or None."""
        scales = scales_of(call.scales, call.cache)
        if call.norms is not None:
            check_arrays(call.norms)
        self._scales, self._norms = scale_forms(scales), norm_settings(call.norms)
        self._call, ready = create(rope, call, *out)
        self._owners = rope, call.pool
        self._new = (out[0] is None, out[1] is None)  # whether the outputs of q and k are new arrays
        # In the order of _NAMES: the forms in the words of their library, which are compared first, and in
        # those of this package.
        views = (*ready.views[:4], *ready.views[9:13], *ready.views[17:19], *ready.views[28:], *ready.views[19:28])
        views += (None,) * (len(_NAMES) - len(views))  # neither rest nor norms nor scales
        self._words: list[Any] = [None if x is None else x[0] for x in views]
        self._forms = [None if x is None else x[1](x[0], n) for n, x in zip(_NAMES, views, strict=True)]
        self._layout = None if call.cache is None else call.cache.layout
        self._nothing = ready.template.batch == 0  # C takes no address then
        # The short ways, of q and k, and of v to both memories of a cache: arrays of NumPy without gaps, or
        # tensors. _form is that of the cache, _COMPLETE without one, and _NO_WAY where there is none.
        self._form = _NO_WAY
        self._compact: tuple[Any, ...] | None = None
        self._torch: Any = None
        arrays: list[Any] = [None if x is None else x[4] for x in views]
        q, k, _, k_out, v, v_out = arrays[:6]
        if self._nothing or q is None or k is None or any(x is not None for x in arrays[8:_NORMS]):
            return
        if call.scales is not None:  # which each layer must bring
            return
        form, is_torch = _COMPLETE, _arrays.framework(q) == "torch"
        given: tuple[Any, ...] = q, k
        if call.cache is not None:
            memory = note_memory(call.cache)
            if memory is None or memory.is_torch != is_torch or v is None or not (k_out is v_out is None):
                return
            form, given = memory.form, (q, k, v)
        elif v is not None:
            return
        if is_torch and all(_arrays.framework(x) == "torch" for x in given):
            self._form, self._torch = form, load("torch")
        elif all(type(x) is _ndarray and x.flags.c_contiguous for x in given):
            if self._forms[0] == self._forms[2] and self._forms[3] in (None, self._forms[1]):
                self._form, self._compact = form, _compact_form(q, k, v)

    def apply_qk(
        self, q: A, k: Any = None, *, v: Any = None, cache: KVCache | None = None, rest: Any = None,
        norms: Norms | None = None, scales: Scales | None = None, out: tuple[Any, ...] | None = None,
    ) -> tuple[A, Any]:  # fmt: skip
        """Rotates q into a new array, and stores k and v in the cache of a layer; or into out. On an error
        nothing has been written.

        Args:
            q, k, v, rest: arrays of the shapes, dtypes and strides that were prepared; None where None was.
            cache: memory like that which was prepared, and no slots: they were read by prepare_qk.
            norms: those of the layer, like those that were prepared: of the same kind, eps, span, order and
                rounding, with weight, bias and rstd of the shapes, dtypes and strides that were prepared.
            scales: like those that were prepared: the same values, and arrays of the layer in their forms.
            out: as for apply_qk of the Rope, each an array of the form that was prepared for it. Required
                where prepare_qk was given an out.

        Returns:
            (q, k): what apply_qk of the Rope returns.

        Raises what PreparedCall.apply_qk raises; ValueError also for a cache with slots of its own, with
        another layout, or with memory of another shape or strides, for read-only memory, and for norms that
        differ from those that were prepared; TypeError for weights of another dtype.
        """
        # Into a new q, or into one that is given, and nothing else of out.
        q_out = out[0] if type(out) is tuple and len(out) == 2 and out[1] is None else None
        if (
            rest is scales is None
            and (q_out is None) == self._new[0]
            and (out is None or q_out is not None)
            and (self._new[1] or cache is not None)
        ):
            rotated = self._short(q, k, v, cache, norms, False, q_out)
            if rotated is not None:
                return rotated
        call = Call(
            q, k, v=v, cache=checked(cache), norms=checked_norms(norms), rest=rest, scales=checked_scales(scales)
        )
        _refuse(call)
        return self._run(call, outputs(out, call), False)

    def apply_qk_(
        self, q: Any, k: Any = None, *, v: Any = None, cache: KVCache | None = None, norms: Norms | None = None
    ) -> None:
        """The same, q in place; k that goes to a cache stays as it is. Arguments and errors as for apply_qk.

        Raises ValueError also if q was prepared with an output of other strides: for parts of a packed QKV
        prepare_qk is given out=(q, None), or without a cache out=(q, k).
        """
        if self._short(q, k, v, cache, norms, True) is None:
            call = Call(q, k, v=v, cache=checked(cache), norms=checked_norms(norms))
            _refuse(call)
            self._run(call, (None, None, None, None), True)

    def _short(
        self, q: Any, k: Any, v: Any, cache: Any, norms: Any, in_place: bool, q_out: Any = None
    ) -> tuple[Any, Any] | None:
        """Makes the call and returns the rotated q and k, if the arrays fit and the memory of the cache is known.
        A no has no words: the way of all arrays finds them. q_out: None: q in place, or a new array."""
        memory = None
        if cache is not None:
            if type(cache) is not KVCache or not cache._memory:
                return None
            memory = cache._memory[0]
            if (
                memory.k is not cache.k
                or memory.v is not cache.v
                or memory.layout != cache.layout
                or memory.scales is not cache._scales
                or not (cache.slots is cache.starts is None)
            ):
                return None
        if self._form != (_COMPLETE if memory is None else memory.form) or (v is None) != (memory is None):
            return None
        weights: tuple[Any, ...] = ()  # kept until the call has been made
        if norms is not None or self._norms is not NO_NORMS:
            if type(norms) is not Norms or norm_settings(norms) != self._norms:
                return None
            weights = norm_arrays(norms)
        way = self._of_tensors if self._compact is None else self._of_numpy
        return way(q, k, v, memory, weights, in_place, q_out)

    def _of_tensors(
        self, q: Any, k: Any, v: Any, memory: Any, weights: Any, in_place: bool, q_out: Any
    ) -> tuple[Any, Any] | None:
        torch, words = self._torch, self._words
        if not (
            (not in_place or (words[0] == words[2] and words[3] in (None, words[1])))
            and torch.fits(q, k, words[0], words[1])
            and (memory is None or torch.prepared_fits(v, words[4], memory))
        ):
            return None
        norms = _NULL
        if weights:
            if [x if x is None else torch.form_of(x) for x in weights] != words[_NORMS:]:
                return None
            at = [0 if x is None else x.data_ptr() for x in weights]
            if min(filter(None, at), default=LEAST_ADDRESS) < LEAST_ADDRESS:
                return None
            norms = ffi.new(_ADDRESSES, at)
        if q_out is None:
            q_out = q if in_place else torch.new_like(q, words[2][1])
        elif torch.form_of(q_out) != words[2]:
            return None
        if memory is None:
            k_out = k if in_place else torch.new_like(k, words[3][1])
            written: tuple[Any, ...] = q_out, k_out
            k_at, v_at, pages = k_out.data_ptr(), 0, (0, 0)
        else:
            k_out = None
            written = q_out, memory.k, memory.v
            k_at, v_at, pages = 0, v.data_ptr(), memory.addresses
        q_from, k_from, q_at = q.data_ptr(), k.data_ptr(), q_out.data_ptr()
        if (
            q_from < LEAST_ADDRESS or k_from < LEAST_ADDRESS or q_at < LEAST_ADDRESS or 0 < k_at < LEAST_ADDRESS
            or 0 < v_at < LEAST_ADDRESS
        ):  # fmt: skip
            return None  # of a view of a freed storage
        status = _append(self._call, q_from, k_from, q_at, k_at, v_at, 0, *pages, norms)
        if status:
            if any(x is not None and not x.data_ptr() for x in (*weights, v)):  # a freed storage, which C does not know
                return None
            raise _core.error(status, _who(in_place))
        torch.announce(*written)
        return q_out, k_out

    @untraced
    def _of_numpy(
        self, q: Any, k: Any, v: Any, memory: Any, weights: Any, in_place: bool, q_out: Any
    ) -> tuple[Any, Any] | None:
        if not (type(q) is type(k) is _ndarray and type(v) in _HOST and _compact_form(q, k, v) == self._compact):
            return None
        if q_out is not None and _form_of(q_out) != self._words[2]:
            return None
        k_out, pages = None, (0, 0)
        if memory is None:
            k_out = k
        else:
            pages = memory.addresses
            if not numpy_stays(memory):
                return None
        if in_place:
            q_out = q
        else:
            if q_out is None:
                q_out = _arrays.np.empty(q.shape, q.dtype)
            k_out = None if k_out is None else _arrays.np.empty(k.shape, k.dtype)
        norms = _NULL
        try:
            if weights:
                if [x if x is None else _form_of(x) for x in weights] != self._words[_NORMS:]:
                    return None
                norms = ffi.new(_POINTERS, [_NULL if x is None else _from_buffer(_BYTES, x) for x in weights])
            to = _from_buffer(_BYTES, q_out, True)
            k_to = _NULL if k_out is None else _from_buffer(_BYTES, k_out, True)
            status = _step(
                self._call, to if in_place else _from_buffer(_BYTES, q),
                k_to if k_out is k else _from_buffer(_BYTES, k), to, k_to,
                _NULL if v is None else _from_buffer(_BYTES, v), *pages, norms,
            )  # fmt: skip
        except (BufferError, ValueError):  # read-only, or with gaps
            return None
        if status:
            raise _core.error(status, _who(in_place))
        return q_out, k_out

    @untraced
    def _run(self, call: Call, out: tuple[Any, Any, Any, Any], in_place: bool) -> tuple[Any, Any]:
        """The way of all arrays. call: what a layer brings."""
        q, k, v, cache, rest, forms = call.q, call.k, call.v, call.cache, call.rest, self._forms
        scales = scales_of(call.scales, cache)
        data = scale_arrays(scales) or (None,) * len(DATA_NAMES)
        weights = norm_arrays(call.norms) or (None,) * len(NORM_NAMES)
        keys = values = None
        if cache is not None:
            keys, values = cache.k, cache.v
            if not (cache.slots is cache.starts is None):
                raise ValueError(
                    "cache says where tokens go, and the call was prepared with that: give the memory alone, "
                    "as KVCache(k, v, layout=..)"
                )
            if self._layout is not None and both_layouts(cache.layout) != both_layouts(self._layout):
                raise ValueError(f"cache has layout {cache.layout!r}, and the call was prepared for {self._layout!r}")
        forms_of_scales = scale_forms(scales)
        if forms_of_scales != self._scales:
            raise ValueError(other_scales(forms_of_scales, self._scales))
        check_settings(call.norms, self._norms)
        turns = in_place and forms[6] is None  # k, where it lies
        self._read(0, q, in_place), self._read(1, k, turns), self._read(4, v, False)
        q_out, k_out, v_out, rest_out = out
        if in_place:
            q_out, k_out = q, k if turns else None
            wrong = self._not_in_place(turns)
            if wrong is not None:
                for n, x in ((6, keys), (7, values), (8, rest), *enumerate((*data, *weights), 10)):
                    self._read(n, x, False)  # what is missing or wrong is said first
                raise wrong
        else:
            if q_out is None and q is not None:
                q_out = new_output(q, "q", self._new[0])
            if k_out is None and k is not None and forms[3] is not None:
                k_out = new_output(k, "k", self._new[1])
        arrays = (q, k, q_out, k_out, v, v_out, keys, values, rest, rest_out, *data, *weights)
        written = written_scales(scales)
        views = [
            self._read(n, x, n not in _READ and (n < 10 or any(x is y for y in written)))
            for n, x in enumerate(arrays)
        ]
        announce = _arrays.announcer(q_out, k_out, v_out, rest_out, keys, values, *written)
        nothing = self._nothing
        addresses = ffi.new("uintptr_t[]", [0 if x is None or nothing else x[2] for x in views])
        cross(_all, self._call, addresses, who=_who(in_place))
        if announce is not None:
            announce()
        if self._form >= 0 and cache is not None:
            note_memory(cache)
        return q_out, k_out

    def _not_in_place(self, turns: bool) -> ValueError | None:
        """Why a call in place would not be like the one that was prepared. turns: whether k turns where it lies."""
        forms = self._forms
        if forms[0] != forms[2] or (turns and forms[1] != forms[3]):
            return other_place(forms, not turns)
        if turns or forms[3] is None:
            return None
        return ValueError(
            "k goes to the cache, and the call was prepared with an output of k, too: use apply_qk(..., out=..), or for "
            "q in place and k in the cache alone prepare_qk(..., out=(q, None))"
        )

    def _read(self, n: int, x: Any, write: bool) -> Any:
        return read_prepared(x, _NAMES[n], self._words[n], self._forms[n], write)

    def __reduce__(self) -> Any:
        raise TypeError("a librope.PreparedAppend cannot be pickled: prepare one in each process")


def prepare_append(rope: Caller, call: Call, out: tuple[Any, Any, Any, Any]) -> PreparedAppend:
    """call: with examples of all arrays. out: examples, or None."""
    _refuse(call)
    return _prepared_append(rope, call, out)


@untraced
def _prepared_append(rope: Caller, call: Call, out: tuple[Any, Any, Any, Any]) -> PreparedAppend:
    return PreparedAppend(rope, call, out)


def _compact_form(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """That of arrays of NumPy without gaps."""
    if v is None:
        return q.shape, k.shape, q.dtype, k.dtype
    return q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype


def _who(in_place: bool) -> str:
    """Of whom an error speaks."""
    return "apply_qk_" if in_place else "apply_qk"


def _form_of(x: Any) -> Any:
    """The form of an array of NumPy, in its words; False: it is none."""
    return type(x) is _ndarray and (x.shape, x.strides, x.dtype)


def _refuse(call: Call) -> None:
    """Refuses arrays whose library would have to see the call."""
    scales = scale_arrays(scales_of(call.scales, call.cache))
    memory = () if call.cache is None else (call.cache.k, call.cache.v)
    beside = (call.positions, *call.rows(), call.v, *memory, call.rest, *scales, *norm_arrays(call.norms))
    if refuse(call.q, call.k, *beside) != "torch":
        refuse_gradients(call)
