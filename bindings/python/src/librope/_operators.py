"""The operators librope::* of PyTorch: what compiled, exported and transformed code records.

PyTorch can see, fake and cache them. They name the configuration by its text, not by a handle, so
that an exported or cached graph means the same in another process, which needs `import librope.torch`
to know them.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from . import _arrays
from ._call import Call
from ._conventions import OPERATION_NAMES
from ._core import arrays_of
from ._fused import FusedKey, add_fused, add_norms
from ._kv_cache import NAMES as _BESIDE
from ._kv_cache import KVCache
from ._norm import NAMES as NORM_NAMES
from ._norm import norms_from
from ._rope import Rope
from ._rows import fill, shape_of_rows
from ._rules import (
    axes_of,
    both_layouts,
    cache_axes,
    check_alike,
    check_cache,
    check_channels,
    check_dtype,
    check_output_heads,
)
from ._scale import DATA_NAMES, STORED, apart, check_codes, scale_arrays, scale_forms, scales_from
from ._shard import Shard
from ._template import Key, make_template
from ._watch import announce

#: Before the text of a shard, which stands where positions_layout does: a call has one of the two.
SHARD = "shard "
#: Before all of that, with a space behind it: batch_repeat.
REPEAT = "repeat "

_library = torch.library.Library("librope", "DEF")
# Without the strides of the traced code Inductor would undo a user's own contiguous().
_STRIDES = getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order
_TAGS = (torch.Tag.pt2_compliant_tag, _STRIDES)
CALL_SCHEMA = (
    "Tensor? positions, SymInt offset, str spec, str layout, int operation, bool offsets, "
    "str positions_layout, Tensor? cu_seqlens=None, Tensor? freq_sets=None"
)
_STORE = (
    "Tensor? q, Tensor? k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_out, Tensor(c!)? v_out, "
    "Tensor(d!)? cache_k, Tensor(e!)? cache_v, str cache_layout, Tensor? slots, Tensor? page_table, "
    "Tensor? page_starts, Tensor? starts"
)
# The arrays of norms, in the order of _norm.NAMES, and what else they are.
NORMS_SCHEMA = ", ".join(f"Tensor? {x}_{array}" for x in "qkv" for array in ("weight", "bias", "rstd")) + ", str norms"
_SCALED = [f"{x}_scale" for x in ("q", "k", "cache_k", "v", "cache_v", "rest")]  # in the order of _scale.NAMES
# Behind the others, which calls without them do not name: those that are read, and those that are computed.
_MORE = ", ".join([
    "Tensor? rest=None", "Tensor(f!)? rest_out=None", "str scales=''", *[f"Tensor? {x}=None" for x in _SCALED],
    *[f"Tensor({letter}!)? {x}_out=None" for letter, x in zip("ghijkl", _SCALED, strict=True)],
])  # fmt: skip
_NO_MORE: tuple[Any, ...] = (None, None, "", *(None,) * 2 * len(_SCALED))
#: Behind the others of a call that makes new q, k and v: values, and how often heads of k and v are written in a row.
VALUES_SCHEMA = "Tensor? v=None, int kv_repeat=1"
_ROWS = "Tensor cos, Tensor? sin, str spec, str layout, int operation, str format"
_ropes: dict[str, Rope] = {}
_KEPT = 256  # Ropes; those of dynamic NTK are others for each length


def rope_of(spec: str) -> Rope:
    """The Rope of a text made by Rope.spec."""
    rope = _ropes.get(spec)
    if rope is None:
        if len(_ropes) >= _KEPT:
            _ropes.clear()
        fields = json.loads(spec)
        if isinstance(fields, list):
            rope = Rope.sets([Rope.from_fields(f) for f in fields])
        else:
            rope = Rope.from_fields(fields)
        _ropes[spec] = rope
    return rope


def pair(tensors: Any) -> tuple[Any, Any]:
    return (tensors[0], tensors[1] if len(tensors) > 1 else None)


def q_and_k(tensors: Any, layout: str) -> tuple[Any, Any]:
    """Which of them those of a call are: a layout that begins with a comma is that of k alone."""
    return (None, tensors[0]) if layout[:1] == "," and len(tensors) == 1 else pair(tensors)


def new(tensors: Any) -> list[Tensor]:
    return [_arrays.empty_like(x, "q") for x in tensors]


def repeated(x: Any, name: str, layout: str, count: int, back: bool = False) -> Any:
    """A new tensor like x, with each of its heads count times in a row; back: of which x has each so often."""
    if x is None or count == 1:
        return None if x is None else _arrays.empty_like(x, name)
    at = axes_of(layout)[2]
    if at is None:
        raise ValueError(f"kv_repeat is {count}, and {name} has layout {layout!r}, without an axis of heads")
    shape = list(x.shape)
    shape[at] = shape[at] // count if back else shape[at] * count
    return x.new_empty(shape)


def _layout_of(text: str) -> Any:
    of_q, comma, of_k = text.partition(",")
    return (of_q, of_k) if of_q and comma else of_q or of_k or None


def _where_of(positions_layout: str) -> Any:
    """The fields of a Call, and of a Key, that this text stands for."""
    repeat = None
    if positions_layout.startswith(REPEAT):
        count, _, positions_layout = positions_layout.removeprefix(REPEAT).partition(" ")
        repeat = int(count)
    if positions_layout.startswith(SHARD):
        return {"shard": Shard.of_text(positions_layout.removeprefix(SHARD)), "batch_repeat": repeat}
    return {"positions_layout": positions_layout or None, "batch_repeat": repeat}


def call_of(
    tensors: Any, positions: Tensor | None, offset: int, spec: str, layout: str, operation: int,
    offsets: bool, positions_layout: str, cu_seqlens: Tensor | None = None,
    freq_sets: Tensor | None = None,
) -> tuple[Rope, Call]:  # fmt: skip
    where: Any = {"offsets": positions}
    if not offsets:
        where = {"positions": offset if positions is None else positions}
    where |= _where_of(positions_layout)
    call = Call(
        *q_and_k(tensors, layout), layout=_layout_of(layout), operation=OPERATION_NAMES[operation],
        cu_seqlens=cu_seqlens, freq_sets=freq_sets, **where,
    )  # fmt: skip
    return rope_of(spec), call


def apply(tensors: list[Tensor], *rest: Any) -> list[Tensor]:
    out = new(tensors)
    rope, call = call_of(tensors, *rest)
    rope._run(call, *q_and_k(out, rest[3]))
    return out


def refuse_lost_gradients(name: str, tensors: Any) -> None:
    """Of an operator that writes, which takes no formula: a graph may be recorded without a gradient and run with one,
    which PyTorch would lose."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors):
        raise NotImplementedError(
            f"no gradient goes through librope::{name}, which writes into its tensors, and one of them requires a "
            "gradient: run the graph under torch.no_grad(), or record one that makes new tensors"
        )


