"""Caches in 8 bits and of other dtypes: codes are those of the results in float32, by the formula of rope.h,
and nothing else is written."""

from __future__ import annotations

import copy
import pickle

import librope
import ml_dtypes
import numpy as np
import pytest
from librope import KVCache, Rope, Scale

DIM, HEADS, PAGES, SIZE = 32, 2, 3, 4
MAX = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in MAX}
SLOTS = np.array([5, 11, 0], np.int64)


@pytest.fixture(scope="module")
def rope():
    return Rope(head_dim=DIM, theta=10000.0, pairing="halves", layout="bshd")


def arrays(dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, 1, 3, HEADS, DIM), np.float32) * 9
    v[0, 0, 0, :3] = np.nan, 1e9, -np.inf
    with np.errstate(over="ignore"):
        return tuple(x.astype(dtype) for x in (q, k, v))


def coded(x, scale, name):
    """Codes as bytes: each operation is one of float32."""
    with np.errstate(invalid="ignore"):
        y = x * (np.float32(1) / np.float32(scale))
        if name == "int8":
            return np.nan_to_num(np.clip(np.rint(y), -128, 127), nan=0).astype(np.int8).view(np.uint8)
        codes = np.clip(y, -MAX[name], MAX[name]).astype(DTYPES[name]).view(np.uint8)
    return np.where(np.isnan(x), 0x7F, codes)


def computed(x, name, group, least=2.0**-126):
    sizes = np.abs(x.reshape(*x.shape[:-1], -1, group))
    largest = np.nan_to_num(sizes, nan=0, posinf=np.finfo(np.float32).max).max(-1)
    return np.maximum(largest / np.float32(MAX[name]), np.float32(least)).astype(np.float32)


def memory(dtype, layout="nhd"):
    shape = {"nhd": (PAGES, SIZE, HEADS), "hnd": (PAGES, HEADS, SIZE)}[layout]
    return np.full((*shape, DIM), 99, np.uint8).view(dtype)


def slots_of(x, layout="nhd"):
    x = np.moveaxis(x, 1, 2) if layout == "hnd" else x
    return x.reshape(PAGES * SIZE, *x.shape[2:])


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("name", MAX)
def test_codes_by_given_scales(rope, name, layout):
    q, k, v = arrays()
    _, turned = rope.apply_qk(q, k, 7)
    keys, values = memory(DTYPES[name], layout), memory(DTYPES[name], layout)
    cache = KVCache(keys, values, layout=layout, k_scale=Scale(0.07), v_scale=Scale(0.5), slots=SLOTS)
    for _ in range(3):  # the way of all calls, and the short one
        keys[...] = values[...] = memory(DTYPES[name], layout)
        rope.apply_qk(q, k, 7, v=v, cache=cache)
        for stored, x, scale in ((keys, turned, 0.07), (values, v, 0.5)):
            stored = slots_of(stored.view(np.uint8), layout)
            assert (stored[SLOTS] == coded(x[0], scale, name)).all()
            assert (np.delete(stored, SLOTS, 0) == 99).all()
    # Another scale in the same memory, in the same forms.
    other = KVCache(keys, values, layout=layout, k_scale=Scale(0.9), v_scale=Scale(0.5), slots=SLOTS)
    rope.apply_qk(q, k, 7, v=v, cache=other)
    assert (slots_of(keys.view(np.uint8), layout)[SLOTS] == coded(turned[0], 0.9, name)).all()


