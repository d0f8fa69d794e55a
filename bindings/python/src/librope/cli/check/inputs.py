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


@dataclass
class Item:
    """One tensor before and after, and the rule that the config has for it."""

    name: str
    sample: Sample
    rope: Rope
    kind: str  # of its layer
    kinds: dict[str, dict[str, Any]]  # the other rules of the model
    still: bool = False  # a layer without RoPE; rope is that of other layers


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
    """Name, before, after, positions and layout of the tensors of one file."""
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
        elif at is None:
            raise ValueError(f"{path} has no positions of {n}: say --positions")
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


def read(model: Any, arguments: Any) -> list[Item]:
    """The tensors that the options name. ValueError: they are none, or do not fit the config."""
    given = _recorded(arguments) if arguments.after is None else _two_files(arguments)
    kinds: dict[str, tuple[Rope, dict[str, Any], bool]] = {}
    items = []
    for name, before, after, positions, layout in given:
        kind = _kind(model, name, arguments)
        if kind not in kinds:
            kinds[kind] = _rule(model, kind, arguments)
        rope, others, still = kinds[kind]
        try:
            made = sample.make(before, after, positions, layout, rope)
        except ValueError as e:
            raise ValueError(f"{name}: {e}" if len(given) > 1 else str(e)) from None
        items.append(Item(name, made, rope, kind, others, still))
    return items


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
    """The kind of layer of a tensor: that of the options, else of the layer in its name."""
    number = _LAYER.search(name)
    if number is not None and arguments.layer is None and arguments.layer_type is None and model.layers:
        try:
            return str(model.layer_type(int(number[1])))
        except ValueError:
            raise ValueError(f"{name} is of layer {int(number[1])}, and the config has "
                             f"{len(model.layers)} layers: say --layer-type or --name") from None  # fmt: skip
    return kind_of(model, arguments)
