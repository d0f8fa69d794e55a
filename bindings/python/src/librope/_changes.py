"""Fields that replace those of a configuration which a model's text, or the caller, has completed.

What the text of another number would give is given, or it is an error: a field that follows from the
replaced one would keep the value of the old one. Rope.replace, Rope.from_config and Model.rope ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._core import Config, short

_LENGTHS = ("original_max_position_embeddings", "max_position_embeddings")
# Fields, and those from which each may follow: where a configuration has the first and one of the others
# is replaced, the first must be said as well.
_FOLLOW = {
    "attention_factor": ("scaling", "factor", "mscale", "mscale_all_dim"),
    "freq_factors": ("theta", "scaling", "head_dim", "rotary_dim"),
    "rotary_dim": ("head_dim",),
    "rotary_offset": ("head_dim", "rotary_dim"),
}
# Of LongRoPE, whose factor is a quotient of the two lengths where it is not given.
_FOLLOW_LONGROPE = {"factor": _LENGTHS, "max_position_embeddings": ("factor",)}
# A field that another one replaces.
_TABLES = ("frequency", "inv_freq")
# What a note of a model says of a field that several numbers of the text made (rope_model_note), and the
# fields whose replacement would not reach it.
_FOLLOWS = " follows from "
_NUMBERS = ("theta", "factor", "scaling", "head_dim", "rotary_dim", *_LENGTHS)


class KnownFields(dict[str, Any]):
    """The fields of one configuration with what the text says of them (follows_of), so that a Rope made of
    them knows it, too. A plain dictionary made of them, or JSON, does not."""

    follows: tuple[str, ...] = ()

    def __init__(self, fields: Mapping[str, Any], follows: Iterable[str] = ()) -> None:
        super().__init__(fields)
        self.follows = tuple(follows)


def changed(config: Config, changes: Mapping[str, Any], follows: Iterable[str] = ()) -> Config:
    """config with the fields of changes; None takes one away.

    follows: what the text says of fields of config that follow from several numbers, see follows_of.
    ValueError: a field would be without effect, or another one would keep what followed from it.
    """
    table = next((t for t in _TABLES if config.get(t) is not None), None)
    if table is not None and table not in changes and changes.get("theta") is not None:
        raise ValueError(f"theta has no effect beside {table}, which the configuration has: replace that")
    given = [n for n in changes if not _same(config.get(n), changes[n])]
    for sentence in follows:
        for name in given:
            if name in _NUMBERS:
                raise ValueError(
                    f"{name} is {_shown(changes[name])} and cannot be replaced alone: in the text of the "
                    f"model {sentence}. Change the text and read that"
                )
    rules = dict(_FOLLOW)
    if config.get("scaling") == "longrope":
        rules.update(_FOLLOW_LONGROPE)
    for field, sources in rules.items():
        if config.get(field) is None or field in changes:
            continue
        for name in given:
            if name in sources:
                raise ValueError(
                    f"{name} is {_shown(changes[name])} and cannot be replaced alone: {field} "
                    f"({short(config[field])}) may follow from it. Say {field}= too (None: what the scaling gives)"
                )
    return {**config, **changes}


def _same(old: Any, new: Any) -> bool:
    try:
        return bool(old == new)
    except ValueError:  # arrays
        return False


def _shown(value: Any) -> str:
    return short(value.tolist() if hasattr(value, "tolist") else value)


def follows_of(notes: Iterable[str], layer_type: str) -> tuple[str, ...]:
    """Of the notes of a model those about fields of this kind that follow from several numbers."""
    begin = f"{layer_type}: "
    return tuple(n[len(begin) :] for n in notes if n.startswith(begin) and _FOLLOWS in n)


# What the kinds of a model may share without having it in common: how a rotation is computed.
_SHARED = ("pairing", "angle", "rounding", "inv_freq_dtype", "ids_per_axis")


def check_shared(configs: Mapping[str, Config], changes: Mapping[str, Any]) -> None:
    """configs: of the kinds of a model, by name. ValueError: they differ in a field that is to be the same
    in all of them."""
    for name in changes:
        if name in _SHARED:
            continue
        values = {kind: short(c.get(name)) for kind, c in configs.items()}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{value} in {kind}" for kind, value in values.items())
            raise ValueError(
                f"{name} is {_shown(changes[name])} for all kinds of layers, which differ in it: {listed}. "
                f"Replace it kind by kind, with rope(layer_type=, {name}=)"
            )
