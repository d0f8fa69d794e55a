"""torch: gradients and tangents, whoever watches them, batches them or compiles them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
YARN = ROPE.replace(scaling="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.3)
POSITIONS = torch.arange(5)
RMS = librope.Norms(librope.Norm(torch.ones(16), kind="rms", eps=1e-6))
ROWS = dict(cos_sin=ROPE.cos_sin(POSITIONS), cos_sin_format="full_halves")
LAYOUTS = ("bshd", "bhsd")


class Wrapper(torch.Tensor):
    """A subclass without memory of its own."""

    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, strides=x.stride(), dtype=x.dtype)

    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        given = tree_map(lambda x: x.x if isinstance(x, cls) else x, (arguments, options or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, function(*given[0], **given[1]))


@pytest.fixture
def q():
    torch.manual_seed(0)
    return torch.randn(2, 5, 3, 16)


def back(gradient, **options):
    """The gradient of a rotation by POSITIONS."""
    return ROPE.apply(gradient, POSITIONS, operation="backward", **options)


@pytest.mark.filterwarnings("error:.*not writable")
@pytest.mark.parametrize("norms", [None, RMS])
@pytest.mark.parametrize("what", ["positions", "offsets", "cu_seqlens", "freq_sets"])
def test_arrays_of_numpy_that_change_before_backward_do_not_matter(q, what, norms):
    sets = librope.Rope.sets([ROPE, ROPE.replace(theta=10.0)])
    options = {
        "positions": dict(positions=np.arange(5)),
        "offsets": dict(offsets=np.array([3, 4])),
        "cu_seqlens": dict(positions=0, cu_seqlens=np.array([0, 2, 5], np.int32), layout="thd"),
        "freq_sets": dict(positions=0, freq_sets=np.array([0, 0], np.int32)),
    }[what]
    rope = sets if what == "freq_sets" else ROPE
    x = (q[0] if what == "cu_seqlens" else q).clone().requires_grad_()

    def gradient(change):
        given = {n: y.copy() if isinstance(y, np.ndarray) else y for n, y in options.items()}
        given[what].flags.writeable = change
        y = rope.apply(x, norms=norms, **given)
        if change:
            given[what][1] += 1
        return torch.autograd.grad(y, x, q[0] if what == "cu_seqlens" else q)[0]

    assert torch.equal(gradient(True), gradient(False))


@pytest.mark.parametrize("rows", [False, True])
def test_what_watches_the_backward_alone_sees_it(q, rows):
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    x = q.clone().requires_grad_()
    y = ROPE.apply(x, **ROWS) if rows else ROPE.apply(x, POSITIONS)

    def gradient(g):
        return torch.autograd.grad(y, x, g, retain_graph=True)[0]

    traced = make_fx(gradient)(torch.randn_like(q))
    assert torch.equal(traced(q), back(q))
    with FlopCounterMode(display=False, custom_mapping=lt.FLOPS) as counter:
        gradient(q)
    assert counter.get_total_flops() == 3 * q.numel()
    wrapped = gradient(Wrapper(q))
    assert type(wrapped) is Wrapper and torch.equal(wrapped.x, back(q))


@pytest.mark.parametrize("rows", [False, True])
def test_batched_gradients_are_those_of_each_sample(q, rows):
    """Of torch.func, and of autograd's own vmap."""
    x, z = q.clone().requires_grad_(), q[:, :, :1].clone().requires_grad_()
    y, w = ROPE.apply_qk(x, z, **(ROWS if rows else dict(positions=POSITIONS)))
    many, few = torch.randn(4, *y.shape), torch.randn(4, *w.shape)
    want = torch.stack([back(g) for g in many]), torch.stack([back(g) for g in few])

    def gradients(g, h, **options):
        return torch.autograd.grad((y, w), (x, z), (g, h), retain_graph=True, **options)

    for got in (gradients(many, few, is_grads_batched=True), torch.func.vmap(gradients)(many, few)):
        assert all(map(torch.equal, got, want))
    (alone,) = torch.autograd.grad(w, z, few, retain_graph=True, is_grads_batched=True)
    assert torch.equal(alone, want[1])


