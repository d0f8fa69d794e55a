"""A call with v or a cache that is prepared once and made for every layer."""

from __future__ import annotations

from typing import Any, TypeVar

from . import _arrays, _core
from ._call import Call, Caller, cross, outputs
from ._ffi import ffi, lib
from ._frameworks import load
from ._kv_cache import KVCache, checked, scale_forms
from ._prepared import OTHER_PLACE, create, new_output, read_prepared, refuse
from ._rules import both_layouts
from ._step import note_memory

A = TypeVar("A")

_ndarray = _arrays.ndarray
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_append, _step = lib.prepared_append, lib.prepared_step
_NAMES = ("q", "k", "out of q", "out of k", "v", "out of v", "cache.k", "cache.v")


class PreparedAppend:
    """What Rope.prepare_qk returns for a call with v or a cache: each layer brings its arrays and its cache.

    It keeps the Rope, the pool, cosines and sines, where in a cache the tokens go, and no arrays. Any
    number of threads may use one at the same time.
    """

    __slots__ = (
        "_call", "_compact", "_form", "_forms", "_layout", "_new", "_nothing", "_owners", "_scales",
        "_torch", "_words",
    )  # fmt: skip

    def __init__(self, rope: Caller, call: Call, out: tuple[Any, Any, Any]) -> None:
        """call: with examples of q, k and v, and a cache. out: examples, or None."""
        refuse(call.q, call.k, call.positions, *call.rows())
        _refuse_tensors(call.q, call.k, call.v, call.cache)
        self._scales = _given_scales(call.cache)
        self._call, ready = create(rope, call, *out)
        self._owners = rope, call.pool
        self._new = (out[0] is None, out[1] is None)  # whether the outputs of q and k are new arrays
        # In the order of _NAMES: the forms in the words of their library, which are compared first, and in
        # those of this package.
        views = (*ready.views[:4], *ready.views[9:13])
        self._words: list[Any] = [None if x is None else x[0] for x in views]
        self._forms = [None if x is None else x[1](x[0], n) for n, x in zip(_NAMES, views, strict=True)]
        self._layout = None if call.cache is None else call.cache.layout
        self._nothing = ready.template.batch == 0  # C takes no address then
        # The short ways, of q, k and v to both memories of a cache: arrays of NumPy without gaps, or tensors.
        self._form = -1
        self._compact: tuple[Any, ...] | None = None
        self._torch: Any = None
        arrays: list[Any] = [None if x is None else x[4] for x in views]
        q, k, _, k_out, v, v_out = arrays[:6]
        memory = None if call.cache is None or self._nothing else note_memory(call.cache)
        if memory is None or any(x is None for x in (q, k, v)) or not (k_out is v_out is None):
            return
        if memory.is_torch and all(_arrays.framework(x) == "torch" for x in (q, k, v)):
            self._form, self._torch = memory.form, load("torch")
        elif all(type(x) is _ndarray and x.flags.c_contiguous for x in (q, k, v)):
            if not memory.is_torch and self._forms[0] == self._forms[2]:
                self._form = memory.form
                self._compact = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype)

    def apply_qk(
        self, q: A, k: Any = None, *, v: Any = None, cache: KVCache | None = None,
        out: tuple[Any, ...] | None = None,
    ) -> tuple[A, Any]:  # fmt: skip
        """Rotates q into a new array, and stores k and v in the cache of a layer; or into out. On an error
        nothing has been written.

        Args:
            q, k, v: arrays of the shapes, dtypes and strides that were prepared; None where None was.
            cache: memory like that which was prepared, and no slots: they were read by prepare_qk.
            out: (q_out, k_out) or (q_out, k_out, v_out), each an array of the form that was prepared for
                it. Required where prepare_qk was given an out.

        Returns:
            (q, k): what apply_qk of the Rope returns.

        Raises what PreparedCall.apply_qk raises; ValueError also for a cache with slots of its own, with
        another layout, or with memory of another shape or strides, and for read-only memory.
        """
        if out is None and self._new[0]:
            rotated = self._short(q, k, v, cache, False)
            if rotated is not None:
                return rotated, None
        return self._run(q, k, v, cache, outputs(out, v), False)

    def apply_qk_(
        self, q: Any, k: Any = None, *, v: Any = None, cache: KVCache | None = None
    ) -> None:
        """The same, q in place; k that goes to a cache stays as it is. Arguments and errors as for apply_qk.

        Raises ValueError also if q was prepared with an output of other strides.
        """
        if self._short(q, k, v, cache, True) is None:
            self._run(q, k, v, cache, (None, None, None), True)

    def _short(self, q: Any, k: Any, v: Any, cache: Any, in_place: bool) -> Any:
        """Makes the call and returns the rotated q, if the arrays fit and the memory of the cache is known.
        A no has no words: the way of all arrays finds them."""
        if type(cache) is not KVCache or not cache._memory:
            return None
        memory = cache._memory[0]
        if (
            memory.form != self._form
            or memory.k is not cache.k
            or memory.v is not cache.v
            or memory.layout != cache.layout
            or memory.scales is not cache._scales
            or not (cache.slots is cache.starts is None)
        ):
            return None
        if self._compact is None:
            torch, words = self._torch, self._words
            if not (
                (not in_place or words[0] == words[2])
                and torch.fits(q, k, words[0], words[1])
                and torch.prepared_fits(v, words[4], memory)
            ):
                return None
            q_out = q if in_place else torch.new_like(q, words[2][1])
            torch.announce(q_out, memory.k, memory.v)
            status = _append(
                self._call, q.data_ptr(), k.data_ptr(), q_out.data_ptr(), 0, v.data_ptr(), 0, *memory.addresses
            )
        else:
            keys, values = memory.k, memory.v
            if not (
                type(q) is type(k) is type(v) is _ndarray
                and (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype) == self._compact
                and (keys.shape, values.shape) == memory.words
                and keys.flags.writeable
                and values.flags.writeable
            ):
                return None
            q_out = q if in_place else _arrays.np.empty(q.shape, q.dtype)
            try:
                to = _from_buffer(_BYTES, q_out, True)
                status = _step(
                    self._call, to if in_place else _from_buffer(_BYTES, q), _from_buffer(_BYTES, k), to,
                    _from_buffer(_BYTES, v), *memory.addresses,
                )  # fmt: skip
            except (BufferError, ValueError):  # read-only, or with gaps
                return None
        if status:
            raise _core.error(status)
        return q_out

    def _run(
        self, q: Any, k: Any, v: Any, cache: KVCache | None, out: tuple[Any, Any, Any], in_place: bool
    ) -> tuple[Any, Any]:
        """The way of all arrays."""
        cache, forms = checked(cache), self._forms
        refuse(q, k)
        _refuse_tensors(q, k, v, cache)
        keys = values = None
        if cache is not None:
            keys, values = cache.k, cache.v
            if not (cache.slots is cache.starts is None):
                raise ValueError(
                    "cache says where tokens go, and the call was prepared with that: give the memory alone, "
                    "as KVCache(k, v, layout=..)"
                )
            if _given_scales(cache) != self._scales:
                raise ValueError("cache has other scales than that which was prepared")
            if self._layout is not None and both_layouts(cache.layout) != both_layouts(self._layout):
                raise ValueError(f"cache has layout {cache.layout!r}, and the call was prepared for {self._layout!r}")
        turns = in_place and forms[6] is None  # k, where it lies
        self._read(0, q, in_place), self._read(1, k, turns), self._read(4, v, False)
        q_out, k_out, v_out = out
        if in_place:
            q_out, k_out = q, k if turns else None
            if forms[0] != forms[2] or (turns and forms[1] != forms[3]):
                raise ValueError(OTHER_PLACE)
        else:
            if q_out is None and q is not None:
                q_out = new_output(q, "q", self._new[0])
            if k_out is None and k is not None and forms[3] is not None:
                k_out = new_output(k, "k", self._new[1])
        arrays = (q, k, q_out, k_out, v, v_out, keys, values)
        views = [self._read(n, x, n not in (0, 1, 4)) for n, x in enumerate(arrays)]
        announce = _arrays.announcer(q_out, k_out, v_out, keys, values)
        if announce is not None:
            announce()
        nothing = self._nothing
        cross(_append, self._call, *[0 if x is None or nothing else x[2] for x in views])
        if self._form >= 0 and cache is not None:
            note_memory(cache)
        return q_out, k_out

    def _read(self, n: int, x: Any, write: bool) -> Any:
        return read_prepared(x, _NAMES[n], self._words[n], self._forms[n], write)

    def __reduce__(self) -> Any:
        raise TypeError("a librope.PreparedAppend cannot be pickled: prepare one in each process")


def _given_scales(cache: KVCache | None) -> Any:
    """Of a prepared call: numbers, which all layers share."""
    forms = scale_forms(cache)
    for name, form in zip(("k_scale", "v_scale"), forms or (), strict=False):
        if form is not None and form.data is not None:
            raise NotImplementedError(f"{name} with data is not available with prepare_qk: its value alone")
    return forms


def _refuse_tensors(q: Any, k: Any, v: Any, cache: KVCache | None) -> None:
    """Refuses tensors of a call that PyTorch would have to see."""
    arrays = (q, k, v) if cache is None else (q, k, v, cache.k, cache.v)
    if any(x is not None and _arrays.framework(x) == "torch" for x in arrays):
        load("torch").refuse_prepared(*arrays)
