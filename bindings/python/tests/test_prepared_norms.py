"""Prepared calls with norms: the bits of apply_qk with those of each layer, and checks of what a layer brings."""

import threading
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import librope
from librope import KVCache, Norm, Norms, Scale

DIM, HEADS, TOKENS = 32, (4, 2, 2), 5
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="thd")
BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
TABLE = {"page_table": np.array([[3, 1]], np.int32), "starts": np.array([2], np.int32)}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def layer(rng, dtype=np.float32):
    return tuple(rng.standard_normal((TOKENS, h, DIM), np.float32).astype(dtype) for h in HEADS)


def norms_of(rng, name, dtype=np.float32):
    """Those of a layer, of q, k and v."""
    made = []
    for which, heads in zip("qkv", HEADS, strict=True):
        each, bias = (rng.standard_normal((heads, DIM), np.float32).astype(dtype) for _ in range(2))
        if name == "shared":
            made.append(Norm(each[0], kind="rms", eps=1e-5, rounding="eager"))
        elif name == "per head":
            made.append(Norm(each, kind="rms", eps=1e-5, rounding="rounded"))
        elif name == "with gaps":
            rows = np.zeros((heads, DIM + 3), dtype)[:, :DIM]
            rows[:] = each
            made.append(Norm(rows, kind="rms", eps=1e-5))
        elif name == "all heads":
            made.append(Norm(each, kind="rms", eps=1e-5, span="all_heads", rounding="rounded"))
        elif name == "one plus":
            made.append(Norm(each[0], kind="rms_one_plus", eps=1e-6, order="before" if which == "v" else "after",
                             rounding="rounded"))  # fmt: skip
        elif name == "plain":
            made.append(Norm(kind="rms_plain", eps=1e-6))
        elif name == "layer bias":
            made.append(Norm(each, kind="layer_bias", eps=1e-5, bias=bias, rounding="rounded"))
        else:
            made.append(Norm(each, kind="rms", span="given", rstd=rng.random(TOKENS, np.float32) + 1))
    return Norms(*made)


FORMS = ("shared", "per head", "with gaps", "all heads", "one plus", "plain", "layer bias", "given")


def memory(form, dtype):
    """A cache of memory alone."""
    if form == "8 bits":
        k, v = (np.zeros((4, 4, 2, DIM), E4M3) for _ in range(2))
        data = np.zeros((4, 4, 2), np.float32)
        return KVCache(k, v, layout="nhd", k_scale=Scale(0.02), v_scale=Scale(data=data, computed=True))
    width = DIM // 32 * 34 if form == "q8_0" else DIM
    k, v = np.zeros((2, 4, 4, 2, width), np.uint8 if form == "q8_0" else dtype)
    return KVCache(k, v, layout="nhd")


def content(cache):
    scale = cache.v_scale and cache.v_scale.data
    return [x.tobytes() for x in (cache.k, cache.v, scale) if x is not None]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [np.dtype("float32"), BF16])
@pytest.mark.parametrize("form", ["paged", "8 bits", "q8_0"])
@pytest.mark.parametrize("way", ["apply_qk", "apply_qk_"])
def test_the_bits_of_apply_qk(rng, name, dtype, form, way):
    """Norms of other weights in each layer, of which those that were prepared are forgotten."""
    first = norms_of(rng, name, dtype)
    q, k, v = layer(rng, dtype)
    call = ROPE.prepare_qk(q, k, 9, v=v, cache=memory(form, dtype).at(**TABLE), norms=first)
    for norm in (first.q, first.k, first.v):
        norm.weight = norm.bias = norm.rstd = None
    caches = [memory(form, dtype) for _ in range(2)]
    for _ in range(2):
        for cache in caches:
            norms, (q, k, v), expected = norms_of(rng, name, dtype), layer(rng, dtype), memory(form, dtype)
            want, _ = ROPE.apply_qk(q, k, 9, v=v, cache=expected.at(**TABLE), norms=norms)
            plain = ROPE.apply_qk(q, k, 9)[0]
            got = getattr(call, way)(q, k, v=v, cache=cache, norms=norms)
            got = q if got is None else got[0]
            assert np.array_equal(got, want) and not np.array_equal(got, plain)
            assert content(cache) == content(expected) and any(map(any, content(cache)))
            short = call._short(q, k, v, cache, norms, True) is not None
            assert short == (form != "8 bits" and name != "with gaps")  # which is what makes it quick


