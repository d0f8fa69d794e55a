"""The verdict: the config's rule fits, or it does not, or the data cannot tell it from others.

1. Every element is compared with the config's rule and its bound.
2. If all fit, every other rule is put to the same test. Those that fit as well are rivals; one is
   out when the tensor has the config's bits and the rival's differ in enough places. Rivals that
   remain, or one that alone has the bits, are the answer.
3. If some do not fit, the turns of the pairs are measured, and the rules that give them are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import Rope
from ..._conventions import channel_order
from ..kinds import axes_of_pairs
from . import bits, measure, rules
from .measure import Turns
from .reference import ROUNDOFF, Fit, Hypothesis, exists_in, fit, fits, predict, through, tried, turn
from .sample import Sample, place

MATCHES, NO, UNDECIDED = "matches", "does not match", "cannot be told apart"
STATUS = {MATCHES: 0, NO: 1, UNDECIDED: 3}
WAYS = {1: (), -1: ("the inverse rotation",), 2: ("rotated twice",)}
_ENOUGH = 12  # explanations that are looked for


@dataclass
class Explanation:
    """A hypothesis that fits the tensor, or the part of it that the config does not explain."""

    hypothesis: Hypothesis
    words: list[str]
    exact: list[str] = field(default_factory=list)
    differing: int | None = None  # places where the bits differ under the best policy
    decides: int | None = None  # a position that would tell it from the config; None: none found
    elsewhere: bool = False  # it is about another tensor of the run


@dataclass
class Verdict:
    answer: str
    own: Fit
    exact: list[str]  # policies that give the tensor bit for bit under the config
    rivals: list[Explanation]  # that fit as well as the config
    explanations: list[Explanation]  # if the config does not fit
    measured: dict[str, Any]
    nan: dict[str, Any] | None = None
    only_heads: list[int] | None = None  # the explanations are about these
    only_tokens: list[int] | None = None


def judge(rope: Rope, sample: Sample, kinds: dict[str, dict[str, Any]]) -> Verdict:
    rope = fitting(rope, sample)
    own = Hypothesis(rope)
    result = fit(own, sample)
    nan = np.argwhere(np.isnan(sample.after.astype(np.float32)))
    broken = None
    if len(nan):
        broken = {**place(nan[0], sample), "count": len(nan)}
    small = sample.small()
    turned = measure.turns(small, rope)
    said = report_of(turned, small, rope)
    if result.fits:
        differing = bits.differing(own, sample)
        exact = [name for name, n in differing.items() if n == 0]
        found = rivals(rope, sample, small, turned, kinds, min(differing.values()))
        better = [r for r in found if r.exact and not exact and min(differing.values()) >= bits.PLACES]
        if better:
            return Verdict(NO, result, exact, [], better, said)
        return Verdict(UNDECIDED if found else MATCHES, result, exact, found, [], said)
    wrong = Verdict(NO, result, [], [], [], said, broken)
    if broken is None:
        wrong.explanations = [] if left_alone(result, sample) else explain(rope, sample, kinds)
        for heads, tokens in parts(result) if not wrong.explanations else ():
            wrong.explanations = explain(rope, sample.part(tokens, heads), kinds)
            if wrong.explanations:
                wrong.only_heads = None if heads is None else sample.heads[heads].tolist()
                wrong.only_tokens = None if tokens is None else sample.tokens[tokens].tolist()
                break
    return wrong


def parts(result: Fit) -> Iterator[tuple[Any, Any]]:
    """Heads and tokens outside of which the config fits, None for all: a part may have a rule of its
    own."""
    off_heads, off_tokens = np.flatnonzero(result.heads), np.flatnonzero(result.tokens.any(0))
    heads = off_heads if len(off_heads) < len(result.heads) else None
    tokens = off_tokens if len(off_tokens) < result.tokens.shape[1] else None
    if heads is not None:
        yield heads, None
    if tokens is not None:
        yield None, tokens
    if heads is not None and tokens is not None:
        yield heads, tokens


def left_alone(result: Fit, sample: Sample) -> bool:
    """Whether the heads that are wrong, and not all are, were not rotated."""
    off = np.flatnonzero(result.heads)
    part = sample.part(heads=off)
    return len(off) < len(result.heads) and np.array_equal(part.before, part.after)


def fitting(rope: Rope, sample: Sample) -> Rope:
    """The rope for tensors of its span alone, if these are such."""
    if sample.before.shape[3] == rope.head_dim:
        return rope
    fields = {**rope.config, "head_dim": rope.rotary_dim, "rotary_dim": rope.rotary_dim,
              "rotary_offset": 0}  # fmt: skip
    if rope.config.get("scaling") == "proportional":
        return rope
    return Rope.from_fields(fields)


def report_of(turned: Turns, sample: Sample, rope: Rope) -> dict[str, Any]:
    """The measurement under the config's pairing, as plain values."""
    said: dict[str, Any] = {"rotation": turned.is_rotation, "factor": turned.gain}
    if not turned.is_rotation:
        return {**said, "frequencies": None, "why": "under the config's pairing and span, the heads "
                "of a token do not turn alike"}  # fmt: skip
    f = measure.frequencies(turned, sample, axes_of_pairs(rope))
    if not f.decidable or not f.linear:
        why = f.why or "the angles are not proportional to the positions"
        return {**said, "frequencies": None, "why": why}
    axes = axes_of_pairs(rope)
    there = sample.positions[axes].transpose(1, 2, 0)  # [batch, tokens, pairs]
    phase = np.angle(np.nansum(turned.turn * np.exp(-1j * f.middle * there), (0, 1)))
    return {
        **said, "frequencies": [[float(a), float(b)] for a, b in zip(f.low, f.high, strict=True)],
        "angle_at_position_0": [float(a) for a in phase],
    }  # fmt: skip


