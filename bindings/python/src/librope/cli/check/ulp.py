"""How many values of its dtype a tensor is away from the library's own result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..kinds import endless
from . import bits
from .reference import CHUNK, Hypothesis
from .sample import Sample

_INTEGER = {2: np.int16, 4: np.int32}


@dataclass(frozen=True)
class Ulp:
    """Shares of the values, and the largest distance. Near 0 one rounding of a sum is many ulp."""

    same: float
    within_one: float
    largest: int


def _order(x: Any) -> Any:
    """Numbers whose difference counts the values of the dtype between two of them."""
    n = np.ascontiguousarray(x).view(_INTEGER[x.dtype.itemsize]).astype(np.int64)
    least = -(1 << (8 * x.dtype.itemsize - 1))
    return np.where(n < 0, least - n, n)


def distance(h: Hypothesis, sample: Sample) -> Ulp | None:
    """From the result of a hypothesis under its rope's own policies; None: not one of the library."""
    same = near = largest = 0
    b, t, n, d = sample.before.shape
    step = max(1, CHUNK // max(b * n * d, 1))
    rope = endless(h.rope)
    for start in range(0, t, step):
        part = sample.part(tokens=np.arange(start, min(start + step, t)))
        want = bits.apply(rope, h, np.ascontiguousarray(part.before), part.positions)
        if want is None:
            return None
        apart = np.abs(_order(want) - _order(part.after))
        apart[np.isnan(part.after.astype(np.float32))] = 1 << (8 * part.after.dtype.itemsize)
        same += int((apart == 0).sum())
        near += int((apart <= 1).sum())
        largest = max(largest, int(apart.max()))
    return Ulp(same / sample.after.size, near / sample.after.size, largest)
