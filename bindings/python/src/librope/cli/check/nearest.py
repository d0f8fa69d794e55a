"""Which rule is nearest to a tensor that none explains: by distance, and by how much it explains.

Noise, values of a coarser type, a mistake in some of the channels: then no rule fits every value, and
one may still be far nearer than all others. Every combination of a pairing, frequencies, a direction
and a neighbouring position is put to a part of the tensor, the best ones to more of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import Rope
from . import judge, rules
from .reference import Hypothesis, exists_in, predict, tried
from .sample import Sample

_SHOWN = 3
_MORE = 2  # changes beyond the first combination


@dataclass(frozen=True)
class Near:
    """A hypothesis that explains a part."""

    hypothesis: Hypothesis
    words: list[str]  # none: the config's own rule
    explained: float  # share of the values that turn which are right to their rounding
    distance: float  # root mean square of the error, by that of the values


def _measure(h: Hypothesis, sample: Sample) -> Near:
    want, bound = predict(h, sample.before, sample.positions, sample.dtype)
    got = sample.after.astype(np.float64)
    moves = (want != sample.before) | (got != sample.before)
    good = np.isfinite(got) & moves
    if not good.any():
        return Near(h, list(h.words), 0.0, float("inf"))
    error = np.abs(got - want)[good]
    with np.errstate(over="ignore"):
        far = float(np.sqrt((error**2).mean() / max((want[good] ** 2).mean(), 1e-300)))
    if np.isnan(far):  # angles that are not finite
        far = float("inf")
    return Near(h, list(h.words), float((error <= bound[good]).sum() / moves.sum()), far)


def _hypotheses(rope: Rope, sample: Sample, kinds: dict[str, Any]) -> list[Hypothesis]:
    width = sample.before.shape[3]
    found = [Hypothesis(rope), Hypothesis(rope, ("not rotated",), times=0)]
    seen = (sample.before != sample.after).any((0, 1, 2))
    for said, other in rules.spans(rope, width, seen):
        for words, made in rules.frequencies(other, kinds):
            for (times, way), shift in itertools.product(((1, ()), (-1, ("the inverse rotation",))), (0, 1, -1)):
                moved = (f"positions {shift:+d}",) if shift else ()
                says = tuple(w for w in (said, words) if w) + way + moved
                if says:
                    found.append(Hypothesis(made, says, times=times, shift=shift))
    return found


def _further(h: Hypothesis, kinds: dict[str, Any], positions: Any) -> Iterator[Hypothesis]:
    """One mistake more."""
    for words, made in itertools.islice(rules.frequencies(h.rope, kinds), 1, None):
        yield replace(h, rope=made, words=(*h.words, words))
    for dtype in ("bfloat16", "float16"):
        for n in judge.narrow(h.rope, "inv_freq", dtype):
            yield replace(h, rope=n.rope, words=(*h.words, *n.words))
        for what in ("cos and sin", "the angle", "positions"):
            if what == "positions" and not exists_in(dtype, positions):
                continue
            yield replace(h, precision=(what, dtype), words=(*h.words, f"{what} in {dtype}"))


def _ranked(hypotheses: Iterable[Hypothesis], sample: Sample) -> list[Near]:
    found = [tried(h.words, Near(h, list(h.words), 0.0, float("inf")), _measure, h, sample) for h in hypotheses]
    return sorted(found, key=lambda n: (n.distance, len(n.words)))


def nearest(rope: Rope, sample: Sample, kinds: dict[str, Any]) -> list[Near]:
    """The rules that are nearest, best first; the config's own comes last.

    What is nearest is changed once more, as long as that brings it much nearer.
    """
    few, more = sample.small(8, 1), sample.small(64, 4)
    best = _ranked((n.hypothesis for n in _ranked(_hypotheses(rope, few, kinds), few)[:12]), more)
    for _ in range(_MORE):
        if best[0].explained == 1:
            break
        longer = (h for n in best[:_SHOWN] if n.hypothesis.times for h in _further(n.hypothesis, kinds, sample.positions))
        found = _ranked((n.hypothesis for n in _ranked(longer, few)[:12]), more)
        if not found or found[0].distance > 0.8 * best[0].distance:
            break
        best = [*found, *best]
    own = _measure(Hypothesis(rope), more)
    nearer = [n for n in best if n.words and n.distance < 0.9 * own.distance]
    return [*nearer[:_SHOWN], own]
