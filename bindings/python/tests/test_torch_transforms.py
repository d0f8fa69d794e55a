"""torch: what records, transforms and watches calls must see every one of them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch._dynamo.testing  # noqa: E402
import torch._inductor.config  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402
from librope import Norm, Norms  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bhsd")
YARN = librope.Rope(head_dim=16, theta=1e4, pairing="interleaved", layout="bhsd", scaling="yarn",
                    factor=8.0, original_max_position_embeddings=64, rotary_dim=8)  # fmt: skip
POSITIONS = torch.arange(6)


@pytest.fixture
def q():
    torch.manual_seed(0)
    return torch.randn(2, 4, 6, 16)


def test_compiled_code_keeps_the_strides_of_the_user():
    """Inductor once undid a contiguous() before the operator."""
    torch._dynamo.reset()

    def f(x):
        return ROPE.apply(x.transpose(2, 3).contiguous(), 0)

    x = torch.randn(1, 2, 16, 5)
    # Without what another librope has left in the cache of compiled graphs.
    with torch._inductor.config.patch(force_disable_caches=True):
        assert torch.equal(torch.compile(f, fullgraph=True)(x), f(x))


def test_checkpoint_with_positions_in_a_tensor(q):
    from torch.utils.checkpoint import checkpoint

    linear = torch.nn.Linear(16, 16)

    def f(x):
        a, b = ROPE.apply_qk(linear(x), linear(x), POSITIONS)
        return (a * b).sum()

    x = q.clone().requires_grad_()
    f(x).backward()
    want, x.grad = x.grad, None
    checkpoint(f, x, use_reentrant=False).backward()
    assert torch.equal(x.grad, want)


@pytest.mark.parametrize("how", ["out", "bind", "cos_sin"])
def test_writes_are_announced_to_autograd(q, how):
    x = torch.zeros(1, 1, 6, 16, requires_grad=True)
    y = x.exp()
    with torch.no_grad():
        if how == "out":
            ROPE.apply(torch.randn(1, 1, 6, 16), 0, out=y)
        elif how == "bind":
            ROPE.bind(y, None, 1)()
        else:
            ROPE.cos_sin(POSITIONS, format="packed", out=y[0, 0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_outputs_that_require_a_gradient_are_refused(q):
    leaf = q.clone().requires_grad_()
    before = leaf.detach().clone()
    with pytest.raises(RuntimeError, match="requires a gradient"):
        ROPE.bind(leaf, None, 1)
    with pytest.raises(RuntimeError, match="requires a gradient"):
        ROPE.apply(q, 1, out=leaf)
    plain = q.clone()
    step = ROPE.bind(plain, None, 1)
    plain.requires_grad_()
    with pytest.raises(RuntimeError, match="requires a gradient"):
        step()
    assert torch.equal(leaf.detach(), before) and torch.equal(plain.detach(), q)


@pytest.mark.filterwarnings("ignore")
def test_traces_record_the_rotation(q):
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = torch.jit.trace(lambda x: ROPE.apply(x, 3), (q,))
    assert torch.equal(traced(2 * q), ROPE.apply(2 * q, 3))
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda x: ROPE.apply_(x, 3), (q,))
    weight = torch.rand(q.shape[-1], requires_grad=True)

    def normed(order):
        return lambda x, w: ROPE.apply_qk(x, None, 3, norms=Norms(Norm(w, kind="rms", eps=1e-6, order=order)))[0]

    traced = torch.jit.trace(normed("before"), (q, weight.detach()), check_trace=False)(2 * q, weight)
    eager = normed("before")(2 * q, weight)
    assert torch.equal(traced, eager)
    assert torch.equal(*[torch.autograd.grad(y.square().sum(), weight)[0] for y in (traced, eager)])
    with torch.no_grad(), pytest.raises(NotImplementedError, match=r"torch\.jit\.trace"):
        torch.jit.trace(normed("after"), (q, weight), check_trace=False)

    def in_place(x):
        y = x * 2
        ROPE.apply_(y, 3)
        return y

    want = ROPE.apply(2 * q, 3)
    assert torch.equal(make_fx(in_place)(q)(q), want)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(in_place, fullgraph=True, backend="aot_eager")(q), want)
    traced = make_fx(lambda x: ROPE.apply(x, POSITIONS))(q)
    x = q.clone().requires_grad_()  # the recorded operator has a gradient of its own
    traced(x).sum().backward()
    assert torch.equal(x.grad, ROPE.apply(torch.ones_like(q), POSITIONS, operation="backward"))


def test_tracing_warns_of_nothing(q, monkeypatch):
    """Dynamo does of functools' caches, and says it to the user."""
    torch._dynamo.reset()
    said = []
    monkeypatch.setattr(torch._dynamo.utils, "warn_once", said.append)
    compiled = torch.compile(lambda x, p: ROPE.apply(x, p), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, POSITIONS), ROPE.apply(q, POSITIONS))
    assert torch.equal(compiled(q, 3), ROPE.apply(q, 3))
    assert said == []


