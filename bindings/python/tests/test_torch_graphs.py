"""torch: graphs that are recorded (torch.export, make_fx, torch.compile) have the values and gradients of eager calls,
also where they are recorded without a gradient and run with one."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402
from librope._norm import norm_forms  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
POSITIONS = torch.arange(5)
COS, SIN = ROPE.cos_sin(POSITIONS)


def normed(weight, k_weight=None):
    return librope.Norms(
        librope.Norm(weight, kind="rms", eps=1e-6),
        None if k_weight is None else librope.Norm(k_weight, kind="rms", eps=1e-6),
    )


CALLS = {
    "positions": lambda x, norm: ROPE.apply(x, POSITIONS),
    "rows": lambda x, norm: ROPE.apply(x, cos_sin=(COS, SIN), cos_sin_format="full_halves"),
    "norms": lambda x, norm: ROPE.apply(x, POSITIONS, norms=normed(norm)),
}


class Layer(torch.nn.Module):
    """A call, what comes before it, and a residual, which alone would give a wrong gradient without a word."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        self.scale = torch.nn.Parameter(torch.linspace(1, 2, 16))
        self.norm = torch.nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x):
        x = x * self.scale
        return CALLS[self.call](x, self.norm) + x


@pytest.fixture
def q():
    torch.manual_seed(0)
    return torch.randn(2, 5, 3, 16)


def gradients(function, inputs, given):
    return torch.autograd.grad((function(given) * torch.linspace(-1, 1, given.numel()).view_as(given)).sum(), inputs)


