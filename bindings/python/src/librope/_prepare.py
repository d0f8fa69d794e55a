"""Calls that are prepared once and made for every layer: the part of Rope that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ._call import Call, Caller, outputs, pair, unavailable
from ._kv_cache import KVCache, checked
from ._prepared import PreparedCall, prepare_call
from ._prepared_append import PreparedAppend
from ._scale import Scales, checked_scales
from ._types import CallOptions, check_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Preparer(Caller):
    """A Caller whose calls can be prepared."""

    @overload
    def prepare_qk(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        v: None = None,
        cache: None = None,
        rest: None = None,
        scales: None = None,
        out: tuple[Any, Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> PreparedCall: ...

    @overload
    def prepare_qk(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        v: Any = None,
        cache: KVCache | None = None,
        rest: Any = None,
        scales: Scales | None = None,
        out: tuple[Any, ...] | None = None,
        **options: Unpack[CallOptions],
    ) -> PreparedAppend: ...

    def prepare_qk(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        v: Any = None,
        cache: KVCache | None = None,
        rest: Any = None,
        scales: Scales | None = None,
        out: tuple[Any, ...] | None = None,
        **options: Unpack[CallOptions],
    ) -> PreparedCall | PreparedAppend:
        """A call that is made for every layer: checked once, its cos and sin computed once::

            call = rope.prepare_qk(q, k, positions)    # once per forward pass
            for layer in layers:
                ...
                q, k = call.apply_qk(q, k)             # or call.apply_qk_(q, k), in place

        The results are those of apply_qk, bit for bit. Positions, offsets, cu_seqlens, freq_sets and
        rows are read now: what happens to these arrays later changes nothing. q and k are examples,
        whose values are not read: the arrays of every layer must have their shapes, dtypes and
        strides. They may be arrays of NumPy, of torch on the CPU, or of anything else with memory.

        With v, a cache, rest or scales the result is a PreparedAppend, and each layer brings its own::

            call = rope.prepare_qk(q, k, positions, v=v, cache=caches[0].at(slots=slot_mapping))
            for cache in caches:
                ...
                q, _ = call.apply_qk(q, k, v=v, cache=cache)   # or call.apply_qk_(..), q in place

        Args:
            v, cache, rest, scales: an example, and the cache of any layer: where it says that tokens go is
                read now. Scales of one value are those of all layers; of arrays each layer brings its own.
            out: examples of the outputs, if those of the calls will have other strides than new
                arrays have, such as a part of a cache; (q, k) for calls in place. Without it the
                calls make new arrays, and work in place where q and k have the strides of these.
            options: those of apply_qk, but norms.

        Raises:
            TypeError: JAX arrays, which apply_qk takes.
            NotImplementedError: torch tensors under a gradient, in compiled code or under a
                transform, where PyTorch would not see the rotation; CUDA arrays; norms. apply_qk takes them.
            MemoryError: no memory for 8 to 32 bytes per token and pair. Otherwise as apply_qk.
        """
        if options.get("norms") is not None:
            raise unavailable(
                "norms", "prepare_qk: they are those of one layer, and a prepared call is made for all: use apply_qk"
            )
        check_options("prepare_qk", options, CallOptions.__optional_keys__)
        if v is cache is rest is None and scales is None:
            return prepare_call(self, Call(q, k, positions, **options), *pair(out))
        call = Call(q, k, positions, v, checked(cache), rest=rest, scales=checked_scales(scales), **options)
        return PreparedAppend(self, call, outputs(out, call))