@pytest.mark.parametrize("options", [{}, dict(strategy="forward-mode")])
def test_vectorized_jacobians(q, options):
    x = q[:1, :2, :1].clone()

    def f(x):
        return ROPE.apply(x, POSITIONS[:2])

    want = torch.autograd.functional.jacobian(f, x)
    assert torch.equal(torch.autograd.functional.jacobian(f, x, vectorize=True, **options), want)
    hessian = torch.autograd.functional.hessian(lambda x: (f(x) ** 2).sum(), x, vectorize=True)
    assert torch.allclose(hessian.view(32, 32), 2 * torch.eye(32), atol=1e-5)


def test_batched_gradients_through_norms_say_so(q):
    x = q.clone().requires_grad_()
    y = ROPE.apply(x, POSITIONS, norms=RMS)
    with pytest.raises(NotImplementedError, match=r"^batched gradients .* do not go through norms="):
        torch.autograd.grad(y, x, torch.stack([q, q]), is_grads_batched=True)


@pytest.mark.parametrize("norms", [None, RMS])
def test_a_lazily_negated_gradient(q, norms):
    x = q.clone().requires_grad_()
    y = ROPE.apply(x, POSITIONS, norms=norms)
    got, want = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in (torch._neg_view(q), -q))
    assert torch.equal(got, want)


CONSTANTS = {
    "rows": ROWS,
    "floats": dict(positions=POSITIONS.float()),
    "floats of NumPy": dict(positions=np.arange(5, dtype=np.float32)),
}


@pytest.mark.parametrize("given", CONSTANTS.values(), ids=CONSTANTS)
def test_tangents_go_beside_constants_that_are_floats(q, given):
    tangent = torch.randn_like(q)
    want = ROPE.apply(tangent, POSITIONS)

    def f(x):
        return ROPE.apply(x, **given)

    assert torch.equal(torch.func.jvp(f, (q,), (tangent,))[1], want)
    with forward_ad.dual_level():
        assert torch.equal(forward_ad.unpack_dual(f(forward_ad.make_dual(q, tangent))).tangent, want)
    hessian = torch.func.hessian(lambda x: (f(x) ** 2).sum())(q[:1, :, :1])
    assert torch.allclose(hessian.view(80, 80), 2 * torch.eye(80), atol=1e-5)


@pytest.mark.parametrize("given", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("which", [0, 1])
def test_tangents_of_one_of_two_with_layouts_of_their_own(given, which):
    x, tangent = torch.randn(2, 5, 5, 16), torch.randn(2, 5, 5, 16)

    def f(x):
        both = (x, torch.ones_like(x)) if which == 0 else (torch.ones_like(x), x)
        return ROPE.apply_qk(*both, layout=LAYOUTS, **given)

    want = [torch.zeros_like(x), torch.zeros_like(x)]
    want[which] = ROPE.apply(tangent, POSITIONS, layout=LAYOUTS[which])
    assert all(map(torch.equal, torch.func.jvp(f, (x,), (tangent,))[1], want))
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))[which])
    assert torch.equal(out.tangent, want[which])


@pytest.mark.parametrize("transform", [
    lambda f, x: torch.func.jvp(f, (x,), (x,)),
    lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
])  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_derivatives_of_constants_are_refused(q, rows, nested, transform):
    """Also where the tangent of q is of another level."""
    cos, sin = ROPE.cos_sin(POSITIONS)

    def rotate(x, constant):
        if rows:
            return ROPE.apply(x, cos_sin=(constant, sin), cos_sin_format="full_halves")
        return ROPE.apply(x, constant)

    def f(constant):
        if nested:
            return torch.func.jvp(lambda x: rotate(x, constant), (q,), (q,))[1]
        return rotate(q, constant)

    with pytest.raises(NotImplementedError, match="librope has no (derivatives|gradient) with respect to"):
        transform(f, cos if rows else POSITIONS.float())