# -- where the config fits ----------------------------------------------------------------------------


def single_changes(rope: Rope, sample: Sample, kinds: dict[str, Any]) -> Iterator[Hypothesis]:
    """Everything that is one mistake away from the config."""
    for words, other in itertools.islice(rules.frequencies(rope, kinds), 1, None):
        yield Hypothesis(other, (words,))
    for times, words in ((-1, "the inverse rotation"), (2, "rotated twice"), (0, "not rotated")):
        yield Hypothesis(rope, (words,), times=times)
    # Positions in 16 bits are exact where most data are, so they are no rival, but an explanation.
    for what in ("inv_freq", "the angle"):
        for dtype in ("bfloat16", "float16"):
            yield from narrow(rope, what, dtype)
    yield from moved(Hypothesis(rope), sample)


def narrow(rope: Rope, what: str, dtype: str) -> Iterator[Hypothesis]:
    """The rule with something computed in a narrower dtype."""
    words = (f"{what} in {dtype}",)
    if what != "inv_freq":
        yield Hypothesis(rope, words, precision=(what, dtype))
    elif rope.config.get("angle") != "ggml":
        for _, other in rules.make("", {**rope.config, "inv_freq_dtype": dtype}):
            yield Hypothesis(other, words)


def moved(h: Hypothesis, sample: Sample) -> Iterator[Hypothesis]:
    """The rule at positions that are not the given ones."""
    given = sample.positions
    axes, b, t = given.shape
    count = np.broadcast_to(sample.tokens.astype(given.dtype), given.shape).copy()
    if not np.array_equal(count, given):
        yield replace(h, words=(*h.words, "tokens counted from 0"), positions=count)
    if b > 1:
        on = count + np.arange(b, dtype=given.dtype)[None, :, None] * t
        yield replace(h, words=(*h.words, "tokens counted on over batch rows"), positions=on)
    if axes > 1:
        same = np.broadcast_to(given[:1], given.shape).copy()
        if not np.array_equal(same, given):
            yield replace(h, words=(*h.words, "the first id on all axes"), positions=same)
        for order in itertools.islice(itertools.permutations(range(axes)), 1, 24):
            other = given[list(order)]
            if not np.array_equal(other, given):
                says = f"axes in the order {', '.join(map(str, order))}"
                yield replace(h, words=(*h.words, says), positions=other)


