"""The model that a command is told of: a config.json, its folder, or a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import Model

MAGIC = b"GGUF"


def is_gguf(config: Any) -> bool:
    """Whether it is the path of a GGUF file; what cannot be read is left to the reader."""
    if not isinstance(config, (str, os.PathLike)) or os.path.isdir(config):
        return False
    try:
        with open(config, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return os.fspath(config).endswith(".gguf")


def open_model(config: Any, accept: Sequence[str] = ()) -> Model:
    """accept: keys of a config.json that are known to change nothing."""
    if not is_gguf(config):
        return Model(config, accepted_keys=accept)
    if accept:
        raise ValueError(f"--accept is for keys of a config.json, and {config} is a GGUF file")
    return Model.from_gguf(config)
