"""What the tensors say by themselves: angle and length of every pair, frequencies, positions.

A rotation multiplies a pair, read as a complex number, by one number: turn = w / z. All heads of a
token share it, so it is the least-squares quotient over heads, and what it leaves is a test of the
pairing. Everything carries a tolerance that is derived from the roundings (see reference), so the
intervals below are proofs, not statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import Rope
from ..kinds import axes_of_pairs, channels
from .reference import ROUNDOFF, TABLE, TINY, Hypothesis, turn
from .sample import Sample


@dataclass(frozen=True)
class Turns:
    """The measured turn of every pair: complex [batch, tokens, pairs]; NaN where all values are 0."""

    rope: Rope  # whose pairing and span were assumed
    turn: Any
    tolerance: Any  # of |turn|, in units of the gain, [batch, tokens, pairs]
    is_rotation: bool  # all heads of a token turn alike, and the other channels pass
    gain: float  # median length
    rest: float  # what the channels outside the span were multiplied by
    error: float  # what is left after the turn, in units of what rounding may leave


def turns(sample: Sample, rope: Rope, backwards: bool = False) -> Turns:
    """Measures under the pairing and span of rope. backwards: from the written to the read ones."""
    x, y = sample.before.astype(np.float64), sample.after.astype(np.float64)
    y[~np.isfinite(y)] = np.nan
    width = x.shape[3]
    i0, i1, o0, o1 = channels(rope, width)
    if backwards:
        i0, i1, o0, o1 = o0, o1, i0, i1
    z, w = x[..., i0] + 1j * x[..., i1], y[..., o0] + 1j * y[..., o1]
    power = (np.abs(z) ** 2).sum(2)
    with np.errstate(all="ignore"):
        ratio = (w * z.conj()).sum(2) / power
        there = np.abs(ratio[~np.isnan(ratio)])
        gain = float(np.median(there)) if there.size else float("nan")
        # Three roundings of |c x0| + |s x1| <= |z|, for both channels.
        u = ROUNDOFF[sample.dtype]
        relative = np.sqrt(2) * (3 * u * (1 + 4 * u) + np.sqrt(2) * TABLE)
        if sample.dtype == "float16":
            relative += 2.0**-24
        absolute = 8 * TINY[sample.dtype] * np.abs(z).sum(2) / power
        tolerance = relative + absolute / max(gain, 1e-30)
        left = np.abs(w - ratio[:, :, None] * z)
        allowed = 2 * relative * gain * np.abs(z) + 16 * TINY[sample.dtype]
        error = float(np.nanmax(left / allowed, initial=0.0))
    outside = np.setdiff1d(np.arange(width), np.concatenate([i0, i1]))
    rest, passes = _rest(x[..., outside], y[..., outside], u)
    nothing = np.isnan(ratio) & (power > 0)
    good = bool(error <= 1 and gain > 0 and passes and not nothing.any())
    return Turns(rope, ratio, tolerance, good, gain, rest, error)


def _rest(x: Any, y: Any, u: float) -> tuple[float, bool]:
    """The factor of the channels that do not turn, and whether it is one factor."""
    if x.size == 0 or np.array_equal(x, y):
        return 1.0, True
    power = (x * x).sum()
    if power == 0 or not np.isfinite(y).all():
        return 1.0, False
    factor = float((x * y).sum() / power)
    return factor, bool((np.abs(y - factor * x) <= 2 * u * np.abs(factor * x) + 1e-30).all())


def agrees(measured: Turns, h: Hypothesis, sample: Sample, given: Any = None) -> bool:
    """Whether a hypothesis gives the measured turns, up to one factor on all of them.

    given: turn() of it, if known.
    """
    want, off = given or turn(h, sample.positions)
    if want.shape != measured.turn.shape or not np.isfinite(want).all():
        return False
    gain = h.gain if h.gain > 0 else 1.0
    got = measured.turn / measured.gain
    # One factor for all: the measured one is off by the tolerance itself.
    slack = 2 * measured.tolerance * (1.5 * max(abs(h.times), 1)) + off
    return not (np.abs(got - want / gain) > slack).any()


def _constant(measured: Turns, h: Hypothesis, sample: Sample, given: Any) -> tuple[Any, Any] | None:
    """The turn of each pair that is left of the measured ones after a hypothesis, and its tolerance, if it
    is one for all tokens."""
    if h.times == 0 or not h.rope.inv_freq.any() or h.precision:
        return None
    want, off = given or turn(h, sample.positions)
    if want.shape != measured.turn.shape:
        return None
    got = measured.turn / measured.gain * want.conj() / h.gain
    slack = 2 * measured.tolerance * 1.5 * abs(h.times) + off
    usable = ~np.isnan(got)
    flat, room = got.reshape(-1, got.shape[2]), slack.reshape(-1, got.shape[2])
    best = np.where(usable.reshape(flat.shape), room, np.inf).argmin(0)
    pairs = np.arange(flat.shape[1])
    middle, half = flat[best, pairs], room[best, pairs]
    if (np.abs(flat - middle) > room + half).any():
        return None
    return middle, half


def _whole(h: Hypothesis, middle: Any, half: Any, pairs: Any, reach: int) -> Any:
    """The positions by which a hypothesis turns some pairs as far as middle says; nearest first."""
    known = pairs[~np.isnan(middle[pairs])]
    inv = np.asarray(h.rope.inv_freq)
    found = np.arange(-reach, reach + 1)
    fastest = known[np.abs(inv[known]).argsort()[::-1]]
    for some in (fastest[:1], fastest):  # the fastest pair leaves few
        angle = h.times * found[:, None] * inv[some]
        sure = half[some] + np.abs(angle) * 2.0**-21
        found = found[(np.abs(np.exp(1j * angle) - middle[some]) <= sure).all(1)]
    return found[np.argsort(np.abs(found), kind="stable")]


def shifts(
    measured: Turns, h: Hypothesis, sample: Sample, given: Any = None, reach: int = 4096
) -> list[int]:
    """The shifts of all positions with which a hypothesis gives the measured turns; nearest first."""
    left = _constant(measured, h, sample, given)
    if left is None:
        return []
    return [int(n) for n in _whole(h, *left, np.arange(h.rope.pairs), reach)]


def shifts_of_axes(
    measured: Turns, h: Hypothesis, sample: Sample, given: Any = None, reach: int = 512
) -> tuple[int, ...] | None:
    """The nearest shift of each axis of the ids with which a hypothesis gives the measured turns."""
    left = _constant(measured, h, sample, given) if h.rope.axes > 1 else None
    if left is None:
        return None
    axes = axes_of_pairs(h.rope)
    found = [_whole(h, *left, np.flatnonzero(axes == a), reach) for a in range(h.rope.axes)]
    return tuple(int(n[0]) for n in found) if all(len(n) for n in found) else None


@dataclass(frozen=True)
class Frequencies:
    """Radians per position of every pair, as intervals that the tensors prove."""

    low: Any
    high: Any
    decidable: bool
    linear: bool  # one angle per position, for every pair
    why: str = ""

    @property
    def middle(self) -> Any:
        return (self.low + self.high) / 2


def frequencies(measured: Turns, sample: Sample, axes: Any) -> Frequencies:
    """Unwraps the angles from near tokens to far ones, narrowing an interval per pair.

    A difference of d positions tells a frequency modulo 2 pi / d. It is used for a pair only when
    the interval known so far is narrower than that, so no turn is ever counted wrongly. Without
    neighbours one position apart the first step is missing, and the answer is "not decidable".
    axes: the position axis of every pair.
    """
    pairs = measured.turn.shape[2]
    low, high = np.full(pairs, -np.pi), np.full(pairs, np.pi)
    nothing = Frequencies(low, high, False, True, "")
    if sample.positions.dtype.kind == "f":
        return Frequencies(low, high, False, True, "positions are coordinates, not counted tokens")
    first = True
    span = int(np.ptp(sample.positions)) if sample.positions.size else 0
    reach, linear, seen = 1, True, np.zeros(pairs, bool)
    while reach <= max(span, 1):
        for axis in np.unique(axes):
            mine = np.flatnonzero(axes == axis)
            for row in range(sample.positions.shape[1]):
                p = sample.positions[axis, row]
                order = np.argsort(p, kind="stable")
                p, turned = p[order], measured.turn[row, order][:, mine]
                room = 2 * measured.tolerance[row, order][:, mine]
                room = room + np.abs(p)[:, None] * np.abs(high[mine]).clip(max=1) * 2.0**-22
                later = np.searchsorted(p, p + reach, side="right") - 1
                i = np.flatnonzero(p[later] > p[np.arange(len(p))])
                if first:
                    i = i[p[later[i]] - p[i] == 1]
                if not len(i):
                    continue
                j, d = later[i], (p[later[i]] - p[i])[:, None].astype(np.float64)
                centre, width = (low[mine] + high[mine]) / 2, (high[mine] - low[mine]) / 2
                both = turned[j] * turned[i].conj() * np.exp(-1j * centre * d)
                angle = np.angle(both)
                off = np.arcsin(np.minimum((room[i] + room[j]), 1.0))
                usable = ~np.isnan(angle) & (off < 1.5)
                usable &= (width * d + off < np.pi) | (first & (d == 1))
                lows = np.where(usable, centre + (angle - off) / d, -np.inf).max(0)
                highs = np.where(usable, centre + (angle + off) / d, np.inf).min(0)
                if first:  # the frequency is one of a circle: no interval to cut yet
                    one = usable.argmax(0)
                    at = np.arange(len(mine))
                    lows = np.where(usable.any(0), (centre + (angle - off) / d)[one, at], -np.inf)
                    highs = np.where(usable.any(0), (centre + (angle + off) / d)[one, at], np.inf)
                seen[mine] |= usable.any(0)
                low[mine] = np.maximum(low[mine], lows)
                high[mine] = np.minimum(high[mine], highs)
                if (low[mine] > high[mine]).any():
                    linear = False
                    swap = low > high
                    low[swap], high[swap] = high[swap], low[swap]
        if first and not seen.any():
            return Frequencies(nothing.low, nothing.high, False, True,
                               "no two tokens are one position apart")  # fmt: skip
        if not first:
            reach *= 2
        first = False
    return Frequencies(low, high, bool(seen.all()), linear, "" if seen.all() else "values are 0")


def positions(measured: Turns, h: Hypothesis, sample: Sample, limit: int = 1 << 16) -> Any:
    """The position of every token under the frequencies of h, as on a vernier; None if none fits.

    [1, batch, tokens] of int64. Where several fit, the one after the token before is taken. Looked
    for among all positions up to the largest given one; beyond limit, near those that are given.
    """
    rope = h.rope
    if rope.axes != 1 or sample.positions.dtype.kind == "f" or h.times == 0:
        return None
    given = sample.positions[0]
    far = max(int(np.abs(given).max()), given.shape[1]) + 64
    if far <= limit:
        tried = np.arange(-64, far + 1)
    else:
        near = (np.unique(given)[:, None] + np.arange(-8, 9)).ravel()
        tried = np.unique(np.concatenate([np.arange(-64, limit), near]))
    plain = Hypothesis(rope, times=h.times)
    e, off = turn(plain, tried[None, None])
    e, off = e[0] / plain.gain, off[0]
    turns, rooms = measured.turn / measured.gain, 3 * measured.tolerance
    # By the phase of the first pair, which turns fastest: what lies within d of a unit vector is at
    # most asin(d) away.
    order = np.argsort(np.angle(e[:, 0]))
    phases = np.angle(e[order, 0])
    phases = np.concatenate([phases - 2 * np.pi, phases, phases + 2 * np.pi])
    most = off[:, 0].max()

    def around(got: Any, room: Any) -> Any:
        distance = room + most
        if not distance < 1 or np.isnan(got):
            return np.arange(len(tried))
        phase, width = np.angle(got), np.arcsin(distance) + 1e-6
        ends: Any = np.searchsorted(phases, (phase - width, phase + width))
        return np.unique(order[np.arange(ends[0], ends[1]) % len(tried)])

    out = np.empty_like(given)
    for row in range(given.shape[0]):
        next_one = -1  # index in tried
        for t in range(given.shape[1]):
            got, room = turns[row, t], rooms[row, t]
            if 0 <= next_one < len(tried) and not (np.abs(e[next_one] - got) > room + off[next_one]).any():
                found = next_one
            else:
                close = around(got[0], room[0])
                for pair in range(1, len(got)):  # one by one, as long as there are many
                    if len(close) < 32:
                        break
                    apart = np.abs(e[close, pair] - got[pair])
                    close = close[~(apart > room[pair] + off[close, pair])]
                close = close[~(np.abs(e[close] - got) > room + off[close]).any(1)]
                if not len(close):
                    return None
                same = close[tried[close] == given[row, t]]
                found = int(same[0] if len(same) else close[np.abs(tried[close]).argmin()])
            out[row, t] = tried[found]
            follows = found + 1 < len(tried) and tried[found + 1] == tried[found] + 1
            next_one = found + 1 if follows else -1
    return out[None]
