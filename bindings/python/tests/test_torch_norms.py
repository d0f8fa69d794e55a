"""Norms in PyTorch: those of transformers' modules, compiled code, and no way past autograd."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.gemma3 import modeling_gemma3  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

import librope  # noqa: E402
from librope import Norm, Norms  # noqa: E402

torch.set_num_threads(1)
DIM, TOKENS = 64, 7


def whole(*shape, dtype):
    """Whole numbers, whose squares have one sum in any order."""
    return torch.randint(-40, 41, shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("module", "norm_class", "kind", "rounding"),
    [
        (modeling_qwen3, modeling_qwen3.Qwen3RMSNorm, "rms", "eager"),
        (modeling_gemma3, modeling_gemma3.Gemma3RMSNorm, "rms_one_plus", "rounded"),
    ],
)
@torch.no_grad()
def test_are_those_of_transformers(dtype, module, norm_class, kind, rounding):
    """The norm bit for bit; with the rotation, which transformers rounds after each product, as the
    rotation alone is."""
    torch.manual_seed(3)
    q, k = whole(1, 4, TOKENS, DIM, dtype=dtype), whole(1, 2, TOKENS, DIM, dtype=dtype)
    theirs = [norm_class(DIM, eps=1e-6).to(dtype) for _ in range(2)]
    for norm in theirs:
        norm.weight.copy_(torch.randn(DIM))
    norms = Norms(*[Norm(n.weight, kind=kind, eps=1e-6, rounding=rounding) for n in theirs])
    nope = librope.Rope(head_dim=DIM, scaling="nope", layout="bhsd")
    normed = [n(x) for n, x in zip(theirs, (q, k), strict=True)]
    for got, want in zip(nope.apply_qk(q, k, 0, norms=norms), normed, strict=True):
        assert torch.equal(got, want)
    rope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bhsd", rounding="eager")
    cos, sin = rope.cos_sin(torch.arange(3, 3 + TOKENS), format="full_halves", dtype=str(dtype)[6:])
    want = module.apply_rotary_pos_emb(*normed, cos[None], sin[None])
    got = rope.apply_qk(q, k, 3, norms=norms)
    alone = rope.apply_qk(*normed, 3)
    for a, b, c in zip(got, want, alone, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(a, b)


ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd")


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, h, DIM) for h in (4, 2, 2))


@pytest.fixture
def weights():
    torch.manual_seed(1)
    return torch.randn(DIM), torch.randn(2, DIM, dtype=torch.bfloat16)


def norms_of(q_weight, k_weight, v=True):
    return Norms(
        Norm(q_weight, kind="rms", eps=1e-6), Norm(k_weight, kind="layer", eps=1e-5),
        Norm(kind="rms_plain", eps=1e-6) if v else None,
    )  # fmt: skip


def call(q, k, v, k_cache, v_cache, slots, q_weight, k_weight):
    cache = librope.KVCache(k_cache, v_cache, layout="nhd", slots=slots)
    return ROPE.apply_qk(q, k, 5, v=v, cache=cache, norms=norms_of(q_weight, k_weight))[0]


def test_compiled_code_has_the_bits_of_eager_code(tensors, weights):
    slots = torch.tensor([3, 9, -1, 0, 11, 8])
    results = []
    with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        for run in (call, torch.compile(call, fullgraph=True)):
            caches = torch.zeros(3, 4, 2, DIM), torch.zeros(3, 4, 2, DIM)
            results.append((run(*tensors, *caches, slots, *weights), *caches))

    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and a.any()
    with torch.no_grad():
        want = librope.Rope(head_dim=DIM, scaling="nope", layout="bshd").apply_qk(
            *tensors[:2], 0, norms=norms_of(*weights), v=tensors[2], out=(None, None, torch.empty_like(tensors[2]))
        )
        assert torch.equal(results[0][0], ROPE.apply_qk(*want, 5)[0])


def test_operator_keeps_the_rules_of_operators(tensors, weights):
    q, k, v = tensors
    norms = norms_of(*weights)
    arrays = weights[0], None, None, weights[1], None, None, None, None, None
    arguments = (q, k, v, torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None, None, "", None, None,
                 None, None, *arrays, ",".join(n.form for n in (norms.q, norms.k, norms.v)), torch.arange(3), 0,
                 ROPE.spec, "bshd", 0, False, "")  # fmt: skip
    torch.library.opcheck(torch.ops.librope.apply_fused_.default, arguments)


def formula(x, kind, weight, bias, eps, together):
    """A norm in the dtype of x, over the last dimensions."""
    mean = x.mean(together, keepdim=True) if kind == "layer_bias" else 0
    scaled = (x - mean) * torch.rsqrt((x - mean).square().mean(together, keepdim=True) + eps)
    return scaled * (1 + weight if kind == "rms_one_plus" else weight) + (0 if bias is None else bias)


@pytest.mark.parametrize(("kind", "span"), [("rms", "head"), ("rms_one_plus", "all_heads"), ("layer_bias", "head")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_float64(tensors, kind, span, dtype):
    """Of q, k, weights and biases, beside the formula with PyTorch's own gradients."""
    torch.manual_seed(2)
    rows = (2, DIM) if span == "all_heads" else (DIM,)
    given = [x.to(dtype) for x in (tensors[1], tensors[2])] + [torch.randn(rows).to(dtype) for _ in range(4)]
    if kind != "layer_bias":
        given[4] = given[5] = None
    leaves = [x if x is None else x.requires_grad_() for x in given]
    q, k, q_weight, k_weight, q_bias, k_bias = leaves
    norms = Norms(*[
        Norm(w, kind=kind, eps=1e-6, bias=b, span=span) for w, b in ((q_weight, q_bias), (k_weight, k_bias))
    ])  # fmt: skip
    wanted = [x for x in leaves if x is not None]
    got = ROPE.apply_qk(q, k, 5, norms=norms)
    outer = [torch.randn(x.shape, dtype=torch.float64).to(dtype) for x in got]
    ours = torch.autograd.grad(got, wanted, outer)

    wide = [x if x is None else x.detach().double().requires_grad_() for x in leaves]
    together = (-2, -1) if span == "all_heads" else -1
    normed = [formula(wide[i], kind, wide[2 + i], wide[4 + i], 1e-6, together) for i in range(2)]
    cos, sin = (x.double() for x in ROPE.cos_sin(torch.arange(5, 8), format="split", dtype="float32"))
    turned = []
    for x in normed:
        a, b = x.chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        turned.append(torch.cat((a * c - b * s, a * s + b * c), -1))
    theirs = torch.autograd.grad(turned, [x for x in wide if x is not None], [x.double() for x in outer])
    tolerance = 2e-6 if dtype == torch.float32 else 5e-3
    for a, b in zip((*got, *ours), (*turned, *theirs), strict=True):
        assert a.dtype == dtype
        assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_gradients_of_compiled_code_have_the_bits_of_eager_code(tensors, weights):
    q, k, _ = tensors
    leaves = [x.detach().requires_grad_() for x in (q, k, *weights)]

    def run(q, k, q_weight, k_weight):
        return ROPE.apply_qk(q, k, 5, norms=norms_of(q_weight, k_weight, v=False))

    results = []
    with torch._inductor.config.patch(force_disable_caches=True):
        for function in (run, torch.compile(run, fullgraph=True)):
            results.append(torch.autograd.grad(function(*leaves), leaves, [torch.ones_like(q), torch.ones_like(k)]))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and a.any()
    partly = [x.requires_grad_(i in (1, 2)) for i, x in enumerate(x.detach() for x in leaves)]
    alone = torch.autograd.grad(run(*partly), partly[1:3], [torch.ones_like(q), torch.ones_like(k)])
    for a, b in zip(alone, results[0][1:3], strict=True):
        assert torch.equal(a, b)


