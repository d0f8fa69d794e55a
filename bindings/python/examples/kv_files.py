"""A document that was computed once, kept in KV files, and placed behind another prompt."""

import pathlib
import sys
import tempfile

import numpy as np

import librope
from librope import kv

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
rope = librope.Rope(head_dim=64, theta=500000.0, pairing="halves")
raw = np.random.default_rng(0).standard_normal((4, 300, 8, 64), np.float32)  # layers, tokens, heads, channels

# Once: each layer's keys and values, as the engine has them in its cache.
for layer, keys in enumerate(raw):
    k, v = rope.apply(keys, 0, layout="thd"), keys
    kv.write(folder / f"document/{layer}.safetensors", k, v, rope=rope, first_position=0, layout="nhd", layer=layer)

# For a prompt of 1234 tokens: all files, in a folder of their own.
kv.move(folder / "document", folder / "behind", to=1234)

# The engine reads a layer, and would be refused keys of another RoPE.
info, k, v = kv.read(folder / "behind/2.safetensors", rope=rope)
direct = rope.apply(raw[2], info.first_position, layout="thd")
print(f"tokens {info.first_position} to {info.first_position + info.tokens - 1}, off by {np.abs(k - direct).max():.1e}")
assert np.abs(k - direct).max() < 5e-6 and np.array_equal(v, raw[2])

# In place, by another scaling: what the next model of the family reads.
longer = rope.replace(scaling="yarn", factor=4.0, original_max_position_embeddings=8192)
kv.move(folder / "behind", rope=longer)
print({outcome.what for outcome in kv.verify(folder / "behind", rope=longer)})