CALLS = {
    "q": lambda x: ROPE.apply(x, POSITIONS),
    "an int": lambda x: ROPE.apply(x, 3),
    "k": lambda x: ROPE.apply_qk(None, x, POSITIONS)[1],
    "rows": lambda x: ROPE.apply(x, **ROWS),
    "k by rows": lambda x: ROPE.apply_qk(None, x, **ROWS)[1],
    "module": lambda x: lt.RotaryEmbedding(ROPE)(x, positions=POSITIONS),
    "inverse": lambda x: YARN.apply(x, 3, operation="inverse"),
    "shift": lambda x: YARN.apply(x, 3, operation="shift"),
    "rows of NumPy": lambda x: ROPE.apply(x, **NUMPY_ROWS),
}
NUMPY_ROWS = dict(cos_sin=ROPE.cos_sin(np.arange(5)), cos_sin_format="full_halves")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_compiled_calls_of_one_array_have_gradients(q, call):
    x = q.clone().requires_grad_()
    want = call(x)
    (gradient,) = torch.autograd.grad(want, x, q)
    torch._dynamo.reset()
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(got, want)
    assert torch.equal(torch.autograd.grad(got, x, q)[0], gradient)


def test_lists_in_compiled_code_change(q):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, p: ROPE.apply(x, p), fullgraph=True, backend="aot_eager")
    for first in (0, 1, 7):
        assert torch.equal(compiled(q, [*range(first, first + 5)]), ROPE.apply(q, first))

    def store(memory, x, starts):
        cache = librope.KVCache(memory, memory * 1, layout="nhd", starts=starts)
        ROPE.apply_qk_(x * 1, x[:, :, :1] * 1, 0, v=x[:, :, :1] * 1, cache=cache)
        return memory

    compiled = torch.compile(store, fullgraph=True, backend="aot_eager")
    for starts in ([0, 1], [2, 3], [4, 9]):
        memory, want = torch.zeros(2, 16, 1, 16), torch.zeros(2, 16, 1, 16)
        assert torch.equal(compiled(memory, q, starts), store(want, q, starts))
        assert want[1, starts[1]].any()


@pytest.mark.parametrize("grad", [False, True])
def test_tensors_without_heads_say_so(grad):
    for given in (0, POSITIONS, np.arange(5)):
        with pytest.raises(ValueError, match=r"q\.heads \(0\) must be positive"):
            ROPE.apply(torch.zeros(2, 5, 0, 16, requires_grad=grad), given)
        assert ROPE.apply(torch.zeros(0, 5, 3, 16, requires_grad=grad), given).shape == (0, 5, 3, 16)


@pytest.mark.parametrize("kind", ["subclass", "fake"])
def test_tensors_without_memory_of_their_own_are_named(q, kind):
    from torch._subclasses import FakeTensorMode

    wrap = Wrapper if kind == "subclass" else FakeTensorMode().from_tensor
    cos, sin = (wrap(x) for x in ROPE.cos_sin(POSITIONS))
    cu = wrap(torch.tensor([0, 2, 5], dtype=torch.int32))
    for name, call in (
        ("offsets", lambda: ROPE.apply(q, offsets=wrap(torch.arange(2)))),
        ("cu_seqlens", lambda: ROPE.apply(q[0], 0, layout="thd", cu_seqlens=cu)),
        ("cos", lambda: ROPE.apply(q, cos_sin=(cos, sin), cos_sin_format="full_halves")),
        ("out of q", lambda: ROPE.apply(q, 0, out=wrap(q.clone()))),
        ("q", lambda: ROPE.bind(wrap(q), None, 0)),
    ):
        with pytest.raises(TypeError, match=f"^{name} is a .*, a tensor without memory of its own"):
            call()


def test_vmap_of_no_samples(q):
    none = torch.zeros(0, *q.shape)
    assert torch.func.vmap(lambda x: ROPE.apply(x, 0))(none).shape == none.shape
    rotated = torch.func.vmap(lambda x: ROPE.apply_qk(x, q, 0), in_dims=4)(none.movedim(0, -1))
    assert [x.shape for x in rotated] == [none.shape, none.shape]
    assert torch.func.vmap(torch.func.grad(lambda x: ROPE.apply(x, 0).sum()))(none).shape == none.shape


@pytest.mark.parametrize("grad", [False, True])
def test_a_bool_in_a_tensor_is_no_position(q, grad):
    with pytest.raises(TypeError, match="^positions (is|has dtype bool)"):
        ROPE.apply(q.clone().requires_grad_(grad), torch.tensor(True))
    cache = librope.KVCache(torch.zeros(2, 8, 3, 16), layout="nhd", starts=torch.tensor(True))
    with pytest.raises(TypeError, match="^starts (is|has dtype bool)"):
        ROPE.apply_qk_(q.clone(), q.clone(), 0, cache=cache)
