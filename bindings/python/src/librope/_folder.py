"""The file of a folder that describes a model: one rule for the package and the command line."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from ._kv_mark import is_kv_file

_TEXTS = ("config.json", "params.json")


def located(config: Any) -> Any:
    """The description in a folder: its config.json, else its params.json, the transformer of a pipeline of
    diffusers, or its GGUF file. Others are what they are.

    FileNotFoundError: there is none. ValueError: no single one.
    """
    if not isinstance(config, (str, os.PathLike)) or not os.path.isdir(config):
        return config
    folder = pathlib.Path(config)
    for name in _TEXTS:
        if (folder / name).is_file():
            return folder / name
    if (folder / "model_index.json").is_file():
        return _of_pipeline(folder)
    found = sorted(folder.glob("*.gguf"))
    first = [p for p in found if "-00001-of-" in p.name] or found  # of a model in several parts
    if len(first) == 1:
        return first[0]
    lacks = f"{folder} has no {', '.join(_TEXTS)} or model_index.json"
    if not found:
        kept = any(map(is_kv_file, folder.glob("*.safetensors")))
        raise FileNotFoundError(f"{lacks}, and no .gguf file{': it has KV files, which librope kv inspect shows' if kept else ''}")
    raise ValueError(f"{lacks}, and {len(found)} .gguf files: {', '.join(p.name for p in found)}. Name the file")


def _of_pipeline(folder: pathlib.Path) -> pathlib.Path:
    found = sorted(p for p in folder.glob("*/config.json") if p.parent.name.startswith("transformer"))
    if len(found) == 1:
        return found[0]
    names = f": name one of {', '.join(map(str, found))}" if found else ""
    raise ValueError(f"{folder} is a pipeline of diffusers with {len(found)} transformers{names}")
