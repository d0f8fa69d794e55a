"""apply_qk and its relatives against a naive rotation in float64."""

import ml_dtypes
import numpy as np
import pytest
from conftest import float32_angles, rotate
from hypothesis import given, settings
from hypothesis import strategies as st

import librope

BF16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCE = {"float32": 4 * 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
AXES = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3), "hbsd": (2, 0, 1, 3)}


def close(got, want, x):
    """Within a rounding of the dtype, relative to the length of the pair."""
    size = np.abs(np.asarray(x, np.float64)).max() * 2
    error = np.abs(np.asarray(got, np.float64) - want).max(initial=0)
    assert error <= size * (TOLERANCE[got.dtype.name] + 3e-7), error


def make_strided(rng, shape, dtype, spread):
    """An array with gaps between tokens and heads, channels adjacent."""
    big = rng.standard_normal([n * f for n, f in zip(shape, (*spread, 1), strict=True)])
    big = big.astype(np.float32).astype(dtype)
    return big[tuple(slice(None, None, f) for f in (*spread, 1))]


@settings(max_examples=150, deadline=None)
@given(
    batch=st.integers(1, 3), tokens=st.integers(0, 6), q_heads=st.integers(1, 5),
    k_heads=st.integers(1, 3), half=st.integers(1, 20), rotary=st.integers(1, 20),
    pairing=st.sampled_from(["halves", "interleaved", "interleaved_to_halves"]),
    layout=st.sampled_from(sorted(AXES)), dtype=st.sampled_from([np.float32, np.float16, BF16]),
    spread=st.tuples(*[st.integers(1, 2)] * 3), start=st.integers(-5, 10**6),
    kind=st.sampled_from(["int", "t", "bt", "1t", "offsets", "float"]), in_place=st.booleans(),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_everything(batch, tokens, q_heads, k_heads, half, rotary, pairing, layout, dtype, spread,
                    start, kind, in_place, seed):  # fmt: skip
    rng = np.random.default_rng(seed)
    rotary = min(rotary, half)
    rope = librope.Rope(head_dim=2 * half, theta=1e4, pairing=pairing, rotary_dim=2 * rotary)
    order = AXES[layout]
    sizes = [(batch, tokens, h, 2 * half) for h in (q_heads, k_heads)]
    q, k = (make_strided(rng, [s[i] for i in order], dtype, spread) for s in sizes)

    grid = start + np.arange(tokens) + np.zeros((batch, 1), np.int64)
    options = {}
    if kind == "int":
        positions = start
    elif kind == "t":
        positions = grid[0].astype(np.int32)
    elif kind == "1t":
        positions = grid[:1]
    elif kind == "bt":
        grid = positions = grid + 7 * np.arange(batch)[:, None]
    elif kind == "offsets":
        positions, starts = None, start + 3 * np.arange(batch)
        options["offsets"] = starts
        grid = starts[:, None] + np.arange(tokens)
    else:
        positions = (grid[0] / 2).astype(np.float32)
        grid = np.broadcast_to(positions, (batch, tokens))
    angles = float32_angles(grid, rope.inv_freq)[:, :, None]
    want = []
    for x in (q, k):
        plain = np.transpose(np.asarray(x, np.float64), np.argsort(order))
        turned = rotate(plain, angles, pairing=pairing, rotary_dim=2 * rotary)
        want.append(np.transpose(turned, order))
    if in_place:
        got = q.copy(order="K"), k.copy(order="K")
        if any(x.strides[-1] != x.itemsize for x in got):
            got = q.copy(), k.copy()
        rope.apply_qk_(*got, positions, layout=layout, **options)
    else:
        before = q.copy(), k.copy()
        got = rope.apply_qk(q, k, positions, layout=layout, **options)
        assert np.array_equal(q, before[0]) and np.array_equal(k, before[1])
    for g, w, x in zip(got, want, (q, k), strict=True):
        assert g.dtype == x.dtype and g.shape == x.shape
        if tokens:
            close(g, w, x)


@pytest.mark.parametrize("layout", ["thd", "shd"])
def test_thd_and_cu_seqlens(rng, layout):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves")
    q = rng.standard_normal((7, 2, 16), np.float32)
    cu = np.array([0, 3, 3, 7], np.int32)
    ids = np.array([0, 1, 2, 0, 1, 2, 3])
    want = rope.apply(q, ids, layout=layout)
    np.testing.assert_array_equal(rope.apply(q, 0, layout=layout, cu_seqlens=cu), want)
    starts = np.array([5, 0, 9])
    want = rope.apply(q, ids + np.array([5] * 3 + [9] * 4), layout=layout)
    np.testing.assert_array_equal(
        rope.apply(q, offsets=starts, layout=layout, cu_seqlens=cu), want
    )


def test_operations(rng):
    rope = librope.Rope(
        head_dim=32, theta=1e4, pairing="halves", scaling="yarn", factor=8.0,
        original_max_position_embeddings=1024, angle="exact", layout="bshd",
    )  # fmt: skip
    a = rope.attention_factor
    assert a > 1.1
    x, y = rng.standard_normal((2, 1, 5, 2, 32)).astype(np.float32)
    turned = rope.apply(x, 100)
    np.testing.assert_allclose(rope.apply(turned, 100, operation="inverse"), x, atol=1e-5)
    # <R x, y> == <x, R^T y>
    back = rope.apply(y, 100, operation="backward")
    assert np.vdot(turned, y) == pytest.approx(np.vdot(x, back), rel=1e-4)
    shifted = rope.apply(turned, np.full(5, -30), operation="shift")
    np.testing.assert_allclose(shifted, rope.apply(x, 70), atol=1e-5)


def test_shift_by_an_int_moves_every_token_by_it(rng):
    """It moved token i by p + i: a cache was destroyed in silence."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", angle="exact", layout="bshd")
    x, y = rng.standard_normal((2, 2, 5, 3, 16)).astype(np.float32)
    want = rope.apply(x, np.full(5, -30), operation="shift")
    for distance in (-30, np.int64(-30)):
        np.testing.assert_array_equal(rope.apply(x, distance, operation="shift"), want)
    for _ in range(2):  # the second call is the remembered one
        a, b = x.copy(), y.copy()
        rope.apply_qk_(a, b, -30, operation="shift")
        np.testing.assert_array_equal(a, want)
        np.testing.assert_array_equal(b, rope.apply(y, np.full(5, -30), operation="shift"))
    moved = x.copy()
    step = rope.bind(moved, None, 30, operation="shift")
    step(-30)
    np.testing.assert_array_equal(moved, want)
    each = np.array([-30, 4])
    want = rope.apply(x, np.broadcast_to(each[:, None], (2, 5)).copy(), operation="shift")
    np.testing.assert_array_equal(rope.apply(x, offsets=each, operation="shift"), want)
    with pytest.raises(ValueError, match="distance of every token"):
        rope.apply(x[0], offsets=each[:1], cu_seqlens=np.array([0, 5], np.int32), layout="thd",
                   operation="shift")  # fmt: skip
    packed = rope.apply(x[0], -30, cu_seqlens=np.array([0, 2, 5], np.int32), layout="thd",
                        operation="shift")  # fmt: skip
    np.testing.assert_array_equal(packed, rope.apply(x[:1], -30, operation="shift")[0])


def test_the_int_of_a_bound_call(rng):
    """step(p) is remembered, but not after an error."""
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", scaling="dynamic", factor=2.0,
                        max_position_embeddings=8, seq_len=8, layout="thd")  # fmt: skip
    q = rng.standard_normal((1, 2, 8), np.float32)
    out = np.empty_like(q)
    step = rope.bind(q, None, 1, out=(out, None))
    step(5)
    for wrong, error in ((1000, ValueError), (2**63, ValueError), ("a", TypeError), (np.arange(3), TypeError)):
        with pytest.raises(error, match="position"):
            step(wrong)
        step()
        np.testing.assert_array_equal(out, rope.apply(q, 5))


def test_positions_that_are_lists_or_shared(rng):
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="bshd")
    q = rng.standard_normal((2, 3, 2, 8), np.float32)
    want = rope.apply(q, 0)
    for positions in ([0, 1, 2], range(3), (0, np.int64(1), 2)):
        np.testing.assert_array_equal(rope.apply(q, positions), want)
    want = rope.apply(q, np.array([[5] * 3, [7] * 3]))
    np.testing.assert_array_equal(rope.apply(q, np.array([5, 7]), positions_layout="b"), want)


def test_multi_axis(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", axes=3, mrope_section=[2, 3, 3], layout="bshd")
    axis = np.repeat([0, 1, 2], [2, 3, 3])
    q = rng.standard_normal((2, 4, 3, 16), np.float32)
    ids = rng.integers(0, 50, (3, 2, 4))
    angles = float32_angles(ids, rope.inv_freq)
    angles = np.stack([angles[axis[i], ..., i] for i in range(8)], -1)[:, :, None]
    want = rotate(q, angles)
    close(rope.apply(q, ids), want, q)
    bta = np.ascontiguousarray(ids.transpose(1, 2, 0))
    np.testing.assert_array_equal(rope.apply(q, bta, positions_layout="bta"), rope.apply(q, ids))
    np.testing.assert_array_equal(rope.apply(q, ids.transpose(0, 1, 2)), rope.apply(q, ids))
    # thd: [axes, tokens]; text: one id for all axes
    np.testing.assert_array_equal(rope.apply(q[0], ids[:, 0], layout="thd"), rope.apply(q, ids)[0])
    text = np.broadcast_to(np.arange(4), (3, 2, 4))
    np.testing.assert_array_equal(rope.apply(q, np.arange(4)), rope.apply(q, text))


def test_layouts_of_q_and_k_differ(rng):
    rope = librope.Rope(head_dim=24, theta=1e4, pairing="interleaved", rotary_dim=8, rotary_offset=16, layout="bshd")
    q = rng.standard_normal((2, 4, 5, 24), np.float32)  # bhsd
    k = rng.standard_normal((2, 5, 8), np.float32)  # one head, the span alone
    got_q, got_k = rope.apply_qk(q, k, 3, layout=("bhsd", "bsd"))
    full = np.zeros((2, 5, 1, 24), np.float32)
    full[..., 16:] = k[:, :, None]
    np.testing.assert_array_equal(got_k, rope.apply(full, 3)[:, :, 0, 16:])
    np.testing.assert_array_equal(got_q[..., :16], q[..., :16])


def test_packed_qkv_in_place(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    qkv = rng.standard_normal((2, 5, 4 + 2 + 2, 16), np.float32)
    before = qkv.copy()
    q, k = qkv[:, :, :4], qkv[:, :, 4:6]
    rope.apply_qk_(q, k, 11)
    np.testing.assert_array_equal(qkv[:, :, 6:], before[:, :, 6:])
    np.testing.assert_array_equal(q, rope.apply(before[:, :, :4].copy(), 11))
    np.testing.assert_array_equal(k, rope.apply(before[:, :, 4:6].copy(), 11))


def test_out(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    cache = np.zeros((2, 4, 64, 16), np.float32)  # a KV cache: bhsd, longer
    view = cache[:, :, 7:12].transpose(0, 2, 1, 3)
    got = rope.apply_qk(q, None, 7, out=(view, None))
    assert got[0] is view and got[1] is None
    np.testing.assert_array_equal(view, rope.apply(q, 7))
    assert not cache[:, :, :7].any() and not cache[:, :, 12:].any()


def test_broadcast_k_head_as_input(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    k = rng.standard_normal((2, 5, 1, 16), np.float32)
    wide = np.broadcast_to(k, (2, 5, 4, 16))
    out = rope.apply(wide, 3)
    assert out.strides[-1] == 4
    np.testing.assert_array_equal(out, np.broadcast_to(rope.apply(k, 3), out.shape))
    with pytest.raises(ValueError, match="read-only"):
        rope.apply_(wide, 3)


@pytest.mark.parametrize("format", ["packed", "packed_sin_first", "split", "full_halves",
                                    "full_interleaved", "complex"])  # fmt: skip
@pytest.mark.parametrize("pairing", ["halves", "interleaved", "interleaved_to_halves",
                                     "halves_per_axis"])  # fmt: skip
@pytest.mark.parametrize("batched", [False, True])
def test_rows_instead_of_positions(rng, format, pairing, batched):
    """Rows that a Rope wrote give the bits of positions: every format with every pairing."""
    fields = {"axes": 2, "mrope_section": [5, 3]} if pairing == "halves_per_axis" else {}
    rope = librope.Rope(head_dim=16, theta=1e4, pairing=pairing, layout="bshd", **fields)
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    ids = np.arange(10).reshape(2, 5) if batched else np.arange(5)
    order = "bt" if batched else "t"
    rows = rope.cos_sin(ids, format=format, positions_layout=order)
    got = rope.apply(q, cos_sin=rows, cos_sin_format=format)
    np.testing.assert_array_equal(got, rope.apply(q, ids, positions_layout=order))


@pytest.mark.parametrize("format", ["split", "packed", "full_halves"])
def test_rows_of_one_pair(rng, format):
    """Rows of "split" have one value then, whose stride is never taken."""
    rope = librope.Rope(head_dim=2, theta=1e4, pairing="halves", layout="bshd")
    q, ids = rng.standard_normal((2, 5, 3, 2), np.float32), np.arange(5)
    rows = rope.cos_sin(ids, format=format)
    np.testing.assert_array_equal(rope.apply(q, cos_sin=rows, cos_sin_format=format), rope.apply(q, ids))


def test_two_axes_of_as_many_rows_are_not_guessed(rng):
    """[3, tokens] of 3 axes in a batch of 3: both readings are possible, and give other rotations."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", axes=3, mrope_section=[2, 3, 3], layout="bshd")
    q = rng.standard_normal((3, 5, 2, 16), np.float32)
    ids = np.arange(15).reshape(3, 5)
    for call in (rope.apply, rope.apply_, lambda *a: rope.bind(a[0], None, a[1]),
                 lambda *a: rope.prepare_qk(a[0], None, a[1])):  # fmt: skip
        with pytest.raises(ValueError, match="positions_layout must say which they are, 'bt' or 'at'"):
            call(q.copy(), ids)
    whole = np.broadcast_to(ids, (3, 3, 5))
    np.testing.assert_array_equal(rope.apply(q, ids, positions_layout="bt"), rope.apply(q, whole))
    shared = np.broadcast_to(ids[:, None], (3, 3, 5))
    np.testing.assert_array_equal(rope.apply(q, ids, positions_layout="at"), rope.apply(q, shared))
    assert not np.array_equal(rope.apply(q, whole), rope.apply(q, shared))
    rope.apply(q[:2], ids[:2])  # 2 rows, 3 axes: rows
    rope.apply(q, ids[:1])  # one for all rows


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_coordinates_are_finite(rng, value):
    """Also in a later call of the same form, and through views with gaps."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    q, k = rng.standard_normal((2, 1, 5, 2, 16), np.float32)
    good = np.arange(10, dtype=np.float32)[::2]
    bad = np.array([0, 1, 2, value, 4], np.float32)
    for call in (rope.apply_qk, rope.apply_qk_, rope.bind, rope.prepare_qk):
        for positions in (good, good.copy()):
            call(q.copy(), k.copy(), positions)
        for positions in (bad, bad[None], np.repeat(bad, 2)[::2]):
            before = q.copy()
            with pytest.raises(ValueError, match=f"positions has {value}, and must be finite"):
                call(q, k, positions)
            np.testing.assert_array_equal(q, before)
    with pytest.raises(ValueError, match="must be finite"):
        rope.cos_sin(bad)
    later = good.copy()
    step = rope.bind(q, k, later)
    later[2] = value
    with pytest.raises(ValueError, match=f"positions has {value}, and must be finite"):
        step()
    np.testing.assert_array_equal(q, before)
    later[2] = good[2]
    step()
    np.testing.assert_array_equal(q, rope.apply(before, good))


def test_ids_of_images_have_their_axes(rng):
    """A tower and a diffusion model have no positions that are the same on all axes; text has."""
    flux = librope.Model({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [4, 6, 6],
                          "attention_head_dim": 16, "num_attention_heads": 2})  # fmt: skip
    tower = librope.Model({"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 2,
                           "num_hidden_layers": 2, "rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
                           "vision_config": {"embed_dim": 64, "num_heads": 4}})  # fmt: skip
    for rope in (flux.rope(layout="bshd"), tower.rope(layer_type="vision", layout="bshd")):
        assert rope.ids_per_axis and rope.axes > 1
        q = rng.standard_normal((1, 6, 2, 16), np.float32)
        one = np.arange(6)
        ids = np.broadcast_to(one, (rope.axes, 1, 6))
        want = rope.apply(q, ids)
        for positions in (0, one, one[None], list(range(6)), range(6), one.astype(np.float32)):
            with pytest.raises(ValueError, match=r"positions gives each token one id.*\[axes, batch, tokens\]"):
                rope.apply(q, positions)
            with pytest.raises(ValueError, match="positions gives each token one id"):
                rope.bind(q.copy(), None, positions)
            with pytest.raises(ValueError, match="positions gives each token one id"):
                rope.prepare_qk(q, None, positions)
        with pytest.raises(ValueError, match="offsets gives each token one id.*must be an array.*positions_layout='t'"):
            rope.apply(q, offsets=np.zeros(1, int))
        for positions in (one, list(range(6))):
            with pytest.raises(ValueError, match="positions gives each token one id"):
                rope.cos_sin(positions)
        with pytest.raises(ValueError, match="positions gives each token one id"):
            rope.cos_sin(0, tokens=6)
        np.testing.assert_array_equal(rope.apply(q, one, positions_layout="t"), want)  # said so
        np.testing.assert_array_equal(rope.apply(q[0], ids[:, 0], layout="thd"), want[0])
        with pytest.raises(ValueError, match=r"positions must be \[axes, tokens\]"):
            rope.apply(q[0], one, layout="thd")
        rows = rope.cos_sin(ids, format="packed")
        np.testing.assert_array_equal(rope.apply(q, cos_sin=rows, cos_sin_format="packed"), want)
        assert rope == librope.Rope.from_fields(rope.config, layout="bshd")
        assert rope.replace(angle="exact").ids_per_axis
    text = tower.rope(layer=0, layout="bshd")
    q = rng.standard_normal((1, 6, 2, 32), np.float32)
    assert not text.ids_per_axis
    np.testing.assert_array_equal(text.apply(q, 0), text.apply(q, np.broadcast_to(np.arange(6), (3, 1, 6))))
    with pytest.raises(ValueError, match=r"ids_per_axis \(1\) must be 0 or 1, and 0 with one axis"):
        librope.Rope(head_dim=16, theta=1e4, pairing="halves", ids_per_axis=True)
    with pytest.raises(TypeError, match="ids_per_axis"):
        text.replace(ids_per_axis="yes")


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("batch", [1, 2])
def test_rows_for_each_head(rng, layout, batch):
    """Each head by a row of its own; k's one head of two of q's. As calls on each head alone."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout=layout)
    q, k = (rng.standard_normal((2, 5, heads, 16), np.float32) for heads in (6, 3))
    cos, sin = rng.standard_normal((2, batch, 5, 3, 8), np.float32)

    def ordered(x):
        return np.ascontiguousarray(x.swapaxes(1, 2)) if layout == "bhsd" else x

    rows = {"cos_sin": (ordered(cos), ordered(sin)), "cos_sin_format": "split"}
    got = [ordered(x) for x in rope.apply_qk(ordered(q), ordered(k), **rows)]
    for h in range(3):
        alone = {"cos_sin": tuple(np.ascontiguousarray(x[:, :, h]) for x in (cos, sin))}
        for x, y, heads in ((q, got[0], 2), (k, got[1], 1)):
            own = slice(h * heads, (h + 1) * heads)
            want = rope.apply(x[:, :, own], layout="bshd", cos_sin_format="split", **alone)
            np.testing.assert_array_equal(y[:, :, own], want)


