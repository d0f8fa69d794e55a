"""torch tensors: values, gradients, compilation, streams of autograd's bookkeeping."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402

torch.set_num_threads(1)


def eager(x, cos, sin):
    """transformers' formula for halves, [b, h, s, d]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def rows(rope, positions):
    return [torch.from_numpy(t) for t in rope.cos_sin(positions.numpy())]


@pytest.fixture
def qk():
    torch.manual_seed(0)
    return torch.randn(2, 4, 6, 16), torch.randn(2, 2, 6, 16)


ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bhsd")
YARN = librope.Rope(head_dim=16, theta=1e4, pairing="interleaved", layout="bhsd", scaling="yarn",
                    factor=8.0, original_max_position_embeddings=64)  # fmt: skip
POSITIONS = torch.arange(6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values(qk, dtype):
    q, k = (x.to(dtype) for x in qk)
    want = [torch.from_numpy(ROPE.apply(x.float().numpy(), POSITIONS.numpy())).to(dtype) for x in (q, k)]
    got = ROPE.apply_qk(q, k, POSITIONS)
    assert all(torch.equal(g, w) for g, w in zip(got, want))
    ROPE.apply_qk_(q, k, POSITIONS)
    assert all(torch.equal(g, w) for g, w in zip((q, k), want))


def test_strides_are_kept(qk):
    q = qk[0].transpose(1, 2).contiguous().transpose(1, 2)  # bhsd view of bshd memory
    out, none = ROPE.apply_qk(q, None, POSITIONS)
    assert none is None and out.stride() == q.stride()
    assert torch.equal(out, ROPE.apply(qk[0], POSITIONS))


@pytest.mark.parametrize("rope", [ROPE, YARN])
@pytest.mark.parametrize("operation", ["forward", "backward", "inverse"])
def test_gradients(qk, rope, operation):
    """The vector-Jacobian product against the map itself, one unit vector at a time, in float64."""
    x = torch.randn(1, 1, 2, 16)
    basis = torch.eye(32).view(32, 1, 2, 16)
    ids = torch.tensor([3, 50])
    matrix = rope.apply(basis, ids, operation=operation).reshape(32, 32).double()
    x.requires_grad_()
    w = torch.randn(1, 1, 2, 16)
    rope.apply(x, ids, operation=operation).backward(w)
    want = matrix @ w.reshape(32).double()
    assert (x.grad.reshape(32).double() - want).abs().max() < 2e-6


def test_gradients_equal_autograds_through_the_formula(qk):
    q, k = (x.clone().requires_grad_() for x in qk)
    cos, sin = rows(ROPE, POSITIONS)
    w, v = torch.randn_like(q), torch.randn_like(k)

    def grads(pair):
        return torch.autograd.grad((pair[0] * w).sum() + (pair[1] * v).sum(), (q, k))

    ours = grads(ROPE.apply_qk(q, k, POSITIONS))
    theirs = grads((eager(q, cos, sin), eager(k, cos, sin)))
    for a, b, g in zip(ours, theirs, (w, v)):
        assert (a - b).abs().max() <= 4 * 2.0**-24 * 2 * g.abs().max()


def test_gradient_of_expanded_and_second_order(qk):
    q = qk[0].clone().requires_grad_()
    ROPE.apply(q, POSITIONS).sum().backward()
    first = q.grad.clone()
    (g,) = torch.autograd.grad(ROPE.apply(q, POSITIONS).square().sum(), q, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), q)
    assert torch.allclose(gg, torch.full_like(gg, 2), atol=1e-5)
    assert torch.allclose(first, ROPE.apply(torch.ones_like(q), POSITIONS, operation="backward"))


def test_only_k_requires_gradient(qk):
    k = qk[1].clone().requires_grad_()
    a, b = ROPE.apply_qk(qk[0], k, POSITIONS)
    b.sum().backward()
    assert k.grad is not None and not torch.equal(a, qk[0])


