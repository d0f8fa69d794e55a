"""A call with v, a cache, rest or scales that is prepared once and made for every layer."""

from __future__ import annotations

from typing import Any, TypeVar

from . import _arrays, _core
from ._call import Call, Caller, cross, outputs
from ._ffi import ffi, lib
from ._frameworks import load
from ._kv_cache import KVCache, checked, scales_of
from ._prepared import OTHER_PLACE, create, new_output, read_prepared, refuse
from ._rules import both_layouts
from ._scale import DATA_NAMES, Scales, checked_scales, scale_arrays, scale_forms, written_scales
from ._step import note_memory

A = TypeVar("A")

_ndarray = _arrays.ndarray
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_append, _step, _all = lib.prepared_append, lib.prepared_step, lib.prepared_all
# In the order of rope_qk_data.
_NAMES = (
    "q", "k", "out of q", "out of k", "v", "out of v", "cache.k", "cache.v", "rest", "out of rest", *DATA_NAMES,
)  # fmt: skip
_READ = tuple(_NAMES.index(name) for name in ("q", "k", "v", "rest"))


class PreparedAppend:
    """What Rope.prepare_qk returns for a call that does more than rotate: each layer brings its arrays, its
    cache, and its scales.

    It keeps the Rope, the pool, cosines and sines, where in a cache the tokens go, and no arrays. Any
    number of threads may use one at the same time.
    """

    __slots__ = (
        "_call", "_compact", "_form", "_forms", "_layout", "_new", "_nothing", "_owners", "_scales",
        "_torch", "_words",
    )  # fmt: skip

    def __init__(self, rope: Caller, call: Call, out: tuple[Any, Any, Any, Any]) -> None:
        """call: with examples of all arrays. out: examples, or None."""
        refuse(call.q, call.k, call.positions, *call.rows())
        scales = scales_of(call.scales, call.cache)
        _refuse_tensors(call.q, call.k, call.v, call.cache, call.rest, *scale_arrays(scales))
        self._scales = scale_forms(scales)
        self._call, ready = create(rope, call, *out)
        self._owners = rope, call.pool
        self._new = (out[0] is None, out[1] is None)  # whether the outputs of q and k are new arrays
        # In the order of _NAMES: the forms in the words of their library, which are compared first, and in
        # those of this package.
        views = (*ready.views[:4], *ready.views[9:13], *ready.views[17:19], *ready.views[-len(DATA_NAMES) :])
        if len(ready.views) <= 17:  # neither rest nor scales
            views = (*views[:8], *[None] * (len(_NAMES) - 8))
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
        if any(x is not None for x in arrays[8:]):
            return
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
        self, q: A, k: Any = None, *, v: Any = None, cache: KVCache | None = None, rest: Any = None,
        scales: Scales | None = None, out: tuple[Any, ...] | None = None,
    ) -> tuple[A, Any]:  # fmt: skip
        """Rotates q into a new array, and stores k and v in the cache of a layer; or into out. On an error
        nothing has been written.

        Args:
            q, k, v, rest: arrays of the shapes, dtypes and strides that were prepared; None where None was.
            cache: memory like that which was prepared, and no slots: they were read by prepare_qk.
            scales: like those that were prepared: the same values, and arrays of the layer in their forms.
            out: as for apply_qk of the Rope, each an array of the form that was prepared for it. Required
                where prepare_qk was given an out.

        Returns:
            (q, k): what apply_qk of the Rope returns.

        Raises what PreparedCall.apply_qk raises; ValueError also for a cache with slots of its own, with
        another layout, or with memory of another shape or strides, and for read-only memory.
        """
        if out is None and self._new[0]:
            rotated = self._short(q, k, v, cache, False)
            if rotated is not None:
                return rotated, None
        call = Call(q, k, v=v, cache=checked(cache), rest=rest, scales=checked_scales(scales))
        return self._run(call, outputs(out, call), False)

    def apply_qk_(
        self, q: Any, k: Any = None, *, v: Any = None, cache: KVCache | None = None
    ) -> None:
        """The same, q in place; k that goes to a cache stays as it is. Arguments and errors as for apply_qk.

        Raises ValueError also if q was prepared with an output of other strides.
        """
        if self._short(q, k, v, cache, True) is None:
            self._run(Call(q, k, v=v, cache=checked(cache)), (None, None, None, None), True)

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

    def _run(self, call: Call, out: tuple[Any, Any, Any, Any], in_place: bool) -> tuple[Any, Any]:
        """The way of all arrays. call: what a layer brings."""
        q, k, v, cache, rest, forms = call.q, call.k, call.v, call.cache, call.rest, self._forms
        scales = scales_of(call.scales, cache)
        data = scale_arrays(scales) or (None,) * len(DATA_NAMES)
        refuse(q, k)
        _refuse_tensors(q, k, v, cache, rest, *data)
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
        if scale_forms(scales) != self._scales:
            raise ValueError("cache or scales= has other scales than those that were prepared")
        turns = in_place and forms[6] is None  # k, where it lies
        self._read(0, q, in_place), self._read(1, k, turns), self._read(4, v, False)
        q_out, k_out, v_out, rest_out = out
        if in_place:
            q_out, k_out = q, k if turns else None
            if forms[0] != forms[2] or (turns and forms[1] != forms[3]):
                raise ValueError(OTHER_PLACE)
        else:
            if q_out is None and q is not None:
                q_out = new_output(q, "q", self._new[0])
            if k_out is None and k is not None and forms[3] is not None:
                k_out = new_output(k, "k", self._new[1])
        arrays = (q, k, q_out, k_out, v, v_out, keys, values, rest, rest_out, *data)
        written = written_scales(scales)
        views = [
            self._read(n, x, n not in _READ and (n < 10 or any(x is y for y in written)))
            for n, x in enumerate(arrays)
        ]
        announce = _arrays.announcer(q_out, k_out, v_out, rest_out, keys, values, *written)
        if announce is not None:
            announce()
        nothing = self._nothing
        cross(_all, self._call, ffi.new("uintptr_t[]", [0 if x is None or nothing else x[2] for x in views]))
        if self._form >= 0 and cache is not None:
            note_memory(cache)
        return q_out, k_out

    def _read(self, n: int, x: Any, write: bool) -> Any:
        return read_prepared(x, _NAMES[n], self._words[n], self._forms[n], write)

    def __reduce__(self) -> Any:
        raise TypeError("a librope.PreparedAppend cannot be pickled: prepare one in each process")


def _refuse_tensors(q: Any, k: Any, v: Any, cache: KVCache | None, *more: Any) -> None:
    """Refuses tensors of a call that PyTorch would have to see."""
    arrays = (q, k, v, *more) if cache is None else (q, k, v, cache.k, cache.v, *more)
    if any(x is not None and _arrays.framework(x) == "torch" for x in arrays):
        load("torch").refuse_prepared(*arrays)