@pytest.mark.parametrize("group", [0, 8])
@pytest.mark.parametrize("name", MAX)
def test_codes_by_computed_scales(rope, name, group):
    q, k, v = arrays()
    _, turned = rope.apply_qk(q, k, 7)
    width = group or DIM
    keys, values = memory(DTYPES[name]), memory(DTYPES[name])
    k_scales, v_scales = np.full((2, PAGES, SIZE, HEADS, DIM // width), -1, np.float32)
    if not group:
        k_scales, v_scales = k_scales[..., 0], v_scales[..., 0]
    for layer in range(3):  # arrays of other layers are other arrays
        where = dict(computed=True, group=group)
        cache = KVCache(keys, values, layout="nhd", k_scale=Scale(data=k_scales, **where),
                        v_scale=Scale(data=v_scales, **where), slots=SLOTS)  # fmt: skip
        rope.apply_qk(q, k, 7, v=v, cache=cache)
        for stored, scales, x in ((keys, k_scales, turned), (values, v_scales, v)):
            stored, scales = slots_of(stored.view(np.uint8)), scales.reshape(PAGES * SIZE, HEADS, -1)
            expected = computed(x[0], name, width)
            assert (scales[SLOTS] == expected).all()
            assert (np.delete(scales, SLOTS, 0) == -1).all()
            each = np.repeat(expected, width, -1)
            assert (stored[SLOTS] == coded(x[0], each, name)).all()
        k_scales, v_scales = np.full_like(k_scales, -1), np.full_like(v_scales, -1)


def test_powers_of_two_as_e8m0(rope):
    q, k, _ = arrays()
    _, turned = rope.apply_qk(q, k, 7)
    keys = memory(DTYPES["float8_e4m3fn"])
    scales = np.zeros((PAGES, SIZE, HEADS), ml_dtypes.float8_e8m0fnu)
    scale = Scale(data=scales, computed=True, power_of_two=True, min_scale=0.01)
    rope.apply_qk(q, k, 7, cache=KVCache(keys, layout="nhd", k_scale=scale, slots=SLOTS))
    expected = np.exp2(np.ceil(np.log2(computed(turned[0], "float8_e4m3fn", DIM, 0.01)[..., 0])))
    found = scales.astype(np.float32).reshape(-1, HEADS)[SLOTS]
    assert (found == expected).all()
    codes = slots_of(keys.view(np.uint8))[SLOTS]
    assert (codes == coded(turned[0], expected[..., None], "float8_e4m3fn")).all()


def test_scales_as_given_arrays_and_rounding_first(rope):
    q, k, _ = arrays(ml_dtypes.bfloat16)
    _, turned = rope.apply_qk(q, k, 7)
    keys = memory(np.int8)
    scales = np.random.default_rng(1).uniform(0.1, 2, (PAGES, SIZE, HEADS)).astype(np.float32)
    before = scales.copy()
    scales.flags.writeable = False
    scale = Scale(data=scales, round_first=True)
    rope.apply_qk(q, k, 7, cache=KVCache(keys, layout="nhd", k_scale=scale, slots=SLOTS))
    each = scales.reshape(-1, HEADS, 1)[SLOTS]
    codes = slots_of(keys.view(np.uint8))[SLOTS]
    assert (codes == coded(turned[0].astype(np.float32), each, "int8")).all()
    assert (scales == before).all()


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("given", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_memory_of_another_dtype_is_rounded_once(rope, given, stored):
    q, k, v = arrays(given)
    v = np.nan_to_num(v.astype(np.float32), posinf=7, neginf=-7).clip(-100, 100).astype(given)
    _, wide = rope.apply_qk(q.astype(np.float32), k.astype(np.float32), 7)
    keys, values = np.zeros((2, PAGES, SIZE, HEADS, DIM), stored)
    rope.apply_qk(q, k, 7, v=v, cache=KVCache(keys, values, layout="nhd", slots=SLOTS))
    assert (slots_of(keys)[SLOTS] == wide[0].astype(stored)).all()
    assert (slots_of(values)[SLOTS] == v[0].astype(stored)).all()


def test_prepared_and_bound_calls(rope):
    q, k, v = arrays()
    expected = [memory(np.int8), memory(np.int8)]
    scales = dict(k_scale=Scale(0.07), v_scale=Scale(0.5))
    rope.apply_qk(q, k, 7, v=v, cache=KVCache(*expected, layout="nhd", slots=SLOTS, **scales))
    found = [memory(np.int8), memory(np.int8)]
    bound = rope.bind(q.copy(), k, 7, v=v, cache=KVCache(*found, layout="nhd", slots=SLOTS, **scales))
    bound()
    assert all((a == b).all() for a, b in zip(expected, found, strict=True))
    call = rope.prepare_qk(q, k, 7, v=v, cache=KVCache(*found, layout="nhd", slots=SLOTS, **scales))
    for _ in range(2):
        layer = [memory(np.int8), memory(np.int8)]
        call.apply_qk(q, k, v=v, cache=KVCache(*layer, layout="nhd", **scales))
        assert all((a == b).all() for a, b in zip(expected, layer, strict=True))
    with pytest.raises(ValueError, match="other scales"):
        call.apply_qk(q, k, v=v, cache=KVCache(*layer, layout="nhd", k_scale=Scale(1), v_scale=Scale(0.5)))


def test_prepared_calls_with_arrays_of_scales(rope):
    """Each layer brings its own, or its own computed ones are written."""
    q, k, v = arrays()
    turned = rope.apply_qk(q, k, 7)[1]

    def layer(n, **where):
        data = [np.full((PAGES, SIZE, HEADS), n, np.float32) for _ in "kv"]
        scales = Scale(data=data[0]), Scale(data=data[1], computed=True)
        memory_of = memory(np.int8), memory(DTYPES["float8_e4m3fn"])
        return KVCache(*memory_of, layout="nhd", k_scale=scales[0], v_scale=scales[1], **where), data

    call = rope.prepare_qk(q, k, 7, v=v, cache=layer(1, slots=SLOTS)[0])
    for n in (0.07, 0.5):
        cache, data = layer(n)
        for again in (False, True):
            (call.apply_qk_ if again else call.apply_qk)(q.copy(), k, v=v, cache=cache)
            assert (slots_of(cache.k.view(np.uint8))[SLOTS] == coded(turned[0], n, "int8")).all()
            expected = computed(v[0], "float8_e4m3fn", DIM)
            assert (data[1].reshape(-1, HEADS)[SLOTS] == expected[..., 0]).all()
            codes = slots_of(cache.v.view(np.uint8))[SLOTS]
            assert (codes == coded(v[0], expected, "float8_e4m3fn")).all()


def test_what_is_wrong_is_named_and_nothing_is_written(rope):
    q, k, v = arrays()
    keys = memory(np.int8)
    full = np.zeros((PAGES, SIZE, HEADS), np.float32)

    def call(scale, memory=keys, **arguments):
        rope.apply_qk(q, k, 7, cache=KVCache(memory, layout="nhd", k_scale=scale, slots=SLOTS, **arguments))

    read_only = full.copy()
    read_only.flags.writeable = False
    for scale, error, text in (
        (None, ValueError, "cache.k has dtype int8, and k_scale must be a Scale"),
        (Scale(data=full[:2], computed=True), ValueError, r"data of k_scale has shape \(2, 4, 2\)"),
        (Scale(data=full, computed=True, group=5), ValueError, "group of k_scale is 5, and must divide 32"),
        (Scale(data=full, computed=True, group=8), ValueError, r"must have \(3, 4, 2, 4\)"),
        (Scale(data=full.astype(np.float64), computed=True), TypeError, "data of k_scale has dtype float64"),
        (Scale(data=read_only, computed=True), ValueError, "data of k_scale is read-only"),
        (Scale(data=np.broadcast_to(full[:1], full.shape), computed=True), ValueError, "read-only"),
        (Scale(1, computed=True), ValueError, r"cache\.k_scale\.value \(1\) must be 0, as scales are computed"),
    ):
        with pytest.raises(error, match=text):
            call(scale)
    assert (keys == 99).all()
    floats = np.zeros((PAGES, SIZE, HEADS, DIM), np.float32)
    with pytest.raises(ValueError, match="cache.k has dtype float32, which is none of 8 bits, and k_scale must be None"):
        call(Scale(1), floats)
    with pytest.raises(ValueError, match="cache.k has dtype uint8, blocks of Q8_0 .* k_scale must be None"):
        call(Scale(1), np.zeros(floats.shape, np.uint8))
    for value, error, text in (
        (None, ValueError, "exactly one of them is required"),
        ("x", TypeError, "value of a Scale is 'x', and must be a number"),
        ("0.5", TypeError, "value of a Scale is '0.5', and must be a number"),
        (0.0, ValueError, "value of a Scale is 0, and must be from 2\\^-126 to 2\\^126"),
        (-1, ValueError, "value of a Scale is -1"),
        (float("nan"), ValueError, "value of a Scale is nan"),
        (2.0**127, ValueError, "value of a Scale is 1.70141e\\+38"),
    ):
        with pytest.raises(error, match=text):
            Scale(value)
    with pytest.raises(TypeError, match="k_scale is a float"):
        KVCache(keys, layout="nhd", k_scale=0.5)
    with pytest.raises(AttributeError):
        KVCache(keys, layout="nhd").k_scale = Scale(1)
    call(Scale(2.0**-126), keys.copy()), call(Scale(np.float32(2.0**126)), keys.copy())
    assert repr(Scale(0.5)) == "Scale(0.5)"
    assert "Scale" in librope.__all__


def test_a_scale_cannot_change(rope):
    """Calls know it by its identity: a short way would go by the old one."""
    q, k, v = arrays()
    data = np.ones((PAGES, SIZE, HEADS), np.float32)
    caches = [
        KVCache(memory(np.int8), memory(np.int8), layout="nhd", k_scale=Scale(x), v_scale=Scale(x), slots=SLOTS)
        for x in (0.5, 0.9)
    ]
    for scale in (caches[0].k_scale, Scale(data=data)):
        for name in Scale.__slots__:
            before = getattr(scale, name)
            with pytest.raises(AttributeError, match=f"{name} of a Scale cannot be set: it is immutable; make a new"):
                setattr(scale, name, 1)
            with pytest.raises(AttributeError, match=f"{name} of a Scale cannot be deleted"):
                delattr(scale, name)
            assert getattr(scale, name) is before
        for made in (copy.copy(scale), copy.deepcopy(scale), pickle.loads(pickle.dumps(scale))):
            assert type(made) is Scale and repr(made) == repr(scale)
    for again in range(3):  # other scales are other caches, in any order
        for cache, value in zip(caches, (0.5, 0.9), strict=True):
            rope.apply_qk(q, k, 7, v=v, cache=cache.at(slots=SLOTS) if again else cache)
            assert (slots_of(cache.v.view(np.uint8))[SLOTS] == coded(v[0], value, "int8")).all()


@pytest.mark.parametrize("layout, shapes", [("nhd", [(), (1,), (HEADS,), (SIZE, 1), (1, SIZE, HEADS), (PAGES, 1, 1, 1)]),
                                            ("hnd", [(), (1,), (HEADS, 1), (SIZE,), (PAGES, 1, 1)])])  # fmt: skip
def test_given_scales_broadcast_to_the_layout_of_the_pages(rope, layout, shapes):
    """Those of one group for each head, whose axis may be left out."""
    q, k, v = arrays()
    full = (PAGES, SIZE, HEADS) if layout == "nhd" else (PAGES, HEADS, SIZE)
    for shape in shapes:
        some = np.linspace(0.01, 0.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        found = []
        for data in (some, np.ascontiguousarray(np.broadcast_to(some, full + (1,) * (some.ndim == 4)))):
            k_memory, v_memory = (np.zeros((*full, DIM), np.int8) for _ in "kv")
            scale = Scale(data=data)
            cache = KVCache(k_memory, v_memory, layout=layout, k_scale=scale, v_scale=scale, slots=SLOTS)
            rope.apply_qk_(q.copy(), k, 3, v=v, cache=cache)
            found.append((k_memory, v_memory))
        assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True)) and found[0][0].any()


def test_what_does_not_broadcast_is_refused(rope):
    q, k, v = arrays()
    memory = [np.zeros((PAGES, SIZE, HEADS, DIM), np.int8) for _ in "kv"]
    for scale, rule in (
        (Scale(data=np.ones(PAGES, np.float32)), r"has shape \(3,\), and must have \(3, 4, 2, 1\), or one that broadcasts"),
        (Scale(data=np.ones(1, np.float32), group=8), r"has shape \(1,\), and must have \(3, 4, 2, 4\), or one"),
        (Scale(data=np.ones(HEADS, np.float32), computed=True), r"must have \(3, 4, 2, 1\)$"),
    ):
        cache = KVCache(*memory, layout="nhd", k_scale=scale, v_scale=Scale(1.0), slots=SLOTS)
        with pytest.raises(ValueError, match=rule):
            rope.apply_qk_(q, k, 3, v=v, cache=cache)


def test_bytes_that_hold_codes_are_told_from_blocks(rope):
    """As an engine keeps float8 in uint8."""
    q, k, v = arrays()
    memory = [np.zeros((PAGES, SIZE, HEADS, DIM), np.uint8) for _ in "kv"]
    cache = KVCache(*memory, layout="nhd", k_scale=Scale(0.1), v_scale=Scale(0.1), slots=SLOTS)
    with pytest.raises(ValueError, match=r"give cache\.k\.view\(torch\.float8_e4m3fn\)"):
        rope.apply_qk_(q, k, 3, v=v, cache=cache)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_shapes_that_broadcast_in_two_ways_are_refused(rope, layout):
    """As many slots in a page as heads: an axis of one number may be that of groups, or not."""
    size = HEADS
    q, k, v = arrays()
    memory = np.zeros((PAGES, size, HEADS, DIM), np.int8)

    def call(shape):
        data = np.linspace(1, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        cache = KVCache(memory, layout=layout, k_scale=Scale(data=data), slots=np.array([5, 1, 0], np.int64))
        rope.apply_qk(q, k, 7, cache=cache)
        return memory.copy()

    for shape in ((HEADS, 1), (1, HEADS, 1)):
        with pytest.raises(ValueError, match=rf"shape \({', '.join(map(str, shape))}\), which broadcasts to .* give all 4"):
            call(shape)
    of_heads = (1, 1, HEADS, 1) if layout == "nhd" else (1, HEADS, 1, 1)
    of_slots = (1, size, 1, 1) if layout == "nhd" else (1, 1, size, 1)
    assert (call(of_heads) != call(of_slots)).any()
    assert (call((HEADS,)) == call(of_heads if layout == "nhd" else of_slots)).all()
    assert (call((1, HEADS, HEADS)) == call((1, HEADS, HEADS, 1))).all()
    call(())