def rivals(
    rope: Rope, sample: Sample, small: Sample, turned: Turns, kinds: dict[str, Any], own: int
) -> list[Explanation]:
    """The other rules that explain the tensor as well as the config does.

    own: places where the config's bits differ from the tensor's.
    """
    found: list[Explanation] = []
    config = Hypothesis(rope)
    others: list[tuple[Sample, Hypothesis]] = [
        (sample, h) for h in single_changes(rope, sample, kinds)
        if turned.turn.shape[2] != h.rope.pairs or h.positions is not None
        or tried(h.words, False, measure.agrees, turned, h, small)
    ]  # fmt: skip
    for words, other in rules.spans(rope, sample.before.shape[3], changed(small)):
        if words:
            others.append((sample, Hypothesis(other, (words,))))
    for words, other_sample in layouts(sample):
        others.append((other_sample, Hypothesis(rope, (words,))))
    for shift in measure.shifts(turned, config, small):
        if shift:
            others.append((sample, Hypothesis(rope, (f"positions {shift:+d}",), shift=shift)))
    hints = []
    if own >= bits.PLACES:
        measured = [(Hypothesis(r, (words,)), clearly) for words, r, clearly in nearer(turned, small)]
        others += [(sample, h) for h, _ in measured]
        hints = [h for h, clearly in measured if not clearly]
    for where, h in others:
        if not fits(h, where.small()):
            continue
        if same_rule(config, h, where, sample) or not fits(h, where):
            continue
        counts: dict[str, int] = tried(h.words, {}, bits.differing, h, where)
        best = min(counts.values()) if counts else None
        if own == 0:
            if (tried(h.words, bits.PLACES, fit_exactly, h, where) if best is None else best) >= bits.PLACES:
                continue
        exact = [name for name, n in counts.items() if n == 0]
        if h in hints and not exact:
            continue
        found.append(Explanation(h, list(h.words), exact, best, tried(h.words, None, decides, config, h, sample.dtype)))
    found.sort(key=lambda r: (not r.exact, len(r.words)))
    return found


def nearer(
    turned: Turns, small: Sample, starts: dict[str, float] | None = None
) -> Iterator[tuple[str, Rope, bool]]:
    """theta and factor by least squares, and whether they are clearly nearer than the config's.

    Within the bound a neighbouring value may fit better than the config's own: roundings average out
    over tokens and pairs, a wrong frequency does not. A tenth of the squared error is far more than
    one free number takes from thousands of roundings. starts: where to look; the config's values.
    """
    rope = turned.rope
    config = rope.config
    cells = int((~np.isnan(turned.turn)).sum())

    def distance(other: Rope) -> float:
        want, _ = turn(Hypothesis(other), small.positions)
        return float(np.nansum(np.abs(turned.turn / turned.gain - want / other.attention_factor) ** 2))

    def error(value: float) -> float:
        for _, other in rules.make("", {**config, name: float(value)}):
            return tried((f"{name} (measured)",), float("inf"), distance, other)
        return float("inf")

    for name in ("theta", "factor"):
        if not config.get(name) or "inv_freq" in config or cells < 200:
            continue
        start = (starts or {}).get(name) or float(config[name])
        own, low, high = error(config[name]), start / 2, start * 2
        for _ in range(4):
            grid = np.geomspace(low, high, 33)
            i = int(np.argmin([error(v) for v in grid]))
            low, high = grid[max(i - 1, 0)], grid[min(i + 1, 32)]
        best = float(grid[i])
        for short in dict.fromkeys(float(f"{best:.{digits}g}") for digits in (1, 2, 3, 4, 5, 6)):
            if short == config[name]:
                continue
            for words, made in rules.make(f"{name} {short:g} (measured)", {**config, name: short}):
                yield words, made, error(short) <= 0.9 * own


