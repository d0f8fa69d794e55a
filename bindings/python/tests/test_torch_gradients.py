"""torch: gradients and tangents, whoever watches them, batches them or compiles them."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import _vmap_internals  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402
from librope import _operators  # noqa: E402

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


class Elsewhere(torch.autograd.Function):
    """Its backward, the deepest of many within each other, runs in another thread of the engine: takes a gradient."""

    @staticmethod
    def forward(ctx, x, depth, take):
        ctx.depth, ctx.take = depth, take
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        elsewhere(ctx.take, ctx.depth - 1) if ctx.depth else ctx.take()
        return gradient, None, None


def elsewhere(take, depth=70):
    one = torch.ones((), requires_grad=True)
    with torch.enable_grad():
        torch.autograd.grad(Elsewhere.apply(one, depth, take), one)


@pytest.mark.parametrize("rows", [False, True])
def test_batched_gradients_in_another_thread_are_those_of_each_sample(q, rows):
    x = q.clone().requires_grad_()
    y = ROPE.apply(x, **(ROWS if rows else dict(positions=POSITIONS)))
    threads = set()

    def gradient(g):
        made = []

        def take():
            threads.add(threading.get_ident())
            made.extend(torch.autograd.grad(y, x, g, retain_graph=True))

        elsewhere(take)
        return made[0]

    many = torch.randn(4, *y.shape)
    got = _vmap_internals._vmap(gradient)(many)
    assert threads and threading.get_ident() not in threads
    assert torch.equal(got, torch.stack([back(g) for g in many]))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("samples", [(1, 1), (2, 3), (3, 1), (0, 2), (2, 0)])
def test_batches_of_batched_gradients(q, samples, which):
    """q and k are batched at levels of their own."""
    x, z = q.clone().requires_grad_(), q[:, :, :1].clone().requires_grad_()
    rotated = ROPE.apply_qk(x, z, POSITIONS)
    outer = torch.randn(samples[0], *rotated[which].shape)
    inner = torch.randn(samples[1], *rotated[1 - which].shape)

    def gradients(g, h):
        both = (g, h) if which == 0 else (h, g)
        return torch.autograd.grad(rotated, (x, z), both, retain_graph=True)

    got = _vmap_internals._vmap(lambda g: _vmap_internals._vmap(gradients, (None, 0))(g, inner))(outer)
    want = [back(outer.flatten(0, 1)).view(outer.shape)[:, None], back(inner.flatten(0, 1)).view(inner.shape)[None]]
    if which:
        want.reverse()
    for a, b in zip(got, want, strict=True):
        assert a.shape == samples + b.shape[2:] and torch.equal(a, b.expand_as(a))


@pytest.mark.parametrize("rows", [False, True])
def test_batched_gradients_of_no_samples(q, rows):
    x = q.clone().requires_grad_()
    y = ROPE.apply(x, **(ROWS if rows else dict(positions=POSITIONS)))
    none = torch.zeros(0, *y.shape)
    got = _vmap_internals._vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(none)
    assert got.shape == none.shape


def test_a_batched_gradient_without_a_level_says_so(q, monkeypatch):
    monkeypatch.setattr(librope._watch, "_LEVELS", 0)
    x = q.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="has no level of torch._vmap_internals"):
        torch.autograd.grad(ROPE.apply(x, POSITIONS), x, torch.stack([q, q]), is_grads_batched=True)


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

    def gradient(g, **options):
        return torch.autograd.grad(y, x, g, retain_graph=True, **options)

    for take in (lambda g: gradient(g, is_grads_batched=True), torch.func.vmap(gradient)):
        with pytest.raises(NotImplementedError, match=r"^batched gradients .* do not go through norms="):
            take(torch.stack([q, q]))


@pytest.mark.parametrize("norms", [None, RMS])
def test_a_lazily_negated_gradient(q, norms):
    x = q.clone().requires_grad_()
    y = ROPE.apply(x, POSITIONS, norms=norms)
    got, want = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in (torch._neg_view(q), -q))
    assert torch.equal(got, want)


@pytest.mark.parametrize("norms", [None, RMS])
def test_a_gradient_of_zeros_without_memory(q, norms):
    x = q.clone().requires_grad_()
    y = ROPE.apply(x, POSITIONS, norms=norms)
    assert not torch.autograd.grad(y, x, torch._efficientzerotensor(q.shape))[0].any()


def test_ropes_of_many_lengths_are_not_kept():
    """Training by dynamic NTK or LongRoPE makes a Rope for each length."""
    x = torch.ones(1, 2, 1, 16, requires_grad=True)
    for length in range(65, 65 + 3 * _operators._KEPT):
        rope = ROPE.replace(scaling="dynamic", factor=2.0, max_position_embeddings=64, seq_len=length)
        y = rope.apply(x, 1)
        assert torch.equal(torch.autograd.grad(y, x, y.detach())[0], rope.apply(y.detach(), 1, operation="backward"))
        assert len(_operators._ropes) <= _operators._KEPT


@pytest.mark.parametrize("offsets", [[3, 4], (3, 4), range(3, 5), np.array([3, 4]), torch.tensor([3, 4])], ids=repr)
@pytest.mark.parametrize("how", ["eager", "grad", "compiled", "NumPy", "in place", "bind", "prepared", "cache"])
def test_offsets_are_taken_from_lists_everywhere(q, offsets, how):
    want = torch.cat([ROPE.apply(q[:1], 3), ROPE.apply(q[1:], 4)])
    x = q.clone().requires_grad_(how == "grad")
    torch._dynamo.reset()
    if how == "compiled":
        got = torch.compile(lambda x: ROPE.apply(x, offsets=offsets), fullgraph=True, backend="aot_eager")(x)
    elif how == "in place":
        ROPE.apply_((got := x), offsets=offsets)
    elif how == "bind":
        ROPE.bind((got := x), offsets=offsets)()
    elif how == "prepared":
        got, _ = ROPE.prepare_qk(x, None, offsets=offsets).apply_qk(x)
    elif how == "NumPy":
        got = torch.from_numpy(ROPE.apply(x.numpy(), offsets=offsets))
    elif how == "cache":
        memory = torch.zeros(2, 2, 16, 3, 16)
        for _ in range(2):
            got, _ = ROPE.apply_qk(x, x, offsets=offsets, v=x, cache=librope.KVCache(*memory, layout="nhd", starts=0))
    else:
        got = ROPE.apply(x, offsets=offsets)
    assert torch.equal(got, want)


@pytest.mark.parametrize("grad", [False, True])
def test_offsets_in_lists_are_ints_of_each_sequence(q, grad):
    x = q.clone().requires_grad_(grad)
    for offsets, error, says in (
        ([1, 2.5], TypeError, "^offsets as a list must hold ints"),
        ([1, 2**63], ValueError, r"^offsets\[1\] is 9223372036854775808"),
        ([1, 2, 3], ValueError, "^offsets has 3 entries, and there are 2 sequences"),
    ):
        with pytest.raises(error, match=says):
            ROPE.apply(x, offsets=offsets)


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


FORWARD = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (2 * x,))[1],
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x[:1, :, :1]),
}


@pytest.mark.parametrize("derivative", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("call", ["q", "rows", "module"])
def test_compiled_code_has_no_forward_mode(q, call, derivative):
    """What Dynamo may leave to Python is right, and anything else refused."""
    def f(x):
        return derivative(CALLS[call], x)

    torch._dynamo.reset()
    with pytest.raises(Exception, match="librope has no forward-mode derivative in compiled code"):
        torch.compile(f, fullgraph=True, backend="eager")(q)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="eager")(q), f(q))


@pytest.mark.parametrize("call", ["q", "rows"])
def test_dual_levels_in_compiled_code_have_tangents(q, call):
    def f(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(CALLS[call](forward_ad.make_dual(x, 2 * x))).tangent

    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="eager")(q), f(q))


def test_compiled_code_has_no_forward_mode_through_norms(q):
    torch._dynamo.reset()
    for fullgraph in (False, True):
        compiled = torch.compile(
            lambda x: torch.func.jvp(lambda x: ROPE.apply(x, POSITIONS, norms=RMS), (x,), (x,)),
            fullgraph=fullgraph, backend="eager",
        )  # fmt: skip
        with pytest.raises(Exception, match="there is no forward-mode derivative through norms="):
            compiled(q)


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


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(positions=[[0, 1, 2]]), "positions as a list must hold ints; nested ones need an array"),
        (dict(offsets=[[0]]), "offsets as a list must hold ints; nested ones need an array"),
        (dict(offsets=True), "offsets is "),
        (dict(positions=0, freq_sets=True), "freq_sets is "),
    ],
)
def test_an_argument_is_named_with_a_gradient_as_without(q, given, says, grad):
    with pytest.raises(TypeError, match=f"^{says}"):
        ROPE.apply_qk(q.clone().requires_grad_(grad), **given)


def test_a_number_of_another_dtype_is_one_of_positions(q):
    with pytest.raises(TypeError, match="^positions has dtype uint8, and must be int32"):
        ROPE.apply(q.clone().requires_grad_(), torch.tensor(3, dtype=torch.uint8))


@pytest.mark.parametrize("rows", [[[0, 1], [2]], [[0, 1], 2]])
def test_rows_of_a_page_table_are_alike_where_pytorch_sees_them(q, rows):
    cache = librope.KVCache(torch.zeros(4, 8, q.shape[2], 16), layout="nhd", page_table=rows, starts=[0, 0])
    with FlopCounterMode(display=False), pytest.raises(ValueError, match="^page_table is a list of rows, and each"):
        ROPE.apply_qk(q, q, 0, cache=cache)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("norms", [None, RMS])
@pytest.mark.parametrize("name", ["positions", "offsets", "cu_seqlens"])
def test_masked_arrays_are_refused_with_a_gradient_as_without(q, name, norms, grad):
    masked = np.ma.array([0, 2, 5], mask=[False, True, False], dtype=np.int32)
    given = {
        "positions": dict(positions=masked),
        "offsets": dict(offsets=masked),
        "cu_seqlens": dict(positions=0, cu_seqlens=masked, layout="thd"),
    }[name]
    x = (q[0] if name == "cu_seqlens" else q[:1, :3] if name == "positions" else q[:1].expand(3, -1, -1, -1)).clone()
    with pytest.raises(TypeError, match=f"^{name} is a masked array, and its mask would be lost"):
        ROPE.apply(x.requires_grad_(grad), norms=norms, **given)


def test_masked_arrays_are_refused_in_compiled_code(q):
    masked = np.ma.array(np.arange(5), mask=[False, True, False, False, False])
    torch._dynamo.reset()
    with pytest.raises(TypeError, match="^positions is a masked array, and its mask would be lost"):
        torch.compile(lambda x: ROPE.apply(x, masked), backend="eager")(q)
    torch._dynamo.reset()
    other = np.arange(5).view(np.recarray)
    assert torch.equal(torch.compile(lambda x: ROPE.apply(x, other), backend="eager")(q), ROPE.apply(q, other))
