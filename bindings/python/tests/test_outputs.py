"""Outputs of another dtype, in 8 bits, and with repeated heads, and `rest`: the results of plain calls, converted
once by the formulas of rope.h, and nothing else is written."""

from __future__ import annotations

import librope
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from librope import KVCache, Norm, Norms, Rope, Scale, Scales
from test_scale import DTYPES, MAX, coded, computed

BF16 = np.dtype(ml_dtypes.bfloat16)
WIDE = [np.dtype(np.float32), np.dtype(np.float16), BF16]
DIM, TOKENS = 32, 3
ROPE = Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd")
E4M3 = DTYPES["float8_e4m3fn"]


def heads(n, dtype=np.float32, channels=DIM, seed=0, layout="bshd"):
    x = np.random.default_rng(seed + n).standard_normal((2, TOKENS, n, channels), np.float32) * 9
    return (x.swapaxes(1, 2) if layout == "bhsd" else x).astype(dtype)


def filled(shape, dtype):
    """Memory of which each byte is told from what a call writes."""
    dtype = np.dtype(dtype)
    return np.full((*shape[:-1], shape[-1] * dtype.itemsize), 99, np.uint8).view(dtype)


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


def each(scales, x, group):
    """[.., groups] for each channel of x."""
    return np.repeat(scales.reshape(*x.shape[:-1], -1), group, -1)


names = st.sampled_from(sorted(MAX))