def general_angle(positions, frequency):
    """cos and sin [tokens, heads, pairs] of positions [tokens, axes]: f32 products, added in order."""
    terms = positions[:, :, None, None].astype(np.float32) * frequency.astype(np.float32)
    total = terms[:, 0]
    for a in range(1, terms.shape[1]):
        total = total + terms[:, a]
    return np.cos(total.astype(np.float64)), np.sin(total.astype(np.float64))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_general_angle(rng, heads, kind):
    frequency = rng.standard_normal((2, heads, 8))
    given = frequency if heads > 1 else frequency[:, 0]
    rope = librope.Rope(head_dim=16, pairing="interleaved", layout="bshd", frequency=given)
    assert (rope.axes, rope.freq_heads, rope.pairs) == (2, heads if heads > 1 else 0, 8)
    np.testing.assert_array_equal(rope.inv_freq, frequency.astype(np.float32).ravel())
    q = rng.standard_normal((1, 5, 2 * heads, 16), np.float32)
    positions = (rng.standard_normal((5, 2)) * 40).astype(kind)
    got = rope.apply(q, positions[None], positions_layout="bta")
    cos, sin = (np.repeat(x, 2, 1) for x in general_angle(positions, frequency))
    even, odd = q[0, ..., 0::2], q[0, ..., 1::2]
    np.testing.assert_allclose(got[0, ..., 0::2], even * cos - odd * sin, atol=1e-5)
    np.testing.assert_allclose(got[0, ..., 1::2], odd * cos + even * sin, atol=1e-5)
    rows = rope.cos_sin(positions[None], format="split", positions_layout="bta")
    assert rows[0].shape == ((1, 5, heads, 8) if heads > 1 else (1, 5, 8))
    again = rope.apply(q, cos_sin=rows, cos_sin_format="split")
    np.testing.assert_array_equal(again, got)
    copy = librope.Rope(layout="bshd", **rope.config)
    np.testing.assert_array_equal(copy.apply(q, positions[None], positions_layout="bta"), got)