def test_without_a_cache_and_with_outputs(rng):
    q, k, v = layer(rng)
    norms, first = norms_of(rng, "shared"), norms_of(rng, "shared")
    two = [Norms(x.q, x.k) for x in (norms, first)]
    want = ROPE.apply_qk(q, k, 9, norms=two[0])
    call = ROPE.prepare_qk(q, k, 9, norms=two[1])
    assert isinstance(call, librope.PreparedAppend)
    packed = np.concatenate([q, k], 1)  # without the short way
    apart = ROPE.prepare_qk(packed[:, :4], packed[:, 4:], 9, norms=two[1], out=(packed[:, :4], packed[:, 4:]))
    apart.apply_qk_(packed[:, :4], packed[:, 4:], norms=two[0])
    turned = q.copy(), k.copy()
    call.apply_qk_(*turned, norms=two[0])
    short = call._short(q, k, None, None, two[0], False)
    for got in (call.apply_qk(q, k, norms=two[0]), short, turned, np.split(packed, [4], 1)):
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    one = ROPE.prepare_qk(q, None, 9, norms=Norms(first.q)).apply_qk(q, norms=Norms(norms.q))
    assert np.array_equal(one[0], want[0]) and one[1] is None
    outs, expected = ([np.empty(x.shape, np.float16) for x in (q, k, v)] for _ in range(2))
    ROPE.apply_qk(q, k, 9, v=v, norms=norms, out=tuple(expected))
    call = ROPE.prepare_qk(q, k, 9, v=v, norms=first, out=tuple(outs))
    call.apply_qk(q, k, v=v, norms=norms, out=tuple(outs))
    assert all(np.array_equal(a, b) for a, b in zip(outs, expected, strict=True))
    nope = librope.Rope(head_dim=DIM, scaling="nope", layout="thd")
    got = nope.prepare_qk(q, k, 0, norms=two[1]).apply_qk(q, k, norms=two[0])
    assert np.array_equal(got[0], nope.apply_qk(q, k, 0, norms=two[0])[0])
    none = ROPE.prepare_qk(q, k, 9, norms=Norms())
    assert all(np.array_equal(none.apply_qk(q, k, norms=n)[0], ROPE.apply_qk(q, k, 9)[0]) for n in (None, Norms()))
    empty = np.zeros((0, 4, DIM), np.float32)
    call = ROPE.prepare_qk(empty, None, 0, norms=Norms(first.q))
    assert call.apply_qk(empty, norms=Norms(norms.q))[0].shape == empty.shape


W = np.ones(DIM, np.float32)
RMS = {"kind": "rms", "eps": 1e-5}


@pytest.mark.parametrize(("norms", "error", "words"), [
    (Norms(Norm(**RMS)), ValueError, "norms.q.weight is required by kind='rms'"),
    (Norms(Norm(W, kind="rms_plain", eps=1e-5)), ValueError, "norms.q.weight must be None with kind='rms_plain'"),
    (Norms(k=Norm(W, kind="layer_bias", eps=1e-5)), ValueError, "norms.k.bias is required by kind='layer_bias'"),
    (Norms(k=Norm(W, bias=W, **RMS)), ValueError, "norms.k.bias must be None with kind='rms'"),
    (Norms(Norm(kind="rms_plain", span="given")), ValueError, "norms.q.rstd is required by span='given'"),
    (Norms(Norm(W, rstd=W[:TOKENS], **RMS)), ValueError, "norms.q.rstd must be None with span='head'"),
    (Norms(Norm(W[1:], **RMS)), ValueError, r"norms.q.weight has shape \(31,\)"),
    (Norms(Norm(W.astype(np.float64), **RMS)), TypeError, "norms.q.weight has dtype float64"),
    (Norms(Norm(W, kind="rms", eps=1e-60)), ValueError, r"prepare_qk: norms.q.eps \(1e-60\) is required"),
    (Norms(v=Norm(kind="rms_plain", eps=1)), ValueError, "prepare_qk: norms.v is set, but v is absent"),
    (Norm(W, **RMS), TypeError, "norms is a Norm, and must be a librope.Norms"),
])  # fmt: skip
def test_what_cannot_be_prepared(rng, norms, error, words):
    q, k, _ = layer(rng)
    with pytest.raises(error, match=words):
        ROPE.prepare_qk(q, k, 3, norms=norms)


def test_gradients_are_not_prepared(rng):
    q, k, _ = layer(rng)
    with pytest.raises(NotImplementedError, match="prepare_qk: norms.q must be None with BACKWARD in a prepared call"):
        ROPE.prepare_qk(q, k, 3, norms=Norms(Norm(W, **RMS)), operation="backward")


def odd(x):
    """The same values, one byte further than they may lie."""
    return np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)


def changed(norm, **options):
    given = {name: getattr(norm, name) for name in Norm.__slots__}
    return Norm(**{**given, **options})


