"""Gradients of calls with norms, in NumPy: the derivative of float64's formulas, sums of repeated heads, and clear
refusals. Those of torch are in test_torch_norms.py."""

import ml_dtypes
import numpy as np
import pytest
from conftest import OnCuda, float32_angles, rotate
from test_norms import KINDS, NOPE, exact, make

import librope
from librope import Gradients, Norm, Norms

DIM, TOKENS, HEADS = 64, 7, (4, 2)
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="thd")
ANGLES = float32_angles(np.arange(3, 3 + TOKENS), ROPE.inv_freq)[:, None]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def forward(x, norm, turns=True):
    """In float64. x: [tokens, heads, channels]."""
    y = exact(x, norm)
    return rotate(y, ANGLES) if turns else y


def changed(norm, name, value):
    options = {n: getattr(norm, n) for n in ("weight", "bias", "kind", "eps", "span")}
    return Norm(**{**options, name: value})


def slope(function, x, direction):
    h = 1e-5
    return (function(x + h * direction) - function(x - h * direction)) / (2 * h)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("span", ["head", "all_heads"])
@pytest.mark.parametrize("per_head", [False, True])
def test_are_the_slopes_of_the_formulas(rng, kind, span, per_head):
    x = [rng.standard_normal((TOKENS, h, DIM), np.float32) for h in (*HEADS, HEADS[1])]
    grads = [rng.standard_normal(a.shape, np.float32) for a in x]
    norms = Norms(*[make(rng, a.shape[1], np.float32, kind, per_head=per_head or span == "all_heads", span=span) for a in x])
    v_out = np.empty_like(x[2])
    got = ROPE.backward_qk(*grads[:2], 3, x=tuple(x), norms=norms, v_grad=grads[2], out=(None, None, v_out), parts=5)
    assert isinstance(got, Gradients)
    names = [f"{n}.{a}" for n in "qkv" for a in ("weight", "bias") if getattr(getattr(norms, n), a) is not None]
    assert list(got.norms) == names
    for name, a, g, dx in zip("qkv", x, grads, (got.q, got.k, v_out), strict=True):
        norm, turns = getattr(norms, name), name != "v"
        g64, a64 = g.astype(np.float64), a.astype(np.float64)
        direction = rng.standard_normal(a.shape)
        want = slope(lambda y: (g64 * forward(y, norm, turns)).sum(), a64, direction)  # noqa: B023
        np.testing.assert_allclose((dx * direction).sum(), want, rtol=2e-5, atol=2e-3)
        for array in ("weight", "bias"):
            value = getattr(norm, array)
            if value is None:
                continue
            found = got.norms[f"{name}.{array}"]
            assert found.shape == value.shape and found.dtype == np.float32
            direction = rng.standard_normal(value.shape)
            want = slope(
                lambda w: (g64 * forward(a64, changed(norm, array, w), turns)).sum(),  # noqa: B023
                value.astype(np.float64), direction,
            )  # fmt: skip
            np.testing.assert_allclose((found * direction).sum(), want, rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_a_gradient_is_the_rotation_back_and_then_that_of_the_norm(rng, dtype):
    """In place, into outputs, on threads, and by a Rope without rotation, bit for bit where rounding is apart."""
    q, k = (rng.standard_normal((TOKENS, h, DIM), np.float32).astype(dtype) for h in HEADS)
    q_grad, k_grad = (rng.standard_normal(a.shape, np.float32).astype(dtype) for a in (q, k))
    norms = Norms(*[make(rng, h, dtype, "rms", rounding="rounded") for h in HEADS])
    got = ROPE.backward_qk(q_grad, k_grad, 3, x=(q, k), norms=norms)
    back = ROPE.apply_qk(q_grad, k_grad, 3, operation="backward")
    want = NOPE.backward_qk(*back, 0, x=(q, k), norms=norms)
    again = q_grad.copy(), k_grad.copy()
    placed = ROPE.backward_qk(*again, 3, x=(q, k), norms=norms, out=again, pool=librope.Pool(2))
    assert placed.q is again[0] and placed.k is again[1]
    for other in (want, placed):
        assert (got.q == other.q).all() and (got.k == other.k).all() and got.q.dtype == dtype
        assert all((got.norms[name] == other.norms[name]).all() for name in got.norms)
    one = ROPE.backward_qk(q_grad, None, 3, x=(q, None), norms=Norms(norms.q), parts=1)
    assert one.k is None and list(one.norms) == ["q.weight"] and (one.q == got.q).all()
    np.testing.assert_allclose(one.norms["q.weight"], got.norms["q.weight"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("per_head", [False, True])
def test_repeated_heads_are_added_up(rng, per_head):
    q, k = (rng.standard_normal((TOKENS, h, DIM), np.float32) for h in HEADS)
    k_grad = rng.standard_normal((TOKENS, 6, DIM), np.float32)
    norms = Norms(k=make(rng, 2, np.float32, "layer_bias", per_head=per_head))
    got = ROPE.backward_qk(np.ones_like(q), k_grad, 3, x=(None, k), norms=norms)
    summed = (k_grad[:, 0::3] + k_grad[:, 1::3]) + k_grad[:, 2::3]
    want = ROPE.backward_qk(np.ones_like(q), summed, 3, x=(None, k), norms=norms)
    assert (got.k == want.k).all() and got.k.shape == k.shape
    assert all((got.norms[name] == want.norms[name]).all() for name in ("k.weight", "k.bias"))
    assert (got.q == ROPE.apply(np.ones_like(q), 3, operation="backward")).all()


def test_without_tokens_gradients_are_zero(rng):
    q = np.ones((0, 2, DIM), np.float32)
    got = ROPE.backward_qk(q, None, 3, x=(q, None), norms=Norms(make(rng, 2, np.float32, "rms")))
    assert got.q.shape == q.shape and (got.norms["q.weight"] == 0).all()


def test_what_is_wrong_is_named_and_nothing_is_written(rng):
    q, k = (rng.standard_normal((TOKENS, h, DIM), np.float32) for h in HEADS)
    out = np.full_like(q, 99), np.full_like(k, 99)
    weight = np.ones(DIM, np.float32)
    norm = Norm(weight, kind="rms", eps=1e-5)
    rstd = np.ones(TOKENS, np.float32)
    given = Norm(np.ones((4, DIM), np.float32), kind="rms", span="given", rstd=rstd)
    for change, error, text in (
        (dict(x=(None, k)), ValueError, "x has no q, and norms.q needs what it was given"),
        (dict(x=q), TypeError, r"x is a ndarray, and must be \(q, k\) or \(q, k, v\)"),
        (dict(x=(q[:3], k)), ValueError, "x of q has 3 tokens, and q_grad 7"),
        (dict(x=(q[:3], k), out=None), ValueError, "x of q has 3 tokens, and q_grad 7"),
        (dict(x=(q[:, :3], k), out=None), ValueError, "x of q has 3 heads, and q_grad 4, which must be as many or a multiple"),
        (dict(x=(q, k[:5]), out=None), ValueError, "x of k has 5 tokens, and k_grad 7"),
        (dict(x=(q[:, :2], k)), ValueError, "heads"),
        (dict(x=(q.astype(np.float16), k)), ValueError, r"norms\.q\.x \(float16, "),
        (dict(norms=None), ValueError, "norms is None: without norms"),
        (dict(norms=norm), TypeError, "norms is a Norm, and must be a librope.Norms"),
        (dict(norms=Norms(given)), NotImplementedError, "GIVEN|span"),
        (dict(norms=Norms(Norm(weight, kind="rms", eps=1e-5, order="after"))), NotImplementedError, "^backward_qk: norms.q.order"),
        (dict(parts=0), ValueError, "parts is 0"),
        (dict(operation="forward"), TypeError, "unexpected keyword argument 'operation'"),
        (dict(out=(out[0][:, :3], out[1])), ValueError, "out of q has 3 heads"),
        (dict(out=(q, out[1])), ValueError, "overlap"),
    ):
        with pytest.raises(error, match=text):
            arguments = dict(x=(q, k), norms=Norms(norm, norm), out=out)
            ROPE.backward_qk(q.copy(), k.copy(), 3, **{**arguments, **change})
    assert all((a == 99).all() for a in out)


@pytest.mark.parametrize("name", ["positions", "x of q", "x of k", "x of v", "v_grad"])
def test_gradients_of_what_has_none_are_refused(rng, name):
    """A tensor beside gradients of NumPy, which autograd does not see."""
    torch = pytest.importorskip("torch")
    q, k = (rng.standard_normal((TOKENS, h, DIM), np.float32) for h in HEADS)
    norm = Norm(np.ones(DIM, np.float32), kind="rms", eps=1e-5)

    def gradients(requires):
        def of(one, x):
            return torch.as_tensor(x).requires_grad_(requires) if one == name else x

        positions = of("positions", np.arange(float(TOKENS), dtype=np.float32))
        x, v_grad = (of("x of q", q), of("x of k", k), of("x of v", k)), of("v_grad", k)
        out = np.empty_like(q), np.empty_like(k), np.empty_like(k)
        norms = Norms(norm, norm, norm)
        return ROPE.backward_qk(q, k, positions, x=x, v_grad=v_grad, norms=norms, out=out)

    with pytest.raises(NotImplementedError, match=f"^{name} requires a gradient, and .* has none: detach it"):
        gradients(True)
    with torch.no_grad():
        got = gradients(True)
    assert np.array_equal(got.q, gradients(False).q)


def test_the_gradients_of_weights_that_require_one_are_returned(rng):
    torch = pytest.importorskip("torch")
    q = rng.standard_normal((TOKENS, 4, DIM), np.float32)
    given = {}
    for requires in (False, True):
        norms = Norms(Norm(torch.ones(DIM, requires_grad=requires), kind="rms", eps=1e-5))
        given[requires] = ROPE.backward_qk(q, None, 3, x=(q, None), norms=norms).norms["q.weight"]
    assert np.array_equal(given[True], given[False]) and given[True].any()


def test_arrays_on_cuda_are_refused(rng):
    q = rng.standard_normal((TOKENS, 4, DIM), np.float32)
    there = OnCuda(q)
    norm = Norm(OnCuda(np.ones(DIM, np.float32)), kind="rms", eps=1e-5)
    with pytest.raises(NotImplementedError, match="is on CUDA device 0, and backward_qk makes arrays of NumPy"):
        ROPE.backward_qk(there, None, 3, x=(there, None), norms=Norms(norm), out=(there, None))
    with pytest.raises(ValueError, match="x of q is on CUDA device 0, and its gradient on the CPU"):
        ROPE.backward_qk(q, None, 3, x=(there, None), norms=Norms(Norm(None, kind="rms_plain", eps=1e-5)), out=(q, None))
