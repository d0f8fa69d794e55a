"""Calls that are prepared once and made for every layer: the part of Rope that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ._call import Call, Caller, outputs, pair
from ._kv_cache import KVCache, checked
from ._norm import Norms, checked_norms
from ._prepared import PreparedCall, prepare_call
from ._prepared_append import PreparedAppend, prepare_append
from ._scale import Scales, checked_scales
from ._types import PrepareOptions, check_options

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
        norms: None = None,
        scales: None = None,
        out: tuple[Any, Any] | None = None,
        **options: Unpack[PrepareOptions],
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
        norms: Norms | None = None,
        scales: Scales | None = None,
        out: tuple[Any, ...] | None = None,
        **options: Unpack[PrepareOptions],
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
        norms: Norms | None = None,
        scales: Scales | None = None,
        out: tuple[Any, ...] | None = None,
        **options: Unpack[PrepareOptions],
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

        With v, a cache, rest, norms or scales the result is a PreparedAppend, and each layer brings its own::

            where = caches[0].at(slots=slot_mapping)
            call = rope.prepare_qk(q, k, positions, v=v, cache=where, norms=norms[0])
            for cache, own in zip(caches, norms):
                ...
                q, _ = call.apply_qk(q, k, v=v, cache=cache, norms=own)   # or call.apply_qk_(..), q in place

        Args:
            v, cache, rest: examples, and the cache of any layer: where it says that tokens go is read now.
            norms: those of any layer, weights and biases [channels] or [heads, channels] of float32, float16
                or bfloat16, which are examples like q. Kind, eps, span, order and rounding are those of all
                layers; weight, bias and rstd each layer brings, in the shapes, dtypes and strides of these.
            scales: of one value they are those of all layers; of arrays each layer brings its own.
            out: examples of the outputs, if those of the calls will have other strides than new
                arrays have, such as a part of a cache; (q, k) for calls in place, or (q, None) where k
                goes to a cache. Without it the calls make new arrays, and work in place where q and k
                have the strides of these, which parts of a packed QKV have not.
            options: those of apply_qk.

        Raises:
            TypeError: JAX arrays, which apply_qk takes.
            NotImplementedError: torch tensors under a gradient, in compiled code or under a
                transform, where PyTorch would not see the rotation; CUDA arrays. apply_qk takes them.
                Norms with operation "backward".
            MemoryError: no memory for 8 to 32 bytes per token and pair. Otherwise as apply_qk.
        """
        check_options("prepare_qk", options, PrepareOptions.__optional_keys__)
        if v is cache is rest is None and norms is None and scales is None:
            return prepare_call(self, Call(q, k, positions, **options), *pair(out))
        call = Call(
            q, k, positions, v, checked(cache), checked_norms(norms), rest=rest, scales=checked_scales(scales), **options
        )
        return prepare_append(self, call, outputs(out, call))
