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
MODULES = [
    (modeling_qwen3, modeling_qwen3.Qwen3RMSNorm, "rms", "eager"),
    (modeling_gemma3, modeling_gemma3.Gemma3RMSNorm, "rms_one_plus", "rounded"),
]


def whole(*shape, dtype):
    """Whole numbers, whose squares have one sum in any order."""
    return torch.randint(-40, 41, shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("module", "norm_class", "kind", "rounding"), MODULES)
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


UNIT = 2.0**-24  # what float32 rounds by, of a result
OURS, ANY_ORDER = DIM / 32 + 16, DIM + 16  # units of sums over the channels, with what follows: rope.h's, and the worst


class Wide(torch.nn.Module):
    """A norm in float64."""

    def __init__(self, weight, kind):
        super().__init__()
        self.weight, self.kind = torch.nn.Parameter(weight.detach().double()), kind

    def forward(self, x):
        return formula(x, self.kind, self.weight, None, 1e-6, -1)


def by_autograd(module, arrays, norms, rows, outer):
    """PyTorch's gradients of arrays and weights through modules and the rotation behind them."""
    turned = module.apply_rotary_pos_emb(*[one(x) for one, x in zip(norms, arrays, strict=True)], *rows)
    wanted = [*arrays, *[one.weight for one in norms]]
    return torch.autograd.grad(turned, wanted, [x.to(y.dtype) for x, y in zip(outer, turned, strict=True)])


def by_formula(x, weight, dy, size, kind, rounding):
    """Gradients of x and weight by the formulas of rope.h in float64, with the steps rounded to bfloat16 that
    `rounding` rounds. Beside each the sum of the sizes of its terms, of which UNIT is what float32 is off by in one step.
    dy: the gradient of the norm's result; size: of what dy was added up from."""
    r = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    t, w = x.double() * r, weight.double() + (kind == "rms_one_plus")
    g, factor = dy.double() * w, t
    if rounding == "eager":
        g = (dy * weight).double()
        # The x are whole numbers, so that this has one value in any order of the sum.
        factor = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype).double()
    dx = (g - t * (g * t).mean(-1, keepdim=True)) * r
    sizes = (size * w).abs(), (size * w * t).abs().mean(-1, keepdim=True)
    all_but_channels = tuple(range(x.dim() - 1))
    weight_grad, weight_size = (dy.double() * factor).sum(all_but_channels), (size * factor).abs().sum(all_but_channels)
    return (dx, (sizes[0] + t.abs() * sizes[1]) * r), (weight_grad, weight_size)


def check_rounded_once(found, value, error, least=0.0):
    """Each is a number within error of its value, rounded to the dtype once. least: the share that has no choice."""
    low, high = ((value + sign * error).to(found.dtype) for sign in (-1, 1))
    assert ((low <= found) & (found <= high)).all()
    assert (low == high).double().mean() >= least


def case(module, norm_class, dtype=torch.bfloat16, tokens=40):
    """Whole numbers as q and k, modules with weights, and gradients of what turned."""
    torch.manual_seed(5)
    arrays = [whole(2, heads, tokens, DIM, dtype=dtype).requires_grad_() for heads in (4, 2)]
    modules = [norm_class(DIM, eps=1e-6).to(dtype) for _ in arrays]
    for one in modules:
        one.weight.data = torch.randn(DIM).to(dtype)
    return arrays, modules, [torch.randn(x.shape).to(dtype) for x in arrays]


def rows_of(rope, x):
    made = rope.cos_sin(torch.arange(3, 3 + x.shape[2]), format="full_halves", dtype=str(x.dtype)[6:])
    return [one[None] for one in made]


def off(found, exact):
    """The error of gradients of q and k together."""
    return sum(float((a - b).square().sum() / b.square().sum()) for a, b in zip(found, exact, strict=True)) ** 0.5


@pytest.mark.parametrize(("module", "norm_class", "kind", "rounding"), MODULES)
def test_gradients_are_those_of_eager_modules(module, norm_class, kind, rounding):
    """Rounded where the backward pass of the modules rounds, so that each is the rounded result of the formulas, and
    the error beside float64 is that of eager PyTorch. Of Qwen3's weights it is smaller: PyTorch rounds the terms of
    that sum one by one."""
    rope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bhsd", rounding="eager")
    arrays, modules, outer = case(module, norm_class)
    rows = rows_of(rope, arrays[0])
    eager = by_autograd(module, arrays, modules, rows, outer)
    norms = Norms(*[Norm(one.weight, kind=kind, eps=1e-6, rounding=rounding) for one in modules])
    leaves = [*arrays, *[one.weight for one in modules]]
    got = torch.autograd.grad(rope.apply_qk(*arrays, 3, norms=norms), leaves, outer)
    wide = [x.detach().double().requires_grad_() for x in arrays]
    exact = by_autograd(module, wide, [Wide(one.weight, kind) for one in modules], [x.double() for x in rows], outer)

    back = rope.apply_qk(*outer, 3, operation="backward")
    for i, dy in enumerate(back):
        x, weight = arrays[i].detach(), modules[i].weight.detach()
        (dx, size), (dw, dw_size) = by_formula(x, weight, dy, dy.double(), kind, rounding)
        check_rounded_once(got[i], dx, 3 * OURS * UNIT * size, 0.95)
        check_rounded_once(eager[i], dx, 3 * ANY_ORDER * UNIT * size, 0.95)
        terms = (x[..., 0].numel() + DIM) * UNIT * dw_size
        check_rounded_once(got[2 + i], dw, terms, 0.5)
        each = 2.0**-8 * dw_size if rounding == "eager" else 0
        check_rounded_once(eager[2 + i], dw, terms + each)
    assert off(got[:2], exact[:2]) <= 1.001 * off(eager[:2], exact[:2])
    assert off(got[2:], exact[2:]) <= 1.001 * off(eager[2:], exact[2:])