def fit_exactly(h: Hypothesis, sample: Sample) -> int:
    """Places whose value is more than one rounding from what a hypothesis gives in full precision."""
    small = sample.small(512, 8)
    want, _ = predict(h, small.before, small.positions, small.dtype)
    got = small.after.astype(np.float64)
    over = np.abs(got - want) > 2 * ROUNDOFF[small.dtype] * np.abs(want) + 1e-30
    return int(over.any(2).sum())


def changed(sample: Sample) -> Any:
    return (sample.before != sample.after).any((0, 1, 2))


def alike(a: Hypothesis, b: Hypothesis) -> bool:
    """Whether two hypotheses are one, said in other words or with another precision of the angle."""
    if (a.times, a.shift, a.precision, a.rest) != (b.times, b.shift, b.precision, b.rest):
        return False
    if (a.positions is None) != (b.positions is None) or abs(a.gain - b.gain) > 1e-6 * b.gain:
        return False
    policies = ("angle", "rounding")
    one, other = ({k: v for k, v in h.rope.config.items() if k not in policies} for h in (a, b))
    if one == other:
        return True
    names = ("pairing", "rotary_offset", "head_dim")
    return (
        a.rope.pairs == b.rope.pairs
        and all(one.get(n) == other.get(n) for n in names)
        and np.allclose(a.rope.inv_freq, b.rope.inv_freq, rtol=2.0**-22, atol=0)
        and np.array_equal(axes_of_pairs(a.rope), axes_of_pairs(b.rope))
    )


def same_rule(a: Hypothesis, b: Hypothesis, where: Sample, sample: Sample) -> bool:
    """Whether two hypotheses turn alike at every position: then they are one rule.

    The precision of the angle is a policy, not a rule: where it matters, the bound tells.
    """
    return where is sample and b.positions is None and alike(a, b)


