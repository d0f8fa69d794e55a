"""The ids of the latents of a diffusion model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from . import _arrays
from ._core import check, integer, positive
from ._ffi import ffi, lib

_GRID = {name: field.type for name, field in ffi.typeof("rope_latent_grid").fields}
_ARGS = {name: field.type for name, field in ffi.typeof("rope_latent_args").fields}


def latent_ids(
    model: Any,
    type_number: int,
    grids: Iterable[Sequence[int]],
    text: int,
    fps: float | None,
    scale: Sequence[float] | None,
) -> Any:
    """float32 [axes, tokens]: what Model.latent_ids returns."""
    sizes = [_grid(grid, i) for i, grid in enumerate(grids)]
    given = [0.0] * 3 if scale is None else _scale(scale)  # 0: what the class has
    structs = ffi.new("rope_latent_grid[]", [(*size, 0) for size in sizes])
    args = ffi.new("rope_latent_args*")
    args.struct_size = ffi.sizeof("rope_latent_args")
    args.count = integer(len(sizes), "the number of grids", _ARGS["count"])
    args.grids = structs
    args.text = integer(text, "text", _ARGS["text"])
    args.fps = 0.0 if fps is None else positive(fps, "fps")  # 0: not given
    args.scale_t, args.scale_h, args.scale_w = given
    config = ffi.new("rope_config*")
    config.struct_size = ffi.sizeof("rope_config")
    check(lib.rope_model_config(model, type_number, config))
    tokens = ffi.new("int64_t*")
    check(lib.rope_model_latent_ids(model, type_number, args, ffi.NULL, 0, tokens))
    axes = max(1, config.axes)
    ids = _new(axes, int(tokens[0]))
    memory = ffi.from_buffer("float[]", ids, require_writable=True)
    values = axes * int(tokens[0])
    check(
        lib.rope_model_latent_ids(
            model, type_number, args, memory if values else ffi.NULL, values, tokens
        )
    )
    return ids


def _scale(scale: Sequence[float]) -> list[float]:
    sides = list(scale) if hasattr(scale, "__iter__") else []
    if len(sides) != 3:
        raise ValueError(f"scale is {scale!r}, and must be of frames, rows and columns")
    return [positive(side, f"scale[{i}]") for i, side in enumerate(sides)]


def _grid(grid: Any, index: int) -> tuple[int, ...]:
    if not hasattr(grid, "__iter__"):
        raise TypeError(
            f"grids[{index}] is {grid!r}, and must be (frames, rows, columns) or (rows, columns): of "
            "one image, grids is [(rows, columns)]"
        )
    sides = tuple(grid)
    if len(sides) not in (2, 3):
        raise ValueError(
            f"grids[{index}] is {grid!r}, and must be (frames, rows, columns) or (rows, columns)"
        )
    names = ("t", "h", "w")
    return tuple(
        integer(side, f"grids[{index}].{name}", _GRID[name])
        for name, side in zip(names, (1,) * (3 - len(sides)) + sides, strict=True)
    )


def _new(axes: int, tokens: int) -> Any:
    try:
        if _arrays.np is not None:
            return _arrays.np.empty((axes, tokens), "float32")
        if tokens == 0:  # a shape that cast() does not make
            return memoryview((ctypes.c_float * 0 * axes)())
        return memoryview(bytearray(4 * axes * tokens)).cast("f", (axes, tokens))
    except (ValueError, OverflowError, MemoryError):  # more than an address can have, or than there is
        raise MemoryError(f"latent_ids: no memory for {axes} ids of {tokens} tokens") from None