@pytest.mark.parametrize(("module", "norm_class", "kind", "rounding"), MODULES)
def test_gradients_of_unrounded_norms_are_rounded_once(module, norm_class, kind, rounding):
    """With rounding "float32" those of float64 are rounded, and nothing on the way: closer than eager PyTorch."""
    rope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bhsd")
    arrays, modules, outer = case(module, norm_class)
    norms = Norms(*[Norm(one.weight, kind=kind, eps=1e-6) for one in modules])
    leaves = [*arrays, *[one.weight for one in modules]]
    got = torch.autograd.grad(rope.apply_qk(*arrays, 3, norms=norms), leaves, outer)
    wide = [x.detach().double().requires_grad_() for x in arrays]
    rows = [x.double() for x in rows_of(rope, arrays[0].float())]
    exact = by_autograd(module, wide, [Wide(one.weight, kind) for one in modules], rows, outer)
    for i, x in enumerate(outer):
        pairs = x.double().abs() + x.double().abs().roll(DIM // 2, -1)
        (_, size), (_, dw_size) = by_formula(arrays[i].detach(), modules[i].weight.detach(), x, pairs, kind, "float32")
        check_rounded_once(got[i], exact[i], 3 * OURS * UNIT * size, 0.95)
        check_rounded_once(got[2 + i], exact[2 + i], (x[..., 0].numel() + DIM) * UNIT * dw_size, 0.5)
    eager = by_autograd(module, arrays, modules, rows_of(rope, arrays[0]), outer)
    assert off(got[:2], exact[:2]) < 0.8 * off(eager[:2], exact[:2])


GROUPS, OF_GROUP = 3, 4  # groups of a packed QKV, and the heads of q in each


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_with_batch_repeat(dtype, compiled):
    """Through views of a grouped QKV, of which each group is a batch row: the bits of ids that are spelt out, repeated
    or one row for all; and float64's gradients in the packed tensor and in the weights."""
    torch.manual_seed(6)
    batch, tokens = 2, 5
    rope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="sbhd")
    packed = torch.randn(tokens, batch, GROUPS, OF_GROUP + 2, DIM).to(dtype).requires_grad_()
    weights = [torch.randn(DIM).to(dtype).requires_grad_() for _ in "qk"]
    leaves = [packed, *weights]
    outer = [torch.randn(tokens, batch * GROUPS, heads, DIM).to(dtype) for heads in (OF_GROUP, 1)]
    ids = torch.randint(999, (batch, tokens))

    def turned(packed, q_weight, k_weight, ids, repeat):
        rows = packed.view(tokens, batch * GROUPS, OF_GROUP + 2, DIM)
        norms = Norms(Norm(q_weight, kind="rms", eps=1e-6), Norm(k_weight, kind="layer", eps=1e-6))
        return rope.apply_qk(rows[:, :, :OF_GROUP], rows[:, :, OF_GROUP:-1], ids, norms=norms, batch_repeat=repeat)

    torch._dynamo.reset()
    run = torch.compile(turned, fullgraph=True, backend="aot_eager") if compiled else turned

    def gradients(ids, repeat=None):
        return torch.autograd.grad(run(*leaves, ids, repeat), leaves, outer)

    got = gradients(ids, GROUPS)
    want = gradients(ids.repeat_interleave(GROUPS, 0))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    one = gradients(ids[:1])
    everywhere = ids[0].expand(batch * GROUPS, tokens)  # of stride 0
    for same in (gradients(ids[:1], GROUPS), gradients(everywhere), gradients(ids[0], GROUPS)):
        assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0], got[0])

    wide = [x.detach().double().requires_grad_() for x in leaves]
    rows = rope.cos_sin(ids.repeat_interleave(GROUPS, 0), format="full_halves")
    cos, sin = (x.double().transpose(0, 1)[:, :, None] for x in rows)
    heads = wide[0].flatten(1, 2)
    q = formula(heads[:, :, :OF_GROUP], "rms", wide[1], None, 1e-6, -1)
    k = heads[:, :, OF_GROUP:-1]
    k = formula(k - k.mean(-1, keepdim=True), "rms", wide[2], None, 1e-6, -1)
    exact = torch.autograd.grad(
        [x * cos + modeling_qwen3.rotate_half(x) * sin for x in (q, k)], wide, [x.double() for x in outer]
    )
    assert not got[0][..., -1, :].any()  # of v, which nothing has read
    for a, b in zip(got, exact, strict=True):
        assert (a - b).abs().max() <= (2e-6 if dtype == torch.float32 else 2.0**-8) * b.abs().max()


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
