"""From shapes, strides and dtypes to a rope_qk_args without addresses, made once per combination."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ._arrays import Meta
from ._core import COS_SIN_FORMATS, DTYPES, arrays_of, number, width_of
from ._ffi import ffi, lib

_INT = ("int32", "int64")
_MARK = ffi.cast("void*", 64)  # "this array is used"; the call puts the address in
SHIFT_OF_PACKED = (
    "offsets= with cu_seqlens= and operation='shift': give the distance of every token, as "
    "positions [tokens]"
)


class Key(NamedTuple):
    """All that decides a prepared call, but the context's own numbers."""

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


class Prepared(NamedTuple):
    args: Any  # rope_qk_args*
    rows: Any  # rope_cos_sin* or NULL
    batch: int
    tokens: int


@lru_cache(maxsize=64)
def axes_of(layout: str) -> tuple[int | None, int, int | None]:
    """Where batch, tokens and heads are in a layout such as "bshd", "hsd" or "td"."""
    letters = layout.replace("t", "s") if "s" not in layout else layout
    if (
        letters[-1:] != "d"
        or "s" not in letters
        or set(letters) - set("bshd")
        or len(set(letters)) != len(letters)
    ):
        raise ValueError(
            f"layout is {layout!r}, and must be an order of b (batch), s or t (tokens), h (heads) "
            "and a final d (channels), such as 'bshd', 'bhsd', 'sbhd' or 'thd'"
        )
    find = letters.find
    return (
        None if find("b") < 0 else find("b"),
        find("s"),
        None if find("h") < 0 else find("h"),
    )


def say_sizes(layout: str, expected: dict[str, int]) -> str:
    """What positions of a layout must have: "3 axes, 2 batch rows, 7 tokens"."""
    return ", ".join(f"{expected[c]} {_WORDS[c]}" for c in layout)


def default_layout(dimensions: int, name: str) -> str:
    """What the command line takes for the layout of a file that does not say it."""
    try:
        return {4: "bshd", 3: "thd", 2: "td"}[dimensions]
    except KeyError:
        raise ValueError(
            f"{name} has {dimensions} dimensions: layout= must say what they are, as in 'bshd'"
        ) from None