def test_int_positions_do_not_recompile(q):
    torch._dynamo.reset()
    count = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x, p: ROPE.apply(x, p), backend=count, fullgraph=True)
    for p in range(40):
        assert torch.equal(compiled(q, p), ROPE.apply(q, p))
    assert count.frame_count == 2  # once with 0, once with a symbol


@pytest.mark.parametrize("positions", [[3, 4, 5, 6, 7, 8], range(3, 9), np.arange(3, 9), 3,
                                       np.int64(3), torch.tensor(3)])  # fmt: skip
def test_positions_mean_the_same_with_a_gradient(q, positions):
    x = q.clone().requires_grad_()
    assert torch.equal(ROPE.apply(x, positions), ROPE.apply(q, positions))
    assert torch.equal(ROPE.apply(q, positions), ROPE.apply(q, torch.arange(3, 9)))


def test_wrong_arguments_are_the_same_with_a_gradient(q):
    x = q.clone().requires_grad_()
    for tensor in (q, x):
        with pytest.raises(TypeError, match="positions is "):
            ROPE.apply(tensor, 2.7)
        with pytest.raises(ValueError, match="operation is 'x'"):
            ROPE.apply(tensor, 0, operation="x")
        with pytest.raises(ValueError, match="layout= is required"):
            librope.Rope(head_dim=16, theta=1e4, pairing="halves").apply(tensor, 0)
    with pytest.raises(TypeError, match=r"q is a numpy\.ndarray beside a torch tensor"):
        ROPE.apply_qk(q.numpy(), x, 0)
    with pytest.raises(NotImplementedError, match="positions"):
        ROPE.apply(q, torch.arange(6.0, requires_grad=True))


@pytest.mark.parametrize("how", ["eager", "grad", "compiled"])
def test_words_and_what_is_beside_rows_are_refused_everywhere(q, how):
    cos, sin = ROPE.cos_sin(POSITIONS)
    rows = dict(cos_sin=(cos, sin), cos_sin_format="full_halves")
    sets, shard = torch.zeros(2, dtype=torch.int32), librope.Shard("contiguous", 0, 2)
    x = q.clone().requires_grad_(how == "grad")
    for arguments, says in (
        (dict(rows, cu_seqlens=torch.tensor([0, 6], dtype=torch.int32)), "^cu_seqlens= is not for cos_sin="),
        (dict(rows, freq_sets=sets), "^freq_sets= is not for cos_sin="),
        (dict(rows, batch_repeat=2), "^batch_repeat= is not for cos_sin="),
        (dict(rows, shard=shard), "^shard= is not for cos_sin"),
        (dict(rows, positions_layout="zzz"), "^positions_layout is 'zzz', and must be an order of a "),
        (dict(positions=3, positions_layout="zzz"), "^positions_layout is 'zzz'"),
        (dict(positions=3, positions_layout="zzz", shard=shard), "^positions_layout is 'zzz'"),
        (dict(offsets=torch.zeros(2, dtype=torch.int64), positions_layout="tt"), "^positions_layout is 'tt'"),
        (dict(positions=3, cos_sin_format="zzz"), "^cos_sin_format is 'zzz', and must be one of packed"),
    ):

        def run(x, arguments=arguments):
            return ROPE.apply_qk(x, None, **arguments)[0]

        torch._dynamo.reset()
        with pytest.raises(ValueError, match=says):
            (torch.compile(run, backend="eager") if how == "compiled" else run)(x)


