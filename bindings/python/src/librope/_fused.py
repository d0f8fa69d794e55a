"""What a call does besides rotating q and k: templates of rope_fused and rope_kv_cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._arrays import Meta
from ._conventions import OPERATION_NAMES, is_gradient
from ._core import DTYPES, NORM_KINDS, NORM_ORDERS, NORM_ROUNDINGS, NORM_SPANS
from ._ffi import ffi, lib
from ._norm import NAMES as NORM_NAMES
from ._rules import (
    Sizes,
    axes_of,
    both_layouts,
    cache_axes,
    check_alike,
    check_cache,
    check_channels,
    check_dtype,
    check_output_heads,
    check_page_table,
    check_slots,
    check_strides,
    check_vector,
    contiguous,
)
from ._scale import NAMES as SCALE_NAMES
from ._scale import STORED, ScaleForms, fill_scale, in_channels
from ._template import MARK, Key, Template, describe
from ._types import CacheLayout


class FusedKey(NamedTuple):
    """All that decides these templates beside a Key; the arrays up to `starts` in the order of
    _kv_cache.NAMES."""

    v: Meta | None = None
    v_out: Meta | None = None
    cache_k: Meta | None = None
    cache_v: Meta | None = None
    slots: Meta | None = None
    page_table: Meta | None = None
    page_starts: Meta | None = None
    starts: Meta | None = None
    cache_layout: CacheLayout | None = None  # None: no cache
    rest: Meta | None = None
    rest_out: Meta | None = None
    scales: ScaleForms | None = None
    scale_data: tuple[Meta | None, ...] = (None,) * len(SCALE_NAMES)

    @classmethod
    def of(cls, arrays: Sequence[Meta | None], cache_layout: CacheLayout | None, **more: Any) -> FusedKey:
        """arrays: those up to `starts`."""
        named: dict[str, Any] = dict(zip(cls._fields, arrays, strict=False))
        return cls(**named, cache_layout=cache_layout, **more)


def _memory(struct: Any, meta: Meta, layout: str, name: str, other: str, like: Meta, like_layout: str) -> None:
    """Keys or values of a cache, which have the heads of those of the call."""
    shape, strides, dtype = meta
    check_cache(name, shape, layout)
    check_strides(name, shape, strides)
    n, h = cache_axes(layout)
    check_alike(name, shape, h, other, like, like_layout)
    struct.dtype = STORED[dtype]
    struct.layout = lib.ROPE_LAYOUT_STRIDED
    struct.heads = 1 if h is None else shape[h]
    struct.head_dim = shape[-1]
    struct.stride_batch, struct.stride_token = strides[0], strides[n]
    struct.stride_head = 0 if h is None else strides[h]


def place(cache: Any, key: FusedKey, template: Template, sequences: int) -> None:
    if key.slots is not None:
        shape, _, dtype = key.slots
        check_slots(shape, dtype, template.batch, template.tokens)
        contiguous("slots", key.slots)
        cache.kind = lib.ROPE_SLOTS_MAPPED
        setattr(cache, "slots_i64" if dtype == "int64" else "slots_i32", MARK)
        cache.slots_length = shape[0] * (shape[1] if len(shape) == 2 else 1)
        return
    assert key.starts is not None
    check_vector("starts", key.starts[0], key.starts[2], ("int32",), sequences)
    contiguous("starts", key.starts)
    cache.kind = lib.ROPE_SLOTS_LINEAR
    if key.page_table is None:
        return
    cache.kind = lib.ROPE_SLOTS_PAGED
    shape, _, dtype = key.page_table
    check_page_table(shape, dtype, sequences, key.page_starts is not None)
    contiguous("page_table", key.page_table)
    if key.page_starts is None:
        cache.page_table_stride = shape[1]
        return
    check_vector("page_starts", key.page_starts[0], key.page_starts[2], ("int32",), None)
    contiguous("page_starts", key.page_starts)
    if key.page_starts[0][0] != sequences + 1:
        raise ValueError(
            f"page_starts has {key.page_starts[0][0]} entries, and there are {sequences} sequences: it "
            "must have one more"
        )


def _rest_layout(key: Key) -> str:
    """rest has the axes of q, or without q those of k."""
    return both_layouts(key.layout)[int(key.q is None)]


def _copied(
    name: str, x: Meta | None, out: Meta | None, structs: Any, layout: str, sizes: Sizes, operation: str
) -> None:
    """v or rest, which do not turn, and an output of it."""
    if x is not None:
        describe(structs[0], x, layout, name, sizes, None)
    if out is not None:
        if x is None:
            raise ValueError(f"out has an array for {name}, which is None")
        describe(structs[1], out, layout, f"out of {name}", sizes, None, STORED)
        check_output_heads(f"out of {name}", structs[1].heads, name, structs[0].heads, operation)
        check_channels(f"out of {name}", structs[1].head_dim, (x[0][-1],) * 2)


def add_fused(template: Template, key: Key, more: FusedKey, dims: tuple[int, int]) -> Template:
    """The template of key with those of more. dims: head_dim and rotary_dim of the context."""
    fused = ffi.new("rope_fused*")
    fused.struct_size = ffi.sizeof("rope_fused")
    layout = both_layouts(key.layout)[1]  # v has the axes of k
    operation = OPERATION_NAMES[key.operation]
    sizes = Sizes()
    sizes.agree("b", template.batch, "k" if key.q is None else "q")
    sizes.agree("t", template.tokens, "k" if key.q is None else "q")
    _copied("v", more.v, more.v_out, (fused.v, fused.v_out), layout, sizes, operation)
    _copied("rest", more.rest, more.rest_out, (fused.rest, fused.rest_out), _rest_layout(key), sizes, operation)
    if more.v is not None and more.v_out is more.cache_v is None:
        raise ValueError("v has nowhere to go: cache= with a v, or out=(q_out, k_out, v_out); librope.torch.apply_qkv makes a new one")
    if more.rest is not None and more.rest_out is None:
        raise ValueError("rest has nowhere to go: out=(q_out, k_out, v_out, rest_out)")
    template = template._replace(fused=fused)
    if more.cache_layout is not None:
        template = _add_cache(template, key, more, dims)
    return template if more.scales is None else _add_scales(template, key, more)


def _add_cache(template: Template, key: Key, more: FusedKey, dims: tuple[int, int]) -> Template:
    cache = ffi.new("rope_kv_cache*")
    cache.struct_size = ffi.sizeof("rope_kv_cache")
    layout, layouts = both_layouts(key.layout)[1], both_layouts(more.cache_layout)  # type: ignore[arg-type]
    pages: dict[tuple[int, int], str] = {}
    for name, other, memory, array, struct, text in (
        ("cache.k", "k", more.cache_k, key.k, cache.k, layouts[0]),
        ("cache.v", "v", more.cache_v, more.v, cache.v, layouts[1]),
    ):
        if memory is None:
            continue
        if array is None:
            raise ValueError(f"{name} is an array, and {other} is None")
        check_dtype(name, memory[2], STORED)
        memory = in_channels(name, memory)
        _memory(struct, memory, text, name, other, array, layout)
        check_channels(name, memory[0][-1], dims if other == "k" else (array[0][-1],) * 2)
        pages[memory[0][0], memory[0][cache_axes(text)[0]]] = name
    if len(pages) > 1:
        (a, b), (c, d) = pages
        raise ValueError(f"cache.k has {a} pages of {b} slots, and cache.v {c} of {d}")
    ((cache.pages, cache.page_size),) = pages
    sequences = template.args.positions.sequences or template.batch
    place(cache, more, template, sequences)
    return template._replace(cache=cache)


def _add_scales(template: Template, key: Key, more: FusedKey) -> Template:
    """The template with the scales of its outputs and its cache."""
    assert more.scales is not None
    q_layout, k_layout = both_layouts(key.layout)
    args, fused, cache = template.args, template.fused, template.cache
    keys, values = both_layouts(more.cache_layout or "nd")
    scales = ffi.new("rope_scale[6]")
    outputs = (
        (args.q_out, key.q_out, axes_of(q_layout)),
        (args.k_out, key.k_out, axes_of(k_layout)),
        (cache and cache.k, more.cache_k, (0, *cache_axes(keys))),
        (fused.v_out, more.v_out, axes_of(k_layout)),
        (cache and cache.v, more.cache_v, (0, *cache_axes(values))),
        (fused.rest_out, more.rest_out, axes_of(_rest_layout(key))),
    )
    for i, (name, form, (tensor, meta, axes)) in enumerate(zip(SCALE_NAMES, more.scales, outputs, strict=True)):
        if form is None:
            continue
        assert meta is not None  # of check_codes()
        fill_scale(scales[i], form, more.scale_data[i], name, meta[0], axes)
        tensor.scale = scales + i
    return template._replace(scales=scales)


def _add_norm(norm: Any, form: str, names: tuple[str, ...], metas: Any, like: Any) -> None:
    """Fills a rope_norm of an array with these heads and channels. like: batch, tokens, heads and channels
    of its array; None: it has none, which the library says."""
    kind, eps, span, order, rounding = form.split(" ")
    norm.struct_size = ffi.sizeof("rope_norm")
    norm.kind, norm.eps = NORM_KINDS[kind], float(eps)
    norm.span, norm.order, norm.rounding = NORM_SPANS[span], NORM_ORDERS[order], NORM_ROUNDINGS[rounding]
    if like is None:
        return
    batch, tokens, heads, channels = like
    weight, bias, rstd = metas
    for name, meta in zip(names, (weight, bias), strict=False):
        if meta is None:
            continue
        shape, strides, dtype = meta
        check_dtype(name, dtype)
        if span != "head" and heads > 1 and shape == (channels,):
            raise ValueError(
                f"{name} has shape {shape}, and must have {(heads, channels)}: with span={span!r} each head has "
                "weights of its own"
            )
        if shape not in ((channels,), (heads, channels)):
            way = f": .view({heads}, -1) makes that of it" if shape == (heads * channels,) else ""
            raise ValueError(
                f"{name} has shape {shape}, and must have {(channels,)}, or {(heads, channels)} with rows "
                f"for each head{way}"
            )
        if channels > 1 and strides[-1] != 1:
            raise ValueError(f"{name} has strides {strides}: channels must be adjacent")
        if weight is not None and (shape, dtype) != (weight[0], weight[2]):
            raise ValueError(f"{name} is {dtype}{list(shape)}, and must be as {names[0]}, {weight[2]}{list(weight[0])}")
    if weight is not None:
        norm.weight_dtype = DTYPES[weight[2]]
        steps = [meta[1][0] for meta in (weight, bias) if meta is not None and len(meta[0]) == 2]
        if len(set(steps)) > 1:
            raise ValueError(f"{names[0]} has strides {weight[1]}, and {names[1]} {bias[1]}: they must agree")
        if steps and steps[0] < channels and heads > 1:
            raise ValueError(f"{names[0]} has strides {weight[1]}: rows must not overlap")
        norm.weight_stride_head = steps[0] if steps and heads > 1 else 0
    if rstd is not None:
        shape, _, dtype = rstd
        check_dtype(names[2], dtype, ("float32",))
        if shape not in ((batch, tokens), (batch * tokens,)):
            raise ValueError(f"{names[2]} has shape {shape}, and must have {(batch, tokens)}")
        contiguous(names[2], rstd)


def add_norms(template: Template, forms: str, metas: Any) -> Template:
    """The template with norms. forms: norm_forms(); metas: of what read_norms() gave."""
    norms = ffi.new("rope_norm[3]")
    args, fused = template.args, template.fused
    tensors = [args.q, args.k, fused.v]
    if is_gradient(OPERATION_NAMES[args.operation]):  # of heads that were repeated behind the norm
        outs = args.q_out, args.k_out, fused.v_out
        tensors = [out if out.dtype else x for x, out in zip(tensors, outs, strict=True)]
    for i, (form, tensor) in enumerate(zip(forms.split(","), tensors, strict=True)):
        if form:
            like = (template.batch, template.tokens, tensor.heads, tensor.head_dim) if tensor.dtype else None
            part = slice(3 * i, 3 * i + 3)
            _add_norm(norms[i], form, NORM_NAMES[part], metas[part], like)
    return template._replace(norms=norms)
