"""What a hypothesis predicts for a tensor, and how far rounding may take an honest result from it.

The bound is derived, per element, for y = c x0 - s x1 in a dtype with unit roundoff u, whatever is
rounded on the way (cos and sin, both products, the sum: three roundings of |c x0| + |s x1|):

    (1 + 4 u) 3 u (|c x0| + |s x1|)      the roundings above
    + 1.5e-7 a (|x0| + |x1|)             cos and sin of float32 themselves, a the attention factor
    + d a (|s x0| + |c x1|)              the angle is off by d

d is 2^-22 of the angle where models compute it in float32: one ulp of inv_freq, and a rounding of
the product on either side; and nothing where the config asks for exact angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ... import Rope
from ..kinds import channels, endless
from .sample import Sample

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}
TABLE = 1.5e-7
ANGLE = 2.0**-22
CHUNK = 1 << 20  # elements that are compared at a time

_T = TypeVar("_T")


@dataclass(frozen=True)
class Hypothesis:
    """One way in which somebody may have rotated.

    words say how it differs from the config; none: it is the config's rule.
    """

    rope: Rope
    words: tuple[str, ...] = ()
    times: int = 1  # -1: the other way; 2: twice; 0: not at all
    factor: float | None = None  # what cos and sin are multiplied by; None: what times says
    positions: Any = field(default=None, compare=False)  # [axes, batch, tokens] instead of given
    shift: int | tuple[int, ...] = 0  # of all ids, or of each axis
    precision: tuple[str, str] | None = None  # (what, dtype it went through)
    rest: float = 1.0  # what the channels that do not turn are multiplied by

    @property
    def gain(self) -> float:
        """What multiplies the length of a pair."""
        a = self.rope.attention_factor
        usual = {1: a, -1: 1 / a, 2: a * a, 0: 1.0}[self.times]
        return usual if self.factor is None else self.factor


def through(x: Any, dtype: str) -> Any:
    """x rounded to a narrower dtype and back."""
    if dtype == "bfloat16":
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(np.float32)


_UNTRIED: ContextVar[dict[tuple[str, ...], str] | None] = ContextVar("_UNTRIED", default=None)


@contextmanager
def noting() -> Iterator[dict[tuple[str, ...], str]]:
    """The hypotheses that could not be computed in the meantime, by their words, and why."""
    notes: dict[tuple[str, ...], str] = {}
    token = _UNTRIED.set(notes)
    try:
        yield notes
    finally:
        _UNTRIED.reset(token)


def tried(words: tuple[str, ...], otherwise: _T, test: Callable[..., _T], *given: Any) -> _T:
    """What a test of a hypothesis, called by its words, says; otherwise, if it cannot be computed.

    A mistake may lead where the library refuses to go, such as to infinite positions: then it is noted,
    and the other hypotheses remain. The config's own rule is not tried, but computed.
    """
    try:
        return test(*given)
    except MemoryError:
        raise
    except Exception as e:
        notes = _UNTRIED.get()
        if notes is not None:
            notes.setdefault(words, f"{type(e).__name__}: {e}".removesuffix(": "))
        return otherwise


def exists_in(dtype: str, positions: Any) -> bool:
    """Whether positions are finite in a narrower dtype: float16 ends at 65504."""
    return bool(np.isfinite(through(positions.astype(np.float32), dtype)).all())


def positions_of(h: Hypothesis, given: Any) -> Any:
    p = given if h.positions is None else h.positions
    return p + np.asarray(h.shift, p.dtype).reshape(-1, 1, 1) if h.shift else p


def split(rope: Rope, positions: Any, format: str) -> Any:
    """rope.cos_sin of positions [axes, batch, tokens]."""
    rope = endless(rope)
    if rope.axes == 1:
        return rope.cos_sin(np.ascontiguousarray(positions[0]), format=format)
    return rope.cos_sin(np.ascontiguousarray(positions), format=format, positions_layout="abt")


def turn(h: Hypothesis, given: Any) -> tuple[Any, Any]:
    """What multiplies every pair, as complex [batch, tokens, pairs], and the tolerance of its angle."""
    p = positions_of(h, given)
    rope = h.rope
    if h.precision and h.precision[0] == "positions":
        p = through(p.astype(np.float32), h.precision[1])
    if h.times == 0:
        one = np.full((*p.shape[1:], rope.pairs), h.gain, np.complex128)
        return one, np.zeros(one.shape)
    angles = split(rope, p, "angles").astype(np.float64)
    if h.precision and h.precision[0] == "the angle":
        angles = through(angles.astype(np.float32), h.precision[1]).astype(np.float64)
        with np.errstate(invalid="ignore"):  # float16 ends at 65504
            e = np.exp(1j * angles)
    else:
        c, s = split(rope, p, "split")
        if h.precision and h.precision[0] == "cos and sin":
            c, s = through(c, h.precision[1]), through(s, h.precision[1])
        e = (c + 1j * s.astype(np.float64)) / rope.attention_factor
    if h.times < 0:
        e = e.conj()
    elif h.times == 2:
        e = e * e
    float32 = rope.config.get("angle", "float32") != "exact"
    off = abs(h.times) * np.abs(angles) * (ANGLE if float32 else 0.0)
    return e * h.gain, off


def predict(h: Hypothesis, before: Any, given: Any, dtype: str) -> tuple[Any, Any]:
    """The values of a hypothesis in float64, and the bound of each; [batch, tokens, heads, channels]."""
    x = before.astype(np.float64)
    u, tiny = ROUNDOFF[dtype], TINY[dtype]
    out = x * h.rest
    bound = np.zeros_like(x) if h.rest == 1 else 2 * u * np.abs(out) + tiny
    if h.times == 0 and h.gain == 1:
        return out, bound
    e, off = turn(h, given)
    e, off = e[:, :, None], off[:, :, None]
    i0, i1, o0, o1 = channels(h.rope, x.shape[3])
    x0, x1 = x[..., i0], x[..., i1]
    if h.times < 0:  # the other way: reads what it would write
        x0, x1 = x[..., o0], x[..., o1]
        o0, o1 = i0, i1
    c, s = np.abs(e.real), np.abs(e.imag)
    a0, a1 = np.abs(x0), np.abs(x1)
    roundings = (1 + 4 * u) * (3 * u + (2 * u if h.factor is not None else 0)) * abs(h.times or 1)
    more = TABLE * h.gain * (a0 + a1) * abs(h.times or 1) + 4 * tiny
    if dtype == "float16":  # cos and sin near 0 are subnormal
        more = more + 2.0**-25 * (a0 + a1)
    out[..., o0] = e.real * x0 - e.imag * x1
    out[..., o1] = e.real * x1 + e.imag * x0
    if h.times == 2:  # both turns round, the second also turns the errors of the first: 2 sqrt(2)
        n0 = n1 = 1.5 * (a0 + a1) * h.gain
    else:
        n0, n1 = c * a0 + s * a1, c * a1 + s * a0
    bound[..., o0] = roundings * n0 + more + off * (s * a0 + c * a1)
    bound[..., o1] = roundings * n1 + more + off * (s * a1 + c * a0)
    return out, bound


@dataclass(frozen=True)
class Value:
    """One value of a tensor."""

    index: tuple[int, ...] = (0, 0, 0, 0)
    expected: float = 0.0
    found: float = 0.0
    allowed: float = 0.0
    error: float = 0.0


@dataclass
class Fit:
    """How a hypothesis fits a tensor: its largest error in units of the bound, and where it breaks it."""

    worst: float = 0.0
    at: Value = Value()  # the worst: where little is allowed, its error may be small
    largest: Value = Value()  # of the largest error
    over: int = 0
    tokens: Any = None
    heads: Any = None
    channels: Any = None

    @property
    def fits(self) -> bool:
        return self.over == 0


def fit(h: Hypothesis, sample: Sample, *, until_over: bool = False) -> Fit:
    """Compares every element. until_over: stops at the first chunk that breaks the bound."""
    b, t, n, d = sample.before.shape
    result = Fit(tokens=np.zeros((b, t), bool), heads=np.zeros(n, bool), channels=np.zeros(d, bool))
    dtype = sample.dtype
    step = max(1, CHUNK // max(b * n * d, 1))
    for start in range(0, t, step):
        part = slice(start, start + step)
        given = sample.positions[:, :, part]
        moved = h if h.positions is None else replace(h, positions=h.positions[:, :, part])
        want, bound = predict(moved, sample.before[:, part], given, dtype)
        got = sample.after[:, part].astype(np.float64)
        error = np.abs(got - want)
        # Overflow to infinity of the right sign is what the dtype asks for.
        full = np.isinf(got) & (np.sign(got) == np.sign(want))
        error[full & (np.abs(want) + bound >= LARGEST[dtype])] = 0
        error[~np.isfinite(error)] = np.inf
        ratio = np.where(error == 0, 0.0, error / np.maximum(bound, 1e-300))
        over = ratio > 1
        result.over += int(over.sum())
        result.tokens[:, part] |= over.any((2, 3))
        result.heads |= over.any((0, 1, 3))
        result.channels |= over.any((0, 1, 2))
        top, far = (np.unravel_index(int(e.argmax()), e.shape) for e in (ratio, error))
        top_value, far_value = (
            Value((int(i[0]), start + int(i[1]), int(i[2]), int(i[3])), float(want[i]), float(got[i]),
                  float(bound[i]), float(error[i])) for i in (top, far)
        )  # fmt: skip
        if ratio[top] > result.worst or start == 0:
            result.worst, result.at = float(ratio[top]), top_value
        if far_value.error > result.largest.error or start == 0:
            result.largest = far_value
        if until_over and result.over:
            break
    return result


def fits(h: Hypothesis, sample: Sample) -> bool:
    """Whether a hypothesis fits every element; one that cannot be computed does not."""
    return tried(h.words, False, lambda: fit(h, sample, until_over=True).fits)
