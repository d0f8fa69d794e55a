"""From shapes, strides and dtypes to a rope_qk_args without addresses, made once per combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ._arrays import Meta
from ._conventions import OPERATION_NAMES, rule_of
from ._core import COS_SIN_FORMATS, DTYPES, arrays_of, number, width_of
from ._ffi import ffi, lib
from ._rules import (
    Sizes,
    axes_of,
    both_layouts,
    check_batch_repeat,
    check_beside_rows,
    check_dtype,
    check_not_negative,
    check_offsets,
    check_output_heads,
    check_sequences,
    check_strides,
    check_tensor,
    check_vector,
    check_words,
    contiguous,
    order_of_positions,
)
from ._scale import STORED, in_channels
from ._shard import Shard

MARK = ffi.cast("void*", 64)  # "this array is used"; the call puts the address in


class Key(NamedTuple):
    """All that decides a template, but the context's own numbers."""

    q: Meta | None
    k: Meta | None
    q_out: Meta | None
    k_out: Meta | None
    layout: str | tuple[str, str]
    operation: int
    positions: Meta | None = None  # ids or offsets; None: an integer, or rows
    positions_layout: str | None = None
    offsets: bool = False
    cu_seqlens: Meta | None = None
    freq_sets: Meta | None = None
    cos: Meta | None = None
    sin: Meta | None = None
    cos_sin_format: str | None = None
    shard: Shard | None = None
    batch_repeat: int | None = None


class Template(NamedTuple):
    args: Any  # rope_qk_args*
    rows: Any  # rope_cos_sin* or NULL
    batch: int
    tokens: int
    forms: tuple[Meta | None, ...]  # of q, k and their outputs
    coordinates: Meta | None  # of float positions
    fused: Any = None  # rope_fused*, of a call that does more
    cache: Any = ffi.NULL  # rope_kv_cache* or NULL
    shard: Any = None  # rope_shard*, to which args points
    norms: Any = None  # rope_norm[3], of a call with norms
    scales: Any = None  # rope_scale[6], of a call with scales, to which args, fused and cache point


def describe(
    struct: Any, meta: Meta, layout: str, name: str, sizes: Sizes, dims: tuple[int, int] | None,
    allowed: Mapping[str, int] = DTYPES,
) -> None:  # fmt: skip
    """Fills a rope_tensor. dims, allowed: of check_tensor()."""
    shape, strides, dtype = in_channels(name, meta) if allowed is STORED else meta
    check_tensor(name, shape, dtype, layout, dims, sizes, allowed)
    check_strides(name, shape, strides)
    b, s, h = axes_of(layout)
    struct.dtype = allowed[dtype]
    struct.layout = lib.ROPE_LAYOUT_STRIDED
    struct.heads = 1 if h is None else shape[h]
    struct.head_dim = shape[-1]
    struct.stride_batch = 0 if b is None else strides[b]
    struct.stride_token = strides[s]
    struct.stride_head = 0 if h is None else strides[h]


def _vector(meta: Meta, name: str, sequences: int | None = None) -> int:
    """The length of an int32 vector."""
    shape, _, dtype = meta
    check_vector(name, shape, dtype, ("int32",), sequences)
    contiguous(name, meta)
    return shape[0]


def read_positions(
    p: Any, key: Key, batch: int, tokens: int, axes: int, sequences: int, batched: bool
) -> None:
    """Fills a rope_positions of an array."""
    assert key.positions is not None
    shape, strides, dtype = key.positions
    if key.offsets:
        operation = OPERATION_NAMES[key.operation]
        check_offsets(shape, dtype, sequences, operation, key.cu_seqlens is not None)
        contiguous("offsets", key.positions)
        if rule_of(operation).by_distance:  # one for all tokens of each sequence
            p.kind, p.stride_batch = lib.ROPE_POSITIONS_IDS_STRIDED, 1
            setattr(p, "ids_i64" if dtype == "int64" else "ids_i32", MARK)
            return
        p.kind = lib.ROPE_POSITIONS_SEQ_OFFSETS
        setattr(p, "offsets_i64" if dtype == "int64" else "offsets_i32", MARK)
        return
    expected = {"a": axes, "b": batch, "t": tokens}
    order = order_of_positions(shape, dtype, key.positions_layout, batched, expected)
    check_not_negative("positions", strides)
    step = dict.fromkeys(expected, 0)
    for letter, size, stride in zip(order, shape, strides, strict=True):
        step[letter] = 0 if size == 1 else stride
    p.kind = lib.ROPE_POSITIONS_IDS_STRIDED
    setattr(p, {"int64": "ids_i64", "int32": "ids_i32"}.get(dtype, "ids_f32"), MARK)
    p.stride_axis, p.stride_batch, p.stride_token = step["a"], step["b"], step["t"]


