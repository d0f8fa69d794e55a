"""Outputs and caches in blocks of Q8_0, ggml's, as bytes: uint8 arrays, 34 of them for 32 channels."""

import numpy as np
import pytest

import librope
from librope import KVCache, Scale, Scales

PAGES, SIZE, HEADS, DIM, BYTES = 3, 4, 2, 64, 68
SLOTS = np.array([7, 0, 10])


@pytest.fixture
def rope():
    return librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd")


def arrays(dtype=np.float32, seed=0):
    x = np.random.default_rng(seed).standard_normal((3, 1, 3, HEADS, DIM), np.float32) * 9
    x[2, 0, 1] = 0
    return tuple(x.astype(dtype))


def blocks(x):
    """quantize_row_q8_0_ref: halves are rounded away from zero."""
    x = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    d = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    y = x * np.divide(np.float32(1), d, where=d != 0, out=np.zeros_like(d))
    codes = (np.sign(y) * np.floor(np.abs(y) + np.float32(0.5))).astype(np.int8).view(np.uint8)
    d = d.astype(np.float16).view(np.uint8)
    return np.concatenate([d, codes], -1).reshape(*x.shape[:-2], -1)


def values(data):
    """dequantize_row_q8_0."""
    data = np.ascontiguousarray(data).reshape(*data.shape[:-1], -1, 34)
    d = np.ascontiguousarray(data[..., :2]).view(np.float16).astype(np.float32)
    codes = np.ascontiguousarray(data[..., 2:]).view(np.int8)
    return (codes * d).reshape(*data.shape[:-2], -1)


def memory(layout="nhd"):
    shape = {"nhd": (PAGES, SIZE, HEADS), "hnd": (PAGES, HEADS, SIZE)}[layout]
    return np.full((*shape, BYTES), 99, np.uint8)


def slots_of(x, layout="nhd"):
    x = np.moveaxis(x, 1, 2) if layout == "hnd" else x
    return x.reshape(PAGES * SIZE, *x.shape[2:])


