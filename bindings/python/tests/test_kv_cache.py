"""Keys and values in a cache: the bits of apply_qk in the slots, and nothing beside them."""

import array
import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from conftest import OnCuda
from hypothesis import given, settings
from hypothesis import strategies as st

import librope

BF16 = np.dtype(ml_dtypes.bfloat16)
AXES = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}
ROPE = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")
CANARY = 77


def laid(x, layout):
    """[batch, tokens, heads, channels] in the order of a layout."""
    return np.ascontiguousarray(np.transpose(x, AXES[layout]))


def plain(x, layout):
    """The other way: [batch * tokens, heads, channels]."""
    x = np.transpose(x, np.argsort(AXES[layout]))
    return x.reshape(-1, *x.shape[2:])


def make_memory(form, layout, pages, page_size, heads, k_dim, v_dim, dtype):
    """(k, v, all of the memory, as it was) of a cache that is full of canaries."""

    def shape(h, d):
        return (pages, page_size, h, d) if layout == "nhd" else (pages, h, page_size, d)

    if form == "apart" or k_dim != v_dim or heads[0] != heads[1]:
        k, v = (np.full(shape(h, d), CANARY, dtype) for h, d in zip(heads, (k_dim, v_dim), strict=True))
        return k, v, (k, v)
    one = shape(heads[0], k_dim)
    if form == "[2, pages]":
        both = np.full((2, *one), CANARY, dtype)
        return both[0], both[1], (both,)
    if form == "[pages, 2]":
        both = np.full((pages, 2, *one[1:]), CANARY, dtype)
        return both[:, 0], both[:, 1], (both,)
    if form == "beside":  # k and v of a head in one row
        both = np.full((*one[:-1], 2 * k_dim), CANARY, dtype)
        return both[..., :k_dim], both[..., k_dim:], (both,)
    both = np.full((2, 2 * pages, *one[1:]), CANARY, dtype)  # every second page, and not at the start
    return both[0, 1::2], both[1, ::2], (both,)


