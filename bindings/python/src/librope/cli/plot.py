"""librope plot: four pictures of a RoPE."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import Rope
from . import rope_of

# Okabe and Ito's colours, which also colour-blind readers tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"


def unscaled(rope: Rope) -> Any:
    """The frequencies without the scaling, or None if there is none to compare."""
    config = rope.config
    if config.get("scaling") in (None, "default") or not config.get("theta"):
        return None
    d = rope.rotary_dim
    return float(config["theta"]) ** (-2 * np.arange(rope.pairs) / d)


def trained_length(rope: Rope) -> int | None:
    config = rope.config
    return config.get("original_max_position_embeddings") or config.get("max_position_embeddings")


def wavelengths(axes: Any, rope: Rope) -> None:
    inv = np.abs(rope.inv_freq)
    turning = inv > 0
    pairs = np.arange(rope.pairs)
    plain = unscaled(rope)
    if plain is not None:
        axes.plot(pairs, 2 * np.pi / plain, color=GREY, ls="--", lw=1.8, label="without scaling")
    label = rope.config.get("scaling", "default")
    axes.plot(pairs[turning], 2 * np.pi / inv[turning], color=BLUE, lw=2.2, label=label)
    length = trained_length(rope)
    if length:
        axes.axhline(length, color=ORANGE, lw=1.5, label=f"trained on {length:,} tokens")
    axes.set(yscale="log", xlabel="pair of channels", ylabel="wavelength (tokens)",
             title="How far each pair goes in one turn")  # fmt: skip
    axes.legend(frameon=False)


def rows(axes: Any, rope: Rope) -> None:
    positions = np.arange(256)
    cos = np.asarray(rope.cos_sin(_ids(rope, positions), format="split")[0])
    picture = axes.imshow(cos.T, aspect="auto", origin="lower", cmap="RdBu_r", interpolation="nearest",
                          extent=(0, 256, 0, rope.pairs))  # fmt: skip
    axes.set(xlabel="position (tokens)", ylabel="pair of channels", title="Cosines of the first 256 positions")
    axes.figure.colorbar(picture, ax=axes, label="cos", pad=0.02)


def _smooth(values: Any, reach: int = 30) -> Any:
    """The mean of the neighbours on both sides, fewer of them near the ends."""
    sums = np.concatenate([[0], np.cumsum(values)])
    i = np.arange(len(values))
    r = np.minimum(np.minimum(i, len(values) - 1 - i), reach)
    return (sums[i + r + 1] - sums[i - r]) / (2 * r + 1)


def decay(axes: Any, rope: Rope) -> None:
    distances = np.unique(np.logspace(0, 6, 1200).astype(np.int64))
    for values, color, label in (
        (unscaled(rope), GREY, "without scaling"),
        (np.abs(rope.inv_freq), BLUE, rope.config.get("scaling", "default")),
    ):
        if values is None:
            continue
        mean = np.cos(distances[:, None] * values).mean(1)
        axes.plot(distances, mean, color=color, lw=0.7, alpha=0.45)
        axes.plot(distances, _smooth(mean), color=color, lw=2.2, label=label)
    length = trained_length(rope)
    if length:
        axes.axvline(length, color=ORANGE, lw=1.5, label=f"trained on {length:,} tokens")
    axes.axhline(0, color="black", lw=0.6)
    axes.set(xscale="log", xlabel="distance of q and k (tokens)", ylabel="q·k, relative to distance 0",
             title="Equal q and k: what remains with distance")  # fmt: skip
    axes.legend(frameon=False)


def error(axes: Any, rope: Rope) -> None:
    positions = np.unique(np.logspace(0, np.log10(2**31 - 1), 400).astype(np.int64))
    exact = rope.replace(angle="exact")
    want = np.stack(exact.cos_sin(_ids(rope, positions), format="split")).astype(np.float64)
    got = np.stack(rope.replace(angle="float32").cos_sin(_ids(rope, positions), format="split"))
    worst = np.abs(got - want).max((0, 2))
    axes.plot(positions, np.maximum(worst, 1e-8), color=RED, lw=1.4, label="angle in float32, as models use it")
    axes.axhline(1.5e-7, color=GREEN, lw=2.2, label='angle="exact": bound of librope')
    for mark, name in ((4096, "4k"), (131072, "128k"), (1 << 20, "1M")):
        axes.axvline(mark, color=GREY, lw=0.8, ls=":")
        axes.text(mark, 4.5e-8, f" {name}", fontsize=9, color=GREY)
    axes.set(xscale="log", yscale="log", xlabel="position (tokens)", ylabel="largest error of cos and sin",
             title="What the float32 angle costs", ylim=(3e-8, 60))  # fmt: skip
    axes.legend(frameon=False, loc="upper left")


def _ids(rope: Rope, positions: Any) -> Any:
    return positions if rope.axes == 1 else np.broadcast_to(positions, (rope.axes, len(positions))).copy()


PICTURES = {"wavelengths": wavelengths, "rows": rows, "decay": decay, "error": error}


def figure(rope: Rope, title: str, only: str | None = None) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style = {"svg.fonttype": "path", "font.size": 11, "axes.spines.top": False,
             "axes.spines.right": False, "axes.titlesize": 12, "axes.titleweight": "bold"}  # fmt: skip
    with plt.rc_context(style):
        if only:
            made, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
            PICTURES[only](axes, rope)
        else:
            made, grid = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
            for draw, axes in zip(PICTURES.values(), grid.flat, strict=True):
                draw(axes, rope)
        made.suptitle(title, fontsize=13)
        return made


def run(arguments: Any) -> int:
    import json
    import pathlib

    rope = rope_of(arguments)
    path = pathlib.Path(arguments.config)
    path = path / "config.json" if path.is_dir() else path
    name = json.loads(path.read_text()).get("model_type", path.stem)
    fields = [f"head_dim {rope.head_dim}"]
    if rope.config.get("theta"):
        fields.append(f"theta {rope.config['theta']:,.0f}")
    fields.append(f"scaling {rope.config.get('scaling', 'default')}")
    if rope.config.get("factor"):
        fields.append(f"factor {rope.config['factor']:g}")
    made = figure(rope, f"{name}: {', '.join(fields)}", arguments.only)
    made.savefig(arguments.out, dpi=150)
    print(arguments.out)
    return 0
