"""The verdicts of several tensors of one run, as one: q and k of layers, prefill and decode steps.

Tensors of one kind of layer share their rule. What a short tensor cannot tell, such as a decode step
of one token, a long one has told; and what was found wrong in one tensor is tried first in the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from ... import Rope
from ..._conventions import channel_order, in_one_segment
from . import bits, judge, ulp
from .inputs import Item
from .judge import MATCHES, NO, UNDECIDED, Explanation, Verdict
from .nearest import Near, nearest
from .reference import Hypothesis, fit, fits, noting, tried
from .sample import Sample

_GIVE_UP = 2  # tensors of a kind that no rule explains, before the others are only compared

IDENTICAL, RIGHT, WRONG = "identical bits", "right to its rounding", "wrong"


@dataclass
class Grade:
    """What is said of one tensor."""

    item: Item
    verdict: Verdict
    ulp: ulp.Ulp | None
    near: list[Near] = field(default_factory=list)  # where no rule explains all of it
    # The pairing that the tensor has, where it is written in another order of channels than the config's.
    written: str | None = None
    # Rules that could not be computed for it, by their words, and why.
    untried: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        if self.verdict.answer == NO:
            return WRONG
        if self.verdict.answer == UNDECIDED:
            return UNDECIDED
        return IDENTICAL if self.verdict.exact else RIGHT


def grade(items: list[Item]) -> list[Grade]:
    """The grades of all tensors, in their order."""
    grades: dict[int, Grade] = {}
    by_kind: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        by_kind.setdefault(item.kind, []).append(i)
    for mine in by_kind.values():
        told: list[Verdict] = []
        known: list[Explanation] = []
        for i in sorted(mine, key=lambda i: -items[i].sample.before.shape[1]):  # what tells most first
            with noting() as untried:
                grades[i] = g = _grade(items[i], items, told, known)
            g.untried = untried
            if items[i].still:
                continue
            told.append(g.verdict)
            known += [e for e in g.verdict.explanations if not any(e.words == k.words for k in known)]
        _settle([grades[i].verdict for i in mine if not items[i].still])
    found = [grades[i] for i in range(len(items))]
    _refuse_two_orders(found)
    return found


def _grade(item: Item, items: list[Item], told: list[Verdict], known: list[Explanation]) -> Grade:
    """told, known: what was said of other tensors of the kind, and what explains them."""
    rope = judge.fitting(item.rope, item.sample)
    if item.still:
        return Grade(item, _unrotated(item, rope), None)
    written = written_as(rope, item.sample)
    if written is not None:
        rope = _in_order(rope, written)
    verdict = _again(item, rope, told, known)
    g = Grade(item, verdict or judge.judge(rope, item.sample, item.kinds),
              ulp.distance(Hypothesis(rope), item.sample), written=written)  # fmt: skip
    if verdict is None and g.verdict.answer == NO and not g.verdict.explanations:
        _search(g, rope, items)
    return g


def written_as(rope: Rope, sample: Sample) -> str | None:
    """The pairing of a tensor whose pairs are read as the config says, and written in another order; None:
    there is none. q·k does not see the order of channels, as long as both have one."""
    if fits(Hypothesis(rope), sample.small()):
        return None
    own = channel_order(rope.config["pairing"])
    for pairing in in_one_segment():
        order = channel_order(pairing)
        if (order.reads, order.per_axis) != (own.reads, own.per_axis) or order == own:
            continue
        if fits(Hypothesis(_in_order(rope, pairing)), sample):
            return pairing
    return None


def _in_order(rope: Rope, pairing: str) -> Rope:
    return Rope.from_fields({**rope.config, "pairing": pairing})


def _refuse_two_orders(grades: list[Grade]) -> None:
    """q and k of one call of a module must be written in one order."""
    calls: dict[str, list[Grade]] = {}
    for g in grades:
        calls.setdefault(g.item.name.rpartition(".")[0], []).append(g)
    for mine in calls.values():
        right = [g for g in mine if g.verdict.answer != NO]
        if len({g.written for g in right}) < 2:
            continue
        for g in right:
            if g.written is None:
                continue
            rope, sample = judge.fitting(g.item.rope, g.item.sample), g.item.sample
            words = (f"pairing {g.written} instead of {rope.pairing}",)
            other = _explanation(Hypothesis(_in_order(rope, g.written), words), sample)
            g.verdict = Verdict(NO, fit(Hypothesis(rope), sample), [], [], [other], {})


def _unrotated(item: Item, rope: Rope) -> Verdict:
    """Of a layer without RoPE, whose values must be what they were."""
    own = Hypothesis(rope, times=0)
    result = fit(own, item.sample)
    if result.fits:
        return Verdict(MATCHES, result, ["the values are the same"], [], [], {})
    found = judge.judge(rope, item.sample, item.kinds)
    explained = found.explanations
    if found.own.fits:
        explained = [_explanation(Hypothesis(rope, ("rotated as other layers are",)), item.sample)]
    return Verdict(NO, result, [], [], explained, {}, found.nan, found.only_heads, found.only_tokens)


def _search(g: Grade, rope: Rope, items: list[Item]) -> None:
    """What else may explain a tensor: another tensor, or several mistakes at once."""
    if g.verdict.nan is not None:
        return
    g.verdict.explanations = exchanged(g.item, rope, items)
    if g.verdict.explanations:
        return
    g.near = nearest(rope, g.item.sample, g.item.kinds)
    best = g.near[0]
    if best.words and fits(best.hypothesis, g.item.sample):
        g.verdict.explanations = [_explanation(best.hypothesis, g.item.sample)]
        g.near = []


def _explanation(h: Hypothesis, sample: Sample, elsewhere: bool = False) -> Explanation:
    counts: dict[str, int] = tried(h.words, {}, bits.differing, h, sample)
    exact = [name for name, n in counts.items() if n == 0]
    return Explanation(h, list(h.words), exact, elsewhere=elsewhere)


def overall(grades: list[Grade], unchecked: int = 0) -> str:
    """unchecked: tensors of which nothing can be said."""
    answers = {g.verdict.answer for g in grades} | ({UNDECIDED} if unchecked else set())
    return next(a for a in (NO, UNDECIDED, MATCHES) if a in answers)


def _again(item: Item, rope: Rope, told: list[Verdict], known: list[Explanation]) -> Verdict | None:
    """The verdict from what other tensors of the kind have told; None: it has to be looked for."""
    if not told:
        return None
    own = Hypothesis(rope)
    result = fit(own, item.sample)
    if result.fits:
        if not any(v.answer == MATCHES for v in told):
            return None
        differing = bits.differing(own, item.sample)
        exact = [name for name, n in differing.items() if n == 0]
        if not exact and all(v.exact for v in told):
            return None  # others have the bits, and this one has not
        return Verdict(MATCHES, result, exact, [], [], {})
    if np.isnan(item.sample.after.astype(np.float32)).any():
        return None  # whose place is to be told
    fitting: list[Explanation] = []
    for e in known:
        h = e.hypothesis
        if e.elsewhere or h.positions is not None or h.rope.head_dim != item.sample.before.shape[3]:
            continue
        if fits(h, item.sample):
            fitting.append(_explanation(h, item.sample))
    unexplained = sum(v.answer == NO and not v.explanations and v.nan is None for v in told)
    return Verdict(NO, result, [], [], fitting, {}) if fitting or unexplained >= _GIVE_UP else None


def _settle(verdicts: list[Verdict]) -> None:
    """Rivals of one tensor that do not explain another of the kind are none."""
    fits = [v for v in verdicts if v.answer in (MATCHES, UNDECIDED)]
    if not fits:
        return
    common = set.intersection(*({tuple(r.words) for r in v.rivals} for v in fits))
    for v in fits:
        v.rivals = [r for r in v.rivals if tuple(r.words) in common]
        if not v.rivals:
            v.answer = MATCHES


def exchanged(item: Item, rope: Rope, items: list[Item]) -> list[Explanation]:
    """Whether the tensor is another one of the run, rotated as the config says."""
    s = item.sample
    there = (o for o in items if o is not item and o.sample.before.shape == s.before.shape
             and o.sample.before.dtype == s.before.dtype)  # fmt: skip
    found = []
    for other in itertools.islice(there, 128):
        mixed = type(s)(other.sample.before, s.after, s.positions, s.tokens, s.heads)
        h = Hypothesis(rope, (f"it is {other.name} that was rotated",))
        if np.array_equal(s.before, other.sample.before) or not fits(h, mixed):
            continue
        found.append(_explanation(h, mixed, elsewhere=True))
    return found