@pytest.mark.parametrize("operation", ["forward", "inverse", "shift"])
def test_one_number_in_a_tensor_is_for_all_packed_sequences(operation):
    x = torch.randn(7, 2, 16, requires_grad=True)
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
    for sequences in (cu, cu.numpy()):
        options = dict(layout="thd", cu_seqlens=sequences, operation=operation)
        want = ROPE.apply(x.detach(), 5, **options)
        assert torch.equal(ROPE.apply(x.detach(), torch.tensor(5), **options), want)
        assert torch.equal(ROPE.apply(x, torch.tensor(5), **options), want)
    torch._dynamo.reset()
    options = dict(layout="thd", cu_seqlens=cu, operation=operation)
    got = torch.compile(lambda x, p: ROPE.apply(x, p, **options), backend="aot_eager")(x, torch.tensor(5))
    assert torch.equal(got, want)


@pytest.mark.parametrize("operation", ["forward", "backward", "inverse", "shift"])
@pytest.mark.parametrize("pairing", ["halves", "interleaved", "interleaved_to_halves"])
def test_forward_and_reverse_derivatives_agree(operation, pairing):
    rope = YARN.replace(pairing=pairing)
    x = torch.randn(1, 1, 2, 16)

    def f(x):
        return rope.apply(x, torch.tensor([3, 50]), operation=operation)

    forward, reverse = torch.func.jacfwd(f)(x), torch.func.jacrev(f)(x)
    columns = torch.stack([f(e.view_as(x)).flatten() for e in torch.eye(32)], -1)
    assert torch.equal(forward.view(32, 32), columns)
    # Channels that do not turn keep their derivative, whatever the attention factor.
    assert torch.allclose(reverse.view(32, 32), columns, atol=1e-6)


def test_jvp_hessian_and_dual_tensors(q):
    from torch.autograd import forward_ad

    y, tangent = torch.func.jvp(lambda x: ROPE.apply(x, POSITIONS), (q,), (3 * q,))
    assert torch.allclose(tangent, 3 * y, atol=1e-5)
    x = torch.randn(1, 1, 2, 16)
    hessian = torch.func.hessian(lambda x: (ROPE.apply(x, 3) ** 2).sum())(x)
    assert torch.allclose(hessian.view(32, 32), 2 * torch.eye(32), atol=1e-5)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, 2 * q)
        out = forward_ad.unpack_dual(ROPE.apply(dual, 3))
        assert torch.allclose(out.tangent, 2 * ROPE.apply(q, 3), atol=1e-6)
        with pytest.raises(RuntimeError, match="tangent"):
            ROPE.apply_(dual, 3)


@pytest.mark.filterwarnings("error:librope")  # PyTorch's, of an operator without a gradient
def test_there_are_no_second_derivatives_through_norms():
    """Zeros would be wrong, and nobody would see it."""
    from torch.autograd import forward_ad

    x, weight = torch.randn(1, 3, 2, 16, requires_grad=True), torch.randn(16, requires_grad=True)

    def normed(x, weight):
        return ROPE.apply(x, 3, norms=librope.Norms(librope.Norm(weight, kind="rms", eps=1e-6)))

    def loss(x, weight):
        return (normed(x, weight) ** 3).sum()

    no_second = "librope has no second derivative through norms="
    for leaf in (x, weight):
        plain = torch.autograd.grad(loss(x, weight), leaf)[0]
        (g,) = torch.autograd.grad(loss(x, weight), leaf, create_graph=True)
        assert torch.equal(g, plain)
        for other in (x, weight):
            with pytest.raises(NotImplementedError, match=no_second):
                torch.autograd.grad(g.square().sum(), other, retain_graph=True)
    for function in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        with pytest.raises(NotImplementedError, match=no_second):
            function(loss, (x, weight), (x.detach(), weight.detach()))
    with pytest.raises(NotImplementedError, match=no_second):
        torch.autograd.functional.hessian(lambda w: loss(x, w), weight)
    no_forward = "no forward-mode derivative through norms="
    with pytest.raises(NotImplementedError, match=no_forward):
        torch.func.jvp(lambda x: normed(x, weight), (x,), (x,))
    with forward_ad.dual_level():
        for dual in ((forward_ad.make_dual(x, x), weight), (x, forward_ad.make_dual(weight, weight))):
            with pytest.raises(NotImplementedError, match=no_forward):
                normed(*dual)
    rows = ROPE.cos_sin(torch.arange(3.0, requires_grad=True), format="split", dtype="float32")
    with pytest.raises(NotImplementedError, match="no gradient with respect to positions: detach them"):
        rows[0].sum().backward()