def test_general_angle_is_checked(rng):
    fields = {"head_dim": 16, "pairing": "halves"}
    with pytest.raises(ValueError, match="freq_heads is 2, and frequency has 3"):
        librope.Rope(frequency=np.ones((2, 3, 8)), freq_heads=2, **fields)
    with pytest.raises(ValueError, match="table_length"):
        librope.Rope(frequency=np.ones((2, 3, 7)), **fields)
    with pytest.raises(ValueError, match="as many heads and pairs"):
        librope.Rope(frequency=[[[1.0] * 8] * 2, [[1.0] * 8]], **fields)
    with pytest.raises(TypeError, match="frequency must be numbers"):
        librope.Rope(frequency=[1.0] * 8, **fields)
    rope = librope.Rope(frequency=np.ones((2, 3, 8)), layout="bshd", **fields)
    with pytest.raises(ValueError, match=r"multiple of the context's freq_heads \(3\)"):
        rope.apply(rng.standard_normal((1, 5, 4, 16), np.float32), 0)
    assert "[2 x 3 x 8 numbers]" in repr(rope)


def test_rows_for_each_head_are_checked(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    q = rng.standard_normal((1, 5, 4, 16), np.float32)
    options = {"cos_sin_format": "packed"}
    with pytest.raises(ValueError, match=r"multiple of cos_sin->heads \(3\)"):
        rope.apply(q, cos_sin=np.zeros((1, 5, 3, 16), np.float32), **options)
    with pytest.raises(ValueError, match="cos_sin has shape"):
        rope.apply(q, cos_sin=np.zeros((1, 4, 5, 16), np.float32), **options)
    with pytest.raises(ValueError, match="without heads"):
        rope.apply(q[0, :, 0], layout="sd", cos_sin=np.zeros((1, 5, 1, 16), np.float32), **options)
    row = np.zeros((1, 1, 1, 16), np.float32)
    for shape in ((1, 5, 4, 16), (1, 5, 1, 16)):  # rows that repeat have no distance
        with pytest.raises(ValueError, match="evenly spaced"):
            rope.apply(q, cos_sin=np.broadcast_to(row, shape), **options)
    with pytest.raises(ValueError, match="evenly spaced"):
        rope.apply(q, cos_sin=np.broadcast_to(row[0, 0], (5, 16)), **options)


def test_glm_with_rows_of_transformers(rng):
    """Adjacent pairs with cat(freqs, freqs), off by 5.2 once: the formula of modeling_glm."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="interleaved", layout="bshd")
    q = rng.standard_normal((1, 5, 2, 16), np.float32)
    cos, sin = rope.cos_sin(np.arange(5), format="full_halves")
    c, s = (np.repeat(x[:, None, :8], 2, -1) for x in (cos, sin))
    turned = np.stack([-q[..., 1::2], q[..., 0::2]], -1).reshape(q.shape)
    got = rope.apply(q, cos_sin=(cos, sin), cos_sin_format="full_halves")
    np.testing.assert_allclose(got, q * c + turned * s, atol=1e-6)


def test_positions_of_other_kinds(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="thd")
    q = rng.standard_normal((3, 2, 16), np.float32)
    want = rope.apply(q, np.array([4, 5, 6]))
    for positions in (4, np.int64(4), [4, 5, 6], range(4, 7), (4, 5, 6), np.array([4, 5, 6], "i4")):
        np.testing.assert_array_equal(rope.apply(q, positions), want)
    spaced = np.arange(4, 7).repeat(3)[::3]
    np.testing.assert_array_equal(rope.apply(q, spaced), want)
    huge = 2**62 + 5
    assert np.isfinite(rope.replace(angle="exact").apply(q, huge)).all()
    np.testing.assert_array_equal(rope.apply(q, np.array(4)), want)


def test_nothing_to_do():
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    q = np.empty((2, 0, 4, 16), np.float32)
    assert rope.apply(q, 0).shape == q.shape
    rope.apply_(q, np.arange(0))


@pytest.mark.parametrize("shape", [(0, 5, 4, 16), (2, 0, 4, 16), (0, 0, 4, 16)])
def test_an_empty_batch_is_like_no_tokens(shape):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
    q = np.empty(shape, np.float32)
    assert rope.apply(q, 0).shape == shape
    rope.apply_(q, 0)
    rope.bind(q, None, 0)()


def test_bind(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="thd")
    q = rng.standard_normal((1, 4, 16), np.float32)
    k = rng.standard_normal((1, 2, 16), np.float32)
    positions = np.array([3])
    first, second = q.copy(), k.copy()
    step = rope.bind(first, second, positions)
    step()
    np.testing.assert_array_equal(first, rope.apply(q, 3))
    np.testing.assert_array_equal(second, rope.apply(k, 3))
    first[:], positions[0] = q, 8
    step()
    np.testing.assert_array_equal(first, rope.apply(q, 8))
    out = (np.empty_like(q), np.empty_like(k))
    at = rope.bind(q, k, 0, out=out)
    for p in (0, 5):
        at(p)
        np.testing.assert_array_equal(out[0], rope.apply(q, p))
    with pytest.raises(TypeError, match="content"):
        step(4)


def test_bind_keeps_arrays(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="thd")
    step = rope.bind(np.zeros((1, 1, 16), np.float32), None, np.zeros(1, np.int64))
    del rope
    junk = [np.ones(1000) for _ in range(100)]
    step()
    del junk


@settings(max_examples=40, deadline=None)
@given(p=st.integers(-(2**63), 2**63 - 1), seed=st.integers(0, 1000))
def test_exact_angle_keeps_length_everywhere(p, seed):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", angle="exact", layout="thd")
    x = np.random.default_rng(seed).standard_normal((1, 1, 16)).astype(np.float32)
    y = rope.apply(x, p)
    np.testing.assert_allclose(np.hypot(y[..., :8], y[..., 8:]), np.hypot(x[..., :8], x[..., 8:]),
                               rtol=1e-5, atol=1e-6)  # fmt: skip


def test_eager_rounding_is_that_of_separate_operations(rng):
    rope = librope.Rope(head_dim=64, theta=1e4, pairing="halves", rounding="eager", layout="thd")
    q = rng.standard_normal((9, 2, 64), np.float32).astype(BF16)
    cos, sin = (t.astype(BF16)[:, None] for t in rope.cos_sin(np.arange(9)))
    half = np.concatenate([-q[..., 32:], q[..., :32]], -1)
    want = (q * cos).astype(BF16) + (half * sin).astype(BF16)
    np.testing.assert_array_equal(rope.apply(q, np.arange(9)), want)


def test_native_rounding_is_that_of_f16_instructions(rng):
    rope = librope.Rope(head_dim=64, theta=1e4, pairing="halves", rounding="native", layout="thd")
    q = rng.standard_normal((9, 2, 64), np.float32).astype(np.float16)
    cos, sin = (t.astype(np.float16)[:, None] for t in rope.cos_sin(np.arange(9)))
    half = np.concatenate([-q[..., 32:], q[..., :32]], -1)
    # In float64 the multiply-add is exact, but for its one rounding.
    want = (q.astype(np.float64) * cos + (half * sin).astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(rope.apply(q, np.arange(9)), want)
    with pytest.raises(ValueError, match=r"\(float32\) must be float16, .*rounding='native'"):
        rope.apply(q.astype(np.float32), np.arange(9))


def test_remembered_calls_do_not_mix_up_memory(rng):
    """The short way of apply_qk_ knows arrays by shape and dtype: other strides must not take it."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="thd")
    q, k = rng.standard_normal((2, 3, 4, 16), np.float32)
    ids = np.array([5, 9, 2])
    want = rope.apply(q, ids), rope.apply(k, ids)
    rope.apply_qk_(q.copy(), k.copy(), ids)  # remembered
    turned = q.transpose(1, 0, 2).copy().transpose(1, 0, 2)
    wide = np.zeros((3, 4, 32), np.float32)
    wide[..., :16] = k
    spaced = np.zeros((3, 2), np.int64)
    spaced[:, 0] = ids
    rope.apply_qk_(turned, wide[..., :16], spaced[:, 0])
    np.testing.assert_array_equal(turned, want[0])
    np.testing.assert_array_equal(wide[..., :16], want[1])
    assert not wide[..., 16:].any()
    with pytest.raises(ValueError, match="adjacent in memory"):
        rope.apply_qk_(np.asfortranarray(q).T.copy().T, k, ids)


def test_layer_without_rope(rng):
    rope = librope.Rope(head_dim=16, scaling="nope", layout="bshd")
    q = rng.standard_normal((2, 3, 4, 16), np.float32)
    np.testing.assert_array_equal(rope.apply(q, 3), q)
    same = q.copy()
    rope.apply_(same, np.arange(3))
    np.testing.assert_array_equal(same, q)