def test_compile_without_graph_break(qk):
    torch._dynamo.reset()
    q, k = (x.clone().requires_grad_() for x in qk)
    cos, sin = rows(ROPE, POSITIONS)
    compiled = torch.compile(
        lambda q, k, p: tuple(2 * x for x in ROPE.apply_qk(q, k, p)), fullgraph=True
    )
    got = compiled(q, k, POSITIONS)
    want = [2 * eager(x, cos, sin) for x in (q, k)]
    for g, w in zip(got, want):
        assert torch.allclose(g, w, atol=2e-6)
    ours = torch.autograd.grad(sum(x.square().sum() for x in got), (q, k))
    theirs = torch.autograd.grad(sum(x.square().sum() for x in want), (q, k))
    for a, b in zip(ours, theirs):
        assert torch.allclose(a, b, atol=2e-5)
    explained = torch._dynamo.explain(lambda q, k: ROPE.apply_qk(q, k, POSITIONS))(q, k)
    assert explained.graph_break_count == 0


def test_module(qk):
    torch._dynamo.reset()
    module = lt.RotaryEmbedding(ROPE)
    want = ROPE.apply_qk(*qk, POSITIONS)
    assert all(torch.equal(a, b) for a, b in zip(module(*qk, POSITIONS), want))
    assert torch.equal(module(qk[0], positions=POSITIONS), want[0])
    assert not list(module.parameters()) and "head_dim=16" in repr(module)
    got = torch.compile(module, fullgraph=True)(*qk, POSITIONS)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_operator_checks(qk):
    pair = [qk[0], qk[1]]
    torch.library.opcheck(
        torch.ops.librope.apply.default, (pair, POSITIONS, 0, ROPE.spec, "bhsd", 0, False, "")
    )
    cos, sin = rows(ROPE, POSITIONS)
    torch.library.opcheck(
        torch.ops.librope.apply_rows.default, (pair, cos, sin, ROPE.spec, "bhsd", 0, "full_halves")
    )