def test_packed_sequences_sets_and_rows_have_gradients(q):
    x = torch.randn(7, 2, 16, requires_grad=True)
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
    options = dict(layout="thd", cu_seqlens=cu)
    ROPE.apply(x, 5, **options).sum().backward()
    ones = torch.ones(7, 2, 16)
    assert torch.equal(x.grad, ROPE.apply(ones, 5, operation="backward", **options))
    both = librope.Rope.sets([ROPE, ROPE.replace(theta=1e6)])
    y = q.clone().requires_grad_()
    sets = torch.tensor([1, 0], dtype=torch.int32)
    both.apply(y, 3, freq_sets=sets).sum().backward()
    want = both.apply(torch.ones_like(q), 3, freq_sets=sets, operation="backward")
    assert torch.equal(y.grad, want)
    rows = ROPE.cos_sin(POSITIONS)
    y.grad = None
    ROPE.apply(y, cos_sin=rows, cos_sin_format="full_halves").sum().backward()
    want = ROPE.apply(torch.ones_like(q), POSITIONS, operation="backward")
    assert torch.equal(y.grad, want)


def test_rows_of_tensors_are_tensors_in_compiled_code_too():
    torch._dynamo.reset()
    want = [torch.from_numpy(x) for x in ROPE.cos_sin(POSITIONS.numpy())]
    for got in (
        ROPE.cos_sin(POSITIONS),
        torch.compile(lambda p: ROPE.cos_sin(p), fullgraph=True, backend="aot_eager")(POSITIONS),
    ):
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
    packed = ROPE.cos_sin(POSITIONS[None], format="packed", dtype=torch.bfloat16)
    assert packed.dtype == torch.bfloat16 and packed.shape == (1, 6, 16)


def test_meta_tensors_have_shapes():
    q = torch.empty(1, 2, 5, 16, device="meta")
    assert ROPE.apply(q, 3).shape == q.shape and ROPE.apply(q, 3).is_meta
    with pytest.raises(ValueError, match="15 channels"):
        ROPE.apply(q[..., :15], 3)


def test_profiler_and_flop_counter_see_calls(q):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ROPE.apply(q, 3)
        ROPE.apply_(q.clone(), 3)
    assert [e.count for e in profile.key_averages() if e.key == "librope::apply"] == [2]
    with FlopCounterMode(display=False, custom_mapping=lt.FLOPS) as counter:
        ROPE.apply(q, 3)
    assert counter.get_total_flops() == 3 * q.numel()


def test_meta_tensors_beside_others_are_refused(q):
    """Their operator allocates a result and writes nothing: it would be somebody's old memory."""
    meta, p = q.to("meta"), torch.arange(5, device="meta")
    kept = q.clone()
    cos, sin = torch.zeros(5, 16, device="meta"), torch.zeros(5, 16, device="meta")
    sets = torch.zeros(1, dtype=torch.int32, device="meta")
    for call, says in (
        (lambda: ROPE.apply(q, p), "positions is on meta"),
        (lambda: ROPE.apply(q.clone().requires_grad_(), p), "positions is on meta"),
        (lambda: ROPE.apply_(q, p), "positions is on meta"),
        (lambda: ROPE.apply(q, offsets=p[:1]), "offsets is on meta"),
        (lambda: ROPE.apply_qk(q, meta, 0), "k is on meta"),
        (lambda: ROPE.apply_qk_(q, meta, 1), "k is on meta"),
        (lambda: ROPE.apply_qk(meta, q, 0), "k is on cpu"),
        (lambda: lt.apply_rows(ROPE, q, None, cos, sin, format="full_halves"), "cos is on meta"),
        (lambda: ROPE.apply(q.clone().requires_grad_(), 0, freq_sets=sets), "freq_sets is on meta"),
    ):
        with pytest.raises(TypeError, match=says):
            call()
    assert torch.equal(q, kept)


