"""Prepared calls of torch tensors: the bits of apply_qk, and no way past what PyTorch has to see."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import librope  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bhsd")
POSITIONS = torch.arange(3, 9)


@pytest.fixture
def qk():
    torch.manual_seed(0)
    return torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16)


def same(got, want):
    for g, w in zip(got, want, strict=True):
        assert (g is None and w is None) or (torch.equal(g, w) and g.stride() == w.stride())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["dense", "transposed", "part", "expanded", "overlapping"])
@pytest.mark.parametrize("has_k", [True, False])
def test_the_bits_of_apply_qk(qk, dtype, form, has_k):
    """New tensors, out and in place; positions that have become others; tensors of another layer."""

    def shaped(x):
        x = x.to(dtype)
        if form == "transposed":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if form == "part":
            return torch.cat([x, x], 1)[:, : x.shape[1]]
        if form == "overlapping":  # a form that torch.empty_like() gives channels with gaps
            return x.as_strided(x.shape, (1, *x.stride()[1:]))
        return x[:, :1].expand(x.shape) if form == "expanded" else x.clone()

    def layer(scale):
        return tuple(shaped(scale * x) if has_k or i == 0 else None for i, x in enumerate(qk))

    positions = POSITIONS.clone()
    prepared = ROPE.prepare_qk(*layer(1), positions)
    in_place = None if form in ("expanded", "overlapping") else ROPE.prepare_qk(*layer(1), positions, out=layer(1))
    positions.zero_()
    for scale in (1, -3):
        q, k = layer(scale)
        want = ROPE.apply_qk(q, k, POSITIONS)
        same(prepared.apply_qk(q, k), want)
        out = tuple(x if x is None else torch.empty_like(x) for x in want)
        got = prepared.apply_qk(q, k, out=out)
        assert got[0] is out[0] and got[1] is out[1]
        same(got, want)
        if in_place is not None:
            assert in_place.apply_qk_(q, k) is None
            for x, w in zip((q, k), want):
                assert x is w is None or torch.equal(x, w)


def test_into_a_cache(qk):
    q, k = qk
    caches = torch.zeros(2, 2, 2, 64, 16)
    prepared = ROPE.prepare_qk(q, k, POSITIONS, out=(None, caches[0, :, :, 3:9]))
    want = ROPE.apply_qk(q, k, POSITIONS)
    for cache in caches:
        got = prepared.apply_qk(q, k, out=(None, cache[:, :, 3:9]))
        assert torch.equal(got[0], want[0]) and torch.equal(cache[:, :, 3:9], want[1])
    with pytest.raises(ValueError, match="out of k is required"):
        prepared.apply_qk(q, k)
    with pytest.raises(ValueError, match=r"prepare_qk\(\.\.\., out=\(q, k\)\)"):
        prepared.apply_qk_(q, k)


def test_arrays_of_numpy_are_the_same_to_it(qk):
    want = ROPE.apply_qk(*qk, POSITIONS)
    for examples in (qk, [x.numpy() for x in qk]):
        prepared = ROPE.prepare_qk(*examples, POSITIONS)
        for arrays in (qk, [x.numpy() for x in qk], (qk[0], qk[1].numpy())):
            got = prepared.apply_qk(*arrays)
            assert [type(x) for x in got] == [type(x) for x in arrays]
            assert all(torch.equal(torch.as_tensor(g), w) for g, w in zip(got, want))


def test_wrong_tensors_are_named_and_nothing_is_written(qk):
    q, k = qk
    prepared = ROPE.prepare_qk(q, k, POSITIONS)
    freed = torch.ones_like(q)
    freed.untyped_storage().resize_(0)
    wrong = [
        ((q[:, :3], k), ValueError, r"q has shape \(2, 3, 6, 16\), and the call was prepared for \(2, 4"),
        ((q, k.bfloat16()), TypeError, "k has dtype bfloat16, and the call was prepared for float32"),
        ((q.transpose(1, 2).contiguous().transpose(1, 2), k), ValueError, "q has strides"),
        ((q, None), ValueError, "k is None, and the call was prepared for one"),
        ((q, torch._neg_view(k)), TypeError, "k is a lazily negated view"),
        ((q.to_sparse(), k), TypeError, "q is a torch.sparse_coo tensor"),
        ((freed, k), ValueError, "q has no memory: its storage was freed"),
        ((q.to("meta"), k), NotImplementedError, "prepared calls are not available"),
        ((q.as_subclass(type("Sub", (torch.Tensor,), {})), k), NotImplementedError, "subclasses of tensors"),
    ]  # fmt: skip
    before = q.clone(), k.clone()
    for tensors, error, message in wrong:
        for call in (prepared.apply_qk, prepared.apply_qk_):
            with pytest.raises(error, match=message):
                call(*tensors)
            same((q, k), before)
    with pytest.raises(ValueError, match="out of q has shape"):
        prepared.apply_qk(q, k, out=(q[:, :3], None))


def test_gradients_are_refused(qk):
    q, k = qk
    x = q.clone().requires_grad_()
    prepared = ROPE.prepare_qk(q, k, POSITIONS)
    no_gradient = "prepared calls have no gradient: use apply_qk of the Rope, or torch.no_grad"
    for call in (prepared.apply_qk, prepared.apply_qk_, lambda q, k: ROPE.prepare_qk(q, k, 0)):
        with pytest.raises(NotImplementedError, match=no_gradient):
            call(x, k)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=no_gradient):
            call(forward_ad.make_dual(q, q), k)
    with pytest.raises(RuntimeError, match="requires a gradient cannot be rotated in place or be the"):
        prepared.apply_qk(q, k, out=(x, None))
    assert torch.equal(x, q)
    cos, sin = (torch.from_numpy(rows) for rows in ROPE.cos_sin(POSITIONS.numpy()))
    with pytest.raises(NotImplementedError, match=no_gradient):
        ROPE.prepare_qk(q, k, cos_sin=(cos.requires_grad_(), sin), cos_sin_format="full_halves")
    want = ROPE.apply_qk(q, k, POSITIONS)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            same(prepared.apply_qk(x, k), want)
            y = q.clone()
            prepared.apply_qk_(y, k.clone())
            assert torch.equal(y, want[0])


@pytest.mark.parametrize("how", ["out", "in place"])
def test_writes_are_announced_to_autograd(qk, how):
    q, k = qk
    y = q.clone().requires_grad_() * 1
    z = y.square().sum()
    prepared = ROPE.prepare_qk(q, k, POSITIONS)
    with torch.no_grad():
        if how == "out":
            prepared.apply_qk(q, k, out=(y, torch.empty_like(k)))
        else:
            prepared.apply_qk_(y, k)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_code_says_the_way_out(qk, fullgraph, in_place):
    """With a graph break it would cost more than it saves: apply_qk is traceable."""
    torch._dynamo.reset()
    prepared = ROPE.prepare_qk(*qk, POSITIONS)

    def f(q, k):
        q, k = q + 1, k + 1
        return prepared.apply_qk_(q, k) if in_place else prepared.apply_qk(q, k)

    error = torch._dynamo.exc.Unsupported if fullgraph else NotImplementedError
    with pytest.raises(error, match="not available in compiled.*: use apply_qk of the Rope"):
        torch.compile(f, fullgraph=fullgraph, backend="eager")(*qk)


def test_preparing_in_compiled_code_says_the_way_out(qk):
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError, match="not available in compiled"):
        torch.compile(lambda q, k: ROPE.prepare_qk(q, k, 0), backend="eager")(*qk)


def test_what_records_calls_is_refused(qk):
    prepared = ROPE.prepare_qk(*qk, POSITIONS)
    refused = pytest.raises(NotImplementedError, match="prepared calls are not available")
    with refused:
        torch.func.vmap(lambda q, k: prepared.apply_qk(q[None], k[None])[0])(*qk)
    with refused:
        torch.jit.trace(lambda q, k: prepared.apply_qk(q, k), qk)
    with torch.utils.flop_counter.FlopCounterMode(display=False), refused:
        prepared.apply_qk(*qk)


def test_the_profiler_sees_them(qk):
    prepared = ROPE.prepare_qk(*qk, POSITIONS)
    with torch.profiler.profile() as profile:
        prepared.apply_qk(*qk)
    assert [e.count for e in profile.key_averages() if e.key == "librope::apply"] == [1]


def test_tables_of_transformers(qk):
    cos, sin = (torch.from_numpy(np.asarray(x)).bfloat16() for x in ROPE.cos_sin(POSITIONS.numpy()))
    given = {"cos_sin": (cos, sin), "cos_sin_format": "full_halves"}
    prepared, want = ROPE.prepare_qk(*qk, **given), ROPE.apply_qk(*qk, **given)
    cos.zero_()
    same(prepared.apply_qk(*qk), want)
