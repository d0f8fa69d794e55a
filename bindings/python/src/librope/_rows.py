"""Rope.cos_sin: rows of cos and sin in the caller's format."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _arrays, _untraced
from ._call import as_positions
from ._core import COS_SIN_FORMATS, DTYPES, arrays_of, check, integer, number, width_of
from ._ffi import ffi, lib
from ._frameworks import FRAMEWORKS, load
from ._rules import INTEGERS, check_ids_per_axis, check_words, default_order, order_of_positions
from ._template import Key, read_positions
from ._untraced import untraced


class RowShape(NamedTuple):
    """What positions of a shape give."""

    layout: str  # of positions: an order of a, b, t
    batch: int
    tokens: int
    heads: int  # with rows of their own; 0: all heads share one
    out: tuple[int, ...]  # [batch, tokens, heads, width]; without heads, or a batch, if there is none


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of NumPy, ml_dtypes, torch or JAX, or a name."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None)
    if name is None:
        name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    number(DTYPES, name, "dtype")
    return str(name)


def shape_of_rows(
    shape: tuple[int, ...], dtype: str, layout: str | None, rope: Any, format: str,
    batch: int | None, tokens: int | None,
) -> RowShape:  # fmt: skip
    """shape, dtype: of positions, which are checked."""
    given = layout
    if rope.ids_per_axis and len(shape) < 2:
        check_ids_per_axis(shape, layout, True, rope.axes)
    if layout is None:
        if len(shape) == 2 and rope.axes > 1:
            raise ValueError(
                f"positions has shape {shape}, and the Rope {rope.axes} axes: positions_layout= is "
                "required, 'bt' or 'at'"
            )
        layout = default_order(len(shape), True, rope.axes)
    sizes = dict(zip(layout, shape, strict=False))
    for name, letter, asked in (("batch", "b", batch), ("tokens", "t", tokens)):
        found = sizes.get(letter)
        if asked is None or found in (None, asked):
            continue
        if letter == "t" or found != 1:  # one batch row is for all
            raise ValueError(
                f"{name} is {asked}, and must be {found}: positions has shape {shape}, with axes {layout!r}"
            )
    rows = sizes.get("b", 1) if batch is None else batch
    count = sizes.get("t", 1) if tokens is None else tokens
    expected = {"a": rope.axes, "b": rows, "t": count}
    order_of_positions(shape, dtype, given, True, expected)
    width = width_of(format, rope.pairs)
    lead = () if "b" not in layout and batch is None else (rows,)
    if rope.freq_heads == 0:
        return RowShape(layout, rows, count, 0, (*lead, count, width))
    return RowShape(layout, rows, count, rope.freq_heads, (*lead, count, rope.freq_heads, width))


def rows_of(
    rope: Any, positions: Any, format: str, dtype: Any, out: Any, positions_layout: str | None,
    batch: int | None, tokens: int | None,
) -> Any:  # fmt: skip
    """Rope.cos_sin: of the library of positions, where nothing is given to write into."""
    library = _arrays.framework(positions)
    if library in FRAMEWORKS and out is None:
        check_words(positions_layout)
        kind = dtype_name("float32" if dtype is None else dtype)
        made, (batch, tokens) = load(library), _sizes(batch, tokens)
        if positions.shape == () and tokens is not None and str(positions.dtype).removeprefix("torch.") in INTEGERS:
            if rope.ids_per_axis:
                check_ids_per_axis((), positions_layout, True, rope.axes)
            positions, positions_layout = made.counted(positions, tokens), "t"
        return made.cos_sin(rope, positions, format, kind, positions_layout, batch, tokens)
    if library == "torch":
        load("torch").refuse_gradient(positions)
    if _untraced.waiting:
        _untraced.keep_out()
    return fill(rope, positions, format, dtype, out, positions_layout, batch, tokens)


def _sizes(batch: int | None, tokens: int | None) -> tuple[int | None, int | None]:
    if batch is not None and (type(batch) is not int or batch < 0):  # Dynamo cannot trace all of integer()
        batch = integer(batch, "batch", low=0)
    if tokens is not None and (type(tokens) is not int or tokens < 0):
        tokens = integer(tokens, "tokens", low=0)
    return batch, tokens


@untraced
def fill(
    rope: Any, positions: Any, format: str, dtype: Any, out: Any, positions_layout: str | None,
    batch: int | None, tokens: int | None,
) -> Any:  # fmt: skip
    check_words(positions_layout)
    batch, tokens = _sizes(batch, tokens)
    if dtype is not None:
        dtype = dtype_name(dtype)
    number_of_format = number(COS_SIN_FORMATS, format, "format")
    two = arrays_of(format) == 2
    positions = as_positions(positions)
    p = ffi.new("rope_positions*")
    view = None
    if type(positions) is int:
        if tokens is None:
            raise ValueError("tokens= is required with an int as positions")
        if rope.ids_per_axis:
            check_ids_per_axis((), positions_layout, True, rope.axes)
        p.kind, p.offset = lib.ROPE_POSITIONS_OFFSET, positions
        form = shape_of_rows((tokens,), "int64", "t", rope, format, batch, None)
    else:
        view = _arrays.read(positions, "positions")
        meta = view[1](view[0], "positions")
        form = shape_of_rows(meta[0], meta[2], positions_layout, rope, format, batch, tokens)
        key = Key(None, None, None, None, "", 0, positions=meta, positions_layout=form.layout)
        read_positions(p, key, form.batch, form.tokens, rope.axes, form.batch, True)
        if meta[2] == "float32" and view[3] < 0:
            _arrays.check_finite(meta, view[2], "positions")
        _point(p, view[2])
    if out is None:
        if _arrays.np is None:
            raise TypeError("out= is required without NumPy")
        made = [_arrays.np.empty(form.out, _numpy_dtype(dtype or "float32")) for _ in range(1 + two)]
        out = tuple(made) if two else made[0]
    if two and not (isinstance(out, (tuple, list)) and len(out) == 2):
        what = f"{len(out)} arrays" if isinstance(out, (tuple, list)) else f"a {type(out).__qualname__}"
        raise TypeError(f"out is {what}, and must be a pair (cos, sin) with format {format!r}")
    arrays = list(out) if two else [out]
    announce = _arrays.announcer(*arrays)
    views = [_arrays.read(a, "out", True) for a in arrays]
    metas = [v[1](v[0], "out") for v in views]
    step = 0
    for m in metas:
        shape, strides, name = m
        if shape != form.out or name not in DTYPES or m != metas[0]:
            raise ValueError(f"out is {m}, and must be {form.out} of {', '.join(DTYPES)}")
        if dtype not in (None, name):
            raise ValueError(f"dtype is {dtype!r}, and must be that of out, {name!r}, or None")
        step = _distance_of_rows(form, strides)
    devices = {v[3] for v in views} | ({view[3]} if view else set())
    if len(devices) != 1:
        raise ValueError("positions and out must be on one device")
    if form.batch * form.tokens == 0:
        return out
    device = devices.pop()
    target = ffi.new("rope_cos_sin*")
    target.struct_size = ffi.sizeof("rope_cos_sin")
    target.format, target.dtype = number_of_format, DTYPES[metas[0][2]]
    target.pairs, target.batch, target.stride_token = rope.pairs, form.batch, step
    target.heads = form.heads
    target.data = ffi.cast("void*", views[0][2])
    if two:
        target.sin = ffi.cast("void*", views[1][2])
    stream = 0 if device < 0 else _arrays.current_stream(arrays[0])
    check(
        lib.rope_cos_sin_fill(
            rope._context(device), form.batch, form.tokens, p, target, ffi.cast("void*", stream)
        )
    )
    if announce is not None:
        announce()
    return out


def _distance_of_rows(form: RowShape, strides: tuple[int, ...]) -> int:
    """Elements from one row to the next; 0: rows follow each other."""
    width = form.out[-1]
    if form.batch * form.tokens == 0:
        return 0
    if form.heads:  # those of a token follow each other
        if strides[-2] != width:
            raise ValueError(f"out has strides {strides}: heads of a token must follow each other")
        strides = (*strides[:-2], strides[-1])
    if width > 1 and strides[-1] != 1:
        raise ValueError(f"out has strides {strides}: the values of a row must follow each other")
    if form.batch * form.tokens == 1:
        return 0
    step = strides[-2] if form.tokens > 1 else strides[0]
    if step < width * max(form.heads, 1):
        raise ValueError(f"out has strides {strides}: rows must not lie in one another")
    if form.batch > 1 and strides[0] != form.tokens * step:
        raise ValueError(f"out has strides {strides}: rows must be evenly spaced")
    return step


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


def _point(p: Any, address: int) -> None:
    for name in ("ids_i64", "ids_i32", "ids_f32"):
        if getattr(p, name) != ffi.NULL:
            setattr(p, name, ffi.cast("void*", address))
