"""Prepared calls with a cache: the bits of apply_qk in arrays and slots, and checks of what each layer brings."""

import pickle
import threading
import tracemalloc

import numpy as np
import pytest
from test_kv_cache import BF16, CANARY, ROPE, cache_of, i32

import librope

PLACES = {
    "slots": {"slots": np.array([5, -1, 2])},
    "paged": {"page_table": i32(3, 1).reshape(1, 2), "starts": i32(2)},
    "ragged": {"page_table": i32(3, 1), "page_starts": i32(0, 2), "starts": i32(2)},
    "linear": {"starts": i32(1)},
    "an int": {"starts": 1},
}


def layer(rng, dtype=np.float32):
    return tuple(rng.standard_normal((3, h, 8), np.float32).astype(dtype) for h in (2, 1, 1))


def memory(form="apart", dtype=np.float32):
    """A cache of memory alone, and all of the memory."""
    if form == "apart":
        k, v = (np.full((4, 4, 1, 8), CANARY, dtype) for _ in range(2))
        return librope.KVCache(k, v, layout="nhd"), (k, v)
    both = np.full((4, 2, 4, 1, 8), CANARY, dtype)
    return librope.KVCache(both[:, 0], both[:, 1], layout="nhd"), (both,)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("form", ["apart", "one array"])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("way", ["apply_qk", "apply_qk_"])
def test_the_bits_of_apply_qk(rng, dtype, form, where, way):
    """Slots and positions that have become others; each cache is seen once, and again."""
    told = {name: x if isinstance(x, int) else x.copy() for name, x in PLACES[where].items()}
    positions = np.arange(7, 10)
    call = ROPE.prepare_qk(*layer(rng, dtype)[:2], positions, v=layer(rng, dtype)[2],
                           cache=memory(form, dtype)[0].at(**told))  # fmt: skip
    positions[:] = 0
    for x in told.values():
        if not isinstance(x, int):
            x[...] = 1 << 20
    caches = [memory(form, dtype) for _ in range(3)]
    for _ in range(2):
        for cache, owned in caches:
            q, k, v = layer(rng, dtype)
            before, (expected, want_owned) = (q.copy(), k.copy(), v.copy()), memory(form, dtype)
            want, _ = ROPE.apply_qk(q, k, np.arange(7, 10), v=v, cache=expected.at(**PLACES[where]))
            for x in owned:
                x[...] = CANARY
            got = getattr(call, way)(q, k, v=v, cache=cache)
            assert np.array_equal(q if got is None else got[0], want)
            assert got is None or (got[1] is None and np.array_equal(q, before[0]))
            assert np.array_equal(k, before[1]) and np.array_equal(v, before[2])
            assert all(np.array_equal(x, y) for x, y in zip(owned, want_owned, strict=True))
            assert any((x != CANARY).any() for x in owned)
            assert call._short(q, k, v, cache, None, True) is not None  # which is what makes it quick


def test_outputs_beside_the_cache(rng):
    q, k, v = layer(rng)
    out = tuple(np.empty_like(x) for x in (q, k, v))
    call = ROPE.prepare_qk(q, k, 4, v=v, cache=cache_of(slots=[0, 1, 2]), out=out)
    for _ in range(2):
        got, want = [np.empty_like(x) for x in out], [np.empty_like(x) for x in out]
        cache, expected = cache_of(), cache_of(slots=[0, 1, 2])
        assert call.apply_qk(q, k, v=v, cache=cache, out=got)[1] is got[1]
        ROPE.apply_qk(q, k, 4, v=v, cache=expected, out=want)
        assert all(np.array_equal(x, y) for x, y in zip(got, want, strict=True))
        assert np.array_equal(cache.k, expected.k) and np.array_equal(cache.v, expected.v)
    for missing, name in (((None, *out[1:]), "q"), ((out[0], None, out[2]), "k")):
        with pytest.raises(ValueError, match=f"out of {name} is required: prepare_qk was given one"):
            call.apply_qk(q, k, v=v, cache=cache_of(), out=missing)
    with pytest.raises(ValueError, match="out of v is None, and the call was prepared for one"):
        call.apply_qk(q, k, v=v, cache=cache_of(), out=out[:2])
    with pytest.raises(ValueError, match="k goes to the cache, and the call was prepared with an output of k, too"):
        call.apply_qk_(q, k, v=v, cache=cache_of())


