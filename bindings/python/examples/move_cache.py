"""Keys that move inside a cache: the oldest tokens leave, the others take their positions."""

import numpy as np

import librope

rope = librope.Rope(head_dim=64, theta=10000.0, pairing="halves", angle="exact", layout="thd")
keys = np.random.default_rng(0).standard_normal((1000, 8, 64), np.float32)
cache = rope.apply(keys, 0)  # tokens 0 to 999

drop = 200
cache[:-drop] = cache[drop:]
kept = cache[:-drop]
rope.apply_(kept, -drop, operation="shift")  # one distance for all; an array: one for each

direct = rope.apply(keys[drop:], 0)  # what a fresh run over the kept tokens would have cached
print(f"largest difference {np.abs(kept - direct).max():.1e}")
assert np.abs(kept - direct).max() < 2e-6