def test_what_does_not_fit_is_refused(rng):
    q, k, v = layer(rng)
    first, good, cache = norms_of(rng, "layer bias"), norms_of(rng, "layer bias"), memory("paged", np.float32)
    call = ROPE.prepare_qk(q, k, 3, v=v, cache=cache.at(**TABLE), norms=first)
    call.apply_qk_(q.copy(), k, v=v, cache=cache, norms=good)  # the short way knows this cache
    cache.k[...] = cache.v[...] = 77

    def with_q(**options):
        return Norms(changed(good.q, **options), good.k, good.v)

    weight, bias = good.q.weight, good.q.bias
    had = "the call was prepared for one of layer_bias, 1e-05, head, before, rounded"
    wrong = [
        (None, ValueError, f"norms.q is None, and {had}"),
        (Norms(good.q, good.k), ValueError, f"norms.v is None, and {had}"),
        (good.q, TypeError, "norms is a Norm, and must be a librope.Norms"),
        (with_q(eps=1e-6), ValueError, f"norms.q is one of layer_bias, 1e-06, head, before, rounded, and {had}"),
        (with_q(kind="layer"), ValueError, "norms.q is one of layer, "),
        (with_q(span="all_heads"), ValueError, "norms.q is one of layer_bias, 1e-05, all_heads, "),
        (with_q(order="after"), ValueError, "norms.q is one of layer_bias, 1e-05, head, after, "),
        (with_q(rounding="eager"), ValueError, "norms.q is one of layer_bias, 1e-05, head, before, eager"),
        (with_q(weight=None), ValueError, "norms.q.weight is None, and the call was prepared for one"),
        (with_q(bias=None), ValueError, "norms.q.bias is None, and the call was prepared for one"),
        (with_q(rstd=W[:TOKENS]), ValueError, "norms.q.rstd is an array, and the call was prepared for None"),
        (with_q(weight=weight[0]), ValueError,
         r"norms.q.weight has shape \(32,\), and the call was prepared for \(4, 32\)"),
        (with_q(weight=weight[::-1]), ValueError, r"norms.q.weight has strides \(-32, 1\)"),
        (with_q(bias=bias.astype(BF16)), TypeError,
         "norms.q.bias has dtype bfloat16, and the call was prepared for float32"),
        (with_q(weight=odd(weight)), ValueError, "apply_qk_?: norms.q.weight must be aligned to its element"),
        (with_q(weight=weight.tolist()), TypeError, "norms.q.weight"),
    ]  # fmt: skip
    for norms, error, words in wrong:
        for way in (call.apply_qk, call.apply_qk_):
            given = q.copy()
            with pytest.raises(error, match=words):
                way(given, k, v=v, cache=cache, norms=norms)
            assert np.array_equal(given, q)
    bare = ROPE.prepare_qk(q, k, 3, v=v, cache=cache.at(**TABLE))
    with pytest.raises(ValueError, match="norms.q is one of .*, and the call was prepared for None"):
        bare.apply_qk(q, k, v=v, cache=cache, norms=good)
    assert (cache.k == 77).all() and (cache.v == 77).all()


def test_threads_share_one_and_nothing_is_left(rng):
    """Each thread has its layer; weights that nobody else keeps are there until the call has been made."""
    call, layers = None, []
    for _ in range(4):
        (q, k, v), norms, expected = layer(rng), norms_of(rng, "shared"), memory("paged", np.float32)
        want, _ = ROPE.apply_qk(q, k, 5, v=v, cache=expected.at(**TABLE), norms=norms)
        layers.append((q, k, v, norms, want, expected))
        call = call or ROPE.prepare_qk(q, k, 5, v=v, cache=expected.at(**TABLE), norms=norms)
    wrong = []

    class Fresh(Norm):
        weight = property(lambda self: self.source.copy(), lambda self, source: setattr(self, "source", source))

    def work(q, k, v, norms, want, expected):
        cache = memory("paged", np.float32)
        own = norms.q, norms.k, norms.v
        fresh = Norms(*[Fresh(n.weight, kind=n.kind, eps=n.eps, rounding=n.rounding) for n in own])
        for i in range(200):
            got, _ = call.apply_qk(q, k, v=v, cache=cache, norms=fresh if i % 2 else norms)
            if not np.array_equal(got, want) or content(cache) != content(expected):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=each) for each in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    q, k, v, norms, _, _ = layers[0]
    cache = memory("paged", np.float32)
    for _ in range(50):
        call.apply_qk_(q, k, v=v, cache=cache, norms=norms)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            call.apply_qk_(q, k, v=v, cache=cache, norms=norms)
        assert tracemalloc.get_traced_memory()[0] - before < 4096
    finally:
        tracemalloc.stop()