def test_meta_tensors_keep_the_rules_of_shapes(q):
    x = q.to("meta")
    n = x.shape[2]
    for positions in (torch.arange(n, device="meta"), list(range(n)), np.arange(n), torch.tensor(3), 3):
        assert ROPE.apply(x, positions).shape == q.shape
    for call, says in (
        (lambda: ROPE.apply(x, torch.arange(n + 1, device="meta")), f"must have {n} tokens"),
        (lambda: ROPE.apply_(x, torch.arange(n + 1, device="meta")), f"must have {n} tokens"),
        (lambda: ROPE.apply_qk(x, x[:, :, 1:], 0), "tokens"),
        (lambda: ROPE.apply(x, 0, layout="thd"), "which is not 'thd'"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


@pytest.mark.parametrize("which", ["q", "out of q", "positions"])
@pytest.mark.parametrize("how", ["data", "set", "resize", "freed"])
def test_bind_refuses_tensors_with_other_memory(which, how):
    tensors = {"q": torch.ones(1, 2, 5, 16), "out of q": torch.zeros(1, 2, 5, 16), "positions": torch.arange(5)}
    step = ROPE.bind(tensors["q"], None, tensors["positions"], out=(tensors["out of q"], None))
    step()
    x = tensors[which]
    old = x.clone()
    if how == "data":
        x.data = old
    elif how == "set":
        x.set_(old)
    elif how == "resize":
        x.resize_(64, *x.shape)
    else:
        x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"{which} has other memory than it had in bind"):
        step()
    with pytest.raises(ValueError, match="other memory"):
        step()


@pytest.mark.parametrize("which", ["q", "out of q", "positions"])
@pytest.mark.parametrize("how", ["regrown", "taken over"])
def test_bind_refuses_less_memory_at_the_same_address(which, how):
    def at_the_end(x):  # of so many pages that malloc maps them, and as many at that address again
        memory = torch.empty(64 << 20, dtype=torch.uint8).view(x.dtype)
        return memory[-x.numel() :].view(x.shape).copy_(x)

    q, positions = torch.ones(1, 2, 5, 16), torch.arange(5)
    tensors = {"q": at_the_end(q), "out of q": at_the_end(q), "positions": at_the_end(positions)}
    step = ROPE.bind(tensors["q"], None, tensors["positions"], out=(tensors["out of q"], None))
    step()
    x = tensors[which]
    storage, address = x.untyped_storage(), x.data_ptr()
    start, size = storage.data_ptr(), storage.nbytes()
    storage.resize_(0)
    if how == "regrown":
        storage.resize_(size - 16)
        found = storage.data_ptr()
    else:  # by another storage, which the tensor is given, while its own grows elsewhere
        other = torch.empty(size - 16, dtype=torch.uint8).untyped_storage()
        storage.resize_(size)
        x.set_(other, x.storage_offset(), (1,))
        found = other.data_ptr()
    if found != start:
        pytest.skip("the allocator gave another address")
    assert x.data_ptr() == address
    with pytest.raises(ValueError, match=f"{which} has other memory than it had in bind"):
        step()


def test_a_storage_of_the_same_size_at_the_same_address_stays_bound():
    memory = torch.zeros(64 << 20, dtype=torch.uint8)
    x = memory.view(torch.float32)[:160].view(1, 2, 5, 16)
    step = ROPE.bind(x, None, 1)
    storage = x.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    if storage.data_ptr() != start:
        pytest.skip("the allocator gave another address")
    x.fill_(1)
    step()
    assert torch.equal(x, ROPE.apply(torch.ones(1, 2, 5, 16), 1))


def test_bind_refuses_a_tensor_larger_than_its_storage():
    x = torch.ones(1, 2, 5, 16)
    ROPE.bind(x[:, :, 1:4], None, 0)
    x.untyped_storage().resize_(x.nbytes - 4)
    with pytest.raises(ValueError, match="q is larger than its storage"):
        ROPE.bind(x, None, 0)


def test_freed_storage_is_said_in_pythons_words():
    x = torch.ones(1, 2, 5, 16)
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="q has no memory: its storage was freed"):
        ROPE.apply_(x, 0)


