"""The operator librope::move_ of PyTorch: what compiled and exported code, and dispatch modes, have of Rope.move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arrays
from ._call import unavailable
from ._ffi import ffi
from ._kv_cache import KVCache
from ._move import check_memory, describe_cache, memory_of, parts_of
from ._operators import FLOPS, define, refuse_lost_gradients, rope_of
from ._rules import INTEGERS, POSITIONS, cache_axes, check_dtype, check_vector, order_of_positions
from ._scale import given_and_computed, scale_arrays, scales_from, text_of_scales
from ._tensor_arguments import cache_arguments, refuse_dtensors, tensor_of
from ._template import Template
from ._watch import refuse_move, refuse_saved_mutation

_functorch_active = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_PLACE = ("slots", "page_table", "page_starts", "starts")
_CACHE = 3 + len(_PLACE)  # the arguments of a cache
_SCHEMA = ", ".join([
    "Tensor(a!) cache_k, Tensor(b!)? cache_v, str cache_layout", *[f"Tensor? {x}" for x in _PLACE],
    "Tensor? source_k, Tensor? source_v, str source_layout", *[f"Tensor? source_{x}" for x in _PLACE],
    "Tensor positions, Tensor from_positions, str spec, str positions_layout",
    "Tensor? cu_seqlens=None, Tensor? freq_sets=None, Tensor? from_freq_sets=None",
    "str scales='', Tensor? k_scale=None, Tensor? v_scale=None, Tensor(c!)? k_scale_out=None, Tensor(d!)? v_scale_out=None",
    "str source_scales='', Tensor? source_k_scale=None, Tensor? source_v_scale=None",
])  # fmt: skip
_NO_MORE = (*(None,) * 3, "", *(None,) * 4, "", None, None)
_NUMBERS = {"cu_seqlens", "freq_sets", "from_freq_sets", *_PLACE}


def _cache_of(arguments: tuple[Any, ...], text: str, data: Any) -> KVCache | None:
    """data: the arrays of scales that are given, and behind them those that are computed. None: without a layout."""
    k, v, layout, *places = arguments
    if not layout:
        return None
    axes: Any = tuple(layout.split(",")) if "," in layout else layout
    k_scale, v_scale = scales_from(text, data) or (None, None)
    return KVCache(k, v, layout=axes, k_scale=k_scale, v_scale=v_scale, **dict(zip(_PLACE, places, strict=True)))


def _call_of(arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The Rope, and the arguments of Rope._move, of those of the operator, which may end without the last ones."""
    positions, from_positions, spec, order, *given = arguments[2 * _CACHE :]
    more: Any = (*given, *_NO_MORE[len(given) :])
    written = _cache_of(arguments[:_CACHE], more[3], more[4:8])
    read = _cache_of(arguments[_CACHE : 2 * _CACHE], more[8], (*more[9:], None, None))
    return rope_of(spec), (written, read, positions, from_positions, *more[:3], order or None, None)


def move_(*arguments: Any) -> None:
    refuse_lost_gradients("move_", arguments)
    rope, call = _call_of(arguments)
    rope._move(*call)  # what it gives would announce a write that is announced elsewhere


def _arrays_of(role: str, cache: KVCache | None) -> dict[str, Any]:
    """All arrays of a cache by the names that messages have."""
    if cache is None:
        return {}
    names = (f"{role}.k", f"{role}.v", *[f"data of {x}_scale of the {role}" for x in "kv"])
    named = dict(zip(names, memory_of(cache), strict=False))
    return {**named, **{f"{x} of the {role}": getattr(cache, x) for x in _PLACE}}


def _move_fake(*arguments: Any) -> None:
    """What can be wrong without looking at sizes that may be symbols, said while tracing."""
    rope, (written, read, positions, from_positions, cu_seqlens, freq_sets, from_freq_sets, layout, _) = _call_of(arguments)
    caches = {"cache": written, "source": written if read is None else read}
    named = {
        **_arrays_of("cache", written), **_arrays_of("source", read), "positions": positions,
        "from_positions": from_positions, "cu_seqlens": cu_seqlens, "freq_sets": freq_sets, "from_freq_sets": from_freq_sets,
    }  # fmt: skip
    for name, x in named.items():
        if x is not None and x.device.type != written.k.device.type:
            raise TypeError(f"{name} is on {x.device}, and cache.k on {written.k.device}: they must be on one device")
        if x is not None and _kind(name) in _NUMBERS:
            check_dtype(name, _arrays.torch_dtype(x), INTEGERS)
    order = rope._order_of_ids(tuple(positions.shape), layout)
    for name in ("positions", "from_positions"):
        check_dtype(name, _arrays.torch_dtype(named[name]), POSITIONS)
        if named[name].dim() != len(order):
            raise ValueError(f"{name} has shape {tuple(named[name].shape)}, which is not positions_layout {order!r}")
    for role, cache in caches.items():
        for part in parts_of(cache):
            check_memory(role, part, _meta(getattr(cache, part[0]), f"{role}.{part[0]}"), rope._dims)
    if all(x is None or (type(x) in (Tensor, torch.nn.Parameter) and x.is_meta) for x in named.values()):
        _check_sizes(rope, caches, named, order)