def apply_(tensors: list[Tensor], *rest: Any) -> None:
    refuse_lost_gradients("apply_", (*tensors, *rest))
    rope, call = call_of(tensors, *rest)
    rope._run(call)


def _more_of(rest: tuple[Any, ...]) -> Any:
    """The arguments of _MORE, behind those of norms and of the call, which may end without them."""
    given = rest[19:]
    return (*given, *_NO_MORE[len(given) :])


def apply_fused_(
    q: Any, k: Any, v: Any, q_out: Any, k_out: Any, v_out: Any, cache_k: Any, cache_v: Any,
    cache_layout: str, slots: Any, page_table: Any, page_starts: Any, starts: Any, *rest: Any,
) -> None:  # fmt: skip
    """q_out and k_out: what is written, q and k themselves in place; of k None where it is stored alone."""
    refuse_lost_gradients("apply_fused_", (q, k, v, q_out, k_out, v_out, cache_k, cache_v, *rest))
    x, out, text, *arrays = _more_of(rest)
    scales, (k_scale, v_scale) = apart(scales_from(text, arrays))
    cache = None
    if cache_layout:
        cache = KVCache(
            cache_k, cache_v, layout=_layout_of(cache_layout), k_scale=k_scale, v_scale=v_scale, slots=slots,
            page_table=page_table, page_starts=page_starts, starts=starts,
        )  # fmt: skip
    rope, call = call_of((q, k), *rest[10:19])
    norms = norms_from(rest[9], rest[:9])
    rope._run(call._replace(v=v, cache=cache, norms=norms, rest=x, scales=scales), q_out, k_out, v_out, out)