def test_keys_alone_values_alone_and_no_cache(rng):
    q, k, v = layer(rng)
    keys, values = cache_of(starts=0), cache_of(starts=0)
    keys.v = values.k = None
    call = ROPE.prepare_qk(None, k, 4, cache=keys)
    for _ in range(2):
        one = librope.KVCache(np.zeros((4, 4, 1, 8), np.float32), layout="nhd")
        assert call.apply_qk(None, k, cache=one) == (None, None)
        assert np.array_equal(one.k.reshape(16, 1, 8)[:3], ROPE.apply(k, 4))
    turned = ROPE.apply_qk(q, k, 4)
    call = ROPE.prepare_qk(q, k, 4, v=v, cache=values)  # k turns where it lies, or into a new array
    for _ in range(2):
        one = librope.KVCache(None, np.zeros((4, 4, 1, 8), np.float32), layout="nhd")
        got = call.apply_qk(q, k, v=v, cache=one)
        assert np.array_equal(one.v.reshape(16, 1, 8)[:3], v)
        assert all(np.array_equal(x, y) for x, y in zip(got, turned, strict=True))
    q2, k2 = q.copy(), k.copy()
    call.apply_qk_(q2, k2, v=v, cache=one)
    assert np.array_equal(q2, turned[0]) and np.array_equal(k2, turned[1])
    call, v_out = ROPE.prepare_qk(q, None, 4, v=v, out=(None, None, v.copy())), np.empty_like(v)
    assert np.array_equal(call.apply_qk(q, v=v, out=(None, None, v_out))[0], turned[0])
    assert np.array_equal(v_out, v)


def test_other_strides_and_libraries(rng):
    """Parts of a packed projection, and arrays of the buffer protocol: not the short way."""
    packed = rng.standard_normal((3, 4, 8), np.float32)
    q, k, v = packed[:, :2], packed[:, 2:3], packed[:, 3:]
    cache, expected = cache_of(), cache_of(slots=[3, 4, 5])
    call = ROPE.prepare_qk(q, k, 9, v=v, cache=cache.at(slots=[3, 4, 5]), out=(q, None))
    want, _ = ROPE.apply_qk(q, k, 9, v=v, cache=expected)
    before = packed.copy()
    call.apply_qk_(q, k, v=v, cache=cache)
    assert np.array_equal(q, want) and np.array_equal(packed[:, 2:], before[:, 2:])
    assert np.array_equal(cache.k, expected.k) and np.array_equal(cache.v, expected.v)
    weight = np.ones(8, np.float32)
    norms, others = (librope.Norms(librope.Norm(w, kind="rms", eps=1e-6)) for w in (weight, weight.astype("f2")))
    before = packed.copy()
    for arguments, error, text in (
        ({"cache": cache}, ValueError, r"^q has strides \(32, 8, 1\), and its output was prepared with \(16, 8, 1\): for calls "
         r"in place, prepare_qk\(\.\.\., out=\(q, None\)\)"),
        ({}, ValueError, "cache.k is None, and the call was prepared for one"),
        ({"cache": cache, "norms": others}, TypeError, "norms.q.weight has dtype float16, and the call"),
        ({"cache": librope.KVCache(cache.k[:1], cache.v[:1], layout="nhd")}, ValueError, "cache.k has shape"),
    ):  # fmt: skip
        call = ROPE.prepare_qk(q, k, 9, v=v, cache=expected, norms=norms)
        with pytest.raises(error, match=text):
            call.apply_qk_(q, k, v=v, **{"norms": norms, **arguments})
    call = ROPE.prepare_qk(q, k, 9, v=v, cache=expected, out=(q, k))
    with pytest.raises(ValueError, match=r"prepared with an output of k, too: use apply_qk\(.*out=\(q, None\)\)"):
        call.apply_qk_(q, k, v=v, cache=cache)
    assert np.array_equal(packed, before)
    want, turned = ROPE.apply_qk(q, k, 9)  # k stored, and in place
    call.apply_qk(q, k, v=v, cache=cache, out=(q, k))
    assert np.array_equal(q, want) and np.array_equal(k, turned) and np.array_equal(packed[:, 3:], before[:, 3:])


