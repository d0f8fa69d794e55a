"""Names of the C numbers, errors, and rope_config as a dictionary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from ._ffi import ffi, lib

Config = dict[str, Any]
Pairing = Literal["halves", "interleaved", "interleaved_to_halves", "halves_per_axis"]
Operation = Literal["forward", "backward", "inverse", "shift"]
Angle = Literal["float32", "exact"]
Rounding = Literal["float32", "eager", "cos_sin"]


def _numbers(prefix: str) -> dict[str, int]:
    return {
        name[len(prefix) :].lower(): getattr(lib, name)
        for name in dir(lib)
        if name.startswith(prefix)
    }


PAIRINGS = _numbers("ROPE_PAIRING_")
SCALINGS = _numbers("ROPE_SCALING_")
ANGLES = _numbers("ROPE_ANGLE_")
ROUNDINGS = _numbers("ROPE_ROUNDING_")
COS_SIN_FORMATS = _numbers("ROPE_COS_SIN_")
OPERATIONS = {
    "forward": lib.ROPE_FORWARD,
    "backward": lib.ROPE_BACKWARD,
    "inverse": lib.ROPE_INVERSE,
    "shift": lib.ROPE_SHIFT,
}
DTYPES = {"float32": lib.ROPE_F32, "float16": lib.ROPE_F16, "bfloat16": lib.ROPE_BF16}

VERSION = (lib.ROPE_VERSION_MAJOR, lib.ROPE_VERSION_MINOR, lib.ROPE_VERSION_PATCH)


class LibropeWarning(UserWarning):
    """Something worked, but not as its caller may think."""


_EXCEPTIONS: dict[int, type[Exception]] = {
    lib.ROPE_ERROR_INVALID_ARGUMENT: ValueError,
    lib.ROPE_ERROR_PARSE: ValueError,
    lib.ROPE_ERROR_UNSUPPORTED: NotImplementedError,
    lib.ROPE_ERROR_OUT_OF_MEMORY: MemoryError,
}


def error(status: int) -> Exception:
    """The exception of a failed call on this thread, with the library's message.

    Anything not listed is a RuntimeError, as is NotImplementedError.
    """
    message = ffi.string(lib.rope_last_error()).decode(errors="replace")
    return _EXCEPTIONS.get(status, RuntimeError)(message)


def check(status: int) -> None:
    if status:
        raise error(status)


def number(table: Mapping[str, int], name: object, what: str) -> int:
    """table[name], or a ValueError that lists the names."""
    try:
        return table[name]  # type: ignore[index]
    except (KeyError, TypeError):
        raise ValueError(f"{what} is {name!r}, and must be one of {', '.join(table)}") from None


# rope_config: which fields are names, and which are tables with their C type.
_NAMED = {
    "pairing": PAIRINGS,
    "angle": ANGLES,
    "rounding": ROUNDINGS,
    "inv_freq_dtype": DTYPES,
    "scaling": SCALINGS,
}
_TABLES = {
    "short_factor": "double[]",
    "long_factor": "double[]",
    "freq_factors": "double[]",
    "inv_freq": "double[]",
    "pair_axis": "uint8_t[]",
}
_HIDDEN = {"struct_size", "flags", "reserved", "device", "device_index", "table_length"}
_FIELDS = {
    name: field.type.cname
    for name, field in ffi.typeof("rope_config").fields
    if name not in _HIDDEN
}
FIELDS = tuple(_FIELDS)


def to_struct(config: Mapping[str, Any], device: int = -1) -> tuple[Any, list[Any]]:
    """rope_config of a dictionary, and what must outlive it. device: a CUDA index, -1 is the CPU."""
    struct = ffi.new("rope_config*")
    struct.struct_size = ffi.sizeof("rope_config")
    struct.device = lib.ROPE_DEVICE_CPU if device < 0 else lib.ROPE_DEVICE_CUDA
    struct.device_index = max(device, 0)
    keep: list[Any] = []
    length = None
    for name, value in config.items():
        if value is None:
            continue
        if name not in _FIELDS:
            raise TypeError(f"{name!r} is not a field of a configuration: {', '.join(FIELDS)}")
        if name in _TABLES:
            values = [float(v) for v in value] if name != "pair_axis" else [int(v) for v in value]
            if length not in (None, len(values)):
                raise ValueError(f"{name} has {len(values)} entries, another table {length}")
            length = len(values)
            try:
                table = ffi.new(_TABLES[name], values)
            except OverflowError as e:
                raise ValueError(f"{name}: {e}") from None
            keep.append(table)
            setattr(struct, name, table)
        elif name in _NAMED:
            setattr(struct, name, number(_NAMED[name], value, name))
        elif name == "mrope_section":
            sections = [int(v) for v in value]
            if len(sections) > 4:
                raise ValueError(f"mrope_section has {len(sections)} entries, and 4 at most")
            struct.mrope_section = sections + [0] * (4 - len(sections))
        else:
            try:
                setattr(struct, name, value)
            except OverflowError as e:
                raise ValueError(f"{name}: {e}") from None
            except TypeError as e:
                raise TypeError(f"{name}: {e}") from None
    struct.table_length = length or 0
    return struct, keep


def from_struct(struct: Any) -> Config:
    """The fields of a rope_config that are not zero, by name."""
    config: Config = {}
    for name in FIELDS:
        value = getattr(struct, name)
        if name in _TABLES:
            if value != ffi.NULL:
                config[name] = list(value[0 : struct.table_length])
        elif name in _NAMED:
            if value:
                config[name] = next(k for k, v in _NAMED[name].items() if v == value)
        elif name == "mrope_section":
            sections = list(value)
            if any(sections):
                config[name] = sections[: max(struct.axes, 1)]
        elif value:
            config[name] = value
    return config


def to_text(config: Mapping[str, Any]) -> str:
    """The configuration as text: equal texts are equal configurations."""
    return json.dumps({k: v for k, v in config.items() if v is not None}, sort_keys=True)
