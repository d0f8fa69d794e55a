#!/usr/bin/env python3
"""Draws angle-error.png from the figures of tests/docs/angle_error.c. Needs matplotlib.

    python3 docs/images/angle_error.py

The picture carries the hash of its figures: tests/docs/docs_test.py tells when to draw it anew.
"""

import csv
import hashlib
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

here = pathlib.Path(__file__).parent
figures = here.parents[1] / "tests/docs/figures/angle_error.csv"

with figures.open(encoding="utf-8") as file:
    rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
positions = [row["position"] for row in rows]

figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=130)
for name, color in (("GGML", "tab:orange"), ("FLOAT32", "tab:blue"), ("EXACT", "tab:green")):
    axes.loglog(positions, [row[name] for row in rows], "o-", color=color, label=name, markersize=4)
axes.axhline(1.5e-7, color="tab:green", linestyle=":", linewidth=1)
bound = {"ha": "right", "fontsize": 8, "color": "tab:green"}
axes.text(positions[-1], 1.9e-7, "bound of EXACT, 1.5e-7", **bound)
for rounding, label in ((2**-9, "rounding of cos and sin to bf16"), (2**-12, "to f16")):
    axes.axhline(rounding, color="0.6", linestyle="--", linewidth=0.8)
    axes.text(positions[-1], rounding / 1.9, label, ha="right", fontsize=8, color="0.4")
axes.set_xlabel("position")
axes.set_ylabel("largest error of cos and sin")
axes.set_title("Distance from the true angle (head_dim 128, theta 500000)", fontsize=10)
axes.set_xticks([1, 10**3, 10**6], ["1", "1,000", "1,000,000"])
axes.grid(True, color="0.9")
axes.minorticks_off()
axes.legend(loc="upper left", fontsize=9)
figure.tight_layout()
digest = hashlib.sha256(figures.read_bytes()).hexdigest()
figure.savefig(here / "angle-error.png", metadata={"Description": f"figures {digest}"})