def test_tensors_of_other_layouts_say_the_way_out():
    with pytest.raises(TypeError, match="q is a torch.sparse_coo tensor, and must be strided"):
        ROPE.apply(torch.zeros(1, 2, 5, 16).to_sparse(), 0)
    jagged = torch.nested.nested_tensor([torch.ones(3, 2, 16)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"x\.values\(\) with layout='thd' and cu_seqlens="):
        ROPE.apply(jagged, 0, layout="bshd")


@pytest.mark.parametrize("kind", [int, torch.tensor, "offsets"])
def test_shift_by_an_int_moves_every_token_by_it(q, kind):
    want = ROPE.apply(q, torch.full((q.shape[2],), 9), operation="shift")
    back = ROPE.apply(q, torch.full((q.shape[2],), -9), operation="shift")
    given = {"offsets": torch.full((q.shape[0],), 9)} if kind == "offsets" else {"positions": kind(9)}

    def shift(x):
        return ROPE.apply(x, operation="shift", **given)

    assert torch.equal(shift(q), want)
    x = q.clone().requires_grad_()
    shift(x).backward(q)
    assert torch.equal(x.grad, back)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(shift, fullgraph=True, backend="aot_eager")(q), want)
    moved = q.clone()
    ROPE.apply_(moved, operation="shift", **given)
    assert torch.equal(moved, want)
    ids = torch.tensor([0, q.shape[2]], dtype=torch.int32)
    with pytest.raises(ValueError, match="distance of every token"):
        ROPE.apply(q[0, 0, :, None], offsets=torch.tensor([1]), cu_seqlens=ids, layout="thd",
                   operation="shift")  # fmt: skip


def test_wrong_arguments_have_the_names_of_python():
    x = torch.ones(1, 2, 5, 16, requires_grad=True)
    for position, error in ((2**63, ValueError), ([0, 1, 2, 3, 2**63], ValueError), (True, TypeError)):
        with pytest.raises(error, match="positions"):
            ROPE.apply(x, position)


DYNAMIC = librope.Rope(head_dim=16, theta=1e4, pairing="interleaved_to_halves", layout="bhsd", rotary_dim=8,
                       scaling="dynamic", factor=2.0, max_position_embeddings=8, seq_len=10,
                       attention_factor=1.5)  # fmt: skip


@pytest.mark.parametrize("kind", [int, torch.tensor, "int32", "int64", "float32", "offsets"])
def test_gradients_of_a_shift_know_no_length(q, kind):
    """A distance is no position: not in "forward", nor in its transpose, nor in that of a transpose."""
    assert DYNAMIC.valid_below == 11
    ids = torch.tensor([900, -2, 0, 11, 70, 5])
    if kind == "offsets":
        given = {"offsets": ids[:2]}
    else:
        given = {"positions": ids.to(getattr(torch, kind)) if isinstance(kind, str) else kind(900)}
    x = q.clone().requires_grad_()
    y = DYNAMIC.apply(x, operation="shift", **given)
    gradient = torch.randn_like(q).requires_grad_()
    (back,) = torch.autograd.grad(y, x, gradient, create_graph=True)
    assert torch.allclose((back * q).sum(), (gradient * y).sum(), 1e-4)
    negative = {name: -value for name, value in given.items()}
    assert torch.equal(back, DYNAMIC.apply(gradient, operation="shift", **negative))
    (again,) = torch.autograd.grad(back, gradient, q)
    assert torch.equal(again, y)


def test_gradients_of_the_longest_shift(q):
    """-2**31 has no negative in int32."""
    exact, least = ROPE.replace(angle="exact"), torch.full((6,), -(2**31), dtype=torch.int32)
    x = q.clone().requires_grad_()
    exact.apply(x, least, operation="shift").backward(q)
    assert torch.equal(x.grad, exact.apply(q, 2**31, operation="shift"))


