"""The picture of librope diff: tokens per turn of each pair in A and B, and how far their angles are
apart by position. Angles are compared exactly: nothing is smoothed or sampled by chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..plot import BLUE, RED
from .compare import Comparison, Group, Span
from .report import title, verdict

_MOST = 3  # rows


def figure(found: Comparison) -> Any:
    """A row for each group that has angles, those that differ first. ValueError: there is none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [(g, s) for g in sorted(found.groups, key=lambda g: g.same) for s in g.spans if s.gap.any()]
    rows = rows or [(g, s) for g in found.groups for s in g.spans[:1]]
    if not rows:
        raise ValueError("no layer has as many pairs in both: there are no angles to draw")
    rows = rows[:_MOST]
    style = {"svg.fonttype": "path", "font.size": 11, "axes.spines.top": False,
             "axes.spines.right": False, "axes.titlesize": 12, "axes.titleweight": "bold"}  # fmt: skip
    with plt.rc_context(style):
        made = plt.figure(figsize=(13, 1.3 + 4.6 * len(rows)), layout="constrained")
        boxes = np.atleast_2d(made.subplots(len(rows), 2))
        for (left, right), (group, span) in zip(boxes, rows, strict=True):
            wavelengths(left, found, group, span)
            distance(right, found, group, span)
        made.suptitle(f"A: {found.a.name}   B: {found.b.name}\n{verdict(found)}", fontsize=11.5)
        return made


def _named(group: Group, span: Span, found: Comparison) -> str:
    if len(group.spans) == 1:
        return title(group)
    end = "and more" if span.below > found.length else f"to {span.below - 1:,}"
    return f"{title(group)}; sequences of {span.first:,} {end} tokens"


def wavelengths(axes: Any, found: Comparison, group: Group, span: Span) -> None:
    pairs = np.arange(len(span.gap))
    for letter, inv, colour, style in zip("AB", span.inv_freq, (BLUE, RED), ("-", "--"), strict=True):
        turning = inv != 0
        axes.plot(pairs[turning], 2 * np.pi / np.abs(inv[turning]), style, color=colour, lw=2.2, label=letter)
    for pair in span.differs:
        axes.axvspan(pair - 0.5, pair + 0.5, color=RED, alpha=0.08, lw=0)
    axes.axhline(found.length, color="black", lw=0.9, ls=(0, (4, 3)))
    axes.annotate(f"{found.length:,} tokens", (0.008, found.length), xytext=(0, 2.5), fontsize=8.5,
                  xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    axes.set(yscale="log", xlabel="pair of channels", ylabel="wavelength (tokens)",
             title=_named(group, span, found))  # fmt: skip
    axes.legend(frameon=False, loc="lower right",
                title=f"{len(span.differs)} of {len(pairs)} pairs differ", title_fontsize=9)  # fmt: skip


def distance(axes: Any, found: Comparison, group: Group, span: Span) -> None:
    from matplotlib.colors import LogNorm

    at = np.geomspace(1, max(found.length, 2), 400)
    off = span.gap[:, None] * at
    low = max(found.bound, 1e-9) / 100
    shown = np.where(off >= low, np.minimum(off, np.pi), np.nan)
    axes.set_facecolor("#F2F2F2")
    edges = np.sqrt(at[:-1] * at[1:])
    edges = np.concatenate([[at[0]], edges, [at[-1]]])
    picture = axes.pcolormesh(edges, np.arange(len(span.gap) + 1), shown, cmap="viridis_r", rasterized=True,
                              norm=LogNorm(low, np.pi))  # fmt: skip
    first = np.where(span.exceeds <= found.length, span.exceeds, np.nan)
    if np.isfinite(first).any():
        axes.step(np.append(first, first[-1]), np.arange(len(first) + 1), color=RED, lw=1.6, where="pre")
    axes.set(xscale="log", xlabel="position (tokens)", ylabel="pair of channels", xlim=(1, found.length),
             title=f"How far the angles are apart; red: {found.bound:g}")  # fmt: skip
    axes.figure.colorbar(picture, ax=axes, label="radians; half a turn and more alike", pad=0.02)
