"""Which Rope the keys of a file have: one for all files, or that of its layer, where the layers of a model differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from .. import Model, Rope
from ._schema import Info, difference, one_of

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


def one_for_all(ropes: Given) -> Rope | None:
    """The Rope that files have whatever their layer is, or that do not say it."""
    return ropes if isinstance(ropes, Rope) else (ropes or {}).get(None)


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


def check_one_family(infos: Mapping[str, Info], ropes: Given, frequency_set: int) -> None:
    """Files that no layer tells apart are given one Rope. ValueError: they have several by now, as those of the
    layers of a model, and all but one kind would be turned by that of another.

    A file that is in its place may have been moved by this job: what it was is told by its last move.
    """
    one = one_for_all(ropes)
    if one is None:
        return
    told = {path: i for path, i in infos.items() if i.layer is None or isinstance(ropes, Rope)}
    target = one_of(one, frequency_set).digest()
    if all(i.family == target for i in told.values()):
        return
    first: dict[str, str] = {}
    for path, info in told.items():
        was = info.moved.rope if info.moved is not None and info.family == target else info.family
        first.setdefault(was, path)
    if len(first) > 1:
        a, b = list(first.values())[:2]
        what = difference(told[a].own_rope, told[b].own_rope)
        raise ValueError(f"the RoPE that was given is one for all files{'' if isinstance(ropes, Rope) else ' that do not say their layer'}, "
                         f"and the keys of {a} and {b} have different ones{f' ({what})' if what else ''}: it must be given "
                         "for each layer, by a librope.Model or a dictionary")  # fmt: skip