def values_of(rest: tuple[Any, ...]) -> Any:
    """v and kv_repeat, behind the arguments of norms and of the call, which may end without them."""
    given = rest[19:]
    return (*given, *(None, 1)[len(given) :])


def _outputs_of(q: Any, k: Any, v: Any, kv_repeat: int, layout: str) -> tuple[Any, Any, Any]:
    q_layout, k_layout = both_layouts(_layout_of(layout))
    return (
        repeated(q, "q", q_layout, 1), repeated(k, "k", k_layout, kv_repeat), repeated(v, "v", k_layout, kv_repeat)
    )  # fmt: skip


def apply_normed(q: Any, k: Any, *rest: Any) -> list[Tensor]:
    """A call with norms, v or repeated heads, without a cache, in new tensors: those of q, k and v that are given."""
    v, kv_repeat = values_of(rest)
    rope, call = call_of((q, k), *rest[10:19])
    out = _outputs_of(q, k, v, kv_repeat, rest[13])
    rope._run(call._replace(v=v, norms=norms_from(rest[9], rest[:9])), *out)
    return [x for x in out if x is not None]


def parts_of_packed(x: Tensor, heads: int, kv_heads: int, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a tensor that has their heads one after the other."""
    at = axes_of(layout)[2]
    assert at is not None
    return (
        x.narrow(at, 0, heads), x.narrow(at, heads, kv_heads), x.narrow(at, heads + kv_heads, kv_heads)
    )  # fmt: skip


def apply_packed(qkv: Tensor, heads: int, kv_heads: int, kv_repeat: int, *rest: Any) -> list[Tensor]:
    """The same of q, k and v that are parts of one tensor."""
    q, k, v = parts_of_packed(qkv, heads, kv_heads, rest[13])
    return apply_normed(q, k, *with_defaults(rest), v, kv_repeat)


def with_defaults(rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of norms and of a call, which may end without cu_seqlens and freq_sets."""
    return (*rest, *(None,) * (19 - len(rest)))


def apply_rows(
    tensors: list[Tensor], cos: Tensor, sin: Tensor | None, spec: str, layout: str, operation: int,
    format: str,
) -> list[Tensor]:  # fmt: skip
    out = new(tensors)
    call = Call(
        *q_and_k(tensors, layout), layout=_layout_of(layout), operation=OPERATION_NAMES[operation],
        cos_sin=(cos, sin), cos_sin_format=format,
    )  # fmt: skip
    rope_of(spec)._run(call, *q_and_k(out, layout))
    return out


def _check_channels(tensors: Any, spec: str) -> None:
    """What can be wrong without looking at sizes that may be symbols, said while tracing."""
    rope = rope_of(spec)
    for name, x in zip("qk", tensors, strict=False):
        if x is not None:
            check_channels(name, x.shape[-1], rope._dims)
            check_dtype(name, _arrays.torch_dtype(x))


def _check_devices(tensors: Any, **others: Tensor | None) -> None:
    """Meta tensors beside others come here, too, and would get a result that nobody has written."""
    of, first = next((name, x.device) for name, x in zip("qk", tensors, strict=False) if x is not None)
    for name, x in (*zip("qk", tensors, strict=False), *others.items()):
        if x is not None and x.device.type != first.type:
            raise TypeError(f"{name} is on {x.device}, and {of} on {first}: they must be on one device")


_INT32 = {"cu_seqlens", "freq_sets", "page_table", "page_starts", "starts"}


def _check_meta(
    tensors: Any, more: dict[str, Any] | None = None, normed: Any = None, scales: Any = None, **fields: Any
) -> None:
    """Tensors of the device meta keep the rules of shapes that others keep.

    Not fake ones, which are on the device that they stand for: their sizes may be symbols.
    more: of a FusedKey. normed: forms of norms, and their arrays by name. scales: of a call, as one tuple.
    """
    forms, arrays = normed or ("", {})
    data = dict(zip(DATA_NAMES, scale_arrays(scales), strict=False))
    named = {**dict(zip("qk", tensors, strict=False)), **fields, **(more or {}), **arrays, **data}
    given = {name: x for name, x in named.items() if isinstance(x, Tensor)}
    if any(type(x) not in (Tensor, torch.nn.Parameter) or not x.is_meta for x in given.values()):
        return
    metas = {name: _arrays.torch_meta(x, name) for name, x in given.items()}
    for name in _INT32.intersection(metas):  # calls on memory copy int64 and lists
        shape, strides, dtype = metas[name]
        metas[name] = (shape, strides, "int32" if dtype == "int64" else dtype)
    fields = {"k": None, "q_out": None, "k_out": None, **named, **metas}
    rope = rope_of(fields.pop("spec"))
    beside = {name: fields.pop(name) for name in more or {}}
    of_norms = [fields.pop(name) for name in arrays]
    of_scales = tuple(fields.pop(name) for name in data)
    key = Key(**{**fields, "layout": _layout_of(fields["layout"])})
    template = make_template(key, rope._dims, rope.pairs, rope.axes)
    if more is not None:
        if scales is not None:
            beside.update(scales=scale_forms(scales), scale_data=of_scales)
        template = add_fused(template, key, FusedKey(**beside), rope._dims)
    if forms:
        add_norms(template, forms, of_norms)


def _check_call(
    tensors: Any, positions: Tensor | None, spec: str, layout: str, operation: int,
    offsets: bool, positions_layout: str, cu_seqlens: Tensor | None, freq_sets: Tensor | None,
) -> None:  # fmt: skip
    tensors = q_and_k(tensors, layout)
    _check_channels(tensors, spec)
    where = {"offsets" if offsets else "positions": positions}
    _check_devices(tensors, **where, cu_seqlens=cu_seqlens, freq_sets=freq_sets)
    _check_meta(
        tensors, positions=positions, spec=spec, layout=layout, operation=operation, offsets=offsets,
        cu_seqlens=cu_seqlens, freq_sets=freq_sets, **_where_of(positions_layout),
    )  # fmt: skip


def _apply_in_place_fake(
    tensors: list[Tensor], positions: Any, offset: Any, spec: str, layout: str, operation: int,
    offsets: bool, positions_layout: str, cu_seqlens: Any = None, freq_sets: Any = None,
) -> None:  # fmt: skip
    _check_call(
        tensors, positions, spec, layout, operation, offsets, positions_layout, cu_seqlens, freq_sets
    )


def _check_output(of: str, x: Tensor, out: Tensor, layout: str, operation: str) -> None:
    """What can be wrong without looking at sizes that may be symbols."""
    name, h = f"out of {of}", axes_of(layout)[2]
    check_dtype(name, _arrays.torch_dtype(out), STORED)
    if out.dim() != x.dim():
        raise ValueError(f"{name} has shape {tuple(out.shape)}, which is not {layout!r}")
    if h is not None:
        check_output_heads(name, out.shape[h], of, x.shape[h], operation)


def _apply_fused_fake(
    q: Any, k: Any, v: Any, q_out: Any, k_out: Any, v_out: Any, cache_k: Any, cache_v: Any,
    cache_layout: str, slots: Any, page_table: Any, page_starts: Any, starts: Any, *rest: Any,
) -> None:  # fmt: skip
    arrays, forms = dict(zip(NORM_NAMES, rest[:9], strict=True)), rest[9]
    (
        positions, _, spec, layout, operation, offsets, positions_layout, cu_seqlens, freq_sets,
    ) = (*rest[10:19], None, None)[:9]  # fmt: skip
    x, x_out, text, *data = _more_of(rest)
    scales = scales_from(text, data)
    _check_channels((q, k), spec)
    beside = {
        "v": v, "v_out": v_out, "cache_k": cache_k, "cache_v": cache_v, "slots": slots,
        "page_table": page_table, "page_starts": page_starts, "starts": starts,
    }  # fmt: skip
    where = {"offsets" if offsets else "positions": positions}
    named = {
        **dict(zip(_BESIDE, beside.values(), strict=True)), "out of q": q_out, "out of k": k_out, "rest": x,
        "out of rest": x_out, **dict(zip(DATA_NAMES, scale_arrays(scales), strict=False)),
    }  # fmt: skip
    beside.update(rest=x, rest_out=x_out)
    _check_devices((q, k), **where, cu_seqlens=cu_seqlens, freq_sets=freq_sets, **named, **arrays)
    name = OPERATION_NAMES[operation]
    q_layout, k_layout = both_layouts(_layout_of(layout))
    for of, one, out, axes in (
        ("q", q, q_out, q_layout), ("k", k, k_out, k_layout), ("v", v, v_out, k_layout),
        ("rest", x, x_out, k_layout if q is None else q_layout),
    ):  # fmt: skip
        if one is not None and out is not None:
            _check_output(of, one, out, axes, name)
    outs = (q_out, k_out, cache_k, v_out, cache_v, x_out)
    check_codes([None if y is None else _arrays.torch_dtype(y) for y in outs], scales)
    given = _layout_of(cache_layout)
    caches = both_layouts(given)
    for i, (name, memory, other, like) in enumerate((("cache.k", cache_k, "k", k), ("cache.v", cache_v, "v", v))):
        if memory is not None and like is not None:
            check_dtype(name, _arrays.torch_dtype(memory), STORED)
            check_cache(name, memory.shape, caches[i])
            shape, dtype = tuple(like.shape), _arrays.torch_dtype(like)
            heads = cache_axes(caches[i])[1]
            check_alike(name, memory.shape, heads, other, (shape, (), dtype), k_layout)
    _check_meta(
        (q, k), {**beside, "cache_layout": given}, (forms, arrays), scales, q_out=q_out, k_out=k_out,
        positions=positions, spec=spec, layout=layout, operation=operation, offsets=offsets,
        cu_seqlens=cu_seqlens, freq_sets=freq_sets, **_where_of(positions_layout),
    )  # fmt: skip


def _apply_normed_fake(q: Any, k: Any, *rest: Any) -> list[Tensor]:
    v, kv_repeat = values_of(rest)
    out = _outputs_of(q, k, v, kv_repeat, rest[13])
    _apply_fused_fake(q, k, v, *out, None, None, "", *(None,) * 4, *rest[:19])
    return [x for x in out if x is not None]


def _apply_packed_fake(qkv: Tensor, heads: int, kv_heads: int, kv_repeat: int, *rest: Any) -> list[Tensor]:
    q, k, v = parts_of_packed(qkv, heads, kv_heads, rest[13])
    return _apply_normed_fake(q, k, *with_defaults(rest), v, kv_repeat)


def _apply_fake(tensors: list[Tensor], *rest: Any) -> list[Tensor]:
    _apply_in_place_fake(tensors, *rest)
    return new(tensors)


def _apply_rows_fake(
    tensors: list[Tensor], cos: Tensor, sin: Any, spec: str, layout: str, operation: int, format: str
) -> list[Tensor]:
    given = q_and_k(tensors, layout)
    _check_channels(given, spec)
    _check_devices(given, cos=cos, sin=sin)
    _check_meta(
        given, cos=cos, sin=sin, spec=spec, layout=layout, operation=operation,
        cos_sin_format=format,
    )  # fmt: skip
    return new(tensors)


def _new_rows(
    positions: Tensor, spec: str, format: str, dtype: str, positions_layout: str, batch: int | None = None,
    tokens: int | None = None,
) -> list[Tensor]:  # fmt: skip
    shape = shape_of_rows(
        tuple(positions.shape), _arrays.torch_dtype(positions), positions_layout or None,
        rope_of(spec), format, batch, tokens,
    ).out  # fmt: skip
    kind = getattr(torch, dtype)
    return [positions.new_empty(shape, dtype=kind) for _ in range(arrays_of(format))]


def cos_sin(
    positions: Tensor, spec: str, format: str, dtype: str, positions_layout: str, batch: int | None = None,
    tokens: int | None = None,
) -> list[Tensor]:  # fmt: skip
    out = _new_rows(positions, spec, format, dtype, positions_layout, batch, tokens)
    fill(
        rope_of(spec), positions, format, dtype, tuple(out) if len(out) > 1 else out[0],
        positions_layout or None, batch, tokens,
    )  # fmt: skip
    return out


def define(schema: str, implementation: Any, fake: Any) -> Any:
    """A new operator."""
    _library.define(schema, tags=_TAGS)
    name = schema.partition("(")[0]
    for device in ("CPU", "CUDA"):
        _library.impl(name, implementation, device)
    torch.library.register_fake(f"librope::{name}", fake, lib=_library)
    op = getattr(torch.ops.librope, name).default
    written = [i for i, x in enumerate(op._schema.arguments) if x.alias_info is not None and x.alias_info.is_write]
    if written:
        _library.impl(name, _announcing(op, written), "ADInplaceOrView", with_keyset=True)
    return op


def _announcing(op: Any, written: list[int]) -> Any:
    """An operator that has written when it tells autograd so, whoever calls it: graphs are replayed without librope."""

    def call(keyset: Any, *arguments: Any) -> None:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *arguments)
        for i in written:
            x = arguments[i] if i < len(arguments) else None
            announce(*x if isinstance(x, (list, tuple)) else (x,))

    return call