class _Sizes:
    """batch and tokens, and who said so."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[int, str]] = {}

    def agree(self, what: str, value: int, name: str) -> None:
        known, by = self.values.setdefault(what, (value, name))
        if known != value:
            raise ValueError(f"{name} has {value} {what}, and {by} {known} (see layout=)")


def _tensor(struct: Any, meta: Meta, layout: str, name: str, sizes: _Sizes, dims: Any) -> None:
    shape, strides, dtype = meta
    if dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {dtype}, and must be {', '.join(DTYPES)}")
    b, s, h = axes_of(layout)
    if len(shape) != len(layout):
        raise ValueError(f"{name} has shape {shape}, which is not {layout!r}")
    if shape[-1] != 1 and strides[-1] != 1 and 0 not in shape:
        raise ValueError(
            f"{name} has stride {strides[-1]} in its last axis: channels must be adjacent in memory"
        )
    if any(v < 0 for v in strides):
        raise ValueError(f"{name} has strides {strides}: negative ones are not supported")
    head_dim, rotary_dim = dims
    if shape[-1] not in (head_dim, rotary_dim):
        rule = f"{head_dim}" if head_dim == rotary_dim else f"{head_dim} or {rotary_dim}"
        raise ValueError(f"{name} has {shape[-1]} channels per head, and must have {rule}")
    if b is not None:
        sizes.agree("batch rows", shape[b], name)
    else:
        sizes.agree("batch rows", 1, name)
    sizes.agree("tokens", shape[s], name)
    struct.dtype = DTYPES[dtype]
    struct.layout = lib.ROPE_LAYOUT_STRIDED
    struct.heads = 1 if h is None else shape[h]
    struct.head_dim = shape[-1]
    struct.stride_batch = 0 if b is None else strides[b]
    struct.stride_token = strides[s]
    struct.stride_head = 0 if h is None else strides[h]


def _contiguous(meta: Meta, name: str, types: tuple[str, ...] = _INT) -> int:
    """The length of a vector."""
    shape, strides, dtype = meta
    if dtype not in types:
        raise TypeError(f"{name} has dtype {dtype}, and must be {' or '.join(types)}")
    if len(shape) != 1:
        raise ValueError(f"{name} has shape {shape}, and must have one dimension")
    if shape[0] > 1 and strides[0] != 1:
        raise ValueError(f"{name} has stride {strides[0]}, and must be contiguous")
    return shape[0]


def guess_positions(dimensions: int, batched: bool, axes: int) -> str:
    """1: t. 2: bt, or at where there is no batch and several axes. 3: abt."""
    if dimensions == 2 and axes > 1 and not batched:
        return "at"
    return {0: "", 1: "t", 2: "bt", 3: "abt"}.get(dimensions, "?")


def read_positions(
    p: Any, key: Key, batch: int, tokens: int, axes: int, sequences: int, batched: bool
) -> None:
    assert key.positions is not None
    shape, strides, dtype = key.positions
    if key.offsets:
        n = _contiguous(key.positions, "offsets")
        if n != sequences:
            raise ValueError(f"offsets has {n} entries, and there are {sequences} sequences")
        if key.operation == lib.ROPE_OPERATION_SHIFT:  # a distance for all tokens of each sequence
            if key.cu_seqlens is not None:
                raise ValueError(SHIFT_OF_PACKED)
            p.kind, p.stride_batch = lib.ROPE_POSITIONS_IDS_STRIDED, 1
            setattr(p, "ids_i64" if dtype == "int64" else "ids_i32", _MARK)
            return
        p.kind = lib.ROPE_POSITIONS_SEQ_OFFSETS
        setattr(p, "offsets_i64" if dtype == "int64" else "offsets_i32", _MARK)
        return
    if dtype not in (*_INT, "float32"):
        raise TypeError(f"positions has dtype {dtype}, and must be int32, int64 or float32")
    layout = key.positions_layout or guess_positions(len(shape), batched, axes)
    if len(layout) != len(shape) or len(set(layout)) != len(layout) or set(layout) - set("abt"):
        raise ValueError(
            f"positions has shape {shape}, which is not positions_layout {layout!r}: "
            "an order of a (axes), b (batch) and t (tokens)"
        )
    expected = {"a": axes, "b": batch, "t": tokens}
    step = dict.fromkeys("abt", 0)
    for letter, size, stride in zip(layout, shape, strides, strict=True):
        if size != expected[letter] and not (letter == "b" and size == 1):
            raise ValueError(
                f"positions has shape {shape}, and must have {say_sizes(layout, expected)} "
                "(see layout=)"
            )
        if stride < 0:
            raise ValueError(f"positions has strides {strides}: negative ones are not supported")
        step[letter] = 0 if size == 1 else stride
    if "t" not in layout and tokens != 1 and key.positions_layout is None:
        raise ValueError(f"positions has shape {shape}, and there are {tokens} tokens")
    p.kind = lib.ROPE_POSITIONS_IDS_STRIDED
    setattr(p, {"int64": "ids_i64", "int32": "ids_i32"}.get(dtype, "ids_f32"), _MARK)
    p.stride_axis, p.stride_batch, p.stride_token = step["a"], step["b"], step["t"]


_WORDS = {"a": "axes", "b": "batch rows", "t": "tokens"}


def _rows(key: Key, batch: int, tokens: int, pairs: int) -> Any:
    name = key.cos_sin_format or ""
    format_ = number(COS_SIN_FORMATS, name, "cos_sin_format")
    two = arrays_of(name) == 2
    if (key.sin is not None) != two:
        raise ValueError(f"cos_sin of format {name!r} is {'(cos, sin)' if two else 'one array'}")
    assert key.cos is not None
    shape, strides, dtype = key.cos
    width = width_of(name, pairs)
    if dtype not in DTYPES:
        raise TypeError(f"cos_sin has dtype {dtype}, and must be {', '.join(DTYPES)}")
    if key.sin is not None and key.sin != key.cos:
        raise ValueError(f"cos is {key.cos}, and sin {key.sin}: they must have one form")
    if len(shape) == 2:
        shape, strides = (1, *shape), (0, *strides)
    if len(shape) != 3 or shape[0] not in (1, batch) or shape[1:] != (tokens, width):
        raise ValueError(
            f"cos_sin has shape {shape}, and must be [1 or {batch}, {tokens}, {width}] or "
            f"[{tokens}, {width}]"
        )
    if strides[2] != 1 or (shape[0] > 1 and tokens > 0 and strides[0] != tokens * strides[1]):
        if not (shape[0] > 1 and tokens == 1 and strides[2] == 1 and strides[0] >= width):
            raise ValueError(f"cos_sin has strides {strides}: rows must be evenly spaced")
    rows = ffi.new("rope_cos_sin*")
    rows.struct_size = ffi.sizeof("rope_cos_sin")
    rows.format = format_
    rows.dtype = DTYPES[dtype]
    rows.pairs = pairs
    rows.batch = shape[0]
    rows.stride_token = strides[0] if tokens == 1 and shape[0] > 1 else strides[1]
    return rows


def prepare(key: Key, dims: tuple[int, int], pairs: int, axes: int) -> Prepared:
    """dims: head_dim and rotary_dim of the context."""
    args = ffi.new("rope_qk_args*")
    args.struct_size = ffi.sizeof("rope_qk_args")
    args.operation = key.operation
    q_layout, k_layout = key.layout if isinstance(key.layout, tuple) else (key.layout,) * 2
    sizes = _Sizes()
    if key.q is not None:
        _tensor(args.q, key.q, q_layout, "q", sizes, dims)
    if key.k is not None:
        _tensor(args.k, key.k, k_layout, "k", sizes, dims)
    for name, meta, out, layout in (
        ("q", key.q, key.q_out, q_layout),
        ("k", key.k, key.k_out, k_layout),
    ):
        if out is None:
            continue
        if meta is None:
            raise ValueError(f"out has an array for {name}, which is None")
        struct = getattr(args, name + "_out")
        _tensor(struct, out, layout, f"out of {name}", sizes, dims)
        if out[2] != meta[2]:
            raise TypeError(f"out of {name} has dtype {out[2]}, and {name} {meta[2]}")
        if struct.heads != getattr(args, name).heads:
            raise ValueError(f"out of {name} has {struct.heads} heads, and {name} "
                             f"{getattr(args, name).heads}")  # fmt: skip
    batch = args.batch = sizes.values["batch rows"][0]
    tokens = args.tokens = sizes.values["tokens"][0]
    batched = axes_of(q_layout if key.q is not None else k_layout)[0] is not None

    p, rows = args.positions, ffi.NULL
    if key.cos is not None:
        rows = _rows(key, batch, tokens, pairs)
    else:
        sequences = batch
        if key.cu_seqlens is not None:
            sequences = _contiguous(key.cu_seqlens, "cu_seqlens", ("int32",)) - 1
            if sequences < 1:
                raise ValueError(
                    f"cu_seqlens has {sequences + 1} entries, and must have one more than sequences"
                )
            p.sequences = sequences
        if key.freq_sets is not None:
            n = _contiguous(key.freq_sets, "freq_sets", ("int32",))
            if n != sequences:
                raise ValueError(f"freq_sets has {n} entries, and there are {sequences} sequences")
        if key.positions is None and key.operation == lib.ROPE_OPERATION_SHIFT:
            p.kind, p.ids_i64 = lib.ROPE_POSITIONS_IDS_STRIDED, _MARK  # the int, for every token
        elif key.positions is None:
            p.kind = lib.ROPE_POSITIONS_OFFSET
        else:
            read_positions(p, key, batch, tokens, axes, sequences, batched)
    return Prepared(args, rows, batch, tokens)
