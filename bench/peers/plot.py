"""The picture of a run: OUT.png from OUT.csv, with the CPU's name out of OUT.md.

    python -m peers.plot OUT            needs matplotlib; scripts/bench --peers calls it

A panel for each dtype: ns per token over the number of tokens, halves, one thread. Contenders that
work in place are measured there; those that return new tensors (dashed) out of place.
"""

import csv
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from .table import LIMITS  # noqa: E402

DTYPES = ("f32", "bf16", "f16")
PLACES = ("in_place", "out_of_place")
OURS = "librope"
LEFT_OUT = {"librope_rows", "librope_prepared", "highway_sincos"}  # the same library again, and a curiosity
PALETTE = ("#4e79a7", "#f28e2b", "#59a14f", "#9c755f", "#b07aa1", "#b8860b", "#2a9d8f", "#e15c8a", "#8c8c8c",
           "#1b9e77", "#7570b3", "#a6761d", "#666666", "#386cb0")


def read(path):
    """{dtype: {contender: (place, {tokens: ns})}} for halves and one thread; the limit as "limit"."""
    found, limits = {}, {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            if line["threads"] != "1" or line["pairing"] != "halves" or not line["median_ns"]:
                continue
            name, tokens, value = line["contender"], int(line["tokens"]), float(line["median_ns"])
            if name.startswith(LIMITS):
                if line["place"] == "in_place":
                    at = limits.setdefault(line["dtype"], {})
                    at[tokens] = min(value, at.get(tokens, value))
            elif name not in LEFT_OUT:
                places = found.setdefault(line["dtype"], {}).setdefault(name, {})
                places.setdefault(line["place"], {})[tokens] = value
    panels = {}
    for dtype, contenders in found.items():
        panels[dtype] = {"limit": ("in_place", limits.get(dtype, {}))}
        for name, places in contenders.items():
            place = PLACES[0] if PLACES[0] in places else PLACES[1]
            panels[dtype][name] = (place, places[place])
    return panels


def cpu_of(path):
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith("- CPU: "):
            return line.removeprefix("- CPU: ")
    return "this CPU"


def draw(panels, cpu, out):
    names = sorted({name for panel in panels.values() for name in panel} - {OURS, "limit"})
    colors = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    styles = {OURS: {"color": "#d62728", "linewidth": 2.8, "zorder": 5},
              "limit": {"color": "black", "linewidth": 1.2, "linestyle": ":", "zorder": 4}}
    dtypes = [dtype for dtype in DTYPES if dtype in panels]
    figure, axes = plt.subplots(1, len(dtypes), figsize=(5.2 * len(dtypes), 6), sharey=True, squeeze=False)
    for axis, dtype in zip(axes[0], dtypes, strict=True):
        tokens = sorted({n for _, times in panels[dtype].values() for n in times})
        at = {n: i for i, n in enumerate(tokens)}
        ends = []
        for name, (place, times) in panels[dtype].items():
            if not times:
                continue
            style = styles.get(name, {"color": colors.get(name), "linewidth": 1.3})
            if place == "out_of_place":
                style = {**style, "linestyle": "--"}
            order = sorted(times)
            axis.plot([at[n] for n in order], [times[n] for n in order], marker="o", markersize=3, **style)
            ends.append((times[order[-1]], name, style["color"]))
        axis.set_yscale("log")
        axis.set_xticks(range(len(tokens)), [f"{n:,}" for n in tokens])
        axis.set_xlim(-0.3, len(tokens) - 1 + 0.35 * len(tokens))
        axis.set_title(dtype)
        axis.set_xlabel("tokens in one call")
        axis.grid(axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        panels[dtype]["ends"] = sorted(ends)
    axes[0][0].set_ylabel("ns per token (log)")
    low, high = axes[0][0].get_ylim()
    for axis, dtype in zip(axes[0], dtypes, strict=True):
        ends = panels[dtype]["ends"]
        last = max(line.get_xdata()[-1] for line in axis.get_lines())
        # Labels must not lie on each other: at least a 28th of the height apart, in log scale.
        factor = (high / low) ** (1 / 28)
        previous = 0
        for value, name, color in ends:
            previous = max(value, previous * factor)
            axis.annotate(name, (last, previous), xytext=(7, 0), textcoords="offset points", va="center",
                          fontsize=8.5, color=color, fontweight="bold" if name == OURS else "normal")
    figure.suptitle("RoPE of q and k, 32 + 8 heads of 128, pairs as halves, one thread: lower is faster")
    figure.text(0.5, 0.005, f"{cpu}. Solid: in place; dashed: returns new tensors, which is all it can do. Dotted: "
                "the fastest sweep over the same bytes.", ha="center", fontsize=8.5)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    base = sys.argv[1]
    draw(read(f"{base}.csv"), cpu_of(f"{base}.md"), f"{base}.png")