@pytest.mark.parametrize("what", ["q", "k", "weight", "positions", "a tangent"])
def test_a_bound_call_refuses_what_requires_a_gradient(q, what):
    """Also what it only reads; without gradients it takes all of them."""
    from torch.autograd import forward_ad

    k, weight, ids = q[:, :2].clone(), torch.ones(16), torch.arange(6.0)
    norms = librope.Norms(librope.Norm(weight, kind="rms", eps=1e-6))
    step = ROPE.bind(q, k, ids, norms=norms, out=(torch.empty_like(q), torch.empty_like(k)))
    step()
    if what == "a tangent":
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(q, q)
            step = ROPE.bind(dual, None, 0, out=(torch.empty_like(q), None))
            with pytest.raises(NotImplementedError, match="^q requires a gradient, and a bound call has none"):
                step()
        return
    {"q": q, "k": k, "weight": weight, "positions": ids}[what].requires_grad_()
    name = "norms.q.weight" if what == "weight" else what
    with pytest.raises(NotImplementedError, match=f"^{name} requires a gradient, and a bound call has none: use apply_qk"):
        step()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            step()
            ROPE.bind(q, k, ids, norms=norms, out=(torch.empty_like(q), torch.empty_like(k)))()


@pytest.mark.parametrize("zero", [lambda: np.array(3), lambda: torch.tensor(3)])
def test_a_bound_call_takes_no_number_that_may_change(q, zero):
    with pytest.raises(ValueError, match="^positions is an array without dimensions, whose content a bound call would not"):
        ROPE.bind(q, None, zero())
    cache = librope.KVCache(torch.zeros(2, 8, 2, 16), layout="nhd", starts=zero())
    with pytest.raises(ValueError, match="^starts is an array without dimensions"):
        ROPE.bind(q, q[:, :2].clone(), 0, cache=cache)
    turned = q.clone()
    step = ROPE.bind(turned, None, np.int64(3))
    step()
    assert torch.equal(turned, ROPE.apply(q, 3))
    step(torch.tensor(4))
    assert torch.equal(turned, ROPE.apply(ROPE.apply(q, 3), 4))
    for position in (torch.tensor(2.5), np.float32(2), True):
        with pytest.raises(TypeError, match="^position is .*, and must be an int"):
            step(position)
    with pytest.raises(ValueError, match="^position is 1180591620717411303424, and must be from"):
        step(2**70)


def freed(x):
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.parametrize("operation", ["forward", "shift"])
def test_positions_whose_storage_was_freed_are_refused(q, operation):
    """Their address is 0: a shift once read the stack there."""
    for dtype in (torch.int64, torch.int32, torch.float32):
        for function in (ROPE.apply, ROPE.apply_):
            with pytest.raises(ValueError, match="^positions has no memory: its storage was freed"):
                function(q, freed(torch.arange(6, dtype=dtype)), operation=operation)
            with pytest.raises(ValueError, match="^positions has no memory: its storage was freed"):
                function(q, freed(torch.arange(7, dtype=dtype)[1:]), operation=operation)
    with pytest.raises(ValueError, match="^offsets has no memory: its storage was freed"):
        ROPE.apply(q, offsets=freed(torch.arange(2)), operation=operation)
    with pytest.raises(ValueError, match="^positions has no memory"):
        ROPE.cos_sin(freed(torch.arange(6.0)), out=(torch.empty(6, 16), torch.empty(6, 16)))
    none = torch.empty(0, dtype=torch.int64)  # whose address is 0, too
    assert ROPE.apply(q[:, :, :0], none, operation=operation).shape == (2, 4, 0, 16)


def test_rows_of_positions_that_carry_a_tangent_are_refused():
    from torch.autograd import forward_ad

    p = torch.arange(6.0)
    rows = ROPE.cos_sin(p)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="^librope has no gradient with respect to positions"):
        ROPE.cos_sin(forward_ad.make_dual(p, p))
    with pytest.raises(NotImplementedError, match="^librope has no gradient with respect to positions"):
        torch.func.jvp(lambda p: ROPE.cos_sin(p), (p,), (p,))
    with forward_ad.dual_level():
        assert all(map(torch.equal, ROPE.cos_sin(p), rows))
