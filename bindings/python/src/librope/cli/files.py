""".npy and .safetensors, with bfloat16."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

UNNAMED = "q"  # the one tensor of a .npy file


def load(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors by name, and the metadata."""
    suffix = pathlib.Path(path).suffix
    if suffix == ".npy":
        return {UNNAMED: np.load(path, mmap_mode="r")}, {}
    if suffix == ".safetensors":
        import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
        from safetensors import safe_open

        with safe_open(path, framework="np") as file:
            return {n: file.get_tensor(n) for n in file.keys()}, dict(file.metadata() or {})
    raise ValueError(f"{path}: a .npy or .safetensors file is expected")


def save(path: str, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    suffix = pathlib.Path(path).suffix
    if suffix == ".npy":
        if len(tensors) != 1:
            raise ValueError(f"{path}: a .npy file holds one tensor, not {len(tensors)}")
        np.save(path, next(iter(tensors.values())))
    elif suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, path, metadata or None)
    else:
        raise ValueError(f"{path}: a .npy or .safetensors file is expected")


def positions_of(option: str | None, tensors: dict[str, Any]) -> Any:
    """--positions: a number, or a file; else the tensor named positions; else 0."""
    if option is None:
        return tensors["positions"] if "positions" in tensors else 0
    if option.lstrip("-").isdigit():
        return int(option)
    return np.load(option)
