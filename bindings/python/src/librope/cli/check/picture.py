"""Where tensors are wrong: the error of every pair of channels at every token, by what is allowed."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from ..._replace import replacing
from ..kinds import channels
from . import judge
from .grade import Grade
from .reference import CHUNK, Hypothesis, predict

_SHOWN = 8
_PIXELS = 1024  # tokens that a picture keeps apart


def check_suffix(path: str) -> None:
    """Before any work."""
    if pathlib.Path(path).suffix not in (".png", ".svg"):
        raise ValueError(f"{path}: a .png or .svg file is expected")


def errors(g: Grade) -> Any:
    """The largest error by allowed of each pair and token, over batch rows and heads: [tokens, pairs]."""
    sample = g.item.sample
    rope = judge.fitting(g.item.rope, sample)
    h = Hypothesis(rope, times=0 if g.item.still else 1)
    b, t, n, d = sample.before.shape
    first, second = channels(rope, d)[2:]
    found = np.zeros((t, len(first)))
    step = max(1, CHUNK // max(b * n * d, 1))
    for start in range(0, t, step):
        part = sample.part(tokens=np.arange(start, min(start + step, t)))
        want, bound = predict(h, part.before, part.positions, sample.dtype)
        apart = np.abs(part.after.astype(np.float64) - want)
        apart[~np.isfinite(apart)] = np.inf
        ratio = np.where(apart == 0, 0, apart / np.maximum(bound, 1e-300)).max((0, 2))
        found[start : start + step] = np.maximum(ratio[:, first], ratio[:, second])
    return found


def figure(grades: list[Grade], title: str) -> Any:
    """A matplotlib figure of the tensors, wrong ones first; at most eight."""
    import matplotlib
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    chosen = sorted(grades, key=lambda g: -g.verdict.own.worst)[:_SHOWN]
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    made = Figure(figsize=(1.5 + 3.4 * columns, 1.3 + 3.0 * rows), layout="constrained")
    boxes = np.atleast_1d(made.subplots(rows, columns, squeeze=False)).ravel()
    colours = matplotlib.colormaps["RdYlBu_r"]
    image: Any = None
    for box, g in zip(boxes, chosen, strict=False):
        found = errors(g)
        every = -(-len(found) // _PIXELS)
        starts = np.arange(0, len(found), every)
        found = np.maximum.reduceat(found, starts, axis=0)
        # Allowed is the middle of the colours; what is off by a thousand times that is red.
        image = box.imshow(found.T.clip(1e-3, 1e3), aspect="auto", cmap=colours, norm=LogNorm(1e-3, 1e3),
                           interpolation="nearest", origin="lower",
                           extent=(-0.5, len(g.item.sample.tokens) - 0.5, -0.5, found.shape[1] - 0.5))  # fmt: skip
        box.set_title(f"{g.item.name}\n{g.word}", fontsize=8)
        box.set_xlabel("token", fontsize=8)
        box.set_ylabel("pair of channels", fontsize=8)
        box.tick_params(labelsize=7)
    for box in boxes[len(chosen) :]:
        box.set_visible(False)
    made.colorbar(image, ax=list(boxes), label="error / allowed (1: the bound)", shrink=0.8)
    more = f", the worst {len(chosen)} of {len(grades)} tensors" if len(grades) > len(chosen) else ""
    made.suptitle(f"{title}{more}", fontsize=10)
    return made


def draw(grades: list[Grade], path: str, title: str) -> None:
    made = figure(grades, title)
    with replacing(path) as file:
        made.savefig(file, format=pathlib.Path(path).suffix[1:], dpi=120)
