"""The short way of calls like earlier ones with a cache: it takes nothing for what it is not."""

import ml_dtypes
import numpy as np
import pytest
from test_kv_cache import CANARY, ROPE, cache_of, i32, qkv  # noqa: F401

import librope


def test_what_is_remembered_is_told_apart(qkv):
    """Calls that differ in the cache alone, one after the other, and a call without one."""
    q, k, v = qkv
    want = ROPE.apply_qk(q, k, 0)
    for layout, heads in (("nhd", 1), ("hnd", 1), ("nd", 1)):
        for where in ({"slots": [0, 1, 2]}, {"slots": np.arange(3, dtype=np.int32)}, {"starts": i32(0)},
                      {"starts": i32(0), "page_table": i32(0).reshape(1, 1)}):  # fmt: skip
            cache = cache_of(layout=layout, **where)
            for _ in range(2):
                got = ROPE.apply_qk(q, k, 0, v=v, cache=cache)
                assert np.array_equal(got[0], want[0])
            assert np.array_equal(cache.k.reshape(16, 1, 8)[:3], want[1])
            assert (cache.k.reshape(16, 8)[3:] == CANARY).all()
    again = ROPE.apply_qk(q, k, 0)
    assert np.array_equal(again[1], want[1])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_output_of_one_call_is_not_that_of_the_next(qkv, library):
    """Of other strides, or another dtype."""
    rope = ROPE.replace(layout=ROPE.layout)
    made = (lambda x: x) if library == "numpy" else pytest.importorskip("torch").from_numpy
    q, k, v = map(made, qkv)
    cache = cache_of(slots=np.arange(3))
    cache = librope.KVCache(made(cache.k), made(cache.v), layout="nhd", slots=made(np.arange(3)))
    want = np.asarray(rope.apply(q, 5))
    for out in (np.zeros((*q.shape[:-1], 64), np.float32)[..., :8], np.zeros(q.shape, np.float16)):
        for _ in range(2):
            rope.apply_qk(q, k, 5, v=v, cache=cache, out=(made(out), None))
            for _ in range(2):
                assert np.array_equal(rope.apply_qk(q, k, 5, v=v, cache=cache)[0], want)
            assert np.array_equal(out, want.astype(out.dtype))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_words_and_signs_of_a_known_call_are_looked_at(qkv, library):
    made = (lambda x: x) if library == "numpy" else pytest.importorskip("torch").from_numpy
    q, k, v = map(made, qkv)
    cache = cache_of(slots=np.arange(3))
    cache = librope.KVCache(made(cache.k), made(cache.v), layout="nhd", slots=made(np.arange(3)))
    for _ in range(2):
        ROPE.apply_qk(q, k, 5, v=v, cache=cache)
    for name in ("positions_layout", "cos_sin_format"):
        with pytest.raises(ValueError, match=f"^{name} is 'zzz', and must be"):
            ROPE.apply_qk(q, k, 5, v=v, cache=cache, **{name: "zzz"})
    if library == "torch":
        import torch

        before = cache.k.clone()
        cache.k.data = torch._neg_view(cache.k.data)
        with pytest.raises(TypeError, match="^cache.k is a lazily negated view"):
            ROPE.apply_qk(q, k, 5, v=v, cache=cache)
        assert torch.equal(cache.k, -before)


@pytest.mark.parametrize("place", ["slots", "paged", "linear"])
@pytest.mark.parametrize("way", ["apply_qk", "apply_qk_"])
def test_what_is_known_of_a_call_is_checked_again(rng, place, way):
    """Calls like the first one take a short way: to other memory, and to the same errors."""
    where = {"slots": {"slots": np.array([0, 1, 2])}, "linear": {"starts": i32(0)},
             "paged": {"page_table": i32(0, 1).reshape(1, 2), "starts": i32(0)}}[place]  # fmt: skip

    def arrays():
        return tuple(rng.standard_normal((3, h, 8), np.float32) for h in (2, 1, 1))

    cache = cache_of(**where)
    for positions in (0, 7, np.arange(3), np.arange(5, 8), np.arange(3, dtype=np.int32)):
        for at in (cache, cache.at(**where), cache_of(**where)):
            q, k, v = arrays()
            want = ROPE.apply_qk(q, k, positions)
            at.k[...] = at.v[...] = CANARY
            got = getattr(ROPE, way)(q, k, positions, v=v, cache=at)
            assert np.array_equal(q if got is None else got[0], want[0])
            assert np.array_equal(at.k.reshape(16, 1, 8)[:3], want[1])
            assert np.array_equal(at.v.reshape(16, 1, 8)[:3], v) and (at.k[1:] == CANARY).all()
    q, k, v = arrays()
    gaps = np.repeat(k, 2, 0)[::2]
    getattr(ROPE, way)(q, gaps, 0, v=v, cache=cache)
    assert np.array_equal(cache.k.reshape(16, 1, 8)[:3], ROPE.apply(k, 0))
    before, given = cache.k.copy(), q.copy()
    wrong = {"slots": {"slots": np.array([0, 1, 16])}, "linear": {"starts": i32(2)},
             "paged": {"page_table": i32(4, 1).reshape(1, 2), "starts": i32(0)}}[place]  # fmt: skip
    for options, error, says in (
        ({"cache": cache.at(**wrong)}, ValueError, "apply_qk_?: (slots|starts|page_table)"),
        ({"k": cache.k[0, :3]}, ValueError, "overlaps"),
        ({"offsets": np.array([3])}, ValueError, "exactly one"),
        ({"positions": 2**63}, ValueError, "positions is"),
        ({"positions": np.arange(4)}, ValueError, "must have 3 tokens"),
        ({"v": v.astype(np.float64)}, TypeError, "v has dtype"),
        ({"v": v[:2]}, ValueError, "v has 2 tokens"),
    ):
        now = {"q": q, "k": k, "positions": 0, "v": v, "cache": cache, **options}
        with pytest.raises(error, match=says):
            getattr(ROPE, way)(now.pop("q"), now.pop("k"), now.pop("positions"), **now)
    if way == "apply_qk_":
        q.flags.writeable = False
        with pytest.raises(ValueError, match="q is read-only"):
            ROPE.apply_qk_(q, k, 0, v=v, cache=cache)
    assert np.array_equal(cache.k, before) and np.array_equal(q, given)
    cache.k = np.zeros_like(cache.k)  # another array in the same KVCache
    getattr(ROPE, way)(q.copy(), k, 0, v=v, cache=cache)
    assert np.array_equal(cache.k.reshape(16, 1, 8)[:3], ROPE.apply(k, 0))


