"""Arrays of other kinds: buffers, DLPack, ml_dtypes, subclasses."""

import array
import ctypes

import ml_dtypes
import numpy as np
import pytest

import librope

ROPE = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")


class OnlyDLPack:
    """A NumPy array that shows nothing but DLPack."""

    def __init__(self, a, versioned=True):
        self.a, self.versioned = a, versioned

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("old")
        return self.a.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(rng, versioned):
    q = rng.standard_normal((3, 4, 8), np.float32)
    want = ROPE.apply(q, 5)
    wide = np.zeros((3, 8, 8), np.float32)
    strided = wide[:, ::2]
    strided[:] = q
    ROPE.apply_(OnlyDLPack(strided, versioned), OnlyDLPack(np.arange(5, 8), versioned))
    np.testing.assert_array_equal(strided, want)
    assert not wide[:, 1::2].any()


def test_dlpack_read_only(rng):
    q = rng.standard_normal((3, 4, 8), np.float32)
    q.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        ROPE.apply_(OnlyDLPack(q), 0)


def test_new_arrays_need_a_known_library(rng):
    with pytest.raises(TypeError, match="out="):
        ROPE.apply(OnlyDLPack(np.zeros((3, 4, 8), np.float32)), 0)


def test_buffers(rng):
    q = rng.standard_normal((3, 4, 8), np.float32)
    want = ROPE.apply(q, np.array([7, 8, 9]))
    flat = array.array("f", q.ravel().tolist())
    view = memoryview(flat).cast("B").cast("f", (3, 4, 8))
    ROPE.apply_(view, array.array("q", [7, 8, 9]))
    np.testing.assert_array_equal(np.array(flat, np.float32).reshape(q.shape), want)
    block = (ctypes.c_float * 8 * 4 * 3)()
    ctypes.memmove(block, q.ctypes.data, q.nbytes)
    ROPE.apply_(block, 7)
    np.testing.assert_array_equal(np.asarray(block), want)
    with pytest.raises(ValueError, match="read-only"):
        ROPE.apply_(memoryview(bytes(96 * 4)).cast("f", (3, 4, 8)), 0)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits(rng, dtype):
    q = rng.standard_normal((3, 4, 8), np.float32).astype(dtype)
    want = ROPE.apply(q.astype(np.float32), 5).astype(dtype)
    got = ROPE.apply(q, 5)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)
    ROPE.apply_(q, 5)
    np.testing.assert_array_equal(q, want)


def test_subclass_and_memmap(rng, tmp_path):
    q = rng.standard_normal((3, 4, 8), np.float32)
    np.save(tmp_path / "q.npy", q)
    mapped = np.load(tmp_path / "q.npy", mmap_mode="r+")
    ROPE.apply_(mapped, 5)
    mapped.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "q.npy"), ROPE.apply(q, 5))
    read_only = np.load(tmp_path / "q.npy", mmap_mode="r")
    out = ROPE.apply(read_only, 5)
    assert type(out) is np.ndarray


def test_zero_copy(rng):
    """The memory of the caller is read and written, wherever it lies."""
    q = rng.standard_normal((64, 4, 8), np.float32)
    part = q[10:20, 1:3]
    want = ROPE.apply(part.copy(), 3)
    rest = q.copy()
    ROPE.apply_(part, 3)
    np.testing.assert_array_equal(q[10:20, 1:3], want)
    rest[10:20, 1:3] = want
    np.testing.assert_array_equal(q, rest)
