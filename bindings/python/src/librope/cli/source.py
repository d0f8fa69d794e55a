"""The model that a command is told of: a config.json, a GGUF file, or a folder with one of them; and its
configurations, completed by options where it leaves something open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import Model
from .._config_text import GGUF_MAGIC, left_open, turns
from .._folder import located


def is_gguf(config: Any) -> bool:
    """Whether it is the path of a GGUF file; what cannot be read is left to the reader."""
    if not isinstance(config, (str, os.PathLike)) or os.path.isdir(config):
        return False
    try:
        with open(config, "rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return os.fspath(config).endswith(".gguf")


def open_model(config: Any, accept: Sequence[str] = ()) -> Model:
    """accept: keys of a config.json that are known to change nothing."""
    config = located(config)
    if not is_gguf(config):
        return Model(config, accepted_keys=accept)
    if accept:
        raise ValueError(f"--accept is for keys of a config.json, and {config} is a GGUF file")
    return Model.from_gguf(config)


def completed(fields: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with those of the given fields that it leaves open."""
    return {**fields, **{n: given[n] for n in left_open(fields) if given.get(n) is not None}}


def fields_of(model: Model, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a kind of layer, completed. ValueError: an option for what a config does not
    tell says something else than the config, and no kind needs it."""
    fields = model.config(kind)
    for name, value in given.items():
        told = fields.get(name)
        if value is None or not turns(fields) or told in (None, value):
            continue
        if not any(name in left_open(model.config(k)) for k in model.layer_types):
            raise ValueError(f"--{name.replace('_', '-')} is {value}, and the config tells {told} ({kind}): the "
                             "option is for a config that does not tell")  # fmt: skip
    return completed(fields, given)