apply_op = define(f"apply(Tensor[] tensors, {CALL_SCHEMA}) -> Tensor[]", apply, _apply_fake)
apply_in_place_op = define(f"apply_(Tensor(a!)[] tensors, {CALL_SCHEMA}) -> ()", apply_, _apply_in_place_fake)
apply_fused_op = define(
    f"apply_fused_({_STORE}, {NORMS_SCHEMA}, {CALL_SCHEMA}, {_MORE}) -> ()", apply_fused_, _apply_fused_fake
)
apply_normed_op = define(
    f"apply_normed(Tensor? q, Tensor? k, {NORMS_SCHEMA}, {CALL_SCHEMA}, {VALUES_SCHEMA}) -> Tensor[]",
    apply_normed, _apply_normed_fake,
)  # fmt: skip
apply_packed_op = define(
    f"apply_packed(Tensor qkv, int heads, int kv_heads, int kv_repeat, {NORMS_SCHEMA}, {CALL_SCHEMA}) -> Tensor[]",
    apply_packed, _apply_packed_fake,
)  # fmt: skip
apply_rows_op = define(f"apply_rows(Tensor[] tensors, {_ROWS}) -> Tensor[]", apply_rows, _apply_rows_fake)
cos_sin_op = define(
    "cos_sin(Tensor positions, str spec, str format, str dtype, str positions_layout, SymInt? batch=None, "
    "SymInt? tokens=None) -> Tensor[]",
    cos_sin, _new_rows,
)  # fmt: skip


