"""The rules that a tensor is compared with: the config's, and those that people use by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import Rope
from ..._config_text import depends_on_length, length_before_scaling, turns
from ..._conventions import in_one_segment
from ..._core import ANGLES
from .reference import tried

# rope_theta and factor as published models have them.
THETAS = (1e4, 2.5e4, 4e4, 5e4, 1e5, 1.5e5, 1.6e5, 2.5e5, 3e5, 5e5, 6e5, 8e5, 1e6, 1.5e6, 2e6, 4e6, 5e6,
          8e6, 1e7, 1.1e7, 2.5e7, 5e7, 1e8)  # fmt: skip
FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0)
_KEPT = ("head_dim", "theta", "pairing", "rotary_dim", "rotary_offset", "axes", "mrope_section",
         "mrope_interleaved", "pair_axis", "angle", "rounding")  # fmt: skip

Named = tuple[str, Rope]


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """The fields without the scaling."""
    return {k: v for k, v in config.items() if k in _KEPT}


def make(words: str, fields: dict[str, Any]) -> Iterator[Named]:
    """The Rope, where the fields make one."""
    try:
        yield words, Rope.from_fields(fields)
    except (ValueError, NotImplementedError, RuntimeError):
        return


def scalings(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same theta with other scalings."""
    base, own = plain(config), config.get("scaling", "default")
    factor = config.get("factor") or 8.0
    length = (
        config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings")
        or 8192
    )
    if own != "default":
        yield f"without the {own} scaling", base
    if "factor" in config:
        for f in FACTORS:
            if f != config["factor"]:
                yield f"factor {f:g} instead of {config['factor']:g}", {**config, "factor": f}
        d = config.get("rotary_dim") or config["head_dim"]
        words = f"theta raised for factor {factor:g} (NTK) instead of {own}"
        raised = tried((words,), 0.0, lambda: config["theta"] * factor ** (d / (d - 2)))  # beyond float, or d is 2
        yield words, {**base, "theta": raised}
    others = {
        "linear": {"factor": factor},
        "yarn": {"factor": factor, "original_max_position_embeddings": length},
        "llama3": {"factor": factor, "original_max_position_embeddings": length,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "proportional": {},
    }  # fmt: skip
    for name, fields in others.items():
        instead = "" if own == "default" else f" instead of {own}"
        if name != own and (name != "proportional" or "rotary_dim" in config):
            says = f" of factor {factor:g}" if fields else ""
            yield f"scaling {name}{says}{instead}", {**base, "scaling": name, **fields}
    if own == "yarn":
        yield ("YaRN's range rounded otherwise (truncate)",
               {**config, "yarn_no_truncate": 1 - config.get("yarn_no_truncate", 0)})  # fmt: skip
    if depends_on_length(config):
        short = length_before_scaling(config) or 0
        if "short_factor" in config:
            yield "the short factors", {**config, "seq_len": short}
            yield "the long factors", {**config, "seq_len": short + 1}
        else:
            for n in (short, 2 * short, 4 * short):
                yield f"frequencies for a length of {n}", {**config, "seq_len": n}
    if "attention_factor" in config or own in ("yarn", "longrope"):
        yield "without the attention factor", {**config, "attention_factor": 1.0}
    if "inv_freq_dtype" in config:
        yield f"inv_freq not rounded to {config['inv_freq_dtype']}", {
            k: v for k, v in config.items() if k != "inv_freq_dtype"
        }
    if "freq_factors" in config:
        yield "without the frequency factors", {
            k: v for k, v in config.items() if k not in ("freq_factors", "table_length")
        }


def frequencies(rope: Rope, kinds: dict[str, dict[str, Any]]) -> Iterator[Named]:
    """Ropes of the config's span and pairing with other frequencies. kinds: of the model's layers."""
    config = rope.config
    yield "", rope
    for name, other in kinds.items():
        same = {k: other.get(k) for k in ("head_dim", "axes")}
        if same == {k: config.get(k) for k in ("head_dim", "axes")}:
            fields = {**other, "pairing": config["pairing"]}
            yield from make(f"the rule of {name} layers", fields)
    if "inv_freq" not in config and config.get("theta"):
        for words, fields in scalings(config):
            yield from make(words, fields)
        for theta in THETAS:
            if theta == config["theta"]:
                continue
            yield from make(f"theta {theta:g}", {**config, "theta": theta})
            if config.get("scaling", "default") != "default":
                yield from make(f"theta {theta:g} and no scaling", {**plain(config), "theta": theta})
    for angle in ANGLES:
        if angle != config.get("angle", "float32"):
            how = {"ggml": "ggml's recurrence", "divide": "positions divided by timescales"}.get(
                angle, f"angles that are {angle}")
            yield from make(how, {**config, "angle": angle})
    if rope.axes > 1:
        flip = {**config, "mrope_interleaved": 1 - config.get("mrope_interleaved", 0)}
        yield from make("sections laid out the other way", flip)
        yield from make("the first id for all pairs",
                        {**config, "pair_axis": [0] * rope.pairs, "mrope_section": None,
                         "mrope_interleaved": None})  # fmt: skip
        sections = config.get("mrope_section")
        if sections and len(set(sections)) > 1:
            yield from make("sections in reverse order", {**config, "mrope_section": sections[::-1]})


def spans(rope: Rope, width: int, changed: Any) -> Iterator[Named]:
    """The config's rule on other channels: pairings, and parts of the head. changed: bool [width]."""
    config = rope.config
    own = config["pairing"]
    pairings = [own] + [p for p in in_one_segment() if p != own]
    d = rope.rotary_dim
    parts = [(rope.rotary_offset, d)] if width == rope.head_dim else [(0, d)]
    for size in dict.fromkeys((d, width, width // 2, width // 4, 3 * width // 4)):
        parts += [(0, size), (width - size, size)]
    seen = np.flatnonzero(changed)
    if len(seen):  # the block that changed, and twice the distance of its halves
        blocks = np.flatnonzero(np.diff(np.concatenate([[False], changed])) & changed)
        for first in blocks[:4]:
            for second in blocks[:4]:
                if second > first:
                    parts.append((int(first), int(2 * (second - first))))
        parts.append((int(seen[0]), int(seen[-1] - seen[0] + 1)))
    for offset, size in dict.fromkeys(parts):
        if size % 2 or size < 2 or offset + size > width or offset < 0:
            continue
        for pairing in pairings:
            words = [] if pairing == own else [f"pairing {pairing} instead of {own}"]
            same = size == d and (offset == rope.rotary_offset or width == d)
            fields = {**config, "pairing": pairing}
            if not same:
                words.append(f"channels {offset} .. {offset + size - 1} turned")
                fields.update(rotary_dim=size, rotary_offset=offset, head_dim=width)
                if size != d:
                    for name in ("mrope_section", "pair_axis", "axes", "mrope_interleaved", "ids_per_axis"):
                        fields.pop(name, None)
            elif width == d != rope.head_dim:
                fields.update(head_dim=width, rotary_dim=d, rotary_offset=0)
            if pairing == own and same:
                yield "", rope
                continue
            yield from make(" and ".join(words), fields)
            if not same and size < d and "inv_freq" not in config:
                table = list(rope.inv_freq[: size // 2])
                kept = {k: v for k, v in plain(fields).items() if k != "theta"}
                kept.update(inv_freq=table, attention_factor=rope.attention_factor)
                more = [*words, f"with the first {size // 2} frequencies of the config"]
                yield from make(" ".join([" and ".join(more[:-1]), more[-1]]), kept)


def layer_kinds(model: Any, chosen: dict[str, Any], seq_len: int | None) -> dict[str, dict[str, Any]]:
    """The other rules that the model has."""
    found = {}
    for name in model.layer_types:
        config = model.config(name)
        if not turns(config) or "scaling" not in config and not config.get("theta"):
            continue
        if seq_len is not None and depends_on_length(config):
            config["seq_len"] = seq_len
        different = ("theta", "scaling", "factor", "rotary_dim", "rotary_offset", "inv_freq")
        if any(config.get(k) != chosen.get(k) for k in different):
            found[name] = config
    return found
