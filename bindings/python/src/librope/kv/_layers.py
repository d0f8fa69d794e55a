"""Which Rope the keys of a file have: one for all files, or that of its layer, where the layers of a model differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from .. import Model, Rope
from ._schema import Info

#: What rope= may be. None in a mapping: of files that do not say their layer.
Ropes: TypeAlias = "Rope | Model | Mapping[int | None, Rope]"
Given: TypeAlias = "Rope | dict[int | None, Rope] | None"


def given(ropes: Ropes | None) -> Given:
    """One Rope, or one for each layer. TypeError: it is neither."""
    if ropes is None or isinstance(ropes, Rope):
        return ropes
    if isinstance(ropes, Model):
        kinds = ropes.layers
        of_kind = {kind: ropes.rope(layer_type=kind) for kind in kinds}
        return joined({n: of_kind[kind] for n, kind in enumerate(kinds)}) if kinds else ropes.rope()
    if not isinstance(ropes, Mapping) or not ropes or not all(isinstance(r, Rope) for r in ropes.values()):
        raise TypeError(f"rope is a {type(ropes).__qualname__}, and must be a librope.Rope, a librope.Model, or a dictionary "
                        "of the Rope of each layer")  # fmt: skip
    return dict(ropes)


def joined(ropes: Mapping[int | None, Rope]) -> Given:
    """The only one, where the layers do not differ: files need not say their layer then."""
    return next(iter(ropes.values())) if len(set(ropes.values())) == 1 else dict(ropes)


def every(ropes: Given) -> list[Rope]:
    if ropes is None or isinstance(ropes, Rope):
        return [] if ropes is None else [ropes]
    return list(dict.fromkeys(ropes.values()))


def rope_for(info: Info, ropes: Any) -> Rope:
    """ValueError: there is none for the layer of this file."""
    if isinstance(ropes, Rope):
        return ropes
    if info.layer in ropes:
        found: Rope = ropes[info.layer]
        return found
    if info.layer is None:
        raise ValueError("it does not say its layer, and the layers have different RoPEs: give the Rope of its kind")
    layers = sorted(n for n in ropes if n is not None)
    told = ", ".join(map(str, layers[:8])) + (", .." if len(layers) > 8 else "")
    raise ValueError(f"its layer is {info.layer}, and the RoPE that was given is that of layers {told}")