@settings(max_examples=120, deadline=None)
@given(
    name=names, dtype=st.sampled_from(WIDE), repeats=st.integers(1, 3), group=st.sampled_from([0, 8, 32]),
    kind=st.sampled_from(["value", "given", "computed", "powers"]), layout=st.sampled_from(["bshd", "bhsd"]),
    normed=st.booleans(), first=st.booleans(), way=st.sampled_from(["call", "bound", "prepared"]),
)  # fmt: skip
def test_codes_are_those_of_the_results(name, dtype, repeats, group, kind, layout, normed, first, way):
    """Of q, k, v and rest at once, whatever the scales are and whatever way the call goes."""
    rope = ROPE.replace(layout=layout)
    axis = layout.index("h")
    q, k, v = (heads(n, dtype, seed=i, layout=layout) for i, n in enumerate((4, 2, 2)))
    rest = heads(4, dtype, 64, seed=3, layout=layout)
    wide = [x.astype(np.float32) for x in (q, k, v, rest)]
    norms = None
    if normed:
        weight = np.random.default_rng(9).standard_normal(DIM, np.float32)
        norms = Norms(*[Norm(weight, kind="rms", eps=1e-5)] * 3)
        v_wide = np.empty_like(wide[2])
        turned = rope.apply_qk(*wide[:2], 5, v=wide[2], norms=norms, out=(None, None, v_wide))
        results = [*turned, v_wide, wide[3]]
    else:
        results = [*rope.apply_qk(*wide[:2], 5), *wide[2:]]
    if first:
        results = [x.astype(dtype).astype(np.float32) for x in results]
    results = [x.repeat(repeats, axis) for x in results]
    outs = [filled(x.shape, DTYPES[name]) for x in results]
    data, scales, expected = [], [], []
    for i, x in enumerate(results):
        width = group or x.shape[-1]
        shape = (*x.shape[:-1], x.shape[-1] // width)
        if kind == "value":
            data.append(None)
            expected.append(np.float32(0.07))
            scales.append(Scale(0.07, round_first=first))
            continue
        if kind == "given":
            values = np.random.default_rng(i).uniform(0.02, 2, shape).astype(np.float32)
        else:
            values = computed(x, name, width, 1e-3)
            if kind == "powers":
                values = np.exp2(np.ceil(np.log2(values)))
        values = values.astype(ml_dtypes.float8_e8m0fnu) if kind == "powers" else values
        memory = values.copy() if kind == "given" else filled(shape, values.dtype)
        memory = memory if group else memory[..., 0]  # the axis of one group may be left out
        expected.append(each(values.astype(np.float32), x, width))
        data.append((memory, values))
        scales.append(Scale(
            data=memory, computed=kind != "given", group=group, power_of_two=kind == "powers",
            min_scale=0 if kind == "given" else 1e-3, round_first=first,
        ))  # fmt: skip
    more = dict(v=v, rest=rest, out=tuple(outs), scales=Scales(*scales))
    if way == "call":
        assert rope.apply_qk(q, k, 5, norms=norms, **more) == (outs[0], outs[1])
    elif way == "bound":
        rope.bind(q, k, 5, norms=norms, **more)()
    else:
        example = Scales(*[
            x if x.data is None else Scale(
                data=x.data.copy(), computed=x.computed, group=group, power_of_two=x.power_of_two,
                min_scale=x.min_scale, round_first=first,
            )
            for x in scales
        ])  # fmt: skip
        other = normed and Norms(*[Norm(weight + 1, kind="rms", eps=1e-5)] * 3)
        options = {**more, "norms": other or None, "scales": example, "out": tuple(map(np.copy, outs))}
        rope.prepare_qk(q, k, 5, **options).apply_qk(q, k, norms=norms, **more)
    for x, out, scale in zip(results, outs, expected, strict=True):
        assert (bits(out) == coded(x, scale, name)).all()
    for memory, values in filter(None, data):
        assert (bits(memory).ravel() == bits(values).ravel()).all()


@pytest.mark.parametrize("to", WIDE, ids=str)
@pytest.mark.parametrize("of", WIDE, ids=str)
@pytest.mark.parametrize("repeats", [1, 3])
def test_other_dtypes_are_rounded_once(of, to, repeats):
    q, k, v = (heads(n, of, seed=n) for n in (4, 2, 2))
    results = [*ROPE.apply_qk(q.astype(np.float32), k.astype(np.float32), 5), v.astype(np.float32)]
    results = [x.repeat(repeats, 2).astype(to) for x in results]
    outs = [filled(x.shape, to) for x in results]
    ROPE.apply_qk(q, k, 5, out=tuple(outs[:2]))
    ROPE.apply_qk(q, k, 5, v=v, out=(None, None, outs[2]))
    assert all((bits(a) == bits(b)).all() for a, b in zip(outs, results, strict=True))
    call = ROPE.prepare_qk(q, k, 5, out=(outs[0], outs[1]))
    again = filled(results[0].shape, to), filled(results[1].shape, to)
    call.apply_qk(q, k, out=again)
    assert all((bits(a) == bits(b)).all() for a, b in zip(outs, again, strict=False))


def test_an_eager_rope_rounds_to_the_dtype_of_the_input_first():
    q = heads(4, BF16)
    eager = ROPE.replace(rounding="eager")
    out = filled(q.shape, E4M3)
    eager.apply(q, 5, out=out, scales=Scales(q=Scale(0.07)))
    assert (bits(out) == coded(eager.apply(q, 5).astype(np.float32), 0.07, "float8_e4m3fn")).all()


def test_backward_adds_the_gradients_of_repeated_heads():
    q, k = heads(4), heads(6)
    summed = (k[:, :, 0::3] + k[:, :, 1::3]) + k[:, :, 2::3]
    out = np.empty_like(summed)
    ROPE.apply_qk(q, k, 5, operation="backward", out=(q.copy(), out))
    assert (out == ROPE.apply(summed, 5, operation="backward")).all()


# Rows of caches of MLA, as engines lay them out: those of tests/call/mla_rows_test.cc.
MLA = Rope(head_dim=64, theta=1e4, pairing="interleaved", layout="td")
PAGES, PAGE_SIZE, IN_ROWS = 4, 16, 37
SLOTS = np.array([-1 if t == 20 else (29 * t + 5) % (PAGES * PAGE_SIZE) for t in range(IN_ROWS)], np.int64)
STORED = SLOTS >= 0


def latent(channels, seed=0):
    """bf16 of one head a token, of many sizes."""
    rng = np.random.default_rng(channels + seed)
    return (rng.standard_normal((IN_ROWS, channels)) * np.exp2(rng.integers(-9, 4, (IN_ROWS, 1)))).astype(BF16)


class Pages:
    """Bytes of pages, of which tensors of several dtypes are parts."""

    def __init__(self, page_bytes):
        self.bytes = np.full((PAGES, page_bytes), 0x33, np.uint8)

    def part(self, first, step, width, dtype):
        """[pages, slots, width]: from byte `first` of a page on, with `step` bytes from slot to slot."""
        dtype = np.dtype(dtype)
        strides = (self.bytes.shape[1], step, dtype.itemsize)
        return np.ndarray((PAGES, PAGE_SIZE, width), dtype, self.bytes, first, strides)


def put(part, values):
    """What the call has to write there: bytes of [tokens, ..]."""
    pages, slots = np.divmod(SLOTS[STORED], PAGE_SIZE)
    part[pages, slots] = values.view(part.dtype)[STORED]


def turned_keys(key):
    return MLA.apply(key.astype(np.float32), 5).astype(BF16)


@pytest.mark.parametrize("size", [656, 528, 584])
def test_rows_of_mla(size):
    """656, FlashMLA: a latent of 512 e4m3, four scales of f32, the key that turns, 64 bf16. 528: the same with keys
    apart. 584, DeepSeek-V4: 448 e4m3 and the key in rows of 576, and behind those of a page 8 bytes for each, seven
    scales of e8m0. The scales are powers of two; a call fills all of it."""
    channels, group = (448, 64) if size == 584 else (512, 128)
    kind = np.dtype(ml_dtypes.float8_e8m0fnu if size == 584 else np.float32)
    row = 576 if size == 584 else size
    scales_at = (PAGE_SIZE * 576, 8) if size == 584 else (512, size)

    def parts():
        pages = Pages(PAGE_SIZE * size)
        apart = Pages(PAGE_SIZE * 128)
        keys = apart.part(0, 128, 64, BF16) if size == 528 else pages.part(528 if size == 656 else 448, row, 64, BF16)
        return pages, apart, keys, pages.part(0, row, channels, E4M3), pages.part(*scales_at, channels // group, kind)

    pages, apart, keys, values, data = parts()
    want, want_apart, *wanted = parts()
    key, v = latent(64), latent(channels, 1)
    scale = np.exp2(np.ceil(np.log2(computed(v.astype(np.float32), "float8_e4m3fn", group, 1e-4))))
    put(wanted[0], turned_keys(key))
    put(wanted[1], coded(v.astype(np.float32), np.repeat(scale, group, -1), "float8_e4m3fn"))
    put(wanted[2], scale.astype(kind))
    v_scale = Scale(data=data, computed=True, group=group, power_of_two=True, min_scale=1e-4)
    cache = KVCache(keys, values, layout="nd", v_scale=v_scale, slots=SLOTS)
    for _ in range(2):  # the second call goes a short way
        pages.bytes[...] = apart.bytes[...] = 0x33
        MLA.apply_qk(latent(64, 2), key, 5, v=v, cache=cache)
        assert (pages.bytes == want.bytes).all() and (apart.bytes == want_apart.bytes).all()
    assert (apart.bytes != 0x33).any() == (size == 528)


def test_rows_of_mla_with_one_scale():
    """576: latent and key in e4m3, by a scale that is given. A key is rounded before it is quantised, as by a kernel
    behind that of the rotation."""
    pages, want = Pages(PAGE_SIZE * 576), Pages(PAGE_SIZE * 576)
    key, v = latent(64), latent(512, 1)
    put(want.part(0, 576, 512, E4M3), coded(v.astype(np.float32), 0.25, "float8_e4m3fn"))
    put(want.part(512, 576, 64, E4M3), coded(turned_keys(key).astype(np.float32), 0.25, "float8_e4m3fn"))
    scale = Scale(0.25, round_first=True)
    cache = KVCache(
        pages.part(512, 576, 64, E4M3), pages.part(0, 576, 512, E4M3), layout="nd", k_scale=scale, v_scale=scale,
        slots=SLOTS,
    )  # fmt: skip
    for _ in range(2):
        pages.bytes[...] = 0x33
        MLA.apply_qk(latent(64, 2), key, 5, v=v, cache=cache)
        assert (pages.bytes == want.bytes).all()


def test_rows_of_an_indexer():
    """132, DeepSeek-V3.2: keys of 128 channels, layer-normed with a bias, of which the first 64 turn: all rows of e4m3
    of a page, then a scale in f32 for each."""
    rope = Rope(head_dim=128, rotary_dim=64, theta=1e4, pairing="halves", layout="td")
    pages, want = Pages(PAGE_SIZE * 132), Pages(PAGE_SIZE * 132)
    rng = np.random.default_rng(4)
    weight, bias = (rng.standard_normal(128).astype(BF16) for _ in range(2))
    norm = Norm(weight, kind="layer_bias", eps=1e-6, bias=bias, rounding="rounded")
    key = (latent(128).astype(np.float32) + 0.5).astype(BF16)
    normed = Rope(head_dim=128, scaling="nope", layout="td").apply(key, 0, norms=Norms(norm))
    x = key.astype(np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    exact = x * weight.astype(np.float64) + bias.astype(np.float64)
    np.testing.assert_allclose(normed.astype(np.float64), exact, rtol=2**-8, atol=1e-4)

    wide = rope.apply(normed.astype(np.float32), 5).astype(BF16).astype(np.float32)
    assert (wide[:, :64] != normed[:, :64]).any(0).all() and (wide[:, 64:] == normed[:, 64:]).all()
    least = 1e-4 / 448
    scale = computed(wide, "float8_e4m3fn", 128, least)
    put(want.part(0, 128, 128, E4M3), coded(wide, scale, "float8_e4m3fn"))
    put(want.part(PAGE_SIZE * 128, 4, 1, np.float32), scale)
    data = pages.part(PAGE_SIZE * 128, 4, 1, np.float32)
    k_scale = Scale(data=data, computed=True, round_first=True, min_scale=least)
    cache = KVCache(pages.part(0, 128, 128, E4M3), layout="nd", k_scale=k_scale, slots=SLOTS)
    for _ in range(2):
        pages.bytes[...] = 0x33
        rope.apply_qk(latent(128, 2), key, 5, cache=cache, norms=Norms(k=norm))
        assert (pages.bytes == want.bytes).all()


def test_an_absorbed_query_is_rest_beside_what_turns():
    """Of 8 heads: 512 channels that do not turn, 64 that do, in one row of e4m3."""
    rope = MLA.replace(layout=("thd", "td"))
    q, rest = heads(8, BF16, 64)[0], heads(8, BF16, 512, seed=5)[0]
    row = filled((TOKENS, 8, 576), E4M3)
    scales = Scales(q=Scale(0.05), rest=Scale(0.05))
    key, out = heads(1, BF16, 64)[0, :, 0], (row[..., 512:], None, None, row[..., :512])
    rope.apply_qk(q, key, 5, rest=rest, out=out, scales=scales)
    turned = rope.apply(q.astype(np.float32), 5)
    whole = np.concatenate([rest.astype(np.float32), turned], -1)
    assert (bits(row) == coded(whole, 0.05, "float8_e4m3fn")).all()


def test_what_is_wrong_is_named_and_nothing_is_written():
    q, k, v = heads(4), heads(2), heads(2, seed=1)
    q8, k8, v8 = (filled(x.shape, E4M3) for x in (q, k, v))
    full = np.zeros(q.shape[:-1], np.float32)
    rest, rest_out = heads(4, channels=7), filled((2, TOKENS, 4, 7), np.float32)
    for arguments, error, text in (
        (dict(out=(q8, None)), ValueError, "out of q has dtype float8_e4m3fn, and scales.q must be a Scale"),
        (dict(out=(q8, k8), scales=Scales(q=Scale(1))), ValueError, "out of k has dtype float8_e4m3fn, and scales.k"),
        (dict(out=(None, k8), scales=Scales(k=Scale(10), v=Scale(10))), ValueError, "scales.v is a Scale, and out of v is None"),
        (dict(scales=Scales(q=Scale(1))), ValueError, "out of q has dtype float32, which is none of 8 bits, and scales.q must be None"),
        (dict(out=(q8, None), scales=Scales(q=Scale(data=full[:, :2]))), ValueError,
         r"data of scales.q has shape \(2, 2, 4\), and must have \(2, 3, 4, 1\)"),
        (dict(out=(q8, None), scales=Scales(q=Scale(data=full, group=7))), ValueError,
         "group of scales.q is 7, and must divide 32"),
        (dict(out=(q8, None), scales=Scales(q=Scale(data=full.astype(np.float16)))), TypeError,
         "data of scales.q has dtype float16"),
        (dict(out=(q8, None), scales=Scale(1)), TypeError, "scales is a Scale, and must be a librope.Scales"),
        (dict(out=(q8.view(np.uint8), None), scales=Scales(q=Scale(1))), ValueError, "out of q has 32 bytes of uint8"),
        (dict(out=(filled((2, TOKENS, 6, DIM), E4M3), None), scales=Scales(q=Scale(1))), ValueError,
         "out of q has 6 heads, and must have a multiple of the 4 of q"),
        (dict(v=v, out=(None, None, v8)), ValueError, "out of v has dtype float8_e4m3fn, and scales.v"),
        (dict(v=v, out=(None, None, np.zeros((2, TOKENS, 2, 31), np.float32))), ValueError, "out of v has 31 channels"),
        (dict(rest=rest), ValueError, "rest has nowhere to go"),
        (dict(rest=rest, out=(None, None, np.zeros_like(v), rest_out)), ValueError,
         "^out has an array for v, which is None"),
        (dict(rest=rest, out=(None, None, None, rest_out[..., :6])), ValueError, "out of rest has 6 channels"),
        (dict(rest=rest, out=(None, None, None, rest_out[:, :2])), ValueError, "out of rest has 2 tokens"),
        (dict(rest=rest.astype(np.int8), out=(None, None, None, rest_out)), TypeError, "rest has dtype int8"),
        (dict(out=(None, None, None, rest_out)), TypeError, "out is a tuple, and must be a pair"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            ROPE.apply_qk(q, k, 5, **arguments)
    with pytest.raises(ValueError, match="out of k has 4 heads, and must have a divisor of the 2 of k"):
        ROPE.apply_qk(q, k, 5, operation="backward", out=(None, filled((2, TOKENS, 4, DIM), np.float32)))
    with pytest.raises(TypeError, match="q is a float, and must be a librope.Scale"):
        Scales(0.5)
    with pytest.raises(TypeError, match="q has dtype float8_e4m3fn"):
        ROPE.apply(q8, 5)
    for x in (q8, k8, v8, rest_out):
        assert (bits(x) == 99).all()
    assert repr(Scales(q=Scale(0.5))) == "Scales(q=Scale(0.5))"
    assert "Scales" in librope.__all__


def test_prepared_calls_name_what_a_layer_brings_wrong():
    q, k = heads(4), heads(2)
    q8, data = filled(q.shape, E4M3), np.zeros(q.shape[:-1], np.float32)
    call = ROPE.prepare_qk(q, k, 5, out=(q8, k), scales=Scales(q=Scale(data=data, computed=True)))
    good = Scales(q=Scale(data=data, computed=True))
    read_only = data.copy()
    read_only.flags.writeable = False
    for scales, error, text in (
        (None, ValueError, "scales.q has other scales than those that were prepared: none, and not "),
        (Scales(q=Scale(1)), ValueError, "other scales"),
        (Scales(q=Scale(data=data)), ValueError, "other scales"),
        (Scales(q=Scale(data=data[:1], computed=True)), ValueError, "data of scales.q has shape"),
        (Scales(q=Scale(data=data.astype(np.float16), computed=True)), TypeError, "data of scales.q has dtype"),
        (Scales(q=Scale(data=read_only, computed=True)), ValueError, "data of scales.q is read-only"),
    ):
        with pytest.raises(error, match=text):
            call.apply_qk(q, k, out=(q8, k), scales=scales)
    with pytest.raises(ValueError, match="rest is an array, and the call was prepared for None"):
        call.apply_qk(q, k, rest=q, out=(q8, k, None, q.copy()), scales=good)
    assert (bits(q8) == 99).all()
    call.apply_qk(q, k, out=(q8, k), scales=good)
    assert (bits(q8) != 99).any()