def _kind(name: str) -> str:
    """Of a name as messages have it."""
    return name.partition(" ")[0]


def _meta(x: Any, name: str) -> Any:
    if x is None:
        return None
    shape, strides, dtype = _arrays.torch_meta(x, name)
    copied = dtype == "int64" and _kind(name) in _NUMBERS and _kind(name) != "slots"  # by calls on memory
    return shape, strides, "int32" if copied else dtype


def _check_sizes(rope: Any, caches: dict[str, Any], named: dict[str, Any], order: str) -> None:
    """Tensors of the device meta keep the rules of shapes that others keep."""
    metas = {name: _meta(x, name) for name, x in named.items()}
    sizes = dict(zip(order, metas["positions"][0], strict=True))
    sequences = batch = sizes.get("b", 1)
    tokens = sizes["t"]
    if metas["cu_seqlens"] is not None:
        check_vector("cu_seqlens", metas["cu_seqlens"][0], metas["cu_seqlens"][2], ("int32",), None)
        sequences = metas["cu_seqlens"][0][0] - 1
    for name in ("positions", "from_positions"):
        expected = {"a": rope.axes, "b": batch, "t": tokens}
        order_of_positions(metas[name][0], metas[name][2], order, "b" in order, expected)
    for name in ("freq_sets", "from_freq_sets"):
        if metas[name] is not None:
            check_vector(name, metas[name][0], metas[name][2], ("int32",), sequences)
    template = Template(ffi.NULL, ffi.NULL, batch, tokens, (), None)
    for role, cache in caches.items():
        arrays = [_meta(getattr(cache, name), name) for name in ("k", "v", *_PLACE)]
        scales = [_meta(x, "data") for x in scale_arrays(cache._scales) or (None, None)]
        describe_cache(role, cache, (None, None, *arrays), scales, template, sequences, rope._dims)


move_op = define(f"move_({_SCHEMA}) -> ()", move_, _move_fake)


def move(
    rope: Any, written: KVCache, read: KVCache | None, positions: Any, from_positions: Any, cu_seqlens: Any,
    freq_sets: Any, from_freq_sets: Any, positions_layout: str | None, pool: Any,
) -> None:  # fmt: skip
    """Rope.move of torch tensors where PyTorch must see it: compiled code, dispatch modes."""
    named = {**_arrays_of("cache", written), **_arrays_of("source", read)}
    refuse_dtensors((*named.values(), positions, from_positions))
    refuse_move((*named.values(), positions, from_positions))
    where = "torch.compile or a dispatch mode"
    if pool is not None:
        raise unavailable("pool", where)
    if _functorch_active():
        raise NotImplementedError("move is not available under torch.func: call it outside")
    if not _is_compiling() and _is_tracing():  # Dynamo of torch 2.11 knows no _is_tracing()
        raise NotImplementedError("torch.jit.trace does not record moves, which write into a cache")
    for name in ("cache.k", "cache.v", "source.k", "source.v", *[x for x in named if x.startswith("data")]):
        x = named.get(name)
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__qualname__} beside torch tensors: {where} needs a tensor")
        if x is not None and (x.layout is not torch.strided or x.is_nested):
            raise _arrays.not_strided(x, name)
    k = written.k
    ids = [_tensor(positions, "positions", k), _tensor(from_positions, "from_positions", k)]
    vectors = [
        None if x is None else _tensor(x, name, k)
        for name, x in (("cu_seqlens", cu_seqlens), ("freq_sets", freq_sets), ("from_freq_sets", from_freq_sets))
    ]

    def sequences() -> Any:
        if vectors[0] is not None:
            return vectors[0].numel() - 1
        order = rope._order_of_ids(tuple(ids[0].shape), positions_layout)
        return ids[0].shape[order.index("b")] if "b" in order else 1

    refuse_saved_mutation("moves are", "move outside of it")
    move_op(
        *cache_arguments(written, k, sequences), *cache_arguments(read, k, sequences), *ids, rope.spec,
        positions_layout or "", *vectors, text_of_scales(written._scales),
        *given_and_computed(written._scales or (None, None)),
        *("", None, None) if read is None else (text_of_scales(read._scales), *(scale_arrays(read._scales) or (None, None))),
    )  # fmt: skip


def _tensor(values: Any, name: str, x: Tensor) -> Tensor:
    made = values if isinstance(values, (int, torch.SymInt)) else tensor_of(values, name, x)
    if not isinstance(made, Tensor):
        raise TypeError(f"{name} is {made}, and must be an array, list or range")
    return made


def _flops(cache_k: Any, cache_v: Any, layout: str, *rest: Any, **options: Any) -> int:
    """Those of the keys of every token, as of other calls."""
    ids, order = rest[2 * _CACHE - 3], rest[2 * _CACHE]
    heads = cache_axes(layout.partition(",")[0])[1]
    size: int = 3 * cache_k[-1] * (1 if heads is None else cache_k[heads])
    for letter, n in zip(order or "bt"[-len(ids) :], ids, strict=True):
        size *= 1 if letter == "a" else n
    return size


FLOPS[torch.ops.librope.move_] = _flops