def test_the_reference_is_that_of_gguf():
    gguf = pytest.importorskip("gguf")
    x = arrays()[0]
    data = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    assert data.dtype == np.uint8 and (data == blocks(x)).all()
    assert (gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q8_0) == values(data)).all()


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_caches(rope, layout):
    q, k, v = arrays()
    q_turned, k_turned = rope.apply_qk(q, k, 7)
    keys, data = memory(layout), memory(layout)
    cache = KVCache(keys, data, layout=layout, slots=SLOTS)
    for _ in range(3):  # the way of all calls, and the short one
        keys[...] = data[...] = 99
        q_out, _ = rope.apply_qk(q, k, 7, v=v, cache=cache)
        assert (q_out == q_turned).all()
        for stored, x in ((keys, k_turned), (data, v)):
            stored = slots_of(stored, layout)
            assert (stored[SLOTS] == blocks(x[0])).all()
            assert (np.delete(stored, SLOTS, 0) == 99).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_outputs(rope, dtype):
    q, k, v = arrays(dtype)
    rest = arrays(dtype, 1)[0][..., :32]
    wide = rope.apply_qk(q.astype(np.float32), k.astype(np.float32), 7)
    out = [np.full((*x.shape[:-1], x.shape[-1] // 32 * 34), 99, np.uint8) for x in (q, k, v, rest)]
    for made, options in ((out, dict(v=v, rest=rest)), (out[:2], {})):
        for one in out:
            one[...] = 99
        assert rope.apply_qk(q, k, 7, out=tuple(made), **options)[0] is out[0]
        for one, x in zip(made, (*wide, v, rest), strict=False):
            assert (one == blocks(x)).all()
    # Heads first, with other bytes between the heads, and each head twice.
    q8 = np.full((1, 2 * HEADS, 3, 3 * 34), 99, np.uint8)[..., :BYTES].transpose(0, 2, 1, 3)
    rope.apply(q, 7, out=q8)
    assert (q8 == np.repeat(blocks(wide[0]), 2, axis=2)).all() and (q8.base[..., BYTES:] == 99).all()
    # Beside codes with a scale.
    codes = np.zeros(k.shape, np.int8)
    rope.apply_qk(q, k, 7, out=(out[0], codes), scales=Scales(k=Scale(0.5)))
    assert (out[0] == blocks(wide[0])).all()
    np.testing.assert_allclose(codes, np.clip(wide[1] / 0.5, -128, 127), atol=0.51)


def test_prepared_and_bound_calls(rope):
    q, k, v = arrays()
    expected, found, layer = ([memory(), memory()] for _ in range(3))
    rope.apply_qk(q, k, 7, v=v, cache=KVCache(*expected, layout="nhd", slots=SLOTS))
    rope.bind(q.copy(), k, 7, v=v, cache=KVCache(*found, layout="nhd", slots=SLOTS))()
    call = rope.prepare_qk(q, k, 7, v=v, cache=KVCache(*found, layout="nhd", slots=SLOTS))
    call.apply_qk(q, k, v=v, cache=KVCache(*layer, layout="nhd"))
    for one in (found, layer):
        assert all((a == b).all() for a, b in zip(expected, one, strict=True))
    q8 = np.zeros((*q.shape[:-1], BYTES), np.uint8)
    prepared = rope.prepare_qk(q, None, 7, out=(q8, None))
    assert (prepared.apply_qk(q, out=(q8, None))[0] == blocks(rope.apply(q, 7))).all()
    with pytest.raises(ValueError, match="out of q has shape"):
        prepared.apply_qk(q, out=(np.zeros((*q.shape[:-1], 34), np.uint8), None))


@pytest.mark.parametrize("stays", [True, False])
def test_moves(rope, stays):
    k, v = (blocks(np.random.default_rng(n).standard_normal((PAGES, SIZE, HEADS, DIM), np.float32)) for n in (1, 2))
    old = np.array([1, 5])
    new = old if stays else np.array([8, 3])
    was, now = np.array([100, 200]), np.array([100, 40])
    before = k.copy(), v.copy()
    want, want_v = k.copy(), v.copy()
    turned = np.ascontiguousarray(values(slots_of(k)[old])[None, 1:])
    rope.move(KVCache(turned, layout="nhd", slots=[0]), now[1:], was[1:])
    slots_of(want)[new] = slots_of(k)[old]  # the first does not turn, and keeps its codes
    slots_of(want)[new[1]] = blocks(turned[0, 0])
    slots_of(want_v)[new] = slots_of(v)[old]

    decoded = np.zeros((PAGES, SIZE, HEADS, DIM), np.float32)
    rope.move(KVCache(decoded, layout="nhd", slots=new), now, was, source=KVCache(k, layout="nhd", slots=old))
    assert (slots_of(decoded)[new[1]] == turned[0, 0]).all() and (k == before[0]).all()
    coded = memory("hnd")
    rope.move(KVCache(coded, layout="hnd", slots=old), now, now, source=KVCache(decoded, layout="nhd", slots=new))
    assert (slots_of(coded, "hnd")[old[1]] == blocks(turned[0, 0])).all()

    cache = KVCache(k, v, layout="nhd", slots=new)
    rope.move(cache, now, was, source=None if stays else cache.at(slots=old))
    assert (k == want).all() and (v == want_v).all()


def test_what_is_wrong_is_named_and_nothing_is_written(rope):
    q, k, v = arrays()
    keys = memory()

    def append(data=keys, **options):
        rope.apply_qk(q, k, 7, v=v, cache=KVCache(keys, data, layout="nhd", slots=SLOTS, **options))

    def move(source=None, **options):
        at = dict(layout="nhd", slots=[0])
        other = None if source is None else KVCache(source, layout="nhd", slots=[1])
        rope.move(KVCache(keys, **at, **options), [0], [7], source=other)

    wide = np.full((PAGES, SIZE, HEADS, 100), 99, np.uint8)
    for call, text in (
        (lambda: append(memory()[..., :67]), "cache.v has 67 bytes of uint8 per head, .* whole blocks of Q8_0: 34"),
        (lambda: append(memory()[..., :34]), "cache.v has 32 channels per head, and must have 64"),
        (lambda: append(wide[..., :BYTES]), r"cache.v has strides .* whole blocks of Q8_0, 34 bytes"),
        (
            lambda: append(np.full(keys.size + 1, 99, np.uint8)[1:].reshape(keys.shape)),
            "cache.v.* must be aligned to its element .2 bytes",
        ),
        (lambda: append(k_scale=Scale(1)), "cache.k has dtype uint8, blocks of Q8_0 .*, and k_scale must be None"),
        (lambda: rope.apply(q, 7, out=np.full(q.shape, 99, np.uint8)), "out of q has 64 bytes of uint8 per head"),
        (lambda: rope.apply(q, 7, out=np.full((*q.shape[:-1], 34), 99, np.uint8)), "out of q has 32 channels"),
        (
            lambda: rope.apply(q, 7, out=np.zeros((*q.shape[:-1], BYTES), np.uint8), scales=Scales(q=Scale(1))),
            "out of q has dtype uint8, .*, and scales.q must be None",
        ),
        (lambda: move(k_scale=Scale(1)), "k of the cache has dtype uint8, .*, and k_scale of the cache must be None"),
        (lambda: move(wide), "source.k has 100 bytes of uint8 per head"),
        (lambda: move(memory()[..., :34]), "source.k has 32 channels per head, and must have 64"),
        (lambda: move(np.zeros((PAGES, SIZE, HEADS, DIM), np.int8)), "k of the source has dtype int8, and k_scale"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="q has dtype uint8, and must be float32"):
        rope.apply_(np.zeros((1, 3, HEADS, BYTES), np.uint8), 7)
    odd = librope.Rope(head_dim=48, theta=1e4, pairing="halves", layout="bshd")
    with pytest.raises(ValueError, match="out of q has 51 bytes"):
        odd.apply(q[..., :48], 7, out=np.zeros((*q.shape[:-1], 51), np.uint8))
    # The span of whole heads that is stored alone begins and ends with a block.
    part = librope.Rope(head_dim=DIM, rotary_dim=48, theta=1e4, pairing="halves", layout="bshd")
    with pytest.raises(ValueError, match="only their span .48 channels from 0 on. .* block of 32"):
        part.apply_qk(q, k[..., :48], 7, cache=KVCache(keys, layout="nhd", slots=SLOTS))
    assert (keys == 99).all()
