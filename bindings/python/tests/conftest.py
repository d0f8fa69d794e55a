"""What the tests share: a naive rotation in float64, arrays that seem to be on a GPU, and where the fixtures are."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

pytest.register_assert_rewrite("gpu_device")  # its comparisons tell what they compared, as those of tests do

# Set by run-tests, because the tests run outside of the repository against the installed package.
REPOSITORY = pathlib.Path(
    os.environ.get("LIBROPE_REPOSITORY", pathlib.Path(__file__).resolve().parents[3])
)


def rotate(x, angles, *, pairing="halves", factor=1.0, rotary_dim=None, offset=0):
    """x [.., head_dim] by angles [.., pairs] in float64; angles broadcast against x."""
    x = np.asarray(x, np.float64)
    d = rotary_dim or x.shape[-1]
    out = x.copy()
    span = x[..., offset : offset + d]
    half = d // 2
    if pairing == "halves":
        x0, x1 = span[..., :half], span[..., half:]
    else:
        x0, x1 = span[..., 0::2], span[..., 1::2]
    c, s = factor * np.cos(angles), factor * np.sin(angles)
    y0, y1 = x0 * c - x1 * s, x1 * c + x0 * s
    turned = out[..., offset : offset + d]
    if pairing == "interleaved":
        turned[..., 0::2], turned[..., 1::2] = y0, y1
    else:
        turned[..., :half], turned[..., half:] = y0, y1
    return out


def float32_angles(positions, inv_freq):
    """The angle of the FLOAT32 policy: the product rounded to f32."""
    return (
        np.asarray(positions).astype(np.float32)[..., None] * np.asarray(inv_freq, np.float32)
    ).astype(np.float64)


class OnCuda:
    """The form of an array on a GPU that nobody looks at."""

    def __init__(self, a):
        self.interface = {**a.__array_interface__, "data": (64, False)}

    @property
    def __cuda_array_interface__(self):
        return self.interface


@pytest.fixture(scope="session")
def oracle_folder():
    folder = REPOSITORY / "tests" / "data" / "oracle"
    if not folder.is_dir():
        pytest.skip("no fixtures: outside of the repository")
    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(7)
