"""The first call: queries and keys of a prompt, rotated in place."""

import numpy as np

import librope

rope = librope.Rope(head_dim=128, theta=500000.0, pairing="halves", layout="thd")

tokens = 16
random = np.random.default_rng(0)
q = random.standard_normal((tokens, 32, 128), np.float32)  # [tokens, heads, head_dim]
k = random.standard_normal((tokens, 8, 128), np.float32)

rope.apply_qk_(q, k, np.arange(tokens))  # every layer; apply_qk() makes new arrays

print(f"rotated on {rope.backend}")
# A rotation keeps lengths.
before = np.random.default_rng(0).standard_normal(q.shape, np.float32)
assert np.allclose(np.linalg.norm(q, axis=-1), np.linalg.norm(before, axis=-1))
assert np.array_equal(q[0], before[0]) and not np.allclose(q[1], before[1])  # position 0 stays
