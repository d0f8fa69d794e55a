# %% [markdown]
# # RoPE, looked at with librope
#
# Run this file as a script, or cell by cell as a notebook (`# %%` marks the cells). Pictures go to
# the folder given as the first argument, or the current one.

# %%
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import librope
from librope.cli import kinds, plot

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")

# %% [markdown]
# ## A model's RoPE from its config.json
# The part of Llama 3.1's file that bears on RoPE:

# %%
llama31 = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
rope = librope.Rope.from_config(llama31)
print(rope)
print("shortest and longest wavelength:", *(2 * np.pi / rope.inv_freq[[0, -1]]).round())

# %% [markdown]
# ## Attention sees distances only
# q at position m and k at position n: the product is the same for all m, n of one distance.

# %%
rng = np.random.default_rng(0)
q, k = rng.standard_normal((2, 1, 1, 128)).astype(np.float32)
exact = rope.replace(angle="exact", layout="thd")


def product(m, n):
    a, b = exact.apply(q, m), exact.apply(k, n)
    return float((a * b).sum())


for m, n in ((10, 3), (1010, 1003), (10**9 + 10, 10**9 + 3)):
    print(f"{m:>12,} {n:>12,} {product(m, n):10.5f}")
assert abs(product(10, 3) - product(10**9 + 10, 10**9 + 3)) < 1e-3

# %% [markdown]
# ## Moving cached keys
# Text was cut from the front of a conversation: its keys move back by 500 positions without being
# computed anew. `shift` does it, and is exact under angle="exact".

# %%
keys = rng.standard_normal((64, 8, 128)).astype(np.float32)
cached = exact.apply(keys, 1000)
moved = exact.apply(cached, np.full(64, -500), operation="shift")
print("off by at most", np.abs(moved - exact.apply(keys, 500)).max())
assert np.abs(moved - exact.apply(keys, 500)).max() < 2e-5

# %% [markdown]
# ## Pictures
# Wavelengths, cosines, decay with distance, and what float32 angles cost:

# %%
plot.figure(kinds.read(llama31), "Llama 3.1").savefig(FOLDER / "llama31.png", dpi=150)

# %% [markdown]
# YaRN, linear scaling and NTK-like raising of theta, side by side: which wavelengths they stretch.

# %%
base = dict(head_dim=128, theta=10000.0, pairing="halves")
ways = {
    "linear, factor 4": librope.Rope(**base, scaling="linear", factor=4.0),
    "YaRN, factor 4": librope.Rope(
        **base, scaling="yarn", factor=4.0, original_max_position_embeddings=4096
    ),
    "theta 40,890 (NTK-aware)": librope.Rope(**{**base, "theta": 10000.0 * 4 ** (128 / 126)}),
}
plain = librope.Rope(**base)
figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
for (name, way), color in zip(ways.items(), (plot.BLUE, plot.ORANGE, plot.GREEN)):
    axes.plot(2 * np.pi / plain.inv_freq, plain.inv_freq / way.inv_freq, label=name, color=color, lw=2.2)
axes.axvline(4096, color=plot.GREY, ls=":", label="length before scaling, 4,096 tokens")
axes.set(xscale="log", xlabel="wavelength before scaling (tokens)", ylabel="stretched by",
         title="Three ways to reach four times the length")  # fmt: skip
axes.legend(frameon=False)
figure.savefig(FOLDER / "scalings.png", dpi=150)
