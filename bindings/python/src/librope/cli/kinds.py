"""The kinds of layers of a config.json or a GGUF file, as inspect and plot show them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from .. import Rope
from .._config_text import (
    TOWERS,
    config_text,
    depends_on_length,
    left_open,
    length_before_scaling,
    turns,
)
from .._conventions import channel_order
from .._folder import located
from .source import fields_of, is_gguf, open_model

# What config.json calls the longest sequence.
_LONGEST = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length", "n_positions", "n_ctx")
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")


@dataclass
class Kind:
    """One kind of layer."""

    name: str
    layers: list[int]  # of the language model; none for a tower
    fields: dict[str, Any]
    missing: list[str]  # what the config does not tell, and a Rope needs
    longest: tuple[str, int] | None  # key of config.json and its number
    original: int | None  # the length before scaling
    _rope: list[Rope] = field(default_factory=list)

    @property
    def rule(self) -> str:
        return str(self.fields.get("scaling", "default"))

    @property
    def rope(self) -> Rope | None:
        """None: without RoPE, or something is missing."""
        if not turns(self.fields) or self.missing:
            return None
        if not self._rope:
            self._rope.append(Rope.from_fields(self.fields))
        return self._rope[0]


def texts(config: Any) -> list[dict[str, Any]]:
    """The dictionaries that may speak of the language model: its own part first."""
    config = located(config)
    if is_gguf(config):
        return []
    whole = json.loads(config_text(config))
    if not isinstance(whole, dict):
        return []
    parts = [whole[k] for k in _TEXT if isinstance(whole.get(k), dict)]
    inner = [p[k] for p in parts for k in _TEXT if isinstance(p.get(k), dict)]
    return [*inner, *parts, whole]


def model_type(config: Any) -> str | None:
    for part in reversed(texts(config)):
        if isinstance(part.get("model_type"), str):
            return str(part["model_type"])
    return None


def title(config: Any) -> str:
    """What a text says it is of; else the name of its file, or of the folder where that says nothing."""
    for part in texts(config):
        if isinstance(part.get("_class_name"), str):
            return str(part["_class_name"])
    path = pathlib.Path(located(config)).absolute()
    return model_type(config) or (path.parent.name if path.stem in ("config", "params") else path.stem)


def _longest(parts: list[dict[str, Any]]) -> tuple[str, int] | None:
    for part in parts:
        for key in _LONGEST:
            value = part.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return key, value
    return None


def longest(config: Any) -> int | None:
    """The longest sequence that a config names."""
    found = _longest(texts(config))
    return found[1] if found else None


def read(config: Any, seq_len: int | None = None, accept: Sequence[str] = (), **given: Any) -> list[Kind]:
    """All kinds of a config. Without seq_len, rules that need one are shown for the shortest.

    accept: keys that are known to change nothing. given: fields that the config does not tell
    (pairing, head_dim).
    """
    config = located(config)
    model, parts = open_model(config, accept), texts(config)
    layers = model.layers
    found = []
    for name in model.layer_types:
        fields = fields_of(model, name, given)
        mine = [i for i, t in enumerate(layers) if t == name]
        text = name not in TOWERS
        longest = _longest(parts) if text else None
        original = length_before_scaling(fields)
        if depends_on_length(fields):
            fields["seq_len"] = seq_len or original or (longest[1] if longest else None)
        missing = left_open(fields)
        found.append(Kind(name, mine, fields, missing, longest, original))
    return found


def channels(rope: Rope, width: int) -> tuple[Any, Any, Any, Any]:
    """The channels of every pair: two that are read, two that are written."""
    order = channel_order(rope.config["pairing"])
    start = 0 if width == rope.rotary_dim else rope.rotary_offset
    sections = [rope.pairs]
    if order.per_axis:
        sections = [s for s in rope.config["mrope_section"] if s]
    # By pair: its number in its segment, the pairs of this, and the channel where this begins.
    i: Any = np.concatenate([np.arange(s) for s in sections])
    n: Any = np.repeat(sections, sections)
    begin: Any = start + 2 * np.repeat(np.cumsum([0, *sections[:-1]]), sections)
    members = {
        "halves": (begin + i, begin + i + n),
        "interleaved": (begin + 2 * i, begin + 2 * i + 1),
    }
    return (*members[order.reads], *members[order.writes])


def refuse_general(name: str, fields: Mapping[str, Any], what: str) -> None:
    """ValueError for a kind with frequencies of axes and heads: what needs one of each pair."""
    if "frequency" in fields:
        raise ValueError(f"{name} has frequencies of each head (config.frequency), and {what} one for each pair: "
                         "see librope inspect, and Model.digest")  # fmt: skip


def moving(rope: Rope) -> Any:
    """Whether each pair turns, by any axis and in any head."""
    return (np.asarray(rope.inv_freq_of(0)).reshape(-1, rope.pairs) != 0).any(axis=0)


def turning(rope: Rope) -> list[tuple[int, int]]:
    """The channels that turn, as ranges from first to last."""
    i0, i1, _, _ = channels(rope, rope.head_dim)
    moves = moving(rope)
    at = np.sort(np.concatenate([i0[moves], i1[moves]]))
    cuts: Any = np.flatnonzero(np.diff(at) != 1) + 1
    return [(int(r[0]), int(r[-1])) for r in np.split(at, cuts) if len(r)]


@lru_cache(maxsize=256)
def endless(rope: Rope) -> Rope:
    """The same frequencies without the limit of length that dynamic NTK and LongRoPE have.

    For looking at what happens beyond it, and at what those did who did not know it.
    """
    config = rope.config
    if not depends_on_length(config):
        return rope
    kept = ("head_dim", "pairing", "rotary_dim", "rotary_offset", "axes", "mrope_section",
            "mrope_interleaved", "pair_axis", "angle", "rounding")  # fmt: skip
    fields = {k: v for k, v in config.items() if k in kept}
    return Rope.from_fields({**fields, "inv_freq": list(rope.inv_freq),
                             "attention_factor": rope.attention_factor})  # fmt: skip


def axes_of_pairs(rope: Rope) -> Any:
    """Which id drives each pair."""
    if rope.axes == 1:
        return np.zeros(rope.pairs, int)
    one: Any = np.eye(rope.axes, dtype=np.int64)[:, None]  # token a has 1 on axis a alone
    angles = endless(rope).cos_sin(one, format="angles", positions_layout="abt")[0]
    return np.abs(angles).argmax(0)
