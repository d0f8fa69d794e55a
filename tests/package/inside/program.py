"""What a new user of the wheel does first: one rotation in NumPy, checked."""

import math

import librope
import numpy as np

rope = librope.Rope(head_dim=64, theta=10000.0, pairing="halves")
q = np.zeros((1, 1, 64), np.float32)
q[0, 0, 0] = 1
q, _ = rope.apply_qk(q, q.copy(), np.array([3], np.int64), layout="thd")
assert abs(q[0, 0, 0] - math.cos(3)) < 1e-6, q[0, 0, 0]
print("librope", librope.__version__, q[0, 0, 0])
