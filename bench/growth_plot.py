"""The picture of growth.cc's CSV: six panels, what each cost grows with.

    python bench/growth_plot.py IN.csv OUT.png "CPU's name"      needs matplotlib
"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# Title, series, label of x, label of y, scale of y: what grows in proportion is a line on log scales.
PANELS = (
    ("one call, 2 + 1 heads of 128, in place", "tokens", "tokens", "ns per token", "linear"),
    ("one token, 32 + 8 heads, f32", "position", "position", "ns per token", "linear"),
    ("1024 tokens in packed sequences", "sequences", "sequences", "ns per token", "linear"),
    ("creating a context", "create", "head_dim; number of sets", "ns", "log"),
    ("a context's memory", "bytes", "head_dim", "bytes", "log"),
    ("reading config.json", "read", "layers", "ns", "log"),
)


def read(path):
    """{series: [(x, ns, limit or None)]}."""
    found = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            limit = float(line["limit_ns"]) if line["limit_ns"] else None
            found.setdefault(line["series"], []).append((float(line["x"]), float(line["ns"]), limit))
    return found


def draw(found, cpu, out):
    figure, axes = plt.subplots(2, 3, figsize=(13, 7))
    for axis, (title, first, x_label, y_label, scale) in zip(axes.flat, PANELS, strict=True):
        for name, points in found.items():
            words = name.split()
            if words[0] != first:
                continue
            x, y, limits = zip(*points, strict=True)
            (line,) = axis.plot(x, y, marker=".", label=" ".join(words[1:]))
            if None not in limits:
                axis.plot(x, limits, ":", color=line.get_color(), label=f"{words[1]} sweep")
        axis.set_xscale("log", base=2)
        axis.set_yscale(scale)
        if scale == "linear":
            axis.set_ylim(bottom=0)
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        if len(axis.get_legend_handles_labels()[0]) > 1:
            axis.legend(fontsize=8)
    figure.suptitle(f"librope, {cpu}")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    draw(read(sys.argv[1]), sys.argv[3], sys.argv[2])
