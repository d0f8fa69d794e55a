"""What is to be checked: the tensors of a recording, or of two files, each with its rope."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Any

from ... import Rope
from ..._config_text import turns
from ...record import AFTER, BEFORE, POSITIONS
from .. import fields_of, files, kind_of
from ..kinds import refuse_general
from . import rules, sample
from .sample import Sample

_LAYER = re.compile(r"(?:^|[./])layers\.(\d+)(?=[./@]|$)")
# Modules of towers beside the language model, whose layers have numbers of their own.
_TOWERS = {"vision": re.compile(r"(?:^|[./])(?:visual|vit|vision(?:_\w+)?)[./]"),
           "audio": re.compile(r"(?:^|[./])audio(?:_\w+)?[./]")}  # fmt: skip


@dataclass
class Item:
    """One tensor before and after, and the rule that the config has for it."""

    name: str
    sample: Sample
    rope: Rope
    kind: str  # of its layer
    kinds: dict[str, dict[str, Any]]  # the other rules of the model
    still: bool = False  # a layer without RoPE; rope is that of other layers


@dataclass
class Unchecked:
    """One tensor of several that does not fit the config, or has no rule in it."""

    name: str
    why: str


def _names(there: list[str], wanted: list[str] | None, path: str) -> list[str]:
    """The names that are asked for, exactly or as patterns; all of them if none are."""
    if not wanted:
        return there
    found = [n for n in there if any(n == w or fnmatch.fnmatchcase(n, w) for w in wanted)]
    for w in wanted:
        if not any(n == w or fnmatch.fnmatchcase(n, w) for n in there):
            listed = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "")
            raise ValueError(f"{path} has no tensor named {w}: {listed or 'it is empty'} (see --name)")
    return found


def _in_order(name: str) -> tuple[Any, ...]:
    """Sorts layer 2 before layer 10, and q before k."""
    module, _, role = name.rpartition(".")
    numbered = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", module))
    return numbered, ("q", "k").index(role) if role in ("q", "k") else 2, role


def _recorded(arguments: Any) -> list[tuple[str, Any, Any, Any, str | None]]:
    """Name, before, after, positions (None: not recorded) and layout of the tensors of one file."""
    path = arguments.before
    tensors, metadata = files.load(path)
    there = [n.removesuffix(AFTER) for n in tensors if n.endswith(AFTER)]
    for n in tensors:
        if n.endswith(BEFORE) and n.removesuffix(BEFORE) not in there:
            raise ValueError(f"{path} has {n} and no {n.removesuffix(BEFORE)}{AFTER}")
    for n in there:
        if n + BEFORE not in tensors:
            raise ValueError(f"{path} has {n}{AFTER} and no {n}{BEFORE}")
    if not there:
        raise ValueError(f"{path} is no recording: it has no tensors named ..{BEFORE} and ..{AFTER} "
                         "(librope.record writes them); say the file with the rotated tensor, too")  # fmt: skip
    there.sort(key=_in_order)  # files keep none
    layout = arguments.layout or metadata.get("layout")
    found = []
    for n in _names(there, arguments.name, path):
        at = tensors.get(f"{n}.{POSITIONS}", tensors.get(POSITIONS))
        if arguments.positions is not None:
            at = files.positions_of(arguments.positions, {})
        found.append((n, tensors[n + BEFORE], tensors[n + AFTER], at, layout))
    return found


def _two_files(arguments: Any) -> list[tuple[str, Any, Any, Any, str | None]]:
    one, two = files.load(arguments.before)[0], files.load(arguments.after)[0]
    positions = files.positions_of(arguments.positions, one)
    if arguments.after.endswith(".npy") or arguments.before.endswith(".npy"):
        name = (arguments.name or [files.UNNAMED])[0]
        found = [files.pick(x, path, name) for x, path in ((one, arguments.before), (two, arguments.after))]
        return [(name, *found, positions, arguments.layout)]
    there = [n for n in two if n != POSITIONS and (n in one or arguments.name)]
    if not there and not arguments.name:
        raise ValueError(f"{arguments.before} and {arguments.after} have no tensor of the same name: "
                         f"{', '.join(one)}; {', '.join(two)}")  # fmt: skip
    names = _names(there, arguments.name, arguments.after)
    return [(n, files.pick(one, arguments.before, n), two[n], positions, arguments.layout) for n in names]


def read(model: Any, arguments: Any) -> tuple[list[Item], list[Unchecked]]:
    """The tensors that the options name, and those of them that cannot be checked. ValueError: they are none, or
    none can be."""
    given = _recorded(arguments) if arguments.after is None else _two_files(arguments)
    kinds: dict[str, tuple[Rope, dict[str, Any], bool]] = {}
    items, unchecked = [], []
    for name, before, after, positions, layout in given:
        try:
            kind = _kind(model, name, arguments)
            if kind not in kinds:
                kinds[kind] = _rule(model, kind, arguments)
            rope, others, still = kinds[kind]
            if positions is None:
                raise ValueError(f"{arguments.before} has no positions of {name}: say --positions")
            made = sample.make(before, after, positions, layout, rope)
        except (ValueError, NotImplementedError) as e:
            unchecked.append(Unchecked(name, str(e)))
        else:
            items.append(Item(name, made, rope, kind, others, still))
    if not items:
        first = unchecked[0]
        raise ValueError(f"{first.name}: {first.why}" if len(given) > 1 else first.why)
    return items, unchecked


def _rule(model: Any, kind: str, arguments: Any) -> tuple[Rope, dict[str, Any], bool]:
    """The rope of a kind of layer, the other rules of the model, and whether the kind has no RoPE: then the
    rope is that of the layers that have. ValueError: there are none, or nobody asked for several kinds."""
    fields = fields_of(model, kind, arguments)
    still = not turns(fields)
    if still:
        rotating = [k for k in dict.fromkeys(model.layers) if turns(model.config(k))]
        if arguments.after is not None or not rotating:
            raise ValueError("this kind of layer has no RoPE: there is nothing to check")
        fields = fields_of(model, rotating[0], arguments)
    refuse_general(kind, fields, "librope check measures")
    rope = Rope.from_fields(fields)
    if not rope.inv_freq.any():
        raise ValueError("this kind of layer has no RoPE: there is nothing to check")
    return rope, rules.layer_kinds(model, rope.config, arguments.seq_len), still


def _kind(model: Any, name: str, arguments: Any) -> str:
    """The kind of layer of a tensor: that of the options, else of the tower or the layer in its name."""
    number = _LAYER.search(name)
    told = arguments.layer is not None or arguments.layer_type is not None
    for tower, named in () if told else _TOWERS.items():
        if not named.search(name):
            continue
        if tower in model.layer_types:
            return tower
        if model.layers:
            raise ValueError(f"the config does not describe its tower ({tower}): say --layer-type or --name")
    if number is not None and not told and model.layers:
        try:
            return str(model.layer_type(int(number[1])))
        except ValueError:
            raise ValueError(f"{name} is of layer {int(number[1])}, and the config has "
                             f"{len(model.layers)} layers: say --layer-type or --name") from None  # fmt: skip
    return kind_of(model, arguments)
