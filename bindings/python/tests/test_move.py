"""Keys and values that a cache holds already, moved to other positions and slots."""

import numpy as np
import pytest

import librope

PAGES, SIZE, HEADS, DIM = 12, 4, 2, 32


@pytest.fixture
def rope():
    return librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", rotary_dim=16, layout="bshd")


def memory(rng, *shape):
    return rng.standard_normal(shape or (PAGES, SIZE, HEADS, DIM), np.float32)


def rows(cache, slots):
    """The heads of these slots: [1, tokens, heads, channels]."""
    return cache[slots // SIZE, slots % SIZE][None]


def rotated(rope, raw, positions):
    return rope.apply(raw, positions[None])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("stays", [True, False])
def test_moved_keys_are_those_of_the_new_positions(rope, rng, dtype, stays):
    slots = rng.permutation(PAGES * SIZE)[:18].astype(dtype)
    old, new = slots[:9], (slots[:9] if stays else slots[9:])
    was, now = rng.integers(0, 5000, (2, 9))
    raw, v = memory(rng, 1, 9, HEADS, DIM), memory(rng)
    k = memory(rng)
    k[old // SIZE, old % SIZE] = rotated(rope, raw, was)[0]
    want_k, want_v = k.copy(), v.copy()
    want_k[new // SIZE, new % SIZE] = rotated(rope, raw, now)[0]
    want_v[new // SIZE, new % SIZE] = rows(v, old)[0]
    cache = librope.KVCache(k, v, layout="nhd", slots=new)
    rope.move(cache, now, was, source=None if stays else cache.at(slots=old))
    np.testing.assert_allclose(k, want_k, atol=3e-6)
    np.testing.assert_array_equal(v, want_v)


def test_a_distance_is_a_move_from_0(rng):
    rope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", angle="exact", layout="bshd")
    slots, by = rng.permutation(PAGES * SIZE)[:9], rng.integers(-5000, 5000, 9)
    k = memory(rng)
    want = k.copy()
    want[slots // SIZE, slots % SIZE] = rope.apply(rows(k, slots), by[None], operation="shift")[0]
    rope.move(librope.KVCache(k, layout="nhd", slots=slots), by, np.zeros_like(by))
    np.testing.assert_array_equal(k, want)


def test_slots_are_read_into_arrays(rng):
    nope = librope.Rope(head_dim=DIM, scaling="nope")
    slots, (k, v) = rng.permutation(PAGES * SIZE)[:9], (memory(rng), memory(rng))
    cache = librope.KVCache(k, v, layout="nhd", slots=slots)
    k_out, v_out = np.zeros((2, 9, HEADS, DIM), np.float32)
    nope.move(librope.KVCache(k_out[None], v_out[None], layout="nhd", starts=0), range(9), range(9), source=cache)
    np.testing.assert_array_equal(k_out[None], rows(k, slots))
    np.testing.assert_array_equal(v_out[None], rows(v, slots))


def test_lists_and_ranges(rope, rng):
    raw = memory(rng, 1, 4, HEADS, DIM)
    k = rotated(rope, raw, np.arange(4))
    rope.move(librope.KVCache(k, layout="nhd", slots=range(4)), [9, 8, 7, 6], range(4))
    np.testing.assert_allclose(k, rotated(rope, raw, np.array([9, 8, 7, 6])), atol=3e-6)


@pytest.mark.parametrize("stays", [True, False])
def test_codes_move_with_their_scales(rope, rng, stays):
    codes, v = rng.integers(-127, 128, (2, PAGES, SIZE, HEADS, DIM)).astype(np.int8)
    scales, v_scales = rng.uniform(0.01, 0.1, (2, PAGES, SIZE, HEADS)).astype(np.float32)
    new, old = np.array([5, 6]), np.array([5, 6] if stays else [20, 30])
    was, now = np.array([100, 200]), np.array([40, 2000])
    before = codes.copy(), scales.copy()
    keys = (codes * scales[..., None]).astype(np.float32)
    page = old // SIZE, old % SIZE
    want = keys[page][None].copy()
    rope.move(librope.KVCache(want, layout="nhd", slots=range(2)), now, was)
    cache = librope.KVCache(
        codes, v, layout="nhd", slots=new, k_scale=librope.Scale(data=scales, computed=True),
        v_scale=librope.Scale(data=v_scales, computed=True),
    )  # fmt: skip
    values = (v[page].copy(), v_scales[page].copy())
    source = None if stays else cache.at(slots=old)

    k_out = np.zeros((PAGES, SIZE, HEADS, DIM), np.float32)  # decoded
    rope.move(librope.KVCache(k_out, layout="nhd", slots=new), now, was, source=librope.KVCache(
        codes, layout="nhd", slots=old, k_scale=librope.Scale(data=scales)))  # fmt: skip
    np.testing.assert_allclose(k_out[new // SIZE, new % SIZE], want[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(codes, before[0])

    rope.move(cache, now, was, source=source)
    there = new // SIZE, new % SIZE
    largest = np.abs(want[0]).max(-1)
    np.testing.assert_allclose(scales[there], largest / 127, rtol=1e-6)
    np.testing.assert_allclose(codes[there] * scales[there][..., None], want[0], atol=largest.max() / 250)
    np.testing.assert_array_equal(v[there], values[0])
    np.testing.assert_array_equal(v_scales[there], values[1])
    rest = np.ones((PAGES, SIZE), bool)
    rest[there] = False
    np.testing.assert_array_equal(codes[rest], before[0][rest])
    np.testing.assert_array_equal(scales[rest], before[1][rest])


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_slots_of_batch_rows(rope, rng, shape):
    slots = rng.permutation(PAGES * SIZE)[:6]
    was, now = rng.integers(0, 5000, (2, 2, 3))
    raw, k = memory(rng, 2, 3, HEADS, DIM), memory(rng)
    k[slots // SIZE, slots % SIZE] = rope.apply(raw, was).reshape(6, HEADS, DIM)
    rope.move(librope.KVCache(k, layout="nhd", slots=slots.reshape(shape)), now, was)
    np.testing.assert_allclose(rows(k, slots)[0], rope.apply(raw, now).reshape(6, HEADS, DIM), atol=3e-6)


def test_pages_of_two_caches(rope, rng):
    lengths = np.array([5, 3], np.int32)
    cu = np.array([0, 5, 8], np.int32)
    was, now = rng.integers(0, 5000, (2, 8))
    raw, v = memory(rng, 1, 8, HEADS, DIM), memory(rng, PAGES, HEADS, SIZE, DIM)
    k, other_k, other_v = memory(rng), memory(rng), memory(rng)
    table = np.array([[3, 7, -1], [2, 9, 5]], np.int32)
    starts = np.array([1, 2], np.int32)
    to = np.arange(20, 28)
    for s in range(2):
        for i in range(lengths[s]):
            n, t = starts[s] + i, cu[s] + i
            k[table[s, n // SIZE], n % SIZE] = rotated(rope, raw, was)[0, t]
    # strict: the page -1 is that of no token
    source = librope.KVCache(k, v, layout=("nhd", "hnd"), page_table=table, starts=starts)
    cache = librope.KVCache(other_k, other_v, layout="nhd", slots=to)
    rope.move(cache, now, was, source=source, cu_seqlens=cu, pool=librope.Pool(2))
    np.testing.assert_allclose(rows(other_k, to), rotated(rope, raw, now), atol=3e-6)
    np.testing.assert_array_equal(other_v[5, 0], v[3, :, 1])


def test_sets_of_frequencies(rng):
    ropes = [librope.Rope(head_dim=DIM, theta=t, pairing="halves", layout="bshd") for t in (1e4, 5e5)]
    both = librope.Rope.sets(ropes)
    was, now = rng.integers(0, 5000, (2, 9))
    raw = memory(rng, 1, 9, HEADS, DIM)
    k = ropes[0].apply(raw, was[None])
    both.move(
        librope.KVCache(k, layout="nhd", starts=0), now, was,
        freq_sets=np.array([1], np.int32), from_freq_sets=np.array([0], np.int32),
    )  # fmt: skip
    np.testing.assert_allclose(k, ropes[1].apply(raw, now[None]), atol=3e-6)


def test_axes(rng):
    rope = librope.Rope(
        head_dim=DIM, theta=1e4, pairing="halves", axes=3, mrope_section=[8, 4, 4], layout="bshd"
    )
    was, now = rng.integers(0, 500, (2, 3, 9))
    raw = memory(rng, 1, 9, HEADS, DIM)
    k = rope.apply(raw, was[:, None])
    rope.move(librope.KVCache(k, layout="nhd", starts=0), now, was, positions_layout="at")
    np.testing.assert_allclose(k, rope.apply(raw, now[:, None]), atol=3e-6)


def test_ids_of_images_have_their_axes(rng):
    rope = librope.Rope(head_dim=32, theta=1e4, pairing="halves", layout="bshd", axes=2, mrope_section=[8, 8],
                        ids_per_axis=True)  # fmt: skip
    k = memory(rng)
    before = k.copy()
    cache = librope.KVCache(k, layout="nhd", slots=[4, 5])
    two = np.arange(2)
    for ids in (two, [0, 1], two.astype(np.float32)):
        with pytest.raises(ValueError, match="^positions gives each token one id.*positions_layout= must say"):
            rope.move(cache, ids, ids)
    np.testing.assert_array_equal(k, before)
    both = np.stack([two, two])
    rope.move(cache, both + 3, both, positions_layout="at")
    rope.move(cache, two, two + 3, positions_layout="t")  # said so
    np.testing.assert_allclose(k, before, atol=1e-5)


def test_a_source_of_its_own_may_be_read_only(rope, rng):
    k, to = memory(rng), memory(rng)
    k.flags.writeable = False
    cache, two = librope.KVCache(to, layout="nhd", slots=[4, 5]), np.arange(2)
    rope.move(cache, two + 9, two, source=librope.KVCache(k, layout="nhd", slots=[7, 2]))
    np.testing.assert_allclose(rows(to, np.array([4, 5])), rotated_from(rope, rows(k, np.array([7, 2]))), atol=3e-6)
    with pytest.raises(ValueError, match="cache.k is read-only, and would be written"):
        rope.move(librope.KVCache(k, layout="nhd", slots=[4, 5]), two, two + 9)


def rotated_from(rope, keys):
    """Keys at 9 and on, which were at 0 and on."""
    return rope.apply(rope.apply(keys, np.arange(2)[None], operation="inverse"), np.arange(9, 11)[None])


def test_what_does_not_fit_is_an_error(rope, rng):
    k, v = memory(rng), memory(rng)
    before = k.copy()
    two = np.arange(2)
    cache = librope.KVCache(k, v, layout="nhd", slots=[4, 5])
    small = np.full(64, 0x11, np.int8)[:2]  # which would be read as 8 bytes of int32

    def paged(page_starts, page_table=np.zeros(4, np.int32)):  # noqa: B008
        return librope.KVCache(k, v, layout="nhd", page_table=page_table, page_starts=page_starts, starts=0)

    scaled = librope.KVCache(k, layout="nhd", v_scale=librope.Scale(0.5), slots=[4, 5])
    changed = cache.at(slots=[4, 5])
    changed.page_starts = small
    for error, match, change in [
        (ValueError, "token 1 of batch row 0 is read in slot 4", {"source": cache.at(slots=[3, 4])}),
        (ValueError, r"^move: source\.slots\[1\] \(48\)", {"source": cache.at(slots=[3, 48])}),
        (ValueError, "cache is required", {"cache": None}),
        (ValueError, "and so is its k", {"cache": librope.KVCache(None, v, layout="nhd", slots=[4, 5])}),
        (ValueError, "slots of the cache are 3, and positions those of 2", {"cache": cache.at(slots=[4, 5, 6])}),
        (ValueError, "slots of the cache are 1, and positions those of 2", {"cache": cache.at(slots=[4])}),
        (ValueError, "slots of the source are 3, and positions those", {"source": cache.at(slots=[4, 5, 6])}),
        (ValueError, "from_positions has shape", {"from_positions": np.arange(3)}),
        (TypeError, "^positions is 100, and must be .* the position of each token", {"positions": 100}),
        (ValueError, "positions has shape", {"positions": np.zeros((1, 1, 2), int)}),
        (TypeError, "must be a librope.KVCache", {"source": 3}),
        (TypeError, "must be a librope.Pool", {"pool": 3}),
        (TypeError, "page_starts has dtype int8, and must be int32", {"source": paged(small)}),
        (TypeError, "page_starts has dtype int8, and must be int32", {"cache": paged(small)}),
        (ValueError, r"page_starts has shape \(\), and must have one dimension", {"cache": paged(np.int32(3).reshape(()))}),
        (ValueError, r"page_starts has shape \(1, 2\), and must have one", {"cache": paged(np.zeros((1, 2), np.int32))}),
        (ValueError, "page_starts has stride 2, and must be contiguous", {"cache": paged(np.zeros(4, np.int32)[::2])}),
        (ValueError, "page_starts has 3 entries, and there are 1 seq", {"cache": paged(np.zeros(3, np.int32))}),
        (ValueError, "page_starts has 5, and page_table has 4 entries", {"cache": paged(np.array([0, 5], np.int32))}),
        (ValueError, r"page_table has shape \(\), and with page_starts one dimension",
         {"cache": paged(np.array([0, 4], np.int32), np.int32(3).reshape(()))}),
        (TypeError, "page_table has dtype uint64", {"cache": paged(np.array([0, 4], np.int32), np.zeros(4, np.uint64))}),
        (ValueError, "slots and page_starts: slots alone", {"cache": changed}),
        (ValueError, "freq_sets", {"freq_sets": np.zeros(2, np.int32)}),
        (ValueError, "cu_seqlens is float32", {"cu_seqlens": np.zeros(2, np.float32)}),
        (TypeError, "dtype", {"source": librope.KVCache(k.astype(int), layout="nhd", slots=[4, 5])}),
        (ValueError, "^positions has nan, and must be finite", {"positions": np.array([0, np.nan], np.float32)}),
        (ValueError, "^from_positions has inf, and must be", {"from_positions": np.array([np.inf, 0], np.float32)}),
        (ValueError, "^v_scale of the cache is a Scale, and cache.v is None", {"cache": scaled}),
        (ValueError, "^v_scale of the source is a Scale, and source.v is None", {"source": scaled}),
        (ValueError, "^positions_layout is '', and must be an order", {"positions_layout": ""}),
        (ValueError, "channels", {"source": librope.KVCache(k[..., :8], layout="nhd", slots=[4, 5])}),
    ]:
        arguments = {"cache": cache, "positions": two, "from_positions": two + 9, **change}
        with pytest.raises(error, match=match):
            rope.move(**arguments)
    np.testing.assert_array_equal(k, before)