def test_what_has_no_gradient_says_so_and_writes_are_announced(tensors, weights):
    q, k, v = tensors
    weight = torch.nn.Parameter(weights[0])
    norms = Norms(Norm(weight, kind="rms", eps=1e-6))
    for refused in (
        lambda: ROPE.apply_qk_(q, k, 5, norms=norms),
        lambda: ROPE.apply_qk(q, k, 5, norms=norms, out=(torch.empty_like(q), torch.empty_like(k))),
        lambda: ROPE.apply_qk(q, k, 5, norms=norms, v=v, out=(None, None, torch.empty_like(v))),
    ):
        with pytest.raises(NotImplementedError, match="no gradient goes through v=, cache=, rest= and out="):
            refused()
    after = Norms(Norm(weight, kind="rms", eps=1e-6, order="after"))
    with pytest.raises(NotImplementedError, match=r"norms.q has order 'after', which has no gradient"):
        ROPE.apply_qk(q, k, 5, norms=after)
    with pytest.raises(NotImplementedError, match=r"must be None with operation 'backward'"):
        ROPE.apply_qk(q, k, 5, norms=norms, operation="backward")
    with torch.no_grad():
        version = q._version
        ROPE.apply_qk_(q, k, 5, norms=norms)
        assert q._version > version
    with pytest.raises(TypeError, match=r"norms.q.weight is a ndarray"):
        torch.compile(lambda q: ROPE.apply(q, 5, norms=Norms(Norm(weights[0].numpy(), kind="rms", eps=1))))(q)


