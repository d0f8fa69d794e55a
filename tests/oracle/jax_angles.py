"""Writes ../data/jax_angles.json: the angles of JAX code that divides a position by a timescale. See README.md.

    python3 -m venv VENV && VENV/bin/pip install jax==0.10.2 && VENV/bin/python tests/oracle/jax_angles.py

The formulas are those of MaxText (src/maxtext/layers/embeddings.py at e591f30cbbf2: RotaryEmbedding,
LLaMARotaryEmbedding, Gemma4PartialRotaryEmbedding), run by JAX on a CPU in two ways:

- "divided": operation by operation, one token a call, as a decode step is written. XLA then divides.
- "compiled": all tokens in one jitted function. XLA then multiplies by frequencies, which are the angles of
  position 1: those of its algebraic simplifier, A / broadcast(B) = A * broadcast(1 / B) and A / pow(B, C) =
  A * pow(B, -C). Compiled for a TPU (libtpu 0.0.52, v5e, ahead of time) the same functions keep the division.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import platform

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
POSITIONS = [0, 1, 2, 3, 77, 4095, 65537, 131071, 1048575, 12345679, -5]

CASES = [
    {"name": "default", "head_dim": 128, "max": 10000},
    {"name": "theta of Llama 3", "head_dim": 128, "max": 500000},
    {"name": "no power of two", "head_dim": 96, "max": 10000},
    {"name": "factor of Gemma 3", "head_dim": 256, "max": 1000000, "factor": 8.0},
    {"name": "factor of three", "head_dim": 80, "max": 150000, "factor": 3.0},
    {"name": "least timescale", "head_dim": 64, "max": 10000, "min": 2},
    {"name": "Llama 3.1", "head_dim": 128, "max": 500000, "llama3": True},
    {"name": "share of Gemma 4", "head_dim": 128, "max": 1000000, "rotary_dim": 32},
]


def llama3(freq):
    """MaxText has Llama 3.1's numbers as constants."""
    factor, low, high, original = 8, 1, 4, 8192
    wavelength = 2 * jnp.pi / freq

    def mixed(freq):
        smooth = (original / wavelength - low) / (high - low)
        return (1 - smooth) * freq / factor + smooth * freq

    def long(freq):
        return jax.lax.cond(wavelength > original / low, lambda freq: freq / factor, mixed, freq)

    return jax.lax.cond(wavelength < original / high, lambda freq: freq, long, freq)


def timescale(case):
    head_dim, least, most = case["head_dim"], case.get("min", 1), case["max"]
    fraction = 2 * jnp.arange(0, case.get("rotary_dim", head_dim) // 2) / head_dim
    scale = least * (most / least) ** fraction
    if "factor" in case:
        scale = scale * case["factor"]
    if "llama3" in case:
        scale = 1.0 / jax.vmap(llama3)(1.0 / scale)
    if "rotary_dim" in case:
        scale = jnp.pad(scale, (0, head_dim // 2 - scale.shape[0]), constant_values=jnp.inf)
    return scale


def angles(case, positions):
    return positions[:, :, jnp.newaxis, jnp.newaxis] / timescale(case)


def array(values):
    values = numpy.asarray(values, numpy.float32)
    return {"dtype": "f32", "shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}


def record(case):
    divided = [angles(case, jnp.array([[p]]))[0, 0, 0] for p in POSITIONS]
    compiled = jax.jit(lambda positions: angles(case, positions))(jnp.array([POSITIONS]))[0, :, 0]
    return {**case, "timescale": array(timescale(case)), "divided": array(divided), "compiled": array(compiled)}


def main():
    result = {
        "description": "angles of JAX code that divides by a timescale; see tests/data/README.md",
        "versions": {"jax": jax.__version__, "numpy": numpy.__version__, "machine": platform.machine(),
                     "libc": " ".join(platform.libc_ver())},
        "positions": POSITIONS,
        "cases": [record(case) for case in CASES],
    }  # fmt: skip
    (DATA / "jax_angles.json").write_text(json.dumps(result, indent=1) + "\n")


main()