@pytest.mark.parametrize("operation", ["forward", "shift"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_array_without_axes_is_the_int_in_it(rng, operation, dtype):
    rope = ROPE.replace(layout="bshd")
    q, k, v = (rng.standard_normal((5, 1, h, 8), np.float32) for h in (2, 1, 1))
    for positions, start in ((7, 2), (9, 1), (7, 3)):
        want = rope.apply_qk(q, k, positions, operation=operation)
        for where in ({"starts": np.array(start, dtype)}, {"slots": 4 * np.arange(5) + start}):
            cache = cache_of(pages=5, **where)
            for _ in range(2):
                got = rope.apply_qk(q, k, np.array(positions, dtype), v=v, cache=cache, operation=operation)
                assert np.array_equal(got[0], want[0])
            assert np.array_equal(cache.k[:, start], want[1][:, 0]) and np.array_equal(cache.v[:, start], v[:, 0])
            assert (np.delete(cache.k, start, 1) == CANARY).all()


@pytest.mark.parametrize(
    "first",
    [np.arange(9).reshape(3, 3).T, np.arange(99).reshape(3, 33)[:, ::11], np.broadcast_to(np.arange(3), (3, 3))],
)
def test_gaps_of_positions_are_not_those_of_later_ones(rng, first):
    rope = ROPE.replace(layout="bshd")
    q, k, v = (rng.standard_normal((3, 3, h, 8), np.float32) for h in (2, 1, 1))
    cache = cache_of(starts=i32(0, 0, 0))
    for positions in (first, np.arange(9).reshape(3, 3), first):
        got = rope.apply_qk(q, k, positions, v=v, cache=cache)
        want = rope.apply_qk(q, k, np.ascontiguousarray(positions))
        assert np.array_equal(got[0], want[0]) and np.array_equal(cache.k[:3, :3], want[1])


def test_what_has_become_of_a_cache_is_seen(rng):
    """After calls of which everything is known: an engine may do to its arrays what it likes."""
    q, k, v = (rng.standard_normal((3, h, 8), np.float32) for h in (2, 4, 4))
    want = ROPE.apply(k, 0)

    def known(**where):
        cache = cache_of(heads=4, **(where or {"slots": np.arange(4, 7)}))
        for _ in range(2):
            ROPE.apply_qk(q, k, 0, v=v, cache=cache)
        cache.k[...] = CANARY
        return cache

    cache = known()
    cache.k.flags.writeable = False
    with pytest.raises(ValueError, match="cache.k is read-only"):
        ROPE.apply_qk(q, k, 0, v=v, cache=cache)
    assert (cache.k == CANARY).all()

    cache = known()
    cache.layout = "hnd"
    ROPE.apply_qk(q, k, 0, v=v, cache=cache)
    assert np.array_equal(cache.k[1, :, :3], want.swapaxes(0, 1))

    cache = known()
    cache.k, cache.v = np.zeros((2, 4, 4, 4, 8), np.float32)
    ROPE.apply_qk(q, k, 0, v=v, cache=cache)
    assert np.array_equal(cache.k[1, :3], want)

    cache = known(page_table=i32(1).reshape(1, 1), starts=i32(0))
    cache.page_starts = i32(0, 1)
    with pytest.raises(ValueError, match="with page_starts one dimension"):
        ROPE.apply_qk(q, k, 0, v=v, cache=cache)

    one = np.zeros((4, 4, 4, 8), np.float32), np.zeros((4, 4, 4, 8), np.float32)  # which may be resized
    cache = librope.KVCache(*one, layout="nhd", slots=np.arange(4, 7))
    for _ in range(2):
        ROPE.apply_qk(q, k, 0, v=v, cache=cache)
    with pytest.raises(ValueError, match="cannot resize"):
        one[0].resize((40000, 4, 4, 8), refcheck=False)
    one[0].resize((2, 8, 4, 8), refcheck=False)
    with pytest.raises(ValueError, match="cache.k has 2 pages of 8 slots, and cache.v 4 of 4"):
        ROPE.apply_qk(q, k, 0, v=v, cache=cache)


def test_packed_sequences_of_a_known_form(qkv):
    q, k, v = qkv
    cu_seqlens, starts = i32(0, 1, 3), i32(2, 0)
    cache = cache_of(page_table=i32(3, 1).reshape(2, 1), starts=starts)
    for past in ([5, 9], [1, 0], [0, 10**6]):
        offsets = np.array(past)
        want = ROPE.apply_qk(q, k, offsets=offsets, cu_seqlens=cu_seqlens)
        got = ROPE.apply_qk(q, k, offsets=offsets, cu_seqlens=cu_seqlens, v=v, cache=cache)
        assert np.array_equal(got[0], want[0])
        assert np.array_equal(cache.k.reshape(16, 1, 8)[[14, 4, 5]], want[1])
    cu_seqlens[1:] = 2, 2
    with pytest.raises(ValueError, match="cu_seqlens"):
        ROPE.apply_qk(q, k, offsets=offsets, cu_seqlens=cu_seqlens, v=v, cache=cache)


@pytest.mark.filterwarnings("ignore:Setting the (dtype|strides):DeprecationWarning")
@pytest.mark.parametrize("way", ["apply_qk", "prepared"])
@pytest.mark.parametrize("gaps", [False, True])
def test_dtypes_and_strides_that_are_assigned_are_seen(rng, way, gaps):
    """In place, to an array of NumPy that earlier calls know."""
    q, k, v = (rng.standard_normal((3, h, 8), np.float32) for h in (2, 1, 1))
    want = ROPE.apply(k, 0)

    def known(dtype):
        heads = 3 if gaps else 1
        cache = librope.KVCache(*[np.zeros((4, 4, heads, 8), dtype)[:, :, :1] for _ in "kv"], layout="nhd")
        at = cache.at(slots=np.arange(4, 7))
        call = ROPE.prepare_qk(q, k, 0, v=v, cache=at)

        def step():
            if way == "prepared":
                call.apply_qk(q, k, v=v, cache=cache)
            else:
                ROPE.apply_qk(q, k, 0, v=v, cache=at)

        for _ in range(3):
            step()
        return cache, step

    for name in ("k", "v"):
        cache, step = known(np.float32)
        array = getattr(cache, name)
        array[...] = 0
        array.dtype = np.int32
        with pytest.raises(TypeError, match="dtype"):
            step()
        assert (array == 0).all()
        if gaps or way == "prepared":
            continue
        cache, step = known(np.float16)
        array = getattr(cache, name)
        array[...] = 0
        array.dtype = ml_dtypes.bfloat16
        step()
        expected = (want if name == "k" else v).astype(ml_dtypes.bfloat16)
        assert np.array_equal(array[1, :3], expected)

    cache, step = known(np.float32)
    cache.k.strides = tuple(cache.k.strides[i] for i in (1, 0, 2, 3))
    cache.k[...] = 0
    if way == "prepared":
        with pytest.raises(ValueError, match="cache.k has strides"):
            step()
        assert (cache.k == 0).all()
    else:
        step()
        assert np.array_equal(cache.k[1, :3], want) and not cache.k[2:].any()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_wrong_numbers_after_a_call_that_is_known(qkv, library):
    made = (lambda x: x) if library == "numpy" else pytest.importorskip("torch").from_numpy
    q, k, v = map(made, qkv)
    cache = cache_of(slots=np.arange(3))
    there = librope.KVCache(*map(made, (cache.k, cache.v)), layout="nhd", slots=made(cache.slots))
    for _ in range(2):
        ROPE.apply_qk(q, k, 5, v=v, cache=there)
    for function in (ROPE.apply_qk, ROPE.apply_qk_):
        with pytest.raises(ValueError, match="^positions is 1180591620717411303424, and must be from -2"):
            function(q, k, 2**70, v=v, cache=there)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_list_as_a_layout_is_that_layout(qkv, library):
    made = (lambda x: x) if library == "numpy" else pytest.importorskip("torch").from_numpy
    q, k, v = map(made, qkv)
    found = []
    for layout in ([ROPE.layout, ROPE.layout], (ROPE.layout, ROPE.layout)):
        cache = cache_of(slots=np.arange(3))
        there = librope.KVCache(*map(made, (cache.k, cache.v)), layout="nhd", slots=made(cache.slots))
        for position in (5, 6):
            turned = ROPE.apply_qk(q, k, position, v=v, cache=there, layout=layout)
        found.append((np.asarray(turned[0]), cache.k))
    assert all(map(np.array_equal, *found))