def _rows(key: Key, layout: str, batch: int, tokens: int, pairs: int) -> Any:
    """layout: of q, or of k without q; that of rows for each head, too."""
    name = key.cos_sin_format or ""
    format_ = number(COS_SIN_FORMATS, name, "cos_sin_format")
    two = arrays_of(name) == 2
    if (key.sin is not None) != two:
        raise ValueError(f"cos_sin of format {name!r} is {'(cos, sin)' if two else 'one array'}")
    assert key.cos is not None
    shape, strides, dtype = key.cos
    width = width_of(name, pairs)
    check_dtype("cos_sin", dtype)
    if key.sin is not None and key.sin != key.cos:
        raise ValueError(f"cos is {key.cos}, and sin {key.sin}: they must have one form")
    if len(shape) == 2:
        shape, strides = (1, *shape), (0, *strides)
    per_head = len(shape) == 4
    if per_head:  # as [batch, tokens, heads, row]
        _, s_axis, h_axis = axes_of(layout)
        if h_axis is None:
            raise ValueError(f"cos_sin has shape {shape}, and layout is {layout!r}: without heads")
        heads_first = h_axis < s_axis
        order = (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)
        shape, strides = tuple(shape[i] for i in order), tuple(strides[i] for i in order)
    else:
        shape, strides = (*shape[:-1], 1, shape[-1]), (*strides[:-1], width, strides[-1])
    heads = shape[-2]
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[1] != tokens or shape[3] != width:
        raise ValueError(
            f"cos_sin has shape {key.cos[0]}, and must be [1 or {batch}, {tokens}, {width}], "
            f"[{tokens}, {width}], or with heads where the layout {layout!r} has them"
        )
    # The C API has no stride of batch rows, which follow each other, and 0 is none of its strides.
    head = strides[2] if heads > 1 else width
    token = strides[1]
    if tokens == 1:
        token = strides[0] if shape[0] > 1 else width
    whole = max(tokens * token, heads * head) if per_head else tokens * token
    if (
        (width > 1 and strides[3] != 1)
        or (tokens > 0 and min(token, head) < width)
        or (shape[0] > 1 and tokens > 0 and strides[0] != whole)
    ):
        raise ValueError(f"cos_sin has strides {key.cos[1]}: rows must be evenly spaced")
    rows = ffi.new("rope_cos_sin*")
    rows.struct_size = ffi.sizeof("rope_cos_sin")
    rows.format = format_
    rows.dtype = DTYPES[dtype]
    rows.pairs = pairs
    rows.batch = shape[0]
    rows.stride_token = token
    if per_head:
        rows.heads = heads
        rows.stride_head = head
    return rows


def make_template(key: Key, dims: tuple[int, int], pairs: int, axes: int) -> Template:
    """dims: head_dim and rotary_dim of the context."""
    check_words(key.positions_layout, key.cos_sin_format)
    args = ffi.new("rope_qk_args*")
    args.struct_size = ffi.sizeof("rope_qk_args")
    args.operation = key.operation
    rule = rule_of(OPERATION_NAMES[key.operation])
    q_layout, k_layout = both_layouts(key.layout)
    sizes = Sizes()
    if key.q is not None:
        describe(args.q, key.q, q_layout, "q", sizes, dims)
    if key.k is not None:
        describe(args.k, key.k, k_layout, "k", sizes, dims)
    for name, meta, out, layout in (
        ("q", key.q, key.q_out, q_layout),
        ("k", key.k, key.k_out, k_layout),
    ):
        if out is None:
            continue
        if meta is None:
            raise ValueError(f"out has an array for {name}, which is None")
        struct = getattr(args, name + "_out")
        describe(struct, out, layout, f"out of {name}", sizes, dims, STORED)
        heads = getattr(args, name).heads
        check_output_heads(f"out of {name}", struct.heads, name, heads, OPERATION_NAMES[key.operation])
    batch = args.batch = sizes.batch
    tokens = args.tokens = sizes.tokens
    batched = axes_of(q_layout if key.q is not None else k_layout)[0] is not None

    p, rows, shard = args.positions, ffi.NULL, None
    if key.shard is not None:
        p.shard = shard = key.shard._struct()
    rows_of_positions = batch
    if key.batch_repeat is not None:
        rows_of_positions = check_batch_repeat(key.batch_repeat, batch, key.cos is not None)
        p.batch_repeat = key.batch_repeat
    if key.cos is not None:
        check_beside_rows(key.cu_seqlens, key.freq_sets)
        rows = _rows(key, q_layout if key.q is not None else k_layout, batch, tokens, pairs)
    else:
        sequences = rows_of_positions
        if key.cu_seqlens is not None:
            sequences = _vector(key.cu_seqlens, "cu_seqlens") - 1
            check_sequences(sequences)
            p.sequences = sequences
        if key.freq_sets is not None:
            _vector(key.freq_sets, "freq_sets", sequences)
        if key.positions is None and rule.by_distance:
            p.kind = lib.ROPE_POSITIONS_IDS_STRIDED  # no mark: the int, for every token
        elif key.positions is None:
            p.kind = lib.ROPE_POSITIONS_OFFSET
        else:
            read_positions(p, key, rows_of_positions, tokens, axes, sequences, batched)
    floats = key.positions if key.positions is not None and key.positions[2] == "float32" else None
    return Template(args, rows, batch, tokens, key[:4], floats, shard=shard)