def scatter(memory, layout, x, slots):
    """The reference: x [tokens, heads, channels] to slots, a negative one nowhere."""
    if layout == "hnd":
        memory = memory.transpose(0, 2, 1, 3)
    size = memory.shape[1]
    for row, slot in zip(x, slots, strict=True):
        if slot >= 0:
            memory[slot // size, slot % size] = row


def place(kind, batch, tokens, cu_seqlens, pages, page_size, rng):
    """What KVCache is told, and the slot of each token."""
    runs = [tokens] * batch if cu_seqlens is None else list(np.diff(cu_seqlens))
    count, total = batch * tokens, pages * page_size
    if kind.startswith("slots"):
        slots = rng.permutation(total)[:count].astype(np.int64)
        slots[rng.random(count) < 0.2] = -1 - rng.integers(3)
        told = slots.astype(np.int32) if "32" in kind else slots
        if kind == "slots list of rows" and cu_seqlens is None:
            return {"slots": told.reshape(batch, tokens)}, slots
        if kind == "slots long":
            return {"slots": np.concatenate([told, [total * 9]])}, slots
        return {"slots": told}, slots
    if kind.startswith("linear"):
        starts = np.array([rng.integers(page_size - n + 1) for n in runs], np.int32)
        if kind == "linear int":
            starts[:] = starts.min()
        where = [s * page_size + starts[s] + np.arange(n) for s, n in enumerate(runs)]
        told = int(starts[0]) if kind == "linear int" else starts
        return {"starts": told}, np.concatenate(where)
    starts = np.array([rng.integers(5) for n in runs], np.int32)
    needed = [-(-(s + n) // page_size) for s, n in zip(starts, runs, strict=True)]
    free = list(rng.permutation(pages))
    rows, where = [], []
    for s, n in enumerate(runs):
        row = [free.pop() for _ in range(needed[s])]
        if row and rng.random() < 0.3:
            row[rng.integers(len(row))] = -1
        at = starts[s] + np.arange(n)
        where += [row[i // page_size] * page_size + i % page_size if row[i // page_size] >= 0 else -1 for i in at]
        rows.append(row)
    if kind == "ragged":
        told = {
            "page_table": np.array(sum(rows, []) or [0], np.int32),
            "page_starts": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        }
    else:
        width = max(1, *map(len, rows))
        told = {"page_table": np.array([r + [10**6] * (width - len(r)) for r in rows], np.int32)}
    return {**told, "starts": starts}, np.array(where, np.int64)


KINDS = [
    "slots", "slots 32", "slots list of rows", "slots long", "paged", "ragged", "linear",
    "linear int",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    batch=st.integers(1, 3), tokens=st.integers(1, 5), packed=st.booleans(), kind=st.sampled_from(KINDS),
    layout=st.sampled_from(sorted(AXES)), cache_layout=st.sampled_from(["nhd", "hnd"]),
    form=st.sampled_from(["apart", "[2, pages]", "[pages, 2]", "beside", "gaps"]),
    heads=st.tuples(*[st.integers(1, 3)] * 3), half=st.integers(1, 6), rotary=st.integers(1, 6),
    v_dim=st.sampled_from([None, 1, 5, 8]), k_span=st.booleans(), page_size=st.integers(5, 7),
    dtype=st.sampled_from([np.float32, np.float16, BF16]), nope=st.booleans(),
    way=st.sampled_from(["new", "in place", "k_out", "all out", "bind"]), has=st.sampled_from(["kv", "k", "v"]),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_everything(batch, tokens, packed, kind, layout, cache_layout, form, heads, half, rotary, v_dim,
                    k_span, page_size, dtype, nope, way, has, seed):  # fmt: skip
    rng = np.random.default_rng(seed)
    rotary = min(rotary, half)
    scaling = {"scaling": "nope"} if nope else {"theta": 1e4, "pairing": "interleaved"}
    rope = librope.Rope(head_dim=2 * half, rotary_dim=2 * rotary, **scaling)
    k_dim = 2 * rotary if k_span else 2 * half
    v_dim = k_dim if v_dim is None else v_dim
    options = {"layout": layout}
    cu_seqlens = None
    if packed:
        batch, layout = 1, "bshd"
        cuts = np.sort(rng.integers(0, tokens + 1, 2))
        cu_seqlens = np.array([0, *cuts, tokens], np.int32)
        options = {"layout": "bshd", "cu_seqlens": cu_seqlens}
    q, k, v = (
        laid(rng.standard_normal((batch, tokens, h, d), np.float32).astype(dtype), layout)
        for h, d in zip(heads, (2 * half, k_dim, v_dim), strict=True)
    )
    pages = 3 * batch + 9
    told, slots = place(kind, batch, tokens, cu_seqlens, pages, page_size, rng)
    k_memory, v_memory, memory = make_memory(
        form, cache_layout, pages, page_size, heads[1:], k_dim, v_dim, dtype
    )
    want_q, want_k = rope.apply_qk(q, k, 11, **options)
    before = [m.copy() for m in memory]
    if "k" in has:
        scatter(k_memory, cache_layout, plain(want_k, layout), slots)
    if "v" in has:
        scatter(v_memory, cache_layout, plain(v, layout), slots)
    want = [m.copy() for m in memory]
    for m, b in zip(memory, before, strict=True):
        m[...] = b

    cache = librope.KVCache(
        k_memory if "k" in has else None, v_memory if "v" in has else None, layout=cache_layout, **told
    )
    options |= {"cache": cache, "v": v if "v" in has else None}
    given = [x.copy() for x in (q, k, v)]
    for _ in range(2):  # the second time by what is remembered of the first
        for x, y in zip((q, k, v, *memory), (*given, *before), strict=True):
            x[...] = y
        if way == "in place":
            assert rope.apply_qk_(q, k, 11, **options) is None
            assert np.array_equal(q, want_q)
            assert np.array_equal(k, given[1] if "k" in has else want_k)
        elif way == "bind":
            step = rope.bind(q, k, 0, **options)
            step(11)
            assert np.array_equal(q, want_q)
            assert np.array_equal(k, given[1] if "k" in has else want_k)
        elif way == "new":
            got = rope.apply_qk(q, k, 11, **options)
            assert np.array_equal(got[0], want_q)
            assert got[1] is None if "k" in has else np.array_equal(got[1], want_k)
            assert np.array_equal(q, given[0]) and np.array_equal(k, given[1])
        elif way == "k_out":  # k in place as well
            got = rope.apply_qk(q, k, 11, out=(None, k), **options)
            assert got[1] is k and np.array_equal(k, want_k) and np.array_equal(got[0], want_q)
        else:
            outs = [np.zeros_like(x) for x in (q, k, v)]
            got = rope.apply_qk(q, k, 11, out=outs if "v" in has else outs[:2], **options)
            assert got[0] is outs[0] and got[1] is outs[1]
            assert np.array_equal(outs[0], want_q) and np.array_equal(outs[1], want_k)
            assert np.array_equal(outs[2], v if "v" in has else np.zeros_like(v))
        assert np.array_equal(v, given[2])
        for m, w in zip(memory, want, strict=True):
            assert m.tobytes() == w.tobytes()


def cache_of(pages=4, page_size=4, heads=1, dtype=np.float32, layout="nhd", channels=8, **where):
    shape = {"nhd": (page_size, heads), "hnd": (heads, page_size), "nd": (page_size,)}[layout]
    k, v = np.full((2, pages, *shape, channels), CANARY, dtype)
    return librope.KVCache(k, v, layout=layout, **where)


@pytest.fixture
def qkv(rng):
    return tuple(rng.standard_normal((3, h, 8), np.float32) for h in (2, 1, 1))


def test_at_is_the_same_memory_and_other_slots(qkv):
    q, k, v = qkv
    memory = cache_of()
    first, second = memory.at(slots=np.array([0, 5, 9])), memory.at(starts=2)
    assert first.k is memory.k and second.v is memory.v and second.layout == "nhd" and second.slots is None
    ROPE.apply_qk(q, k, 0, v=v, cache=first)
    assert np.array_equal(memory.v.reshape(16, 1, 8)[[0, 5, 9]], v)
    ROPE.apply_qk(q[:2], k[:2], 0, v=v[:2], cache=second)
    assert np.array_equal(memory.v[0, 2:], v[:2])
    assert repr(first) == (
        "KVCache(k=float32[4, 4, 1, 8], v=float32[4, 4, 1, 8], slots=int64[3], layout='nhd')"
    )
    assert repr(second).endswith("starts=2, layout='nhd')")


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("prepared", [False, True])
def test_copies_know_nothing_of_the_memory_of_the_original(qkv, copied, prepared):
    """A call that is known from the original once wrote there, or where it had been."""
    q, k, v = qkv
    cache = cache_of()
    step = ROPE.prepare_qk(q, k, 5, v=v, cache=cache.at(starts=1))

    def run(cache):
        if prepared:
            step.apply_qk(q, k, v=v, cache=cache)
        else:
            ROPE.apply_qk(q, k, 5, v=v, cache=cache.at(starts=i32(1)))

    run(cache)
    layers = copied({"layer": cache, "at": cache.at(starts=2)})
    if copied is copy.copy:
        layers = {name: copy.copy(x) for name, x in layers.items()}
        for x in layers.values():
            x.k, x.v = x.k.copy(), x.v.copy()
    kept = cache.k.copy(), cache.v.copy()
    cache.k[:], cache.v[:] = CANARY, CANARY
    for x in layers.values() if not prepared else (layers["layer"],):
        for array_ in (x.k, x.v):
            array_[:] = CANARY
        for _ in range(2):
            run(x)
        assert np.array_equal(x.k, kept[0]) and np.array_equal(x.v, kept[1])
    assert (cache.k == CANARY).all() and (cache.v == CANARY).all()


def test_a_plain_append(qkv):
    """NoPE stores keys as they are; k alone, without q."""
    _, k, v = qkv
    nope = librope.Rope(head_dim=8, scaling="nope", layout="thd")
    cache = cache_of(slots=[3, -1, 2])
    assert nope.apply_qk(None, k, 0, v=v, cache=cache) == (None, None)
    for memory, x in ((cache.k, k), (cache.v, v)):
        flat = memory.reshape(16, 1, 8)
        assert np.array_equal(flat[[3, 2]], x[[0, 2]])
        assert (np.delete(flat, [3, 2], 0) == CANARY).all()


def test_lists_ranges_and_buffers_are_slots(qkv):
    q, k, v = qkv
    for slots in (range(4, 7), [4, 5, 6], array.array("i", [4, 5, 6]), np.arange(4, 7)):
        cache = cache_of(slots=slots)
        ROPE.apply_qk_(q.copy(), k, 5, v=v, cache=cache)
        assert np.array_equal(cache.v[1, :3], v)


def test_a_cache_of_latents_without_heads(rng):
    """MLA as vLLM has it: [pages, page_size, latent + k_pe], k_pe the span alone."""
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="interleaved", layout="td")
    k_pe, latent = rng.standard_normal((3, 8), np.float32), rng.standard_normal((3, 24), np.float32)
    rows = np.full((2, 4, 32), CANARY, np.float32)
    cache = librope.KVCache(rows[..., 24:], rows[..., :24], layout="nd", slots=[6, 0, 1])
    rope.apply_qk(None, k_pe, 9, v=latent, cache=cache)
    want = np.concatenate([latent, rope.apply(k_pe, 9)], -1)
    assert np.array_equal(rows.reshape(8, 32)[[6, 0, 1]], want)
    assert (np.delete(rows.reshape(8, 32), [6, 0, 1], 0) == CANARY).all()


def test_layouts_of_k_and_v_may_differ(qkv):
    q, k, v = qkv
    k_memory, v_memory = np.zeros((2, 4, 1, 8), np.float32), np.zeros((2, 1, 4, 8), np.float32)
    cache = librope.KVCache(k_memory, v_memory, layout=["nhd", "hnd"], starts=1)
    ROPE.apply_qk(q, k, 0, v=v, cache=cache)
    assert np.array_equal(v_memory[0, 0, 1:], v[:, 0]) and np.array_equal(k_memory[0, 1:], ROPE.apply(k, 0))


def test_rows_of_cos_and_sin(qkv):
    q, k, v = qkv
    cache, want = cache_of(starts=1), ROPE.apply_qk(q, k, 7)
    rows = ROPE.cos_sin(7, tokens=3)
    got = ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format="full_halves", v=v, cache=cache)
    assert np.array_equal(got[0], want[0]) and np.array_equal(cache.k[0, 1:], want[1])


def test_arrays_beside_those_of_a_device_are_there_too(qkv):
    """What can be seen without a device."""
    q, k, v = map(OnCuda, qkv)
    on_host = cache_of()
    cache = librope.KVCache(OnCuda(on_host.k), OnCuda(on_host.v), layout="nhd")
    start = np.zeros(1, np.int32)
    for name, wrong in (
        ("slots", cache.at(slots=np.arange(3))),
        ("starts", cache.at(starts=start)),
        ("cache.k", on_host.at(starts=OnCuda(start))),
    ):
        with pytest.raises(ValueError, match=f"{name} is on the CPU, and q or k on CUDA device 0"):
            ROPE.apply_qk_(q, k, 0, v=v, cache=wrong)
    with pytest.raises(TypeError, match="starts is an int, and must be an array on the device"):
        ROPE.apply_qk_(q, k, 0, v=v, cache=cache.at(starts=1))


def test_v_to_an_output_alone(qkv):
    """v of a packed projection, made contiguous in the same call."""
    packed = np.concatenate(qkv, 1)
    q, k, v = packed[:, :2], packed[:, 2:3], packed[:, 3:]
    v_out = np.zeros(v.shape, np.float32)
    want = ROPE.apply_qk(q, k, 3)
    got = ROPE.apply_qk(q, k, 3, v=v, out=(q, None, v_out))
    assert got[0] is q and np.array_equal(q, want[0]) and np.array_equal(got[1], want[1])
    assert np.array_equal(v_out, v)
    ROPE.bind(q, k, 3, v=v, out=(None, None, v_out))


def test_no_tokens(qkv):
    q, k, v = (x[:0] for x in qkv)
    for where in ({"slots": []}, {"starts": 4}):
        cache = cache_of(**where)
        got = ROPE.apply_qk(q, k, 0, v=v, cache=cache)
        assert got[0].shape == (0, 2, 8) and got[1] is None and (cache.k == CANARY).all()
    rope = ROPE.replace(layout="bshd")
    q, k, v = (x[None][:0] for x in qkv)
    for where in ({"starts": 0}, {"slots": np.zeros((0, 3), np.int64)},
                  {"starts": i32(), "page_table": np.zeros((0, 2), np.int32)}):  # fmt: skip
        got = rope.apply_qk(q, k, 0, v=v, cache=cache_of(**where))
        assert got[0].shape == (0, 3, 2, 8)


def test_bind_reads_slots_in_every_step(qkv):
    q, k, v = qkv
    slots, cache = np.array([0, 1, 2]), cache_of()
    step = ROPE.bind(q, k, 0, v=v, cache=cache.at(slots=slots))
    step()
    slots[:] = [8, -1, 15]
    step(50)
    flat = cache.k.reshape(16, 1, 8)
    assert np.array_equal(flat[:3], ROPE.apply(k, 0)) and np.array_equal(flat[[8, 15]], ROPE.apply(k, 50)[[0, 2]])
    slots[0] = 16
    with pytest.raises(ValueError, match=r"Bound: slots\[0\] \(16\)"):
        step()
    page_starts = np.array([0, 2], np.int32)
    step = ROPE.bind(
        q, k, 0, v=v,
        cache=cache.at(page_table=np.array([2, 3], np.int32), page_starts=page_starts, starts=3),
    )  # fmt: skip
    step()
    assert np.array_equal(flat[[11, 12, 13]], ROPE.apply(k, 0))
    page_starts[1] = 3
    with pytest.raises(ValueError, match="page_starts has 3, and page_table has 2 entries"):
        step()


def i32(*values):
    return np.array(values, np.int32)


def call(q=None, k=None, v=None, cache=None, way="apply_qk", **options):
    """With arrays that are right, but for what is given."""
    shapes = np.zeros((3, 2, 8), np.float32), np.zeros((3, 1, 8), np.float32), np.zeros((3, 1, 8), np.float32)
    q, k, v = (x if y is None else y for x, y in zip(shapes, (q, k, v), strict=True))
    q, k, v = (None if x is False else x for x in (q, k, v))
    return getattr(ROPE, way)(q, k, 0, v=v, cache=cache, **options)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        # KVCache itself
        (lambda: librope.KVCache(layout="nhd"), ValueError, "k and v of a KVCache are both None"),
        (lambda: cache_of().at(slots=[1], starts=i32(0)), ValueError, "slots and starts"),
        (lambda: cache_of().at(page_table=i32(0)), ValueError, "page_table needs starts"),
        (lambda: cache_of().at(page_starts=i32(0, 1), starts=0), ValueError, "page_starts needs page_table"),
        (lambda: librope.KVCache(1, 2, layout="bshd"), ValueError, "layout of a cache is 'bshd', .* 'nhd'"),
        (lambda: librope.KVCache(1, 2, layout=("nhd", 3)), ValueError, "layout of a cache is 3"),
        (lambda: librope.KVCache(1, 2, layout=("nhd",)), ValueError, "1 layouts"),
        # what it is
        (lambda: call(cache=(1, 2)), TypeError, "cache is a builtins.tuple, and must be a librope.KVCache"),
        (lambda: call(cache=cache_of()), ValueError, "cache says nowhere to go: slots="),
        (lambda: call(), ValueError, "v has nowhere to go"),
        (lambda: call(v=False, cache=cache_of(starts=0)), ValueError, "cache.v is an array, and v is None"),
        (lambda: call(k=False, cache=cache_of(starts=0)), ValueError, "cache.k is an array, and k is None"),
        (lambda: call(cache=librope.KVCache(cache_of().k, layout="nhd", starts=0)), ValueError,
         "v has nowhere to go"),
        (lambda: call(cache=cache_of(starts=0), operation="backward"), NotImplementedError, "BACKWARD"),
        (lambda: call(cache=cache_of(starts=0), out=(None, None, None, None)), TypeError, "out is a"),
        # its memory
        (lambda: call(cache=cache_of(channels=6, starts=0)), ValueError, "cache.k has 6 channels per head"),
        (lambda: call(cache=cache_of(heads=2, starts=0)), ValueError, "cache.k has 2 heads, and k 1"),
        (lambda: call(v=np.zeros((3, 2, 8), np.float32), cache=cache_of(starts=0)), ValueError,
         "cache.v has 1 heads, and v 2"),
        (lambda: call(v=np.zeros((3, 1, 7), np.float32), cache=cache_of(starts=0)), ValueError,
         "cache.v has 8 channels per head, and must have 7"),
        (lambda: call(v=np.zeros((2, 1, 8), np.float32), cache=cache_of(starts=0)), ValueError,
         "v has 2 tokens, and q 3"),
        (lambda: call(v=np.zeros((3, 1, 1025), np.float32), cache=cache_of(starts=0, channels=1025)), ValueError,
         "1025"),
        (lambda: call(v=np.zeros((3, 1, 8)), cache=cache_of(starts=0)), TypeError, "v has dtype float64"),
        (lambda: call(cache=cache_of(dtype=np.float64, starts=0)), TypeError, "cache.k has dtype float64"),
        (lambda: call(cache=librope.KVCache(cache_of().k[0], cache_of().v, layout="nhd", starts=0)), ValueError,
         r"cache.k has shape \(4, 1, 8\), which is not \[pages, ..\] of layout 'nhd': with x\[None\]"),
        (lambda: call(cache=cache_of(pages=0, starts=0)), ValueError, "cache.k has 0 pages"),
        (lambda: call(cache=librope.KVCache(cache_of().k[:2], cache_of().v, layout="nhd", starts=0)), ValueError,
         "cache.k has 2 pages of 4 slots, and cache.v 4 of 4"),
        (lambda: call(cache=librope.KVCache(cache_of().k[::-1], cache_of().v, layout="nhd", starts=0)), ValueError,
         "cache.k has strides .* negative"),
        (lambda: call(cache=librope.KVCache(cache_of(channels=16).k[..., ::2], cache_of().v, layout="nhd", starts=0)),
         ValueError, "cache.k has stride 2 in its last axis"),
        (lambda: call(cache=librope.KVCache("x", cache_of().v, layout="nhd", starts=0)), TypeError,
         "cache.k is a builtins.str"),
        (lambda: call(v="x", cache=cache_of(starts=0)), TypeError, "v is a builtins.str"),
        # where tokens go
        (lambda: call(cache=cache_of(slots=np.zeros((3, 1), int))), ValueError, r"slots has shape \(3, 1\)"),
        (lambda: call(cache=cache_of(slots=np.zeros(3))), TypeError, "slots has dtype float64"),
        (lambda: call(cache=cache_of(slots=np.arange(6)[::2])), ValueError, "slots has stride 2"),
        (lambda: call(cache=cache_of(slots=[0, 1, 16])), ValueError, r"apply_qk: slots\[2\] \(16\) must be below 16"),
        (lambda: call(cache=cache_of(slots=[])), ValueError, "slots has 0 entries, and there are 1 batch rows of 3"),
        (lambda: call(cache=cache_of(slots=[0, 1])), ValueError, "slots has 2 entries.* and padding has -1"),
        (lambda: call(cache=cache_of(slots=[0.5])), TypeError, "slots as a list must hold ints"),
        (lambda: call(cache=cache_of(starts=2)), ValueError, r"starts\[0\] \(2\)"),
        (lambda: call(cache=cache_of(starts=-1)), ValueError, "starts is -1"),
        (lambda: call(cache=cache_of(starts=i32(-1))), ValueError, r"starts\[0\] \(-1\)"),
        (lambda: call(cache=cache_of(starts=2**31)), ValueError, "starts is 2147483648"),
        (lambda: call(cache=cache_of(starts=np.array([0.0]))), TypeError, "starts has dtype float64"),
        (lambda: call(cache=cache_of(starts=i32(0, 1))), ValueError, "starts has 2 entries, and there are 1 seq"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32(1))), ValueError, r"page_table has shape \(1,\)"),
        (lambda: call(cache=cache_of(starts=0, page_table=np.zeros((1, 1)))), TypeError, "page_table has dtype"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32(1, 2).reshape(2, 1))), ValueError, "page_table has"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32().reshape(1, 0))), ValueError, "page_table has"),
        (lambda: call(cache=cache_of(starts=0, page_table=np.zeros((1, 4), np.int32)[:, ::2])), ValueError,
         "page_table has stride 2, and must be contiguous"),
        (lambda: call(cache=cache_of(starts=2, page_table=i32(1).reshape(1, 1))), ValueError,
         "sequence 0 has 1 pages of 4"),
        (lambda: call(cache=cache_of(starts=2, page_table=i32(1, 4).reshape(1, 2))), ValueError,
         r"page_table\[1\] \(4\)"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32(1).reshape(1, 1), page_starts=i32(0, 1))),
         ValueError, "with page_starts one dimension"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32(1), page_starts=i32(0))), ValueError,
         "page_starts has 1 entries, and there are 1 sequences"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32(1), page_starts=i32(0, 2))), ValueError,
         "page_starts has 2, and page_table has 1 entries"),
        (lambda: call(cache=cache_of(starts=0, page_table=i32(1, 2), page_starts=i32(1, 0))), ValueError,
         r"page_starts\[0\]"),
        # outputs
        (lambda: call(out=(None, None, np.zeros((3, 1, 8), np.float64))), TypeError, "out of v has dtype float64"),
        (lambda: call(out=(None, None, np.zeros((3, 0, 8), np.float32))), ValueError, r"v_out.heads \(0\)"),
        (lambda: call(out=(None, None, np.zeros((3, 1, 7), np.float32))), ValueError, "out of v has 7 channels"),
        (lambda: call(out=(None, None, np.zeros((2, 1, 8), np.float32))), ValueError, "out of v has 2 tokens"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_slots_of_batch_rows(rng):
    rope = ROPE.replace(layout="bshd")
    q, k, v = (rng.standard_normal((2, 3, h, 8), np.float32) for h in (2, 1, 1))
    with pytest.raises(ValueError, match="slots has 3 entries, and there are 2 batch rows of 3 tokens"):
        rope.apply_qk(q, k, 0, v=v, cache=cache_of(slots=[0, 1, 2]))
    with pytest.raises(ValueError, match="page_table has shape"):
        rope.apply_qk(q, k, 0, v=v, cache=cache_of(starts=0, page_table=np.zeros((1, 2), np.int32)))
    with pytest.raises(ValueError, match=r"pages \(1\) must be at least the number of sequences \(2\)"):
        rope.apply_qk(q, k, 0, v=v, cache=cache_of(pages=1, starts=0))
    with pytest.raises(ValueError, match="slots has 1 entries, and there are 2 batch rows of 1 tokens"):
        rope.apply_qk(q[:, :1], k[:, :1], 0, v=v[:, :1], cache=cache_of(slots=[7]))
    cache = cache_of(slots=[7, -1])  # a decode batch that is padded
    rope.apply_qk(q[:, :1], k[:, :1], 0, v=v[:, :1], cache=cache)
    assert np.array_equal(cache.v.reshape(16, 8)[7], v[0, 0, 0]) and (cache.v != CANARY).sum() <= 8


def test_read_only_and_overlaps(qkv):
    q, k, v = qkv
    cache = cache_of(starts=0)
    cache.v.flags.writeable = False
    with pytest.raises(ValueError, match="cache.v is read-only"):
        ROPE.apply_qk(q, k, 0, v=v, cache=cache)
    cache = cache_of(starts=0)
    before = cache.k.copy()
    for name, given in (
        ("k", {"k": cache.k[0, :3]}),
        ("v", {"v": cache.k[0, 1:]}),
        ("q", {"q": cache.v[0, :3]}),
        ("cache.k", {"cache": librope.KVCache(cache.k, cache.k, layout="nhd", starts=0)}),
        ("v_out", {"out": (None, None, cache.v[0, :3])}),
    ):
        with pytest.raises(ValueError, match=f"overlaps.*{name}|{name}.*overlaps"):
            call(**{"cache": cache, "way": "apply_qk", **given})
    assert np.array_equal(cache.k, before) and np.array_equal(cache.v, before)


def test_an_error_writes_nothing(qkv):
    q, k, v = qkv
    cache, given = cache_of(slots=[0, 1, 99]), [x.copy() for x in qkv]
    with pytest.raises(ValueError, match="99"):
        ROPE.apply_qk_(q, k, 0, v=v, cache=cache)
    assert all(np.array_equal(a, b) for a, b in zip(qkv, given)) and (cache.k == CANARY).all()


def test_places_as_lists(qkv):
    """As slots are, starts are taken from a list, a tuple or a range."""
    q, k, v = qkv
    caches = []
    for starts in (5, i32(5), [5], (5,), range(5, 6)):
        cache = cache_of(page_table=i32(2, 0, 3, 1).reshape(1, 4), starts=starts)
        for _ in range(2):
            ROPE.apply_qk(q, k, 0, v=v, cache=cache)
        caches.append(cache)
    assert all(np.array_equal(caches[0].k, c.k) and np.array_equal(caches[0].v, c.v) for c in caches)
    for starts, error, text in (
        ([2**31], ValueError, r"starts\[0\] is 2147483648, and must be from -2\*\*31 to 2\*\*31 - 1"),
        ([0.5], TypeError, "starts as a list must hold ints"),
        ([1, 2], ValueError, "starts has 2 entries, and there are 1 sequences"),
        ([-1], ValueError, "starts"),
    ):
        with pytest.raises(error, match=text):
            ROPE.apply_qk(q, k, 0, v=v, cache=cache_of(starts=starts))
