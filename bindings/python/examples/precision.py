"""Angles in float32 and exact ones at a distant position, and the roundings of bfloat16."""

import ml_dtypes
import numpy as np

import librope

trained = librope.Rope(head_dim=128, theta=500000.0, pairing="halves", layout="thd")
exact = trained.replace(angle="exact")

position = 1_000_000
inv_freq = 500000.0 ** (-np.arange(64) / 64)
true = np.cos(position * inv_freq)
for name, rope in (("float32", trained), ("exact", exact)):
    cos, sin = rope.cos_sin([position], format="split")
    print(f"{name}: cosines are off by up to {np.abs(cos[0] - true).max():.1e}")
assert np.abs(exact.cos_sin([position], format="split")[0][0] - true).max() < 1.5e-7

# rounding="eager" is what a bfloat16 model in PyTorch computes, step by step.
x = np.random.default_rng(0).standard_normal((1, 1, 128), np.float32).astype(ml_dtypes.bfloat16)
eager = trained.replace(rounding="eager").apply(x, 5)
cos, sin = (c[0].astype(ml_dtypes.bfloat16) for c in trained.cos_sin([5], format="full_halves"))
half = np.concatenate([-x[..., 64:], x[..., :64]], axis=-1)  # rotate_half
assert np.array_equal(eager, x * cos + half * sin)
