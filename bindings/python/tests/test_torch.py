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


def test_what_has_no_gradient_says_so(qk):
    """Positions and rows, in every function: silence would be a gradient that is missing."""
    from torch.autograd import forward_ad

    q, k = qk
    of_q = q.clone()
    cos, sin = rows(ROPE, POSITIONS)
    norms = librope.Norms(librope.Norm(torch.ones(16), kind="rms", eps=1e-6))
    pairs = [(cos.clone().requires_grad_(), sin), (cos, sin.clone().requires_grad_())]
    calls = [dict(cos_sin=pair, cos_sin_format="full_halves") for pair in pairs]
    calls.append(dict(positions=torch.arange(6.0, requires_grad=True)))
    for given in calls:
        for function, more in (
            (ROPE.apply_qk, {}), (ROPE.apply_qk, dict(out=(torch.empty_like(q), None))), (ROPE.apply_qk, dict(norms=norms)),
            (ROPE.apply_qk_, {}), (ROPE.apply_qk_, dict(norms=norms)),
        ):  # fmt: skip
            with pytest.raises(NotImplementedError, match="no gradient|with a gradient"):
                function(q, k, **given, **more)
            with torch.no_grad():
                function(q.clone(), k.clone(), **given, **more)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.arange(6.0), torch.ones(6))
        for given in (dict(positions=dual), dict(cos_sin=(forward_ad.make_dual(cos, cos), sin), cos_sin_format="full_halves")):
            with pytest.raises(NotImplementedError, match="no gradient with respect to positions, cos and sin"):
                ROPE.apply_(q, **given)
        with pytest.raises(NotImplementedError, match="no gradient with respect to positions"):
            ROPE.cos_sin(dual, out=(torch.empty(6, 16), torch.empty(6, 16)))
    out = torch.empty(6, 16), torch.empty(6, 16)
    with pytest.raises(NotImplementedError, match="no gradient with respect to positions"):
        ROPE.cos_sin(torch.arange(6.0, requires_grad=True), out=out)
    assert torch.equal(q, of_q)


def test_rows_of_numpy_under_a_gradient(qk):
    x = qk[0].clone().requires_grad_()
    want = ROPE.apply(qk[0], POSITIONS, operation="backward")
    for dtype in ("float32", "bfloat16"):
        pair = ROPE.cos_sin(POSITIONS.numpy(), dtype=dtype)
        x.grad = None
        y = ROPE.apply(x, cos_sin=pair, cos_sin_format="full_halves")
        assert torch.equal(y, ROPE.apply(qk[0], cos_sin=pair, cos_sin_format="full_halves"))
        for one in pair:
            one[:] = 0  # which autograd does not see
        y.backward(qk[0])
        assert torch.allclose(x.grad, want, atol=1e-5 if dtype == "float32" else 0.05)
    cos = memoryview(np.zeros((6, 16), np.float32))
    with pytest.raises(TypeError, match="^cos is a builtins.memoryview beside a torch tensor"):
        ROPE.apply(x, cos_sin=(cos, cos), cos_sin_format="full_halves")


def test_rows_of_tensors_are_tensors():
    """Also where batch= and tokens= repeat them."""
    for positions, options in (
        (torch.arange(3), dict(batch=2)), (torch.arange(3)[None], dict(batch=2)), (torch.tensor(5), dict(tokens=4)),
        (torch.tensor([5, 7]), dict(tokens=4, positions_layout="b")), (torch.tensor(5), dict(tokens=0, batch=2)),
    ):  # fmt: skip
        for form in ("full_halves", "packed"):
            got = ROPE.cos_sin(positions, format=form, **options)
            want = ROPE.cos_sin(positions.numpy(), format=form, **options)
            pairs = [(got, want)] if form == "packed" else zip(got, want)
            assert all(type(g) is torch.Tensor and np.array_equal(g.numpy(), w) for g, w in pairs)
    torch._dynamo.reset()
    compiled = torch.compile(lambda p: ROPE.cos_sin(p, tokens=4, batch=2), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.tensor(5))[0], ROPE.cos_sin(torch.tensor(5), tokens=4, batch=2)[0])
    with pytest.raises(ValueError, match="^batch is 3, and must be 2"):
        ROPE.cos_sin(torch.zeros(2, 5, dtype=torch.int64), batch=3)
    with pytest.raises(TypeError, match="^positions has dtype bool, and must be int32"):
        ROPE.cos_sin(torch.tensor(True), tokens=4)
    with pytest.raises(TypeError, match="^tokens is True, and must be an int"):
        ROPE.cos_sin(torch.tensor(5), tokens=True)
    with pytest.raises(NotImplementedError, match="no gradient with respect to positions"):
        ROPE.cos_sin(torch.arange(3.0, requires_grad=True), batch=2)[0].sum().backward()


@pytest.mark.parametrize("how", ["gradient", "meta", "compiled"])
def test_errors_name_k_where_there_is_no_q(how):
    def run(k, **options):
        if how == "meta":
            k = k.to("meta")
        function = torch.compile(ROPE.apply_qk, backend="eager") if how == "compiled" else ROPE.apply_qk
        return function(None, k.requires_grad_(how == "gradient"), 0, **options)

    torch._dynamo.reset()
    for k in (torch.zeros(1, 2, 6, 10), torch.zeros(2, 6, 16)):
        with pytest.raises((ValueError, RuntimeError), match=r"\bk has (10 channels|shape \(2, 6, 16\), which is)"):
            run(k)
    assert run(torch.ones(1, 2, 6, 16), layout=("bshd", "bhsd"))[1].shape == (1, 2, 6, 16)
    if how == "gradient":
        k = torch.ones(1, 2, 6, 16, requires_grad=True)
        ROPE.apply_qk(None, k, 3)[1].sum().backward()
        assert torch.equal(k.grad, ROPE.apply(torch.ones(1, 2, 6, 16), 3, operation="backward"))


def test_wrong_forms_under_a_gradient_are_named(qk):
    x = qk[0].clone().requires_grad_()
    for offsets in (5, np.int64(5)):
        for operation in ("forward", "shift"):
            with pytest.raises(TypeError, match="^offsets is 5, and must be an array"):
                ROPE.apply(x, offsets=offsets, operation=operation)
    with pytest.raises(ValueError, match="^layout is .*, and must be one text for q and one for k"):
        ROPE.apply(x, 0, layout=("bhsd", "bhsd", "bhsd"))
    with pytest.raises(ValueError, match="^cos_sin has 3 arrays, and must be"):
        ROPE.apply(x, cos_sin=(x, x, x), cos_sin_format="full_halves")
    assert torch.equal(ROPE.apply(x, 3, layout=["bhsd", "bsd"]), ROPE.apply(qk[0], 3))


def test_meta_tensors_take_sequences_and_sets_as_others_do():
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="thd")
    q = torch.zeros(5, 2, 16, device="meta")
    for cu in ([0, 2, 5], torch.tensor([0, 2, 5], device="meta"), torch.tensor([0, 2, 5], dtype=torch.int32, device="meta")):
        assert rope.apply(q, 3, cu_seqlens=cu).shape == q.shape
    with pytest.raises(TypeError, match="cu_seqlens has dtype int16"):
        rope.apply(q, 3, cu_seqlens=torch.tensor([0, 2, 5], dtype=torch.int16, device="meta"))
