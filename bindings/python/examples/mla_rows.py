"""Queries, latents and keys of DeepSeek's MLA, with the cache in the rows of FlashMLA: 656 bytes for each token.

      0  512 e4m3, the latent, normed
    512    4 float32, a scale for each 128 of them
    528   64 bfloat16, the key, turned

One call does all that stands between the projections and attention: it norms latents and turns keys into the rows of
their slots, and puts absorbed queries together of what turns and what does not. A move to arrays of float32 reads the
rows back. Rows and queries are compared with those of plain code, which norms and turns in float64.
"""

import ml_dtypes
import numpy as np

import librope

LATENT, GROUP, DIM, HEADS, PAGES, PAGE_SIZE, FIRST = 512, 128, 64, 4, 2, 64, 1000
KEY = LATENT + LATENT // GROUP * 4
BF16, SLOTS = ml_dtypes.bfloat16, np.array([70, 3, 71])

rng = np.random.default_rng(0)
latent_and_key = rng.standard_normal((len(SLOTS), LATENT + DIM), np.float32).astype(BF16)
query = rng.standard_normal((len(SLOTS), HEADS, LATENT + DIM), np.float32).astype(BF16)
weight = rng.uniform(0.5, 1.5, LATENT).astype(np.float32)

rows = np.zeros((PAGES, PAGE_SIZE, KEY + 2 * DIM), np.uint8)
latents, keys = rows[..., :LATENT].view(ml_dtypes.float8_e4m3fn), rows[..., KEY:].view(BF16)
scales = rows[..., LATENT:KEY].view(np.float32)
scale = librope.Scale(data=scales, computed=True, group=GROUP, power_of_two=True, min_scale=1e-4)
cache = librope.KVCache(keys, latents, layout="nd", v_scale=scale, slots=SLOTS)

rope = librope.Rope(head_dim=DIM, theta=10000.0, pairing="interleaved")
norms = librope.Norms(v=librope.Norm(weight, kind="rms", eps=1e-6))
turned = np.empty_like(query)
rope.apply_qk(
    query[..., LATENT:], latent_and_key[:, LATENT:], FIRST, layout=("thd", "td"), v=latent_and_key[:, :LATENT],
    rest=query[..., :LATENT], cache=cache, norms=norms, out=(turned[..., LATENT:], None, None, turned[..., :LATENT]),
)  # fmt: skip

# Read back, in the order of the slots, by a Rope that does not turn: the arrays are a cache of one page.
read = np.empty((1, len(SLOTS), LATENT + DIM), np.float32)
order = range(len(SLOTS))
librope.Rope(head_dim=DIM, scaling="nope").move(
    librope.KVCache(read[..., LATENT:], read[..., :LATENT], layout="nd", starts=0), order, order, source=cache
)
page = SLOTS // PAGE_SIZE, SLOTS % PAGE_SIZE
assert np.array_equal(read[0, :, :LATENT], latents[page].astype(np.float32) * scales[page].repeat(GROUP, -1))
assert np.array_equal(read[0, :, LATENT:], keys[page].astype(np.float32))


def plain(x):
    """The last DIM channels turned, as complex numbers."""
    x = x.astype(np.float64)
    pairs = x[..., LATENT::2] + 1j * x[..., LATENT + 1 :: 2]
    angles = np.arange(FIRST, FIRST + len(x))[:, None] * 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
    pairs = pairs * np.exp(1j * angles.reshape(len(x), *[1] * (x.ndim - 2), -1))
    x[..., LATENT:] = np.stack([pairs.real, pairs.imag], -1).reshape(*x.shape[:-1], DIM)
    return x


exact = plain(latent_and_key)
exact[:, :LATENT] *= weight / np.sqrt((exact[:, :LATENT] ** 2).mean(-1, keepdims=True) + 1e-6)
# The roundings to e4m3 and to bfloat16, beside that of the smallest codes and of float32 angles.
assert np.allclose(read[0, :, :LATENT], exact[:, :LATENT], rtol=1 / 16, atol=scales.max() / 1024)
assert np.allclose(read[0, :, LATENT:], exact[:, LATENT:], rtol=1 / 256, atol=1e-3)
assert np.allclose(turned.astype(np.float64), plain(query), rtol=1 / 256, atol=1e-3)
print(f"{len(SLOTS)} rows of {rows.shape[-1]} bytes and {turned[..., 0].size} queries: those of plain code")
