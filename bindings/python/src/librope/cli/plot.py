"""librope plot: four pictures of a model's RoPE, with all its kinds of layers.

Nothing drawn is smoothed or sampled by chance: where a column or a point stands for many positions,
it is their mean, their percentiles or their maximum, and the label says which.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from .. import Rope
from .._config_text import TOWERS
from .._replace import replacing
from . import kinds
from .kinds import Kind, axes_of_pairs, endless

# Okabe and Ito's colours, which also colour-blind readers tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
PURPLE, SKY = "#CC79A7", "#56B4E9"
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
_FARTHEST = 1_000_000  # tokens
_TOWER = 4096  # ids of images and sound stay small
_BINS = 10  # points in a decade


def unscaled(rope: Rope) -> Any:
    """The frequencies without the scaling, or None if there is none to compare."""
    config = rope.config
    if config.get("scaling") in (None, "default", "proportional") or not config.get("theta"):
        return None
    return float(config["theta"]) ** (-2 * np.arange(rope.pairs) / rope.rotary_dim)


def reach(kind: Kind, farthest: float) -> float:
    return min(farthest, _TOWER) if kind.name in TOWERS else farthest


def bins(farthest: float) -> Any:
    return np.geomspace(1, farthest, int(_BINS * np.log10(farthest)) + 1)


def described(kind: Kind) -> str:
    """One line about a kind: what tells it from others."""
    rope, f = kind.rope, kind.fields
    assert rope is not None
    said = [f"{f.get('scaling', 'default')}"]
    if f.get("theta"):
        said.append(f"theta {f['theta']:,.0f}")
    if f.get("factor"):
        said.append(f"factor {f['factor']:g}")
    said.append(f"head_dim {rope.head_dim}")
    moving = int(np.count_nonzero(rope.inv_freq))
    if 2 * moving != rope.head_dim:
        said.append(f"{2 * moving} channels turn")
    if rope.attention_factor != 1:
        said.append(f"cos and sin times {rope.attention_factor:.4g}")
    if f.get("seq_len"):
        said.append(f"for {f['seq_len']:,} tokens")
    return ", ".join(said)


def lengths(drawn: list[Kind]) -> list[tuple[int, str]]:
    """The lengths that config.json names, shortest first."""
    found: dict[int, list[str]] = {}
    for kind in drawn:
        if kind.original:
            found.setdefault(kind.original, []).append("length before scaling")
        if kind.longest:
            found.setdefault(kind.longest[1], []).append(kind.longest[0])
    return [(n, " = ".join(dict.fromkeys(names))) for n, names in sorted(found.items())]


def mark_lengths(axes: Any, drawn: list[Kind], upright: bool, top: bool = True) -> None:
    """Thin lines at the lengths. Upright ones have the number alone: wavelengths says what it is."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for length, words in lengths(drawn):
        if upright:
            axes.axvline(length, color="black", lw=0.9, ls=(0, (4, 3)), zorder=1)
            axes.annotate(f"{length:,}", (length, 0.985 if top else 0.015), ha="center",
                          xycoords=("data", "axes fraction"), va="top" if top else "bottom",
                          fontsize=8.5, bbox=box)  # fmt: skip
        else:
            axes.axhline(length, color="black", lw=0.9, ls=(0, (4, 3)), zorder=1)
            axes.annotate(f"{length:,}: {words}", (0.008, length), xytext=(0, 2.5), fontsize=8.5,
                          xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip


def series(drawn: list[Kind]) -> list[tuple[Kind, int, Any, str, str]]:
    """(kind, axis, its pairs, colour, label): a colour for every axis of every kind."""
    found: list[tuple[Kind, int, Any, str, str]] = []
    for kind in drawn:
        rope = kind.rope
        assert rope is not None
        axis_of = axes_of_pairs(rope)
        for axis in range(rope.axes):
            label = kind.name if rope.axes == 1 else f"{kind.name}, axis {axis} of the ids"
            colour = COLOURS[len(found) % len(COLOURS)]
            found.append((kind, axis, np.flatnonzero(axis_of == axis), colour, label))
    return found


def wavelengths(axes: Any, drawn: list[Kind]) -> None:
    for kind, axis, pairs, colour, label in series(drawn):
        rope = kind.rope
        assert rope is not None
        inv = np.abs(rope.inv_freq)
        plain = unscaled(rope)
        moving = pairs[inv[pairs] > 0]
        still = rope.pairs - np.count_nonzero(inv)
        if still and axis == 0:
            label += f" ({still} of {rope.pairs} pairs stand still)"
        if plain is not None and rope.axes == 1:
            axes.plot(pairs, 2 * np.pi / plain[pairs], color=colour, ls=":", lw=1.8,
                      label=f"{kind.name} without scaling")  # fmt: skip
        style = {"ls": "-", "lw": 2.2} if rope.axes == 1 else {"ls": "", "marker": "o", "ms": 3.5}
        axes.plot(moving, 2 * np.pi / inv[moving], color=colour, label=label, **style)
    mark_lengths(axes, drawn, upright=False)
    axes.set(yscale="log", xlabel="pair of channels", ylabel="wavelength (tokens)",
             title="Tokens per turn of each pair")  # fmt: skip
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    low, high = axes.get_ylim()
    entries = len(axes.get_legend().get_texts())
    axes.set_ylim(low, high * (high / low) ** (0.075 * entries + 0.02))  # the legend is above the lines


def columns(farthest: int) -> Any:
    """The first position of every column of a logarithmic axis, and the end: 0, 1, 2, ..."""
    edges = np.unique(np.geomspace(1, farthest, 420).astype(np.int64))
    return np.concatenate([[0], edges])


def mean_cosine(inv: Any, first: Any, last: Any) -> Any:
    """The mean of cos(inv * p) over p = first .. last, in closed form."""
    n = (last - first + 1)[None, :]
    half = inv[:, None] / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        kernel = np.sin(half * n) / (n * np.sin(half))
    kernel = np.where(np.abs(np.sin(half)) < 1e-15, 1.0, kernel)
    return kernel * np.cos(half * (first + last)[None, :])


def rows(axes: Any, kind: Kind, farthest: int, last: bool = True, first: bool = True) -> None:
    rope = kind.rope
    assert rope is not None
    edges = columns(farthest)
    mean = mean_cosine(np.abs(rope.inv_freq), edges[:-1], edges[1:] - 1) * rope.attention_factor
    mean[np.asarray(rope.inv_freq) == 0] = np.nan  # grey: it stands still
    a = rope.attention_factor
    axes.set_facecolor("#DDDDDD")
    if np.isnan(mean).any():
        at = np.flatnonzero(np.asarray(rope.inv_freq) == 0)
        axes.text(0.5, (at[0] + at[-1] + 1) / 2 / rope.pairs, "these pairs stand still", fontsize=9,
                  transform=axes.transAxes, ha="center", va="center", color="#444444")  # fmt: skip
    # Position 0 has no place on the axis: the first column, 0 alone, is left out.
    picture = axes.pcolormesh(edges[1:], np.arange(rope.pairs + 1), mean[:, 1:], cmap="RdBu_r",
                              vmin=-a, vmax=a, rasterized=True)  # fmt: skip
    axes.set(xscale="log", ylabel="pair of channels")
    if last:
        axes.set_xlabel("position (tokens); mean of each column's positions")
    else:
        axes.tick_params(labelbottom=False)
    axes.set_title("Cosines" if first else "", pad=6)
    if kind.name and not (first and last):
        axes.text(0.012, 0.93, kind.name, transform=axes.transAxes, va="top", fontsize=9,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})  # fmt: skip
    axes.figure.colorbar(picture, ax=axes, label="cos", pad=0.02)


