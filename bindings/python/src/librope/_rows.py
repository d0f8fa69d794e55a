"""Rope.cos_sin: rows of cos and sin in the caller's format."""

from __future__ import annotations

from typing import Any

from . import _arrays
from ._core import COS_SIN_FORMATS, DTYPES, check, number
from ._ffi import ffi, lib
from ._prepare import Key, read_positions

_TWO = ("split", "full_halves", "full_interleaved")


def _numpy_dtype(dtype: Any) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return dtype


def fill(
    rope: Any, positions: Any, format: str, dtype: Any, out: Any, positions_layout: str | None,
    batch: int | None, tokens: int | None,
) -> Any:  # fmt: skip
    from ._rope import as_positions

    number_of_format = number(COS_SIN_FORMATS, format, "format")
    positions = as_positions(positions)
    p = ffi.new("rope_positions*")
    view = None
    if type(positions) is int:
        if tokens is None:
            raise ValueError("tokens= is required with an int as positions")
        p.kind, p.offset = lib.ROPE_POSITIONS_OFFSET, positions
        rows, squeeze = batch or 1, batch is None
    else:
        view = _arrays.read(positions, "positions")
        meta = view[1](view[0], "positions")
        shape = meta[0]
        layout = positions_layout
        if layout is None:
            if len(shape) == 2 and rope.axes > 1 and batch is None:
                layout = "at" if shape[0] == rope.axes else "bt"
            else:
                layout = {1: "t", 2: "bt", 3: "abt"}.get(len(shape), "?")
        sizes = dict(zip(layout, shape, strict=False))
        if tokens not in (None, sizes.get("t")):
            raise ValueError(f"positions has shape {shape}, and tokens is {tokens}")
        tokens, rows = sizes.get("t", 1), sizes.get("b", batch or 1)
        squeeze = "b" not in layout and batch is None
        key = Key(None, None, None, None, "", 0, positions=meta, positions_layout=layout)
        read_positions(p, key, rows, tokens, rope.axes, rows, True)
        _point(p, view[2])
    width = rope.pairs if format in ("split", "angles") else 2 * rope.pairs
    want = (tokens, width) if squeeze else (rows, tokens, width)
    two = format in _TWO
    if out is None:
        if _arrays.np is None:
            raise TypeError("out= is required without NumPy")
        made = [_arrays.np.empty(want, _numpy_dtype(dtype)) for _ in range(1 + two)]
        out = tuple(made) if two else made[0]
    arrays = list(out) if two else [out]
    views = [_arrays.read(a, "out", True) for a in arrays]
    metas = [v[1](v[0], "out") for v in views]
    for m in metas:
        shape, strides, name = m
        if shape != want or name not in DTYPES or m != metas[0]:
            raise ValueError(f"out is {m}, and must be {want} of {', '.join(DTYPES)}")
        step = strides[-2]
        if (width > 1 and strides[-1] != 1) or (
            len(shape) == 3 and rows > 1 and strides[0] != max(tokens, 1) * (step or strides[0])
        ):
            raise ValueError(f"out has strides {strides}: rows must be evenly spaced")
    devices = {v[3] for v in views} | ({view[3]} if view else set())
    if len(devices) != 1:
        raise ValueError("positions and out must be on one device")
    device = devices.pop()
    target = ffi.new("rope_cos_sin*")
    target.struct_size = ffi.sizeof("rope_cos_sin")
    target.format, target.dtype = number_of_format, DTYPES[metas[0][2]]
    target.pairs, target.batch = rope.pairs, rows
    strides = metas[0][1]
    target.stride_token = strides[-2] or (strides[0] if len(want) == 3 else 0)
    target.data = ffi.cast("void*", views[0][2])
    if two:
        target.sin = ffi.cast("void*", views[1][2])
    stream = 0 if device < 0 else _arrays.current_stream(arrays[0])
    check(
        lib.rope_cos_sin_fill(
            rope._context(device), rows, tokens, p, target, ffi.cast("void*", stream)
        )
    )
    return out


def _point(p: Any, address: int) -> None:
    for name in ("ids_i64", "ids_i32", "ids_f32"):
        if getattr(p, name) != ffi.NULL:
            setattr(p, name, ffi.cast("void*", address))
