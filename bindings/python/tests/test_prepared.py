"""Prepared calls: the bits of apply_qk for every layer's arrays, and what they refuse."""

import gc
import pickle
import threading
import types
import weakref

import ml_dtypes
import numpy as np
import pytest
from conftest import OnCuda
from hypothesis import given, settings
from hypothesis import strategies as st
from test_apply import AXES, BF16, make_strided
from test_arrays import OnlyDLPack

import librope
from librope import _prepared
from librope._types import PrepareOptions

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")


def same(got, want):
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if w is not None:
            assert type(g) is type(w) and g.dtype == w.dtype and g.strides == w.strides
            np.testing.assert_array_equal(g, w)


@settings(max_examples=150, deadline=None)
@given(
    batch=st.integers(0, 3), tokens=st.integers(0, 6), q_heads=st.integers(1, 5),
    k_heads=st.integers(0, 3), half=st.integers(1, 20), rotary=st.integers(1, 20),
    pairing=st.sampled_from(["halves", "interleaved", "interleaved_to_halves"]),
    angle=st.sampled_from(["float32", "exact"]), rounding=st.sampled_from(["float32", "eager", "cos_sin"]),
    operation=st.sampled_from(["forward", "backward", "inverse", "shift"]),
    layout=st.sampled_from(sorted(AXES)), dtype=st.sampled_from([np.float32, np.float16, BF16]),
    spread=st.tuples(*[st.integers(1, 2)] * 3), start=st.integers(-5, 10**6),
    kind=st.sampled_from(["int", "t", "bt", "1t", "offsets", "float"]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_the_bits_of_apply_qk(batch, tokens, q_heads, k_heads, half, rotary, pairing, angle, rounding,
                              operation, layout, dtype, spread, start, kind, seed):  # fmt: skip
    """Into new arrays, in place, and into others; after positions have become others; two layers."""
    rng = np.random.default_rng(seed)
    rope = librope.Rope(head_dim=2 * half, theta=1e4, pairing=pairing, rotary_dim=2 * min(rotary, half),
                        angle="exact" if operation == "shift" else angle, rounding=rounding)  # fmt: skip
    grid = start + rng.integers(0, 99, (batch, tokens))
    options = {"layout": layout, "operation": operation}
    positions = {"int": start, "t": grid[:1].ravel().astype(np.int32), "1t": grid[:1], "bt": grid,
                 "offsets": None, "float": (grid[:1].ravel() / 2).astype(np.float32)}[kind]  # fmt: skip
    if kind == "offsets":
        options["offsets"] = start + np.arange(batch)
    if kind in ("t", "1t", "float") and batch == 0:
        positions = start

    def layer():
        shapes = [(batch, tokens, h, 2 * half) for h in (q_heads, k_heads)]
        q, k = (make_strided(rng, [s[i] for i in AXES[layout]], dtype, spread) for s in shapes)
        return q, k if k_heads else None

    def copies(arrays):
        return [None if x is None else (x.base if x.base is not None else x).copy() for x in arrays]

    def like(x, memory):
        return None if x is None else np.ndarray(x.shape, x.dtype, memory, strides=x.strides)

    first = layer()
    prepared = rope.prepare_qk(*first, positions, **options)
    in_place = rope.prepare_qk(*first, positions, out=first, **options)
    layers = [layer(), layer()]
    wants = [rope.apply_qk(*x, positions, **options) for x in layers]
    for changed in (positions, options.get("offsets")):
        if isinstance(changed, np.ndarray):
            changed[...] = 7
    for x, want in zip(layers, wants):
        before = copies(x)
        same(prepared.apply_qk(*x), want)
        out = tuple(None if w is None else np.empty_like(w) for w in want)
        got = prepared.apply_qk(*x, out=out)
        assert got[0] is out[0] and got[1] is out[1]
        same(got, want)
        same(copies(x), before)
        turned = [like(y, memory) for y, memory in zip(x, before)]
        assert in_place.apply_qk_(*turned) is None
        for y, w in zip(turned, want):
            if y is not None:
                np.testing.assert_array_equal(y, w)


@pytest.mark.parametrize("format", ["packed", "packed_sin_first", "split", "full_halves",
                                    "full_interleaved", "complex"])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_of_every_format(rng, format, dtype):
    q, k = rng.standard_normal((2, 2, 5, 3, 16), np.float32).astype(BF16)
    rows = ROPE.cos_sin(np.arange(10).reshape(2, 5), format=format, dtype=dtype)
    want = ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format=format)
    prepared = ROPE.prepare_qk(q, k, cos_sin=rows, cos_sin_format=format)
    for x in rows if isinstance(rows, tuple) else (rows,):
        x[...] = 3
    same(prepared.apply_qk(q, k), want)


def test_packed_sequences_and_frequency_sets(rng):
    rope = librope.Rope.sets([ROPE, ROPE.replace(theta=5e5)], layout="thd")
    q = rng.standard_normal((7, 2, 16), np.float32)
    arrays = {"cu_seqlens": np.array([0, 3, 3, 7], np.int32), "freq_sets": np.array([1, 0, 0], np.int32),
              "offsets": np.array([5, 0, 9])}  # fmt: skip
    want = rope.apply(q, **arrays)
    prepared = rope.prepare_qk(q, **arrays)
    for x in arrays.values():
        x[...] = 0
    same(prepared.apply_qk(q), (want, None))


def test_a_layer_without_rope_and_several_axes(rng):
    q, k = rng.standard_normal((2, 2, 5, 3, 16), np.float32)
    nope = librope.Rope(head_dim=16, scaling="nope", layout="bshd")
    same(nope.prepare_qk(q, k, 3).apply_qk(q, k), (q, k))
    axes = ROPE.replace(axes=3, mrope_section=[2, 3, 3])
    ids = rng.integers(0, 50, (2, 5, 3))
    prepared = axes.prepare_qk(q, k, ids, positions_layout="bta")
    same(prepared.apply_qk(q, k), axes.apply_qk(q, k, ids, positions_layout="bta"))


def test_parts_of_one_buffer(rng):
    """Slices have gaps, and new arrays none: in place is prepared by out=(q, k)."""
    qkv = rng.standard_normal((2, 5, 8, 16), np.float32)
    q, k = qkv[:, :, :4], qkv[:, :, 4:6]
    want = ROPE.apply_qk(q, k, 11)
    prepared = ROPE.prepare_qk(q, k, 11)
    same(prepared.apply_qk(q, k), want)
    before = qkv.copy()
    place = r"q has strides \(640, 128, 16, 1\), and its output was prepared with \(320, 64, 16, 1\): for calls in place, "
    with pytest.raises(ValueError, match=place + r"prepare_qk\(\.\.\., out=\(q, k\)\)"):
        prepared.apply_qk_(q, k)
    with pytest.raises(ValueError, match=place + r"prepare_qk\(\.\.\., out=\(q, None\)\)"):
        ROPE.prepare_qk(q, None, 11).apply_qk_(q)
    with pytest.raises(ValueError, match=r"k has strides .* prepare_qk\(\.\.\., out=\(None, k\)\)"):
        ROPE.prepare_qk(None, k, 11).apply_qk_(None, k)
    np.testing.assert_array_equal(qkv, before)
    ROPE.prepare_qk(q, k, 11, out=(q, k)).apply_qk_(q, k)
    np.testing.assert_array_equal(q, want[0])
    np.testing.assert_array_equal(k, want[1])
    np.testing.assert_array_equal(qkv[:, :, 6:], before[:, :, 6:])


def test_k_into_a_cache(rng):
    q, k = rng.standard_normal((2, 2, 5, 3, 16), np.float32)
    caches = np.zeros((2, 2, 3, 64, 16), np.float32)  # two layers, bhsd
    at = [cache[:, :, 7:12].transpose(0, 2, 1, 3) for cache in caches]
    prepared = ROPE.prepare_qk(q, k, 7, out=(None, at[0]))
    want = ROPE.apply_qk(q, k, 7)
    for part in at:
        got = prepared.apply_qk(q, k, out=(None, part))
        assert got[1] is part
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(part, want[1])
    with pytest.raises(ValueError, match="out of k is required: prepare_qk was given one"):
        prepared.apply_qk(q, k)
    with pytest.raises(ValueError, match="out of k has strides"):
        prepared.apply_qk(q, k, out=(None, np.empty_like(k)))


def test_the_span_alone_as_output(rng):
    rope = ROPE.replace(rotary_dim=8)
    q, k = rng.standard_normal((2, 2, 5, 3, 16), np.float32)
    out, want = np.zeros((2, 2, 2, 5, 3, 8), np.float32)
    prepared = rope.prepare_qk(q, k, 7, out=tuple(out))
    prepared.apply_qk(q, k, out=tuple(out))
    rope.apply_qk(q, k, 7, out=tuple(want))
    np.testing.assert_array_equal(out, want)
    before = q.copy(), k.copy()
    with pytest.raises(ValueError, match="q has shape .*, and its output was prepared with .*: for calls in place"):
        prepared.apply_qk_(q, k)
    same((q, k), before)


def test_arrays_of_other_libraries(rng):
    """What was prepared is a shape, strides and a dtype, whoever has the memory."""
    q = rng.standard_normal((1, 3, 4, 16), np.float32)
    want = ROPE.apply(q, 5)
    with pytest.raises(TypeError, match="out="):
        ROPE.prepare_qk(OnlyDLPack(q), None, 5)
    for example in (q, OnlyDLPack(q)):
        prepared = ROPE.prepare_qk(example, None, 5, out=(example, None))
        for kind in (lambda x: x, OnlyDLPack, memoryview, lambda x: x.view(type("Sub", (np.ndarray,), {}))):
            x = q.copy()
            prepared.apply_qk_(kind(x))
            np.testing.assert_array_equal(x, want)


def test_threads_share_a_prepared_call(rng):
    layers = rng.standard_normal((8, 2, 1, 1, 40, 16), np.float32)
    prepared = ROPE.prepare_qk(*layers[0], 3)
    wants = [ROPE.apply_qk(*x, 3) for x in layers]
    failures = []

    def work(i):
        try:
            for _ in range(50):
                same(prepared.apply_qk(*layers[i]), wants[i])
                q, k = layers[i].copy()
                prepared.apply_qk_(q, k)
                same((q, k), wants[i])
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_what_it_keeps_and_frees(rng, monkeypatch):
    freed = []
    lib = _prepared.lib
    destroy = lambda call: (freed.append(call), lib.rope_prepared_destroy(call))  # noqa: E731
    fake = types.SimpleNamespace(prepare_call=lib.prepare_call, rope_prepared_destroy=destroy)
    monkeypatch.setattr(_prepared, "lib", fake)
    q = rng.standard_normal((1, 9000, 2, 16), np.float32)  # long enough for a pool
    want = ROPE.apply(q, 4)
    rope, pool = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd"), librope.Pool(2)
    example, positions = q.copy(), np.arange(4, 9004)
    prepared = rope.prepare_qk(example, None, positions, pool=pool)
    kept, left = (weakref.ref(rope), weakref.ref(pool)), (weakref.ref(example), weakref.ref(positions))
    del rope, pool, example, positions
    gc.collect()
    assert all(ref() for ref in kept) and not any(ref() for ref in left)
    same(prepared.apply_qk(q), (want, None))
    assert not freed
    del prepared
    assert len(freed) == 1 and not any(ref() for ref in kept)


@pytest.mark.parametrize("shape", [(0, 5, 4, 16), (2, 0, 4, 16)])
def test_nothing_to_do(shape):
    q = np.empty(shape, np.float32)
    prepared = ROPE.prepare_qk(q, q, 0)
    assert prepared.apply_qk(q, q)[1].shape == shape
    prepared.apply_qk_(q, q)


# -- what is refused ----------------------------------------------------------------------------------


def test_wrong_arrays_are_named_and_nothing_is_written(rng):
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    k = rng.standard_normal((2, 5, 2, 16), np.float32)
    prepared, only_q = ROPE.prepare_qk(q, k, 3), ROPE.prepare_qk(q, None, 3)
    locked = q.copy()
    locked.flags.writeable = False
    shape = r"has shape \(2, 5, 3, 16\), and the call was prepared for \(2, 5, 4, 16\)"
    wrong = [
        ((q[:, :, :3], k), ValueError, f"q {shape}"),
        ((q, k[:1]), ValueError, r"k has shape \(1, 5, 2, 16\)"),
        ((q.astype(BF16), k), TypeError, "q has dtype bfloat16, and the call was prepared for float32"),
        ((q, k.astype(np.float64)), TypeError, "k has dtype float64"),
        ((q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k), ValueError,
         r"q has strides \(320, 16, 80, 1\), and the call was prepared for \(320, 64, 16, 1\)"),
        ((q, None), ValueError, "k is None, and the call was prepared for one"),
        ((None, k), ValueError, "q is None, and the call was prepared for one"),
        ((q.tolist(), k), TypeError, "q is a builtins.list"),
        ((OnCuda(q), k), NotImplementedError, "q is on CUDA device 0, and prepared calls are for the CPU"),
    ]  # fmt: skip
    for arrays, error, message in wrong:
        before = q.copy(), k.copy()
        for call in (prepared.apply_qk, prepared.apply_qk_):
            with pytest.raises(error, match=message):
                call(*arrays)
        same((q, k), before)
    with pytest.raises(ValueError, match="k is an array, and the call was prepared for None"):
        only_q.apply_qk(q, k)
    with pytest.raises(ValueError, match="q is read-only"):
        prepared.apply_qk_(locked, k)
    same(prepared.apply_qk(locked, k), ROPE.apply_qk(q, k, 3))
    outs = [
        ((q[:, :, :3], None), ValueError, f"out of q {shape}"),
        ((locked, None), ValueError, "out of q is read-only"),
        (q, TypeError, r"out is a ndarray, and must be a pair \(q_out, k_out\)"),
    ]
    for out, error, message in outs:
        with pytest.raises(error, match=message):
            prepared.apply_qk(q, k, out=out)
    memory = np.zeros(2 * q.size, np.float32)
    a, b = memory[: q.size].reshape(q.shape), memory[16 : 16 + q.size].reshape(q.shape)
    with pytest.raises(ValueError, match="^apply_qk_?: q_out overlaps q, and must be exactly it"):
        prepared.apply_qk(a, k, out=(b, None))
    with pytest.raises(ValueError, match="^apply_qk_?: q_out overlaps k_out"):
        ROPE.prepare_qk(q, q, 0, out=(q, q)).apply_qk_(a, b)
    assert not memory.any()


def test_what_cannot_be_prepared(rng):
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    dynamic = ROPE.replace(scaling="dynamic", factor=2.0, max_position_embeddings=8, seq_len=8)
    with pytest.raises(ValueError, match="^prepare_qk: .*position"):
        dynamic.prepare_qk(q, None, 1000)
    with pytest.raises(ValueError, match="positions is required"):
        ROPE.prepare_qk(q)
    with pytest.raises(ValueError, match="q and k are both None"):
        ROPE.prepare_qk(None, None, 0)
    with pytest.raises(TypeError, match=r"prepare_qk\(\) got an unexpected keyword argument 'operaton'"):
        ROPE.prepare_qk(q, None, 0, operaton="inverse")
    with pytest.raises(TypeError, match="pool is a int"):
        ROPE.prepare_qk(q, None, 0, pool=3)
    with pytest.raises(ValueError, match="q_out: strides let heads, tokens or batch rows"):
        wide = np.lib.stride_tricks.as_strided(q, (2, 5, 4, 16), (0, 256, 64, 4))
        ROPE.prepare_qk(wide, None, 0, out=(wide, None))
    on_cuda = OnCuda(q)
    with pytest.raises(NotImplementedError, match="q is on CUDA device 0, and prepared calls are for"):
        ROPE.prepare_qk(on_cuda, None, 0, out=(on_cuda, None))


def test_options_are_those_of_a_call(rng):
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    given = {"layout": "bhsd", "operation": "backward", "offsets": np.array([3]), "cu_seqlens": None,
             "freq_sets": None, "positions_layout": None, "cos_sin": None, "cos_sin_format": None,
             "pool": librope.Pool(1), "shard": librope.Shard("striped", 0, 2), "batch_repeat": 2}  # fmt: skip
    assert given.keys() == PrepareOptions.__optional_keys__
    same(ROPE.prepare_qk(q, **given).apply_qk(q), ROPE.apply_qk(q, **given))


def test_it_stays_in_its_process(rng):
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    with pytest.raises(TypeError, match="cannot be pickled: prepare one in each process"):
        pickle.dumps(ROPE.prepare_qk(q, None, 0))
