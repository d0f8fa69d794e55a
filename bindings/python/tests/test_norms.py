"""Norms beside the rotation: two calls bit for bit, the values of plain code, and clear refusals."""

import ml_dtypes
import numpy as np
import pytest

import librope
from librope import Norm, Norms

DIM, HEADS, TOKENS = 64, (4, 2), 5
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="thd")
NOPE = librope.Rope(head_dim=DIM, scaling="nope", layout="thd")
BF16 = np.dtype(ml_dtypes.bfloat16)
KINDS = ("rms", "rms_one_plus", "rms_plain", "layer", "layer_bias")


def make(rng, heads, dtype, kind, *, per_head=False, **options):
    shape = (heads, DIM) if per_head else (DIM,)
    weight, bias = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    if kind == "rms_plain":
        return Norm(kind=kind, eps=1e-5, **options)
    return Norm(weight, kind=kind, eps=1e-5, bias=bias if kind == "layer_bias" else None, **options)


def exact(x, norm):
    """In float64. x: [tokens, heads, channels]."""
    x = x.astype(np.float64)
    axes = (1, 2) if norm.span == "all_heads" else (2,)
    if norm.kind.startswith("layer"):
        x = x - x.mean(axes, keepdims=True)
    x = x / np.sqrt((x * x).mean(axes, keepdims=True) + norm.eps)
    if norm.weight is not None:
        x = x * ((norm.kind == "rms_one_plus") + norm.weight.astype(np.float64))
    return x if norm.bias is None else x + norm.bias.astype(np.float64)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def qkv(rng):
    return tuple(rng.standard_normal((TOKENS, h, DIM), dtype=np.float32) for h in (*HEADS, HEADS[1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("span", ["head", "all_heads"])
@pytest.mark.parametrize("dtype", [np.dtype("float32"), BF16, np.dtype("float16")])
def test_one_call_is_two_and_weights_arrive(rng, qkv, kind, per_head, span, dtype):
    q, k, v = (x.astype(dtype) for x in qkv)
    norms = Norms(*[
        make(rng, h, w, kind, per_head=per_head or span == "all_heads", span=span, rounding="rounded")
        for h, w in zip((*HEADS, HEADS[1]), ("float32", BF16, "float16"), strict=True)
    ])  # fmt: skip
    pair = Norms(norms.q, norms.k)
    alone = NOPE.apply_qk(q, k, 0, norms=pair)
    for x, y, norm in ((q, alone[0], norms.q), (k, alone[1], norms.k)):
        ulp = {2: 1 / 128 if dtype == BF16 else 1 / 1024, 4: 1e-6}[dtype.itemsize]
        np.testing.assert_allclose(y.astype(np.float64), exact(x, norm), rtol=ulp, atol=2 * ulp + 1e-5)
    want = ROPE.apply_qk(*alone, 3)
    got = ROPE.apply_qk(q, k, 3, norms=pair)
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))

    step = ROPE.bind(q.copy(), k.copy(), 3, norms=pair, out=tuple(out := [np.empty_like(q), np.empty_like(k)]))
    step()
    assert all(np.array_equal(a, b) for a, b in zip(out, want, strict=True))

    cache = librope.KVCache(np.zeros((2, 4, HEADS[1], DIM), dtype), np.zeros((2, 4, HEADS[1], DIM), dtype),
                            layout="nhd", slots=np.array([7, 0, 1, 2, 5]))  # fmt: skip
    for _ in range(2):  # what is known of a call with a cache says nothing of its norms
        rotated, none = ROPE.apply_qk(q, k, 3, v=v, cache=cache, norms=norms)
        assert none is None and np.array_equal(rotated, want[0])
        assert np.array_equal(cache.k.reshape(8, HEADS[1], DIM)[cache.slots], want[1])
        normed_v = NOPE.apply_qk(v, None, 0, norms=Norms(norms.v))[0]
        assert np.array_equal(cache.v.reshape(8, HEADS[1], DIM)[cache.slots], normed_v)
        ROPE.apply_qk(q, k, 3, v=v, cache=cache)
        assert np.array_equal(cache.v.reshape(8, HEADS[1], DIM)[cache.slots], v)

    ROPE.apply_qk_(q, k, 3, norms=pair)
    assert np.array_equal(q, want[0]) and np.array_equal(k, want[1])


def test_roots_order_rounding_and_strides_arrive(rng, qkv):
    q = qkv[0]
    weight = rng.standard_normal(DIM, dtype=np.float32)
    rows = rng.standard_normal((HEADS[0], DIM), dtype=np.float32)
    own = ROPE.apply(q, 3, norms=Norms(Norm(rows, kind="rms", eps=1e-5, span="all_heads")))
    rstd = 1 / np.sqrt((q * q).mean((1, 2)) + np.float32(1e-5))
    given = ROPE.apply(q, 3, norms=Norms(Norm(rows, kind="rms", span="given", rstd=rstd)))
    np.testing.assert_allclose(own, given, rtol=1e-5, atol=1e-6)
    before, after = (
        ROPE.apply(q, 3, norms=Norms(Norm(weight, kind="rms", eps=1e-5, order=order))) for order in ("before", "after")
    )
    assert abs(after - before).max() > 0.1
    rounded = [
        ROPE.apply(q.astype(BF16), 3, norms=Norms(Norm(weight, kind="rms", eps=1e-5, rounding=r)))
        for r in ("float32", "rounded", "eager")
    ]
    assert not np.array_equal(rounded[0], rounded[1]) and not np.array_equal(rounded[1], rounded[2])
    rows = rng.standard_normal((HEADS[0], DIM + 3), dtype=np.float32)[:, :DIM]  # with gaps
    gaps = ROPE.apply(q, 3, norms=Norms(Norm(rows, kind="rms", eps=1e-5)))
    assert np.array_equal(gaps, ROPE.apply(q, 3, norms=Norms(Norm(rows.copy(), kind="rms", eps=1e-5))))


W = np.ones(DIM, np.float32)


@pytest.mark.parametrize(("norms", "error", "words"), [
    (Norms(Norm(W[1:], kind="rms", eps=1)), ValueError, r"norms.q.weight has shape \(63,\), and must have \(64,\)"),
    (Norms(k=Norm(np.ones((3, DIM)), kind="rms", eps=1)), TypeError, "norms.k.weight has dtype float64"),
    (Norms(Norm(W, kind="layer_bias", bias=W.astype("f2"), eps=1)), ValueError, "norms.q.bias is float16"),
    (Norms(Norm(np.ones(2 * DIM, "f4")[::2], kind="rms", eps=1)), ValueError, "channels must be adjacent"),
    (Norms(Norm(W, kind="rms", eps=1e-60)), ValueError, r"norms.q.eps \(1e-60\) is required, and must be positive"),
    (Norms(Norm(kind="rms", eps=1)), ValueError, "norms.q.weight is required by kind='rms'"),
    (Norms(Norm(W, kind="rms_plain", eps=1)), ValueError, "norms.q.weight must be None with kind='rms_plain'"),
    (Norms(Norm(kind="rms_plain", span="given", rstd=W[:4])), ValueError, "norms.q.rstd has shape"),
    (Norms(Norm(W, kind="rms", eps=1, span="all_heads")), ValueError,
     r"norms.q.weight has shape \(64,\), and must have \(4, 64\): with span='all_heads' each head"),
    (Norms(Norm(W, kind="rms", span="given", rstd=W[:TOKENS])), ValueError, r"must have \(4, 64\): with span='given'"),
    (Norms(v=Norm(kind="rms_plain", eps=1)), ValueError, "norms.v is set, but v is absent"),
    ("rms", TypeError, "norms is a str, and must be a librope.Norms"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(qkv, norms, error, words):
    q, k, _ = qkv
    before = q.copy()
    with pytest.raises(error, match=words) as refused:
        ROPE.apply_qk_(q, k, 3, norms=norms)
    assert np.array_equal(q, before) and not str(refused.value).startswith("apply_qk:")


def test_unknown_names_and_calls_without_norms(qkv):
    for name in ("kind", "span", "order", "rounding"):
        with pytest.raises(ValueError, match=f"{name} is 'none'"):
            Norm(W, **{"kind": "rms", name: "none"})
    for eps, options, error, text in (
        (None, {}, ValueError, "eps is None, and is required by kind='rms' with span='head'"),
        (None, {"span": "all_heads"}, ValueError, "eps is None, and is required by kind='rms' with span='all_heads'"),
        (1e-6, {"span": "given"}, ValueError, "eps is 1e-06, and must be None with span='given'"),
        ("1e-6", {}, TypeError, "eps is '1e-6', and must be a number"),
        (0, {}, ValueError, "eps is 0, and must be positive and finite"),
        (float("inf"), {}, ValueError, "eps is inf, and must be positive and finite"),
    ):
        with pytest.raises(error, match=text):
            Norm(W, kind="rms", eps=eps, **options)
    with pytest.raises(TypeError, match=r"q is a ndarray, and must be a librope.Norm"):
        Norms(W)
    norms = Norms(Norm(W, kind="rms", eps=1))
    with pytest.raises(NotImplementedError, match=r"norms= must be None with operation 'backward'"):
        ROPE.apply(qkv[0], 3, norms=norms, operation="backward")
    assert "kind='rms'" in repr(norms)