def decay(axes: Any, drawn: list[Kind]) -> None:
    for kind, colour in zip(drawn, kind_colours(drawn), strict=True):
        rope = kind.rope
        assert rope is not None
        edges = bins(reach(kind, _FARTHEST))
        for inv, mine in ((unscaled(rope), False), (np.abs(rope.inv_freq), True)):
            if inv is None:
                continue
            at, bands = [], []
            for low, high in zip(edges[:-1], edges[1:], strict=True):
                inside = np.arange(np.ceil(low), np.ceil(high))
                if not len(inside):
                    continue
                if len(inside) > 600:  # every 1/600 of the bin, at steps that are no whole turn
                    inside = np.unique((low + (high - low) * (np.arange(600) * 0.6180339887 % 1)).astype(np.int64))
                values = np.cos(inside[:, None] * inv).mean(1)
                at.append(float(np.sqrt(inside.min() * inside.max())))
                bands.append(np.percentile(values, (10, 50, 90)))
            lower, middle, upper = np.array(bands).T
            if mine:
                axes.fill_between(at, lower, upper, color=colour, alpha=0.22, lw=0)
                axes.plot(at, middle, color=colour, lw=2.2, label=kind.name)
            else:
                axes.plot(at, middle, color=colour, ls=":", lw=1.8, label=f"{kind.name} without scaling")
    axes.axhline(0, color="black", lw=0.6)
    mark_lengths(axes, drawn, upright=True)
    axes.set(xscale="log", xlabel="distance of q and k (tokens)", ylabel="q·k, relative to distance 0",
             title="Equal q and k: what remains with distance", ylim=(None, 1.12), xlim=(1, _FARTHEST))  # fmt: skip
    note = "median, and 10 to 90 %"
    if any(k.rope is not None and k.rope.axes > 1 for k in drawn):
        note += "; all ids move alike"
    legend = axes.legend(frameon=False, fontsize=9, loc="lower left", title=note, title_fontsize=9,
                         alignment="left")  # fmt: skip
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0) - 0.075 * (high - low) * (len(legend.get_texts()) + 1), high)