def assert_alike(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.any()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_exported_programs_have_gradients(q, call, strict, grad):
    torch._dynamo.reset()
    layer = Layer(call)
    names = ("scale", "norm") if call == "norms" else ("scale",)
    want = gradients(layer, [layer.get_parameter(n) for n in names], q)
    with torch.set_grad_enabled(grad):
        program = torch.export.export(layer, (q,), strict=strict)
    for one in (program, program.run_decompositions()):
        made = one.module()
        assert torch.equal(made(q), layer(q))
        assert_alike(gradients(made, [made.get_parameter(n) for n in names], q), want)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_graphs_of_make_fx_have_gradients(q, call, grad, pre_dispatch):
    layer = Layer(call).requires_grad_(grad)
    graph = make_fx(layer, pre_dispatch=pre_dispatch)(q.clone().requires_grad_(grad))
    x = (2 * q).requires_grad_()
    assert torch.equal(graph(x), layer(x))
    assert_alike(gradients(graph, x, x), gradients(layer, x, x))


def in_place(x):
    x = x * 1
    ROPE.apply_(x, POSITIONS)
    return x


def to_output(x):
    out = torch.empty_like(x)
    ROPE.apply(x, POSITIONS, out=out)
    return out


@pytest.mark.parametrize("write", [in_place, to_output])
@pytest.mark.parametrize("recorded", ["export", "strict export", "decomposed export", "make_fx", "early make_fx"])
def test_recorded_writes_lose_no_gradient(q, write, recorded):
    """Nothing can go through them, as in eager code: they are made without one, and refused with one."""
    torch._dynamo.reset()

    class Module(torch.nn.Module):
        def forward(self, x):
            return write(x) + x

    if recorded.endswith("make_fx"):
        graph = make_fx(Module(), pre_dispatch=recorded != "make_fx")(q)
    else:
        program = torch.export.export(Module(), (q,), strict=recorded == "strict export")
        graph = (program.run_decompositions() if recorded == "decomposed export" else program).module()
    x = (3 * q).requires_grad_()
    with torch.no_grad():
        assert torch.equal(graph(x), ROPE.apply(x, POSITIONS) + x)
    with pytest.raises(NotImplementedError, match=r"no gradient goes through librope::apply_\w*, .*no_grad"):
        graph(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_writes_without_a_gradient_are_made_beside_what_has_one(q, backend):
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.ones(16))

    def run(x):
        x = x * weight
        with torch.no_grad():
            kept = x.detach().clone()
            ROPE.apply_(kept, POSITIONS)
            ROPE.apply(x, POSITIONS, out=(out := torch.empty_like(x)), norms=normed(weight))
        return x.sum(), kept, out

    want, got = run(q), torch.compile(run, fullgraph=True, backend=backend)(q)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert_alike(torch.autograd.grad(got[0], weight), torch.autograd.grad(want[0], weight))


def test_make_fx_before_dispatch_records_prepared_and_bound_calls_nowhere(q):
    prepared = ROPE.prepare_qk(q, None, POSITIONS)
    with pytest.raises(NotImplementedError, match="prepared calls are not available"):
        make_fx(lambda x: prepared.apply_qk(x)[0], pre_dispatch=True)(q)


WEIGHT = torch.linspace(0.5, 1.5, 16)
TWICE = {
    "one weight": lambda q, w: ROPE.apply_qk(q, 2 * q, POSITIONS, norms=normed(w, w)),
    "one constant weight": lambda q, w: ROPE.apply_qk(q, 2 * q, POSITIONS, norms=normed(WEIGHT, WEIGHT)),
    "weight is bias": lambda q, w: ROPE.apply_qk(
        q, 2 * q, POSITIONS, norms=librope.Norms(librope.Norm(w, kind="layer_bias", eps=1e-6, bias=w))
    ),
    "q is k": lambda q, w: ROPE.apply_qk(q, q, POSITIONS),
    "q is k, rows": lambda q, w: ROPE.apply_qk(q, q, cos_sin=(COS, SIN), cos_sin_format="full_halves"),
    "q is k, norms": lambda q, w: ROPE.apply_qk(q, q, POSITIONS, norms=normed(w, 2 * w)),
    "cos is sin": lambda q, w: ROPE.apply_qk(q, 2 * q, cos_sin=(COS, COS), cos_sin_format="full_halves"),
}


@pytest.mark.parametrize("call", TWICE)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_one_tensor_may_be_two_arguments_of_a_compiled_call(q, call, backend, which):
    torch._dynamo.reset()
    leaves = [x.clone().requires_grad_(i in which) for i, x in enumerate((q, WEIGHT))]
    want = TWICE[call](*leaves)
    got = torch.compile(TWICE[call], fullgraph=True, backend=backend)(*leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    if want[0].requires_grad:
        found = [
            torch.autograd.grad(sum((y * y).sum() for y in out), [leaves[i] for i in which], allow_unused=True)
            for out in (want, got)
        ]
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("both", [False, True])
def test_the_operator_with_norms_keeps_the_rules_of_operators(q, both):
    weights = [WEIGHT.clone().requires_grad_(), None, None] * (1 + both) + [None] * (6 - 3 * both)
    k = (2 * q).requires_grad_() if both else None
    norms = normed(weights[0], weights[3] if both else None)
    arguments = (
        q.clone().requires_grad_(), k, *weights, norm_forms(norms), POSITIONS, 0, ROPE.spec, "bshd", 0, False, "",
    )  # fmt: skip
    torch.library.opcheck(torch.ops.librope.apply_normed.default, arguments)
    with pytest.raises(NotImplementedError, match="do not go through norms="):
        torch.func.vmap(lambda x: torch.ops.librope.apply_normed(x, *arguments[1:])[0])(q.unsqueeze(0))
    assert lt.FLOPS[torch.ops.librope.apply_normed](q.shape, None) == 3 * q.numel()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["positions", "rows"])
def test_derivatives_of_torch_func_in_compiled_code(name, backend):
    def turn(x):
        return CALLS[name](x, None)

    def grad(x):
        return torch.func.grad(lambda y: (turn(y) ** 3).sum())(x)

    def vjp(x):
        return torch.func.vjp(turn, x)[1](x)[0]

    x = torch.randn(2, 5, 3, 16)
    for function in (grad, vjp):
        torch._dynamo.reset()
        got = torch.compile(function, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(got, function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_autograd_of_a_rope_that_is_not_kept_any_more(name):
    from torch._dynamo import compiled_autograd

    from librope import _operators

    x, weight = torch.randn(2, 5, 3, 16, requires_grad=True), torch.ones(16)
    out = CALLS[name](x, weight)
    want = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    _operators._ropes.clear()
    torch._dynamo.reset()
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        out.sum().backward()
    torch.testing.assert_close(x.grad, want)