def test_in_place_and_autograd(qk):
    q = qk[0].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="gradient"):
        ROPE.apply_(q, 0)
    with torch.no_grad():
        ROPE.apply_(q, 0)
    x = torch.randn(1, 1, 1, 16, requires_grad=True)
    y = x * 1
    z = y.square()
    with torch.no_grad():
        ROPE.apply_(y, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_positions_kinds(qk):
    q = qk[0]
    want = ROPE.apply(q, 5)
    assert torch.equal(ROPE.apply(q, torch.arange(5, 11)), want)
    assert torch.equal(ROPE.apply(q, torch.arange(5, 11, dtype=torch.int32)[None]), want)
    assert torch.equal(ROPE.apply(q, offsets=torch.tensor([5, 5])), want)
    assert torch.equal(ROPE.apply(q, np.arange(5, 11)), want)
    assert torch.equal(ROPE.apply(q, torch.arange(5.0, 11)), want)


def test_rows(qk):
    q, k = (x.clone().requires_grad_() for x in qk)
    cos, sin = rows(ROPE, POSITIONS)
    got = lt.apply_rows(ROPE, q, k, cos, sin, format="full_halves")
    assert torch.equal(got[0], ROPE.apply(qk[0], POSITIONS))
    a = torch.autograd.grad(got[0].square().sum(), q)[0]
    b = torch.autograd.grad(eager(q, cos, sin).square().sum(), q)[0]
    assert torch.allclose(a, b, atol=1e-5)
    with torch.no_grad():
        again = lt.apply_rows(ROPE, q, None, cos, sin, format="full_halves")
    assert torch.equal(again[0], got[0])


def test_refusals(qk):
    with pytest.raises(TypeError, match="float64"):
        ROPE.apply(qk[0].double(), 0)
    with pytest.raises(ValueError, match="positions"):
        ROPE.apply(qk[0].clone().requires_grad_())
    with pytest.raises(NotImplementedError, match="out="):
        ROPE.apply(qk[0].clone().requires_grad_(), 0, out=torch.empty_like(qk[0]))


def test_config_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_theta=5e5)
    rope = librope.Rope.from_config(config)
    assert rope.head_dim == 16 and rope.config["pairing"] == "halves"
    model = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(rope.inv_freq, model.inv_freq.double().numpy(), rtol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda(qk):
    q = qk[0].cuda()
    try:
        got = ROPE.apply(q, torch.arange(6, device="cuda"))
    except RuntimeError as e:
        pytest.skip(f"built without CUDA: {e}")
    assert torch.allclose(got.cpu(), ROPE.apply(qk[0], POSITIONS), atol=1e-6)
    with pytest.raises(ValueError, match="positions is on the CPU"):
        ROPE.apply(q, torch.arange(6))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ROPE.apply_(q, torch.arange(6, device="cuda"))
    stream.synchronize()
    assert torch.equal(q, got)


def test_functorch(qk):
    q = qk[0]
    g = torch.func.grad(lambda x: (ROPE.apply(x, POSITIONS) ** 2).sum())(q)
    assert torch.allclose(g, 2 * q, atol=1e-5)
    ids = torch.stack([POSITIONS, POSITIONS + 9])
    got = torch.func.vmap(lambda x, p: ROPE.apply(x[None], p)[0])(q, ids)
    for i in range(2):
        assert torch.equal(got[i], ROPE.apply(q[i : i + 1], ids[i])[0])
    per_sample = torch.func.vmap(torch.func.grad(lambda x: ROPE.apply(x[None], 3).sum()))(q)
    want = ROPE.apply(torch.ones_like(q), 3, operation="backward")
    assert torch.allclose(per_sample, want, atol=1e-6)


def test_export(qk, tmp_path):
    module = lt.RotaryEmbedding(ROPE)
    torch.export.save(torch.export.export(module, (*qk, POSITIONS)), tmp_path / "rope.pt2")
    loaded = torch.export.load(tmp_path / "rope.pt2").module()
    for got, want in zip(loaded(*qk, POSITIONS), ROPE.apply_qk(*qk, POSITIONS)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("grad", [False, True])
def test_axes_of_positions_are_not_guessed(grad):
    """As many rows as axes, and images, with a gradient (and so through the operators) and without."""
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", axes=3, mrope_section=[2, 3, 3], layout="bshd")
    q = torch.randn(3, 5, 2, 16, requires_grad=grad)
    ids = torch.arange(15).reshape(3, 5)
    compiled = torch.compile(rope.apply, backend="eager")
    for function in (rope.apply, compiled):
        with pytest.raises(ValueError, match="positions_layout must say which they are, 'bt' or 'at'"):
            function(q, ids)
    with pytest.raises(ValueError, match="positions_layout must say"):
        rope.apply(q.to("meta"), ids.to("meta"))
    whole = ids[:, None].expand(3, 3, 5)
    want = rope.apply(q, whole)
    assert torch.equal(rope.apply(q, ids, positions_layout="at"), want)
    image = rope.replace(ids_per_axis=True)
    for positions in (0, ids[0], ids, ids[0].tolist()):
        for function in (image.apply, torch.compile(image.apply, backend="eager")):
            with pytest.raises(ValueError, match="positions gives each token one id"):
                function(q, positions)
    with pytest.raises(ValueError, match="offsets gives each token one id"):
        image.apply(q, offsets=ids[:, 0])
    with pytest.raises(ValueError, match="positions gives each token one id"):
        image.cos_sin(ids[0])
    out = image.apply(q, whole)
    assert torch.equal(out, want)
    if grad:
        out.sum().backward()
        assert torch.equal(q.grad, rope.apply(torch.ones_like(q).detach(), whole, operation="backward"))
    with pytest.raises(ValueError, match="positions has nan, and must be finite"):
        image.apply(q, whole.float().masked_fill(whole == 7, torch.nan))