def error(axes: Any, drawn: list[Kind]) -> None:
    from matplotlib.lines import Line2D

    for kind, colour in zip(drawn, kind_colours(drawn), strict=True):
        rope = kind.rope
        assert rope is not None
        edges = bins(reach(kind, 1e7))
        exact = endless(rope.replace(angle="exact"))
        usual = endless(rope.replace(angle="float32"))
        inv, axis = np.asarray(exact.inv_freq), axes_of_pairs(rope)
        for way, style in ((usual, "-"), (exact, "--")):
            at, worst = [], []
            for low, high in zip(edges[:-1], edges[1:], strict=True):
                inside = np.unique(np.linspace(np.ceil(low), np.ceil(high) - 1, 48).astype(np.int64))
                if inside[0] < low:
                    continue
                ids = np.broadcast_to(inside, (rope.axes, 1, len(inside))).copy()
                got = (way.cos_sin(ids[0], format="split") if rope.axes == 1 else
                       way.cos_sin(ids, format="split", positions_layout="abt"))  # fmt: skip
                angle = ids[axis, 0].T.astype(np.longdouble) * inv
                want = np.cos(angle), np.sin(angle)
                off = max(float(np.abs(g[0] / rope.attention_factor - w).max()) for g, w in zip(got, want, strict=True))
                at.append(float(np.sqrt(inside[0] * inside[-1])))
                worst.append(off)
            axes.plot(at, worst, color=colour, ls=style, lw=2)
    mark_lengths(axes, drawn, upright=True, top=False)
    axes.set(xscale="log", yscale="log", xlabel="position (tokens)", ylabel="largest error of cos and sin",
             title="What the float32 angle costs (measured)", xlim=(1, 1e7), ylim=(4e-9, 20))  # fmt: skip
    grey = GREY if len(drawn) > 1 else BLUE
    handles = [Line2D([], [], color=grey, ls="-", lw=2, label="angle in float32, as in models"),
               Line2D([], [], color=grey, ls="--", lw=2, label='angle="exact"')]  # fmt: skip
    if len(drawn) > 1:
        handles += [Line2D([], [], color=c, lw=2, label=k.name)
                    for k, c in zip(drawn, kind_colours(drawn), strict=True)]  # fmt: skip
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="upper left")


def kind_colours(drawn: list[Kind]) -> list[str]:
    """The colour of each kind: that of its first axis."""
    return [next(c for k, a, _, c, _ in series(drawn) if k is kind) for kind in drawn]


def figure(drawn: list[Kind], title: str, only: str | None = None) -> Any:
    """A matplotlib figure of kinds of layers (kinds.read); those without RoPE are left out.

    ValueError: none is left, or something about one is not told.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    for kind in drawn:
        if kind.missing:
            raise ValueError(f"{kind.name}: the config does not tell {' and '.join(kind.missing)}")
        kinds.refuse_general(kind.name, kind.fields, "the pictures show")
    shown = [k for k in drawn if k.rope is not None]
    if not shown:
        raise ValueError("no kind of layer has RoPE: there is nothing to draw")
    farthest = max([n for n, _ in lengths(shown)], default=131072)
    style = {"svg.fonttype": "path", "font.size": 11, "axes.spines.top": False,
             "axes.spines.right": False, "axes.titlesize": 12, "axes.titleweight": "bold"}  # fmt: skip
    with plt.rc_context(style):
        tall = 8.6 + 0.25 * len(shown) + (0.9 * (len(shown) - 1) if len(shown) > 1 else 0)
        made = plt.figure(figsize=(13, tall) if not only else (9, 5.2), layout="constrained")
        if only == "rows":
            _stacked(made, shown, farthest)
        elif only:
            globals()[only](made.add_subplot(), shown)
        else:
            grid = made.subfigures(2, 2, wspace=0.02, hspace=0.03)
            wavelengths(grid[0, 0].add_subplot(), shown)
            _stacked(grid[0, 1], shown, farthest)
            decay(grid[1, 0].add_subplot(), shown)
            error(grid[1, 1].add_subplot(), shown)
        lines = [title] + [f"{k.name}: {described(k)}" for k in shown]
        left_out = [k.name for k in drawn if k.rope is None]
        if left_out:
            lines.append(f"{', '.join(left_out)}: without RoPE")
        made.suptitle("\n".join(lines), fontsize=11.5)
        return made


def _stacked(made: Any, shown: list[Kind], farthest: int) -> None:
    """One map of cosines above the other."""
    boxes = np.atleast_1d(made.subplots(len(shown), 1))
    for i, (box, kind) in enumerate(zip(boxes, shown, strict=True)):
        rows(box, kind, farthest, last=i == len(shown) - 1, first=i == 0)


def run(arguments: Any) -> int:
    if pathlib.Path(arguments.out).suffix not in (".png", ".svg"):
        raise ValueError(f"{arguments.out}: a .png or .svg file is expected")
    drawn = kinds.read(arguments.config, arguments.seq_len, arguments.accept,
                       pairing=arguments.pairing, head_dim=arguments.head_dim)  # fmt: skip
    if arguments.layer is not None or arguments.layer_type is not None:
        from . import kind_of, model_of

        wanted = kind_of(model_of(arguments), arguments)
        drawn = [k for k in drawn if k.name == wanted]
    made = figure(drawn, kinds.title(arguments.config), arguments.only)
    with replacing(arguments.out) as file:
        made.savefig(file, format=pathlib.Path(arguments.out).suffix[1:], dpi=150)
    print(arguments.out)
    return 0
