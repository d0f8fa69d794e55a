"""What differs between the RoPE of two models: layers, channels, factors, and pair by pair the angles.

Two frequencies f and g are off by |f - g| p at position p, so one division says from which position on
that exceeds the bound. Frequencies that are a few units of float32's last place apart are the same number
computed in other steps: they are told as rounding, and no difference unless the bound is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import Rope
from ..._config_text import TOWERS, depends_on_length, left_open, turns
from .. import UNTOLD, kinds
from .converted import permuted, usual_architecture
from .sources import Source

Array = Any

#: Units in the last place of float32 within which two frequencies are one: a division more or less.
ROUNDING_UNITS = 4
_LENGTH = 131072  # if no text tells one
_MOST_SPANS = 12
# What explains different angles, in this order.
_CAUSES = ("scaling", "theta", "factor", "original_max_position_embeddings", "max_position_embeddings",
           "beta_fast", "beta_slow", "yarn_no_truncate", "mscale", "mscale_all_dim", "low_freq_factor",
           "high_freq_factor", "short_factor", "long_factor", "freq_factors", "inv_freq", "inv_freq_dtype",
           "axes", "mrope_section", "mrope_interleaved", "pair_axis")  # fmt: skip


@dataclass
class Finding:
    """One line: what differs, and whether that makes another model of it."""

    what: str
    values: Sequence[str]  # in A, in B
    counts: bool
    said: str = ""


@dataclass
class Span:
    """Lengths of sequences, first to below, with the frequencies that both have then."""

    first: int
    below: int
    inv_freq: tuple[Array, Array]
    differs: Array  # pairs beyond the bound, within the length
    rounding: Array  # pairs that are off by rounding alone
    exceeds: Array  # the position from which a pair is beyond the bound; inf: none

    @property
    def gap(self) -> Array:
        return np.abs(self.inv_freq[0] - self.inv_freq[1])

    @property
    def largest(self) -> float:
        """The largest angle that a pair is off by, in radians, at the last position."""
        return float(self.gap.max(initial=0)) * self.last

    @property
    def last(self) -> int:
        """The last position of the longest of these sequences."""
        return self.below - 2


@dataclass
class Group:
    """Layers that have one kind in A and one in B."""

    layers: list[int]
    kinds: tuple[str, str]
    ropes: tuple[Rope | None, Rope | None] = (None, None)
    findings: list[Finding] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return not any(f.counts for f in self.findings)


@dataclass
class Comparison:
    a: Source
    b: Source
    bound: float
    length: int
    what: str
    groups: list[Group] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # of the model as a whole
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return all(g.same for g in self.groups) and not any(f.counts for f in self.findings)


def compare(a: Source, b: Source, bound: float, length: int | None, what: str) -> Comparison:
    """what: model, angles, rotation or bits. length: the longest sequence that counts."""
    if length is None:
        length = max([n for n in (a.longest, b.longest) if n], default=_LENGTH)
    found = Comparison(a, b, bound, length, what)
    _match(found)
    for group in found.groups:
        _compare_kinds(found, group)
    for source in (a, b):
        found.notes += [f"{source.name}: {note}" for note in source.model.notes]
    return found


def _match(found: Comparison) -> None:
    """Layers by their numbers, what no layer has by its name."""
    a, b = found.a.model, found.b.model
    if a.layers and b.layers:
        if len(a.layers) != len(b.layers):
            found.findings.append(Finding("layers", (str(len(a.layers)), str(len(b.layers))), True))
        groups: dict[tuple[str, str], list[int]] = {}
        for layer, pair in enumerate(zip(a.layers, b.layers, strict=False)):
            groups.setdefault(pair, []).append(layer)
        found.groups = [Group(layers, pair) for pair, layers in groups.items()]
        beside = [[k for k in m.layer_types if k not in m.layers] for m in (a, b)]
    elif 1 == len(a.layer_types) == len(b.layer_types):
        found.groups = [Group([], (a.layer_types[0], b.layer_types[0]))]
        beside = [[], []]
    elif len(set(a.layers or a.layer_types)) == 1 == len(set(b.layers or b.layer_types)):
        kind_a, kind_b = (m.layers[0] if m.layers else m.layer_types[0] for m in (a, b))
        found.groups = [Group([], (kind_a, kind_b))]
        beside = [[k for k in m.layer_types if k != kind] for m, kind in ((a, kind_a), (b, kind_b))]
    else:
        beside = [list(m.layer_types) for m in (a, b)]
    found.groups += [Group([], (kind, kind)) for kind in beside[0] if kind in beside[1]]
    for mine, others, source in ((beside[0], beside[1], found.a), (beside[1], beside[0], found.b)):
        for kind in mine:
            if kind in others:
                continue
            # A GGUF file holds a language model; its tower is a file of its own.
            counts = found.a.gguf == found.b.gguf or kind not in TOWERS
            has = ("described", "-") if source is found.a else ("-", "described")
            found.findings.append(Finding(kind, has, counts, f"only {source.name} describes it"))


def _compare_kinds(found: Comparison, group: Group) -> None:
    fields = []
    for source, kind in zip((found.a, found.b), group.kinds, strict=True):
        mine = source.fields(kind)
        for name in left_open({**mine, "seq_len": 1}):
            said, option = UNTOLD[name]
            raise ValueError(f"{source.name} does not tell {said}: say {option}")
        kinds.refuse_general(f"{source.name}, {kind},", mine, "librope diff compares")
        fields.append(mine)
    a, b = fields
    if turns(a) != turns(b):
        rules = [str(mine.get("scaling", "default")) if turns(mine) else "without RoPE" for mine in fields]
        group.findings.append(Finding("RoPE", rules, True, "one of them does not turn these layers"))
        return
    if not turns(a):
        return
    lengths = _lengths(a, b, found.length)
    ropes = [[_rope(mine, n) for n in lengths] for mine in fields]
    group.ropes = ropes[0][0], ropes[1][0]
    _compare_shapes(found, group)
    if group.ropes[0].pairs == group.ropes[1].pairs:
        _compare_angles(found, group, lengths, ropes)
    else:
        group.findings.append(
            Finding("pairs", [str(r.pairs) for r in group.ropes if r is not None], True,
                    "other channels turn"))  # fmt: skip
    _compare_factors(found, group, lengths, ropes)
    if not group.same:
        _explain(group, a, b)


def _rope(fields: dict[str, Any], length: int) -> Rope:
    return Rope.from_fields({**fields, "seq_len": length} if depends_on_length(fields) else fields)


def _lengths(a: dict[str, Any], b: dict[str, Any], reach: int) -> list[int]:
    """The lengths that begin a span of their own. Dynamic NTK changes at each: at doublings of it."""
    found = {1}
    for fields in (a, b):
        length: int | None = 1
        while depends_on_length(fields) and length is not None and len(found) < _MOST_SPANS:
            length = _rope(fields, length).valid_below
            if length is None or length > reach:
                break
            found.add(length)
            if fields["scaling"] == "dynamic":
                length = 2 * (length - 1)
    return sorted(found)


def _compare_shapes(found: Comparison, group: Group) -> None:
    a, b = group.ropes
    assert a is not None and b is not None
    strict = found.what in ("rotation", "bits")
    if a.head_dim != b.head_dim:
        counts = found.what != "angles"
        group.findings.append(Finding("head_dim", (str(a.head_dim), str(b.head_dim)), counts))
    if a.pairs == b.pairs:
        if found.what != "angles":
            _compare_channels(found, group, strict)
        axes = kinds.axes_of_pairs(a), kinds.axes_of_pairs(b)
        turning = (np.asarray(a.inv_freq) != 0) & (np.asarray(b.inv_freq) != 0)
        other = np.flatnonzero((axes[0] != axes[1]) & turning)
        if len(other):
            said = f"pairs {ranges(other)} turn by another id"
            group.findings.append(Finding("axes", (str(a.axes), str(b.axes)), True, said))
    angle, rounding = ([str(r.config.get(name, "float32")) for r in (a, b)] for name in ("angle", "rounding"))
    if angle[0] != angle[1]:
        counts = found.what == "bits" or found.bound == 0
        group.findings.append(Finding("angle", angle, counts, "angles have other arithmetic"))
    if rounding[0] != rounding[1] and found.what == "bits":  # which a GGUF file never tells
        group.findings.append(Finding("rounding", rounding, True, "values are rounded in other places"))


def _compare_channels(found: Comparison, group: Group, strict: bool) -> None:
    """Which channels form a pair, and whether another order is that of permuted weights."""
    a, b = group.ropes
    assert a is not None and b is not None
    channels = kinds.channels(a, a.head_dim), kinds.channels(b, b.head_dim)
    moves = (np.asarray(a.inv_freq) != 0) | (np.asarray(b.inv_freq) != 0)
    reads, writes = (
        all(np.array_equal(channels[0][i][moves], channels[1][i][moves]) for i in half)
        for half in ((0, 1), (2, 3))
    )
    said = [r.pairing or "-" for r in (a, b)]
    config, file = (found.a, found.b) if found.b.gguf else (found.b, found.a)
    mixed = config.gguf != file.gguf
    if reads and writes:
        usual = usual_architecture(config.told)
        if mixed and usual not in (None, file.told) and "halves" in said:
            group.findings.append(Finding(
                "pairing", said, not strict,
                f"llama.cpp's converter writes a {config.told} as {usual}, with q and k permuted to neighbours; "
                f"a file of {file.told} has the order of config.json: its weights must not be permuted"))  # fmt: skip
        return
    if reads:
        group.findings.append(Finding(
            "pairing", said, strict,
            "the same channels turn, and are written in another order: q·k is the same"))  # fmt: skip
        return
    spans = [(r.rotary_dim, r.rotary_offset) for r in (a, b)]
    if spans[0] != spans[1]:
        words = [f"{o} .. {o + d - 1}" for d, o in spans]
        group.findings.append(Finding("channels", words, True, "other channels turn"))
    elif mixed and permuted(config.told, file.told):
        group.findings.append(Finding(
            "pairing", said, strict,
            f"as it should be: the converter permutes q and k of a {config.told}, and each has the order of "
            "its own weights"))  # fmt: skip
    else:
        why = "with the same weights one of them is nonsense"
        if mixed:
            why = (f"the converter is not known to permute q and k of a {config.told} for {file.told}: "
                   "unless it did, one of them is nonsense")  # fmt: skip
        elif found.a.dialect != found.b.dialect:
            why = (f"{found.a.dialect} and {found.b.dialect} have the order of their own weights, of which converters "
                   "permute q and k: --same angles leaves the order out")  # fmt: skip
        group.findings.append(Finding("pairing", said, True, why))


def _compare_angles(found: Comparison, group: Group, lengths: list[int], ropes: list[list[Rope]]) -> None:
    for i, first in enumerate(lengths):
        below = min(lengths[i + 1], found.length + 1) if i + 1 < len(lengths) else found.length + 1
        f, g = (np.asarray(of[i].inv_freq, np.float64) for of in ropes)
        last = group.spans[-1] if group.spans else None
        if last and np.array_equal(last.inv_freq[0], f) and np.array_equal(last.inv_freq[1], g):
            first = last.first
            group.spans.pop()
        group.spans.append(_span(f, g, first, max(below, first + 1), found.bound))
    differ = sum(len(s.differs) > 0 for s in group.spans)
    for span in group.spans:
        where = _where(span, len(group.spans), found.length)
        if len(span.differs):
            earliest = int(span.exceeds[span.differs].min())
            group.findings.append(Finding(
                "angles", ("", ""), True,
                f"{where}{len(span.differs)} of {len(f)} pairs ({ranges(span.differs)}) are off by more than "
                f"{found.bound:g} from position {earliest:,} on, by up to {span.largest:.3g} radians"))  # fmt: skip
        elif span.gap.any():
            units = f"{len(span.rounding)} of {len(f)} pairs differ by rounding, "
            small = int(np.count_nonzero(span.gap)) - len(span.rounding)
            said = (units if len(span.rounding) else "") + (f"{small} by less than the bound, " if small else "")
            if differ == 0 or len(group.spans) > 1:
                group.findings.append(Finding(
                    "angles", ("", ""), False,
                    f"{where}{said}off by up to {span.largest:.3g} radians at position {span.last:,}"))  # fmt: skip


def _span(f: Array, g: Array, first: int, below: int, bound: float) -> Span:
    gap = np.abs(f - g)
    unit = np.spacing(np.maximum(np.abs(f), np.abs(g)).astype(np.float32)).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exceeds = np.where(gap > 0, np.floor(bound / gap) + 1, np.inf)
    rounding = (gap > 0) & (gap <= ROUNDING_UNITS * unit) & (f != 0) & (g != 0)
    beyond = (exceeds <= below - 2) & ~(rounding & (bound > 0))
    return Span(first, below, (f, g), np.flatnonzero(beyond), np.flatnonzero(rounding), exceeds)


def _where(span: Span, spans: int, length: int) -> str:
    if spans == 1:
        return ""
    if span.below > length:
        return f"sequences of {span.first:,} tokens and more: "
    return f"sequences of {span.first:,} to {span.below - 1:,} tokens: "


def _compare_factors(found: Comparison, group: Group, lengths: list[int], ropes: list[list[Rope]]) -> None:
    for name, words in (("attention_factor", "factor on cos and sin"), ("softmax_factor", "factor on the softmax")):
        seen = set()
        for i, length in enumerate(lengths):
            a, b = (float(getattr(of[i], name)) for of in ropes)
            if a == b or (a, b) in seen:
                continue
            seen.add((a, b))
            rounding = abs(a - b) <= ROUNDING_UNITS * 2**-23 * max(a, b)
            counts = abs(a - b) > found.bound and not (rounding and found.bound > 0)
            said = "from position 0 on" if counts else "by rounding" if rounding else "within the bound"
            if length > 1:
                said += f", sequences of {length:,} tokens and more"
            digits = 9 if rounding else 6
            group.findings.append(Finding(words, (f"{a:.{digits}g}", f"{b:.{digits}g}"), counts, said))


def _explain(group: Group, a: dict[str, Any], b: dict[str, Any]) -> None:
    """The fields in which two configurations differ: causes, and no differences of their own."""
    for name in _CAUSES:
        values = [_value(fields.get(name)) for fields in (a, b)]
        if values[0] != values[1] and _is_cause(name, a, b):
            group.findings.append(Finding(name, values, False, "explains it"))


def _is_cause(name: str, a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether a side that gives the field would rotate otherwise with what the other gives, or with nothing:
    a default that is spelt out explains nothing."""
    for mine, other in ((a, b), (b, a)):
        if mine.get(name) is None:
            continue
        try:
            changed = _rope({**mine, name: other.get(name)}, 1).digest()
        except (ValueError, TypeError, NotImplementedError):  # the other fields need it
            return True
        if changed != _rope(mine, 1).digest():
            return True
    return False


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{len(value)} numbers, {value[0]:.6g} .. {value[-1]:.6g}" if len(value) > 4 else str(value)
    return f"{value:,.10g}" if isinstance(value, (int, float)) else str(value)


def ranges(numbers: Any) -> str:
    """0 to 3, 7, 9 to 12"""
    parts: list[str] = []
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        parts.append(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}")
    return ", ".join(parts) if len(parts) <= 6 else f"{', '.join(parts[:5])}, .. {parts[-1]}"
