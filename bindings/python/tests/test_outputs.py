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


# Rows of MLA: latent of 512, key of 64 that turns, and what stands between and behind them, in bytes.
ROWS = {
    656: "512 e4m3, 4 scales of f32, 64 of bf16", 584: "448 e4m3, 64 of bf16, 7 e8m0 and one of padding",
    576: "448 e4m3, 64 of bf16", 528: "512 e4m3, 16 e8m0", 132: "128 e4m3, one scale of f32",
}  # fmt: skip
MLA = Rope(head_dim=64, theta=1e4, pairing="interleaved", layout="td")
SLOTS = np.array([5, -1, 3], np.int64)


def rows_of(size, pages=2, page_size=4):
    rows = np.full((pages, page_size, size), 99, np.uint8)

    def part(begin, end, dtype):
        return rows[..., begin:end].view(dtype)

    return rows, part


def latent(channels, dtype=BF16):
    return np.random.default_rng(1).standard_normal((TOKENS, channels), np.float32).astype(dtype)


@pytest.mark.parametrize("size", ROWS, ids=str)
def test_rows_of_mla(size):
    """Latent, scales and key of a token share a row of the cache, which is filled in one call."""
    rows, part = rows_of(size)
    want, want_part = rows_of(size)
    key = latent(64)
    turned = MLA.apply(key.astype(np.float32), 5)
    c = {656: 512, 584: 448, 576: 448, 528: 512, 132: 128}[size]
    values, stored = latent(c), SLOTS[SLOTS >= 0]
    v = values.astype(np.float32)
    wide = {656: 128, 528: 32, 132: 128}.get(size, 64)
    f32 = size in (656, 132)
    scale = computed(v, "float8_e4m3fn", wide, 1e-4)
    scale = scale if f32 else np.exp2(np.ceil(np.log2(scale)))
    at = {656: (512, 528), 584: (576, 583), 528: (512, 528), 132: (128, 132)}.get(size)
    if at is None:  # scales apart from the rows
        data, want_data = (np.zeros((2, 4, 7), ml_dtypes.float8_e8m0fnu) for _ in range(2))
    else:
        kind = np.float32 if f32 else ml_dtypes.float8_e8m0fnu
        data, want_data = part(*at, kind), want_part(*at, kind)
    v_scale = Scale(data=data, computed=True, group=wide, power_of_two=not f32, min_scale=1e-4)
    k_at = {656: (528, 656), 584: (448, 576), 576: (448, 576)}.get(size)
    k_memory = None if k_at is None else part(*k_at, BF16)
    cache = KVCache(k_memory, part(0, c, E4M3), layout="nd", v_scale=v_scale, slots=SLOTS)
    q = latent(64)
    MLA.apply_qk(q, key, 5, v=values, cache=cache, out=(None, None if k_at else np.empty_like(key)))
    slot = lambda x: x.reshape(8, -1) if x.flags.c_contiguous else x  # noqa: E731
    for token, n in ((0, stored[0]), (2, stored[1])):
        page, place = divmod(int(n), 4)
        want_part(0, c, np.uint8)[page, place] = coded(v[token], np.repeat(scale[token], wide), "float8_e4m3fn")
        want_data[page, place] = scale[token].astype(want_data.dtype)
        if k_at:
            want_part(*k_at, BF16)[page, place] = turned[token].astype(BF16)
    assert (rows == want).all()
    assert (slot(bits(data)) == slot(bits(want_data))).all()


def test_an_absorbed_query_is_rest_beside_what_turns():
    """Of 8 heads: 512 channels that do not turn, 64 that do, in one row of e4m3."""
    rope = MLA.replace(layout=("thd", "td"))
    q, rest = heads(8, BF16, 64)[0], heads(8, BF16, 512, seed=5)[0]
    row = filled((TOKENS, 8, 576), E4M3)
    scales = Scales(q=Scale(0.05), rest=Scale(0.05))
    rope.apply_qk(q, latent(64), 5, rest=rest, out=(row[..., 512:], None, None, row[..., :512]), scales=scales)
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
        (dict(out=(q8, None), scales=Scales(q=Scale(data=full[:1]))), ValueError,
         r"data of scales.q has shape \(1, 3, 4\), and must have \(2, 3, 4, 1\)"),
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
