""".npy, .npz and .safetensors, the last with bfloat16; written beside the target and renamed when complete."""

from __future__ import annotations

import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .._core import integer
from .._kv_mark import KEY
from .._replace import replacing

UNNAMED = "q"  # the one tensor of a .npy file


def load(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors by name, and the metadata. ValueError: not such a file, or a damaged one."""
    suffix = pathlib.Path(path).suffix
    if suffix == ".npy":
        return {UNNAMED: array(path)}, {}
    if suffix == ".npz":
        return _archive(path)
    if suffix == ".safetensors":
        import ml_dtypes  # noqa: F401  (gives NumPy the name bfloat16)
        from safetensors import SafetensorError, safe_open

        if not os.path.isfile(path):
            raise FileNotFoundError(f"{path}: no such file")
        try:
            with safe_open(path, framework="np") as file:
                metadata = dict(file.metadata() or {})
                tensors = {} if KEY in metadata else {n: file.get_tensor(n) for n in file.keys()}
        except (SafetensorError, TypeError, KeyError, AttributeError) as e:
            raise ValueError(f"{path} cannot be read as .safetensors: {e}") from None
        if KEY in metadata:  # what is done to its keys must stand in it
            raise ValueError(f"{path} is a KV file, whose keys are moved and checked by librope kv move and librope kv verify")
        return tensors, metadata
    raise ValueError(f"{path}: a .npy, .npz or .safetensors file is expected")


def _archive(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A .npz file; its metadata are texts, arrays without axes."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with np.load(path) as file:
            found = {name: file[name] for name in file.files}
    except (ValueError, EOFError, OSError, TypeError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        why = "it is damaged, or holds Python objects" if _is_pickle(e) else e
        raise ValueError(f"{path} cannot be read as .npz: {why}") from None
    texts = {n: str(x) for n, x in found.items() if x.dtype.kind == "U" and x.ndim == 0}
    tensors = {n: x for n, x in found.items() if n not in texts}
    for name, x in tensors.items():
        _refuse_void(path, x, name)
    return tensors, texts


def array(path: str) -> Any:
    """The array of a .npy file."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    try:
        found = np.load(path, mmap_mode="r")
    except (ValueError, EOFError, OSError) as e:
        why = "it is damaged, or holds Python objects" if _is_pickle(e) else e
        raise ValueError(f"{path} cannot be read as .npy: {why}") from None
    _refuse_void(path, found)
    return found


def _refuse_void(path: str, x: Any, name: str = "") -> None:
    """bfloat16 that NumPy has written comes back without its meaning."""
    if x.dtype.name == "void16":
        of, suffix = f": {name}" if name else "", pathlib.Path(path).suffix
        raise ValueError(f"{path}{of} has dtype {x.dtype.str}: {suffix} files do not keep bfloat16, "
                         ".safetensors do")  # fmt: skip


def _is_pickle(e: Exception) -> bool:
    """NumPy's advice would be to load it unsafely."""
    return "allow_pickle" in str(e) or "Python objects" in str(e)


def pick(tensors: dict[str, Any], path: str, name: str) -> Any:
    """One tensor of a file; a .npy file has only one, whatever its name."""
    if path.endswith(".npy"):
        return tensors[UNNAMED]
    if name not in tensors:
        raise ValueError(f"{path} has no tensor named {name}: {', '.join(tensors)} (see --name)")
    return tensors[name]


def save(path: str, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    suffix = pathlib.Path(path).suffix
    write: Callable[[Any], Any]
    if suffix == ".npy":
        if len(tensors) != 1:
            raise ValueError(f"{path}: a .npy file holds one tensor, not {len(tensors)}")
        write = lambda file: np.save(file, next(iter(tensors.values())))  # noqa: E731
    elif suffix == ".npz":
        for name, x in tensors.items():
            if x.dtype.name == "bfloat16":
                raise ValueError(f"{name} is bfloat16: .npz files do not keep it, .safetensors do")
        held = {**tensors, **{n: np.array(text) for n, text in metadata.items()}}
        write = lambda file: np.savez(file, **held)  # noqa: E731
    elif suffix == ".safetensors":
        from safetensors.numpy import save as to_bytes

        dense = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
        write = lambda file: file.write(to_bytes(dense, metadata or None))  # noqa: E731
    else:
        raise ValueError(f"{path}: a .npy, .npz or .safetensors file is expected")
    with replacing(path) as file:
        write(file)


def check_suffix(output: str, input: str) -> None:
    """Refuses an output that cannot be written as the input was read, before any work."""
    suffixes = [pathlib.Path(p).suffix for p in (output, input)]
    if suffixes[0] != suffixes[1]:
        raise ValueError(f"{output} must be a {suffixes[1]} file, as {input} is")


def positions_of(option: str | None, tensors: dict[str, Any]) -> Any:
    """--positions: a number, or a file; else the tensor named positions; else 0."""
    if option is None:
        return tensors["positions"] if "positions" in tensors else 0
    if re.fullmatch(r"[+-]?\d+", option):
        return integer(int(option), "--positions")
    if not option.endswith(".npy"):
        raise ValueError(f"--positions is {option}, and must be a number or a .npy file of ids")
    return np.asarray(array(option))
