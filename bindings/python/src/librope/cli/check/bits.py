"""Which rounding policies give a tensor bit for bit, and in how many places they do not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ... import Rope
from ..._core import ROUNDINGS
from ..kinds import endless
from .reference import Hypothesis, positions_of, through
from .sample import Sample

# A rule that gives the bits is preferred to one that differs from them in so many independent
# places: an honest result with other roundings would have to hit all of them by chance (2^-24).
PLACES = 24


def _scaled(x: Any, by: float) -> Any:
    return x if by == 1 else (x.astype(np.float32) * np.float32(by)).astype(x.dtype)


def apply(rope: Rope, h: Hypothesis, x: Any, p: Any) -> Any:
    """The library's own result."""
    if h.times == 0:
        return x
    options: dict[str, Any] = {"layout": "bshd"}
    if rope.axes > 1:
        options["positions_layout"] = "abt"
    at = np.ascontiguousarray(p if rope.axes > 1 else p[0])
    if h.precision and h.precision[0] == "positions":
        at = through(at.astype(np.float32), h.precision[1])
    if h.precision and h.precision[0] == "cos and sin":
        more: dict[str, Any] = {} if rope.axes == 1 else {"positions_layout": "abt"}
        rows = tuple(through(r, h.precision[1]) for r in rope.cos_sin(at, format="split", **more))
        return rope.apply(x, cos_sin=rows, cos_sin_format="split", layout="bshd")
    if h.precision and h.precision[0] == "the angle":
        return None
    operation: Any = "inverse" if h.times < 0 else "forward"
    if h.times < 0 and h.factor == rope.attention_factor:
        operation = "backward"
    out = rope.apply(x, at, operation=operation, **options)
    return rope.apply(out, at, **options) if h.times == 2 else out


def ways(h: Hypothesis, dtype: Any) -> list[tuple[str, Rope]]:
    """The policies of a hypothesis for tensors of a dtype, and their names."""
    config = endless(h.rope).config
    own = config.get("angle", "float32")
    angles = ("float32", "exact") if own in ("float32", "exact") else (own,)
    found = []
    roundings = [r for r in ROUNDINGS if r != "native" or dtype == np.float16]
    for rounding, angle in itertools.product(roundings, angles):
        rope = Rope.from_fields({**config, "rounding": rounding, "angle": angle})
        found.append((f"rounding {rounding}, angle {angle}", rope))
    return found


def differing(h: Hypothesis, sample: Sample) -> dict[str, int]:
    """Places (token and channel; all heads of it count once) whose bits differ, by policy.

    Empty where the library cannot do what the hypothesis says.
    """
    p = positions_of(h, sample.positions)
    usual = Hypothesis(h.rope, times=h.times).gain
    around = 1.0 if h.times < 0 and h.factor == h.rope.attention_factor else h.gain / usual
    found: dict[str, int] = {}
    for name, rope in ways(h, sample.before.dtype):
        for order in ("after", "before") if around != 1 else ("",):
            x = np.ascontiguousarray(sample.before)
            if order == "before":
                x = _scaled(x, around)
            out = apply(rope, h, x, p)
            if out is None:
                return {}
            if order == "after":
                out = _scaled(out, around)
            where = f"{name}, scaled {order}" if order else name
            found[where] = int((out != sample.after).any(2).sum())
    return found


def exact(h: Hypothesis, sample: Sample) -> list[str]:
    return [name for name, n in differing(h, sample).items() if n == 0]