def test_q_goes_to_an_array_that_is_given(rng):
    """For attention of an engine that keeps its memory: into what each layer gives, and into no other form."""
    q, k, v = layer(rng)
    told = {"slots": [3, 4, 5]}
    call = ROPE.prepare_qk(q, k, 9, v=v, cache=cache_of(**told), out=(np.empty_like(q), None))
    cache, expected, before = cache_of(), cache_of(**told), q.copy()
    want, _ = ROPE.apply_qk(q, k, 9, v=v, cache=expected)
    for _ in range(2):  # the cache is seen once, and again
        out = np.zeros_like(q)
        got, none = call.apply_qk(q, k, v=v, cache=cache, out=(out, None))
        assert got is out and none is None and np.array_equal(out, want) and np.array_equal(q, before)
        assert np.array_equal(cache.k, expected.k) and np.array_equal(cache.v, expected.v)
    keys = cache.k.copy()
    for other, says in (
        (np.zeros((3, 2, 16), np.float32)[..., ::2], "out of q"),
        (np.zeros((3, 2, 8), np.float16), "out of q"),
        (np.zeros((4, 2, 8), np.float32), "out of q"),
        (np.frombuffer(bytes(q.nbytes), np.float32).reshape(q.shape), "read-only"),
        (k, "out of q"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            call.apply_qk(2 * q, 2 * k, v=v, cache=cache, out=(other, None))
    with pytest.raises(ValueError, match="out of q is required"):
        call.apply_qk(2 * q, 2 * k, v=v, cache=cache)
    with pytest.raises(ValueError, match="overlap"):
        call.apply_qk(2 * q, 2 * k, v=v, cache=cache, out=(cache.k.reshape(-1)[: q.size].reshape(q.shape), None))
    assert np.array_equal(cache.k, keys)


def test_what_does_not_fit_is_refused(rng):
    q, k, v = layer(rng)
    example = cache_of(slots=[0, 1, 2])
    call = ROPE.prepare_qk(q, k, 0, v=v, cache=example)
    good = cache_of()
    call.apply_qk_(q.copy(), k, v=v, cache=good)  # the short way knows this one

    def other(name, x):
        return librope.KVCache(**{"k": good.k, "v": good.v, name: x}, layout="nhd")

    def frozen(x):
        x = x.copy()
        x.flags.writeable = False
        return x

    wrong = [
        ({"cache": None}, ValueError, "cache.k is None, and the call was prepared for one"),
        ({"cache": (good.k, good.v)}, TypeError, "cache is a builtins.tuple, and must be a librope.KVCache"),
        ({"cache": good.at(slots=[0, 1, 2])}, ValueError, "cache says where tokens go, and the call was prepared"),
        ({"cache": good.at(starts=0)}, ValueError, "cache says where tokens go"),
        ({"cache": other("v", None)}, ValueError, "cache.v is None, and the call was prepared for one"),
        ({"cache": other("k", good.k[:3])}, ValueError,
         r"cache.k has shape \(3, 4, 1, 8\), and the call was prepared for \(4, 4, 1, 8\)"),
        ({"cache": other("k", np.zeros((8, 4, 1, 8), np.float32)[::2])}, ValueError, "cache.k has strides"),
        ({"cache": other("v", good.v.astype(np.float16))}, TypeError, "cache.v has dtype float16"),
        ({"cache": other("k", frozen(good.k))}, ValueError, "cache.k is read-only, and would be written"),
        ({"cache": other("v", frozen(good.v))}, ValueError, "cache.v is read-only"),
        ({"cache": librope.KVCache(good.k, good.v, layout="hnd")}, ValueError,
         "cache has layout 'hnd', and the call was prepared for 'nhd'"),
        ({"cache": other("v", good.k)}, ValueError, r"apply_qk_?: .*overlap"),
        ({"v": None}, ValueError, "v is None, and the call was prepared for one"),
        ({"v": v[:2]}, ValueError, r"v has shape \(2, 1, 8\)"),
        ({"v": good.v[0, :3]}, ValueError, "overlap"),
        ({"k": good.k[0, :3]}, ValueError, "overlap"),
        ({"k": None}, ValueError, "k is None, and the call was prepared for one"),
        ({"k": k.astype(np.float16)}, TypeError, "k has dtype float16"),
        ({"q": q[:, :1]}, ValueError, "q has shape"),
    ]  # fmt: skip
    good.k[...], good.v[...] = CANARY, CANARY
    for change, kind, says in wrong:
        for way in (call.apply_qk, call.apply_qk_):
            arrays = {"q": q.copy(), "k": k, "v": v, "cache": good, **change}
            given = arrays["q"].copy()
            with pytest.raises(kind, match=says):
                way(arrays.pop("q"), arrays.pop("k"), **arrays)
            assert np.array_equal(change.get("q", given), given)
    with pytest.raises(ValueError, match="q is read-only"):
        call.apply_qk_(frozen(q), k, v=v, cache=good)
    with pytest.raises(ValueError, match="rest is an array, and the call was prepared for None"):
        call.apply_qk(q, k, v=v, cache=good, rest=q)
    assert (good.k == CANARY).all() and (good.v == CANARY).all()


def test_memory_that_changed_since_is_seen(rng):
    """The short way goes by what it has noted of a cache: not where that is no longer so."""
    q, k, v = layer(rng)
    cache = cache_of()
    call = ROPE.prepare_qk(q, k, 0, v=v, cache=cache.at(slots=[0, 1, 2]))
    call.apply_qk(q, k, v=v, cache=cache)
    old, cache.k = cache.k, np.full_like(cache.k, CANARY)
    kept = old.copy()
    call.apply_qk(q, 2 * k, v=v, cache=cache)
    assert np.array_equal(old, kept) and not (cache.k.reshape(16, 8)[:3] == CANARY).any()
    cache.k.flags.writeable = False
    with pytest.raises(ValueError, match="cache.k is read-only"):
        call.apply_qk(q, k, v=v, cache=cache)
    cache.k = np.zeros((4, 5, 1, 8), np.float32)
    with pytest.raises(ValueError, match="cache.k has shape"):
        call.apply_qk(q, k, v=v, cache=cache)


def test_what_cannot_be_prepared(rng):
    q, k, v = layer(rng)
    for options, kind, says in (
        ({"cache": cache_of()}, ValueError, "cache says nowhere to go"),
        ({"cache": cache_of(slots=[0, 1, 16])}, ValueError, r"prepare_qk: slots\[2\] \(16\)"),
        ({"cache": cache_of(starts=2)}, ValueError, "prepare_qk: .*page_size"),
        ({"cache": cache_of(starts=0), "operation": "backward"}, NotImplementedError, "BACKWARD"),
        ({"cache": (1, 2)}, TypeError, "must be a librope.KVCache"),
        ({"cache": None}, ValueError, "v has nowhere to go"),
        ({"cache": cache_of(heads=2, starts=0)}, ValueError, "cache.k has 2 heads"),
        ({"cache": cache_of(starts=0), "operaton": "inverse"}, TypeError, "unexpected keyword"),
    ):
        with pytest.raises(kind, match=says):
            ROPE.prepare_qk(q, k, 0, v=v, **options)


def test_no_tokens_and_no_rows():
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="bshd")
    cache = cache_of()
    for shape in ((0, 3), (1, 0)):
        q, k = np.zeros((*shape, 2, 8), np.float32), np.zeros((*shape, 1, 8), np.float32)
        call = rope.prepare_qk(q, k, 0, v=k, cache=cache.at(slots=np.zeros(0, np.int64) if 0 in shape else None))
        assert call.apply_qk(q, k, v=k, cache=cache)[0].shape == q.shape
    assert (cache.k == CANARY).all()


def test_threads_share_one_and_nothing_is_left(rng):
    q, k, v = layer(rng)
    call = ROPE.prepare_qk(q, k, 5, v=v, cache=cache_of(slots=[1, 2, 3]))
    want, expected = ROPE.apply_qk(q, k, 5)[0], cache_of(slots=[1, 2, 3])
    ROPE.apply_qk(q, k, 5, v=v, cache=expected)
    wrong = []

    def work():
        cache = cache_of()
        for _ in range(200):
            got, _ = call.apply_qk(q, k, v=v, cache=cache)
            if not (np.array_equal(got, want) and np.array_equal(cache.k, expected.k)):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    cache = cache_of()
    for _ in range(50):
        call.apply_qk_(q, k, v=v, cache=cache)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            call.apply_qk_(q, k, v=v, cache=cache)
        assert tracemalloc.get_traced_memory()[0] - before < 4096
    finally:
        tracemalloc.stop()
    with pytest.raises(TypeError, match="PreparedAppend cannot be pickled"):
        pickle.dumps(call)