def test_steps_with_norms_take_a_short_way(tensors, weights):
    """Calls like the first one: with what the norms are now, and as they are without a short way."""
    q, k, v = tensors
    q_weight, k_weight = weights[0].clone(), weights[1].clone()
    other = torch.randn(2, DIM)
    norms = [
        norms_of(q_weight, k_weight), norms_of(q_weight, k_weight, v=False), norms_of(other[0], k_weight),
        Norms(Norm(q_weight, kind="rms", eps=1e-2)), Norms(Norm(q_weight, kind="rms_one_plus", eps=1e-6)),
        Norms(k=Norm(q_weight, kind="rms", eps=1e-6, order="after")), Norms(v=Norm(kind="rms_plain", eps=1e-6)),
        Norms(Norm(other.repeat(2, 1), kind="rms", span="given", rstd=torch.rand(2, 3)), Norm(q_weight.half(), kind="rms", eps=1e-6)),
    ]  # fmt: skip
    rope = ROPE.replace(layout=ROPE.layout)

    def step(rope, norms, in_place=False):
        pages = torch.full((2, 2, 4, 2, DIM), 7.0)
        cache = librope.KVCache(*pages, layout="nhd", slots=torch.tensor([[3, 0, -1], [7, 2, 5]]))
        made = []
        for _ in range(2):
            if in_place:
                made.append(q.clone())
                rope.apply_qk_(made[-1], k, 5, v=v, cache=cache, norms=norms)
            else:
                made.append(rope.apply_qk(q, k, 5, v=v, cache=cache, norms=norms)[0])
        assert torch.equal(*made)
        return made[0], pages

    for round in range(2):
        for each in norms:
            want = step(ROPE.replace(layout=ROPE.layout), each)
            for in_place in (False, True):
                got = step(rope, each, in_place)
                assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), (round, each)
        q_weight.mul_(2)
        k_weight.data = torch.randn(2, DIM, dtype=torch.bfloat16)  # other memory
    pages = torch.zeros(2, 2, 4, 2, DIM)
    cache = librope.KVCache(*pages, layout="nhd", slots=torch.tensor([[3, 0, -1], [7, 2, 5]]))
    learned = Norms(Norm(torch.nn.Parameter(q_weight), kind="rms", eps=1e-6))
    with torch.no_grad():
        for _ in range(2):
            rope.apply_qk_(q.clone(), k, 5, v=v, cache=cache, norms=learned)
    with pytest.raises(NotImplementedError, match="no gradient goes through"):
        rope.apply_qk_(q, k, 5, v=v, cache=cache, norms=learned)
    with pytest.raises(ValueError, match=r"norms.q.weight"):
        rope.apply_qk_(q, k, 5, v=v, cache=cache, norms=norms_of(q_weight[:-1], k_weight))