def refuse_gradient(name: str, why: str) -> None:
    """Of an operator without one, through whose results PyTorch would let zeros go back."""

    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(why)

    torch.library.register_autograd(f"librope::{name}", backward, lib=_library)


refuse_gradient("cos_sin", "librope has no gradient with respect to positions: detach them")


def register_operator(name: str, backward: Any, setup_context: Any, vmap: Any) -> None:
    """Gradient and vmap of an operator that stands in a graph, without an autograd.Function."""
    name = f"librope::{name}"
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_library)
    torch.library.register_vmap(name, vmap, lib=_library)


# -- floating point operations, for torch.utils.flop_counter -----------------------------------------


def _flops(shapes: Any, *rest: Any, **options: Any) -> int:
    """Four products and two sums per pair of channels, whether it lies in the rotated span or not."""
    total = 0
    for shape in shapes:
        size = 1
        for n in shape:
            size *= n
        total += 3 * size
    return total


def flops_fused(q: Any, k: Any, *rest: Any, **options: Any) -> int:
    return _flops([shape for shape in (q, k) if shape is not None])


def _flops_packed(qkv: Any, heads: int, kv_heads: int, *rest: Any, **options: Any) -> int:
    size = 3
    for n in qkv:
        size *= n
    return size // (heads + 2 * kv_heads) * (heads + kv_heads)


#: For FlopCounterMode(custom_mapping=librope.torch.FLOPS), which by itself counts no RoPE.
FLOPS = {
    torch.ops.librope.apply: _flops,
    torch.ops.librope.apply_: _flops,
    torch.ops.librope.apply_fused_: flops_fused,
    torch.ops.librope.apply_normed: flops_fused,
    torch.ops.librope.apply_packed: _flops_packed,
    torch.ops.librope.apply_rows: _flops,
}
