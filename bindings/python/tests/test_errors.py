"""Wrong arguments: the kind of exception, and that it names what is wrong."""

import numpy as np
import pytest

import librope

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", rotary_dim=8, layout="thd")


def array(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"head_dim": 15, "theta": 1e4, "pairing": "halves"}, ValueError, "head_dim"),
        ({"head_dim": 16, "pairing": "halves"}, ValueError, "theta"),
        ({"head_dim": 16, "theta": 1e4}, ValueError, "pairing"),
        ({"head_dim": 16, "theta": 1e4, "pairing": "adjacent"}, ValueError, "interleaved"),
        ({"head_dim": 16, "theta": 1e4, "pairing": "halves", "thata": 1}, TypeError, "thata"),
        ({"head_dim": 2**40, "theta": 1e4, "pairing": "halves"}, ValueError, "head_dim"),
        ({"head_dim": "x", "theta": 1e4, "pairing": "halves"}, TypeError, "head_dim"),
        ({"head_dim": 16, "theta": 1e4, "pairing": "halves", "factor": 2.0}, ValueError, "factor"),
        ({"head_dim": 8, "pairing": "halves", "inv_freq": [1.0]}, ValueError, "table_length"),
        ({"head_dim": 8, "theta": 1e4, "pairing": "halves", "mrope_section": [1] * 5}, ValueError,
         "mrope_section"),
    ],
)  # fmt: skip
def test_configuration(fields, error, says):
    with pytest.raises(error, match=says):
        librope.Rope(**fields)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ROPE.apply(array(2, 3, 15), 0), ValueError, "q has 15 channels"),
        (lambda: ROPE.apply(array(2, 16), 0, layout="bshd"), ValueError, "'bshd'"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, layout="bsdh"), ValueError, "layout is 'bsdh'"),
        (lambda: ROPE.apply(array(2, 3, 16, dtype=np.float64), 0), TypeError, "q has dtype float64"),
        (lambda: ROPE.apply(array(2, 3, 16, dtype=">f4"), 0), TypeError, "byte order"),
        (lambda: ROPE.apply(array(2, 3, 32)[..., ::2], 0), ValueError, "last axis"),
        (lambda: ROPE.apply_(array(4, 3, 16)[::-1], 0), ValueError, "negative"),
        (lambda: ROPE.apply_qk(array(2, 3, 16), array(3, 3, 16), 0), ValueError, "3 tokens"),
        (lambda: ROPE.apply_qk(None, None, 0), ValueError, "None"),
        (lambda: ROPE.apply(array(2, 3, 16)), ValueError, "positions is required"),
        (lambda: ROPE.apply(array(2, 3, 16), np.arange(3)), ValueError, "must have 2 tokens"),
        (lambda: ROPE.apply(array(2, 3, 16), np.zeros(2)), TypeError, "positions has dtype float64"),
        (lambda: ROPE.apply(array(2, 3, 16), np.zeros(2, np.uint8)), TypeError, "uint8"),
        (lambda: ROPE.apply(array(2, 3, 16), np.arange(2)[::-1]), ValueError, "negative"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, offsets=np.zeros(1, int)), ValueError, "exactly one"),
        (lambda: ROPE.apply(array(2, 3, 16), offsets=np.zeros(2, int)), ValueError, "1 sequences"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, operation="undo"), ValueError, "inverse"),
        (lambda: ROPE.apply(array(2, 3, 16), 2**70), OverflowError, "int"),
        (lambda: ROPE.apply("text", 0), TypeError, "q is a builtins.str"),
        (lambda: ROPE.apply_("text", 0), TypeError, "must be an array"),
        (lambda: ROPE.apply(array(2, 3, 16), "text"), TypeError, "positions is a"),
        (lambda: ROPE.apply(array(2, 3, 16), [0.5, 1]), TypeError, "ints"),
        (lambda: ROPE.apply(array(5, 3, 16), 0, cu_seqlens=np.array([0, 4], np.int32)),
         ValueError, "cu_seqlens"),
        (lambda: ROPE.apply(array(5, 3, 16), 0, cu_seqlens=np.array([0, 5])), TypeError, "int32"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, out=array(2, 3, 16, dtype=np.float16)),
         TypeError, "out of q has dtype float16"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, out=array(2, 4, 16)), ValueError, "heads"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, freq_sets=np.zeros(1, np.int32)), ValueError,
         "freq_sets"),
        (lambda: ROPE.apply(array(2, 3, 16), cos_sin=array(2, 8), cos_sin_format="full_halves"),
         ValueError, "cos, sin"),
        (lambda: ROPE.apply(array(2, 3, 16), cos_sin=array(2, 9), cos_sin_format="packed"),
         ValueError, "must be"),
    ],
)  # fmt: skip
def test_calls(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_read_only():
    q, k = array(2, 3, 16), array(2, 3, 16)
    k.flags.writeable = False
    with pytest.raises(ValueError, match="k is read-only"):
        ROPE.apply_qk_(q, k, 0)
    with pytest.raises(ValueError, match="out of k is read-only"):
        ROPE.apply_qk(q, k, 0, out=(q, k))
    ROPE.apply_qk(q, k, 0)
    ROPE.apply_qk_(q, array(2, 3, 16), 0)
    with pytest.raises(ValueError, match="k is read-only"):  # the remembered call checks, too
        ROPE.apply_qk_(q, k, 0)


def test_overlap_is_refused_and_writes_nothing():
    memory = np.arange(80, dtype=np.float32).reshape(5, 1, 16)
    before = memory.copy()
    with pytest.raises(ValueError, match="overlaps"):
        ROPE.apply_qk_(memory[:4], memory[1:], 3)
    with pytest.raises(ValueError, match="overlaps"):
        ROPE.apply_qk(memory[:4], None, 3, out=(memory[1:], None))
    np.testing.assert_array_equal(memory, before)


def test_the_librarys_message_comes_through():
    with pytest.raises(ValueError, match=r"^Rope: head_dim \(15\) must be even"):
        librope.Rope(head_dim=15, theta=1e4, pairing="halves")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"rope_scaling": {"rope_type": "x"}}'])
def test_bad_json(text):
    with pytest.raises((ValueError, NotImplementedError)):
        librope.Rope.from_config(text)


def test_config_of_wrong_type():
    with pytest.raises(TypeError, match="path"):
        librope.Rope.from_config(7)
    with pytest.raises(FileNotFoundError):
        librope.Rope.from_config("/no/such/config.json")


def test_cuda_unavailable_or_working():
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves")
    try:
        rope._context(0)
    except (RuntimeError, NotImplementedError) as e:
        assert str(e)