def layouts(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The tensor as somebody sees it who takes its axes for others."""
    b, t, n, d = sample.before.shape
    axes = sample.positions.shape[0]
    start = sample.positions[:, :1, :1]
    kind = start.dtype  # int64, or float32 of coordinates
    if n > 1:
        for words, index in (
            ("heads taken for tokens", np.broadcast_to(np.arange(n), (t, n))),
            ("[tokens, heads] read as [heads, tokens] without transposing",
             np.arange(t * n).reshape(t, n) % t),
        ):  # fmt: skip
            if t == 1 and words.startswith("["):
                continue
            at = np.broadcast_to(index.reshape(-1).astype(kind), (axes, b, t * n)) + start
            yield words, Sample(
                sample.before.reshape(b, t * n, 1, d), sample.after.reshape(b, t * n, 1, d),
                np.ascontiguousarray(at), np.repeat(sample.tokens, n), np.zeros(1, int),
            )  # fmt: skip
    if b > 1:
        at = np.broadcast_to(np.arange(b, dtype=kind)[:, None], (axes, b, t)) + start
        yield "batch rows taken for tokens", replace(sample, positions=np.ascontiguousarray(at))


def decides(a: Hypothesis, b: Hypothesis, dtype: str) -> int | None:
    """The first position that tells two hypotheses apart by more than both their bounds."""
    if b.positions is not None or a.rope.axes != 1 or b.rope.axes != 1:
        return None
    among = np.unique(np.concatenate([np.arange(65), np.geomspace(64, 1 << 20, 400).astype(np.int64)]))
    if a.rope.pairs != b.rope.pairs or any(
        a.rope.config.get(n) != b.rope.config.get(n) for n in ("pairing", "rotary_offset")
    ):
        return 1
    (x, off_x), (y, off_y) = (turn(h, among[None, None]) for h in (a, b))
    u = ROUNDOFF[dtype]
    bound = np.sqrt(2) * (3 * u + 3e-7) * (a.gain * max(abs(a.times), 1) + b.gain * max(abs(b.times), 1))
    apart = (np.abs(x - y) > bound + a.gain * off_x + b.gain * off_y)[0].any(1)
    return int(among[apart.argmax()]) if apart.any() else None


# -- where it does not --------------------------------------------------------------------------------


def named_factor(h: Hypothesis, gain: float, tolerance: float, width: int) -> tuple[tuple[str, ...], float | None]:
    """Words for a measured factor that is not the hypothesis's own, and its value."""
    usual = Hypothesis(h.rope, times=h.times).gain
    a = h.rope.attention_factor
    if abs(gain / usual - 1) <= tolerance:
        return (), None
    root = 1 / np.sqrt(h.rope.head_dim)
    names = [
        ("without the attention factor", 1.0), ("the attention factor twice", a * a),
        ("multiplied by the attention factor", a), ("divided by the attention factor", 1 / a),
        (f"scaled by {root:.4g}, which is 1/sqrt(head_dim)", usual * root),
        (f"scaled by {root * np.log2(np.e):.4g}, which is log2(e)/sqrt(head_dim)",
         usual * root * np.log2(np.e)),
    ]  # fmt: skip
    for words, value in names:
        if abs(gain / value - 1) <= tolerance:
            return (words,), float(value)
    short = float(f"{gain / usual:.3g}")
    best = short if abs(gain / usual / short - 1) <= tolerance else gain / usual
    return (f"scaled by {best:.6g}",), usual * best


def explain(rope: Rope, sample: Sample, kinds: dict[str, Any]) -> list[Explanation]:
    """The hypotheses that fit every element of the sample, those with the tensor's bits first."""
    found: list[Explanation] = []
    views: list[tuple[tuple[str, ...], Sample]] = [((), sample)]
    views += [((words,), other) for words, other in layouts(sample)]
    if np.array_equal(sample.before, sample.after):
        h = Hypothesis(rope, ("not rotated",), times=0)
        return [Explanation(h, list(h.words), exact=["the values are the same"], differing=0)]
    for source in (candidates, twofold, vernier):
        for words, view in views if source is candidates else views[:1]:
            small = view.small()
            for h in source(rope, small, kinds):
                if h.positions is not None and h.positions.shape != view.positions.shape:
                    again = remeasured(h, view)
                    if again is None:
                        continue
                    h = again
                if any(alike(h, e.hypothesis) for e in found):
                    continue
                if h.positions is None and not fits(h, small):
                    continue
                if not fits(h, view):
                    continue
                counts: dict[str, int] = tried(h.words, {}, bits.differing, h, view)
                exact = [name for name, n in counts.items() if n == 0]
                best = min(counts.values()) if counts else None
                found.append(Explanation(h, [*words, *h.words], exact, best))
                if len(found) >= _ENOUGH:
                    break
            if found:
                break
        if found:
            break
    found.sort(key=lambda e: (not e.exact, len(e.words)))
    if found and found[0].exact:  # bits decide between them, too
        found = [e for e in found if e.exact or (e.differing is not None and e.differing < bits.PLACES)]
    return found


def remeasured(h: Hypothesis, view: Sample) -> Hypothesis | None:
    """Positions that were measured on a part, measured on the whole."""
    turned = measure.turns(view, h.rope)
    p = tried(h.words, None, measure.positions, turned, h, view)
    return None if p is None else replace(h, positions=p, words=(*h.words[:-1], listed(p, view)))


def candidates(rope: Rope, small: Sample, kinds: dict[str, Any]) -> Iterator[Hypothesis]:
    """Hypotheses that agree with the measured turns, with few differences first."""
    width = small.before.shape[3]
    measured: list[tuple[tuple[str, ...], Turns, int]] = []
    said: tuple[str, ...]
    for words, other in rules.spans(rope, width, changed(small)):
        said = (words,) if words else ()
        forwards = measure.turns(small, other)
        if forwards.is_rotation:
            measured.append((said, forwards, 1))
        if channel_order(other.config["pairing"]).moves:
            back = measure.turns(small, other, backwards=True)
            if back.is_rotation:
                measured.append((said, back, -1))
    for said, turned, only in measured:
        options = list(rules.frequencies(turned.rope, kinds))
        options += list(estimates(turned, small))
        for (words, other), times in itertools.product(options, (1, -1, 2)):
            if only < 0 and times != -1:
                continue
            if channel_order(turned.rope.config["pairing"]).moves and times == 2:
                continue
            says = (words,) if words else ()
            base = Hypothesis(other, (*said, *says, *WAYS[times]), times=times)
            yield from settled(base, turned, small)
        h = Hypothesis(turned.rope, said)
        for what, dtype in itertools.product(
            ("cos and sin", "inv_freq", "the angle", "positions"), ("bfloat16", "float16")
        ):
            if what == "positions" and (same_in(dtype, small.positions) or not exists_in(dtype, small.positions)):
                continue
            if what == "cos and sin":
                if ROUNDOFF[dtype] > ROUNDOFF[small.dtype]:
                    narrowed = [Hypothesis(turned.rope, (f"{what} in {dtype}",), precision=(what, dtype))]
                else:
                    continue
            else:
                narrowed = list(narrow(turned.rope, what, dtype))
            for n in narrowed:
                yield from settled(replace(n, words=(*said, *n.words)), turned, small)
        for n in moved(h, small):
            yield from settled(n, turned, small)


def twofold(rope: Rope, small: Sample, kinds: dict[str, Any]) -> Iterator[Hypothesis]:
    """Two mistakes that candidates() has only one at a time: other frequencies, and these in a
    narrower dtype or at other positions."""
    for words, span in rules.spans(rope, small.before.shape[3], changed(small)):
        turned = measure.turns(small, span)
        if not turned.is_rotation:
            continue
        for says, other in rules.frequencies(span, kinds):
            said = tuple(w for w in (words, says) if w)
            both = itertools.chain(*(narrow(other, "inv_freq", d) for d in ("bfloat16", "float16")),
                                   moved(Hypothesis(other), small))  # fmt: skip
            for h in both if says else ():
                yield from settled(replace(h, words=(*said, *h.words)), turned, small)


def same_in(dtype: str, positions: Any) -> bool:
    return bool(np.array_equal(through(positions.astype(np.float32), dtype), positions))


def vernier(rope: Rope, small: Sample, kinds: dict[str, Any]) -> Iterator[Hypothesis]:
    """Hypotheses whose positions are what the tensors say, for those that no shift explains."""
    for words, other in rules.spans(rope, small.before.shape[3], changed(small)):
        turned = measure.turns(small, other)
        if not turned.is_rotation:
            continue
        said = (words,) if words else ()
        hypotheses = [Hypothesis(other, said)]
        config, plain = other.config, rules.plain(other.config)
        if config.get("scaling", "default") != "default" and "theta" in plain:
            hypotheses += [Hypothesis(r, (*said, w)) for w, r in rules.make("without the scaling", plain)]
        for h, times in itertools.product(hypotheses, (1, -1, 2)):
            way = (*h.words, *WAYS[times])
            at = tried(way, None, measure.positions, turned, replace(h, times=times), small)
            if at is not None:
                n = replace(h, times=times, positions=at, words=(*way, listed(at, small)))
                yield from settled(n, turned, small, shift=False)
                break


def settled(h: Hypothesis, turned: Turns, small: Sample, shift: bool = True) -> list[Hypothesis]:
    """The hypothesis with the factor and the shift that were measured, if it agrees then."""
    return tried(h.words, [], lambda: list(_settled(h, turned, small, shift)))


def _settled(h: Hypothesis, turned: Turns, small: Sample, shift: bool) -> Iterator[Hypothesis]:
    tolerance = 3 * float(np.nanmin(turned.tolerance)) * max(abs(h.times), 1)
    words, factor = named_factor(h, turned.gain, tolerance, small.before.shape[3])
    rest: tuple[str, ...] = ()
    if turned.rest != 1:
        rest = (f"the other channels scaled by {turned.rest:.4g}",)
    if rest and factor is not None and abs(turned.rest * Hypothesis(h.rope, times=h.times).gain / factor - 1) < tolerance:
        rest = ()
    full = replace(h, words=(*h.words, *words, *rest), factor=factor, rest=turned.rest)
    known = turn(h, small.positions)
    if measure.agrees(turned, h, small, known):
        yield full
    elif shift and h.positions is None:
        found = [by for by in measure.shifts(turned, h, small, known)[:2] if by]
        for by in found:
            yield replace(full, words=(*full.words, f"positions {by:+d}"), shift=by)
        each = None if found else measure.shifts_of_axes(turned, h, small, known)
        if each is not None and any(each):
            says = (f"ids of axis {a} {by:+d}" for a, by in enumerate(each) if by)
            yield replace(full, words=(*full.words, *says), shift=each)


def estimates(turned: Turns, sample: Sample) -> Iterator[tuple[str, Rope]]:
    """theta and factor as measured, rounded to few digits.

    From the intervals of the frequencies, where these exclude the config's, and then by least
    squares, which needs to start near.
    """
    rope = turned.rope
    config = rope.config
    if not config.get("theta") or "inv_freq" in config:
        return
    f = measure.frequencies(turned, sample, axes_of_pairs(rope))
    if not f.decidable or not f.linear:
        return
    starts: dict[str, float] = {}
    if not _inside(rope, f):
        for name, low, high in (("theta", 1e2, 1e9), ("factor", 1.0, 256.0)):
            value = _closest(config, name, np.geomspace(low, high, 400), f) if config.get(name) else None
            if value is None:
                continue
            starts[name] = value
            for digits in (1, 2, 3, 4, 6):
                short = float(f"{value:.{digits}g}")
                made = list(rules.make(f"{name} {short:g} (measured)", {**config, name: short}))
                if short != config[name] and made and _inside(made[0][1], f):
                    yield made[0]
                    break
    yield from ((words, made) for words, made, clearly in nearer(turned, sample, starts) if clearly)


def _inside(rope: Rope, f: measure.Frequencies) -> bool:
    inv = np.abs(rope.inv_freq)
    room = inv * 2.0**-20
    low, high = np.minimum(np.abs(f.low), np.abs(f.high)), np.maximum(np.abs(f.low), np.abs(f.high))
    low = np.where(f.low * f.high < 0, 0, low)
    return bool(((inv >= low - room) & (inv <= high + room)).all())


def _closest(config: dict[str, Any], name: str, grid: Any, f: measure.Frequencies) -> float | None:
    """The value of a field whose frequencies come nearest to the measured intervals."""
    half = np.maximum((f.high - f.low) / 2, 1e-12)

    def cost(value: float) -> float:
        made = list(rules.make("", {**config, name: float(value)}))
        if not made:
            return float("inf")
        return float((((np.abs(f.middle) - np.abs(made[0][1].inv_freq)) / half) ** 2).sum())

    best, step = None, None
    for _ in range(6):
        costs = [cost(v) for v in grid]
        i = int(np.argmin(costs))
        if not np.isfinite(costs[i]):
            return None
        best = float(grid[i])
        step = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
        grid = np.geomspace(*step, 24)
    return best


def listed(positions: Any, sample: Sample) -> str:
    """Measured positions in words: 0 .. 7, 0 .. 7."""
    p = positions[0, 0]
    runs, start = [], 0
    for i in range(1, len(p) + 1):
        if i == len(p) or p[i] != p[i - 1] + 1:
            runs.append(f"{p[start]} .. {p[i - 1]}" if i - start > 1 else f"{p[start]}")
            start = i
    more = ", ..." if len(runs) > 6 else ""
    return f"positions {', '.join(runs[:6])}{more}"
