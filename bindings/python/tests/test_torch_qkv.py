"""torch: apply_qkv and apply_packed_qkv, new q, k and v with norms, repeated heads and packed tensors, and their gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch._dynamo.testing  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402
from librope import Norm, Norms  # noqa: E402
from librope._norm import norm_arrays, norm_forms  # noqa: E402

torch.set_num_threads(1)

BATCH, TOKENS, HEADS, KV, DIM = 2, 6, 4, 2, 16
ALL = HEADS + 2 * KV
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd")
IDS = torch.arange(0, 9 * BATCH * TOKENS, 9).view(BATCH, TOKENS)
KINDS = "rms", "layer", "layer_bias"  # of the norms of q, k and v


def weights(dtype=torch.float32):
    """Weights of the three norms, and the bias of the last one."""
    torch.manual_seed(1)
    return [(1 + torch.randn(DIM) / 4).to(dtype).requires_grad_() for _ in range(4)]


def norms_of(w, rounding="float32"):
    """Norms by these; none: no norms."""
    if not w:
        return None
    bias = (None, None, w[3])
    return Norms(*[
        Norm(w[i], kind=KINDS[i], eps=1e-6, bias=bias[i], rounding=rounding) for i in range(3)
    ])  # fmt: skip


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).requires_grad_()


# How q, k and v lie in a tensor: its shape, the options of the call, and the three as [batch, tokens, heads, channels].
def _apart(x):
    return x.unflatten(-1, (ALL, DIM)).split((HEADS, KV, KV), -2)


def _in_groups(x):
    x = x.unflatten(-1, (KV, HEADS // KV + 2, DIM))
    return x[..., :-2, :].flatten(-3, -2), x[..., -2, :], x[..., -1, :]


def _tokens_first(apart):
    return lambda x: [y.transpose(0, 1) for y in apart(x)]


FLAT = ALL * DIM
GROUPS = KV, HEADS // KV + 2, DIM
PACKED = {
    "bsd": ((BATCH, TOKENS, FLAT), {}, _apart),
    "sbd": ((TOKENS, BATCH, FLAT), {}, _tokens_first(_apart)),
    "bshd": ((BATCH, TOKENS, ALL, DIM), {}, lambda x: _apart(x.flatten(-2))),
    "bhsd": ((BATCH, ALL, TOKENS, DIM), {}, lambda x: _apart(x.transpose(1, 2).flatten(-2))),
    "td": ((BATCH * TOKENS, FLAT), {}, lambda x: [y[None] for y in _apart(x)]),
    "bsd, groups": ((BATCH, TOKENS, FLAT), dict(grouped=True), _in_groups),
    "sbd, groups": ((TOKENS, BATCH, FLAT), dict(grouped=True), _tokens_first(_in_groups)),
    "td, groups": ((BATCH * TOKENS, FLAT), dict(grouped=True), lambda x: [y[None] for y in _in_groups(x)]),
    "sbhd, groups": ((TOKENS, BATCH, *GROUPS), dict(grouped=True), lambda x: _tokens_first(_in_groups)(x.flatten(-3))),
    "bshd, groups": ((BATCH, TOKENS, ALL, DIM), dict(grouped=True), lambda x: _in_groups(x.flatten(-2))),
}


def packed_call(name, positions=None, **more):
    """apply_packed_qkv of what PACKED describes, as a function of the tensor and of weights."""
    layout = name.partition(",")[0]
    if positions is None:
        positions = IDS.flatten() if layout == "td" else IDS

    def call(x, *w, positions=positions, rounding="float32"):
        return lt.apply_packed_qkv(
            ROPE, x, positions, heads=HEADS, kv_heads=KV, layout=layout, norms=norms_of(w, rounding),
            **PACKED[name][1], **more,
        )  # fmt: skip

    return call


def three_call(positions=IDS, **more):
    """apply_qkv of the parts of a tensor of layout "bsd", through torch's views."""

    def call(x, *w, positions=positions):
        return lt.apply_qkv(ROPE, *_apart(x), positions, norms=norms_of(w), **more)

    return call


def eager(q, k, v, w, ids, repeat):
    """The formulas, in the dtype of their tensors. ids: [batch, tokens]."""
    if w:
        q = w[0] * (q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6))
        k, v = (x - x.mean(-1, keepdim=True) for x in (k, v))
        k, v = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in (k, v))
        k, v = k * w[1], v * w[2] + w[3]
    cos, sin = (x.to(q.dtype)[:, :, None] for x in ROPE.cos_sin(ids, format="full_halves", positions_layout="bt"))
    turned = [x * cos + torch.cat((-x[..., DIM // 2 :], x[..., : DIM // 2]), -1) * sin for x in (q, k)]
    return turned[0], *[x.repeat_interleave(repeat, -2) for x in (turned[1], v)]


def as_bshd(y, name):
    """A result as [batch, tokens, heads, channels]."""
    layout = name.partition(",")[0]
    if layout == "td":
        return y[None]
    return {"s": lambda: y.transpose(0, 1), "h": lambda: y.transpose(1, 2)}.get(layout[layout[1:2] == "h"], lambda: y)()


def close(found, exact, tolerance):
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_formulas(name, repeat, normed, dtype):
    """In float64: of the packed tensor and of all weights and biases."""
    torch.manual_seed(0)
    x, w = leaf(*PACKED[name][0], dtype=dtype), weights(dtype) if normed else []
    got = packed_call(name, kv_repeat=repeat)(x, *w)
    outer = [torch.randn(y.shape).to(dtype) for y in got]
    ours = torch.autograd.grad(got, (x, *w), outer)
    wide = [y.detach().double().requires_grad_() for y in (x, *w)]
    ids = IDS.view(1, -1) if name.startswith("td") else IDS
    exact = eager(*PACKED[name][2](wide[0]), wide[1:], ids, repeat)
    theirs = torch.autograd.grad(exact, wide, [as_bshd(g, name).double() for g in outer])
    tolerance = 2e-6 if dtype == torch.float32 else 2.0**-8
    for a, b in zip(got, exact, strict=True):
        close(as_bshd(a, name), b, tolerance)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == dtype
        close(a, b, tolerance)


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_call_has_the_bits_of_one_of_its_parts(repeat, normed, dtype):
    torch.manual_seed(0)
    x, w = leaf(BATCH, TOKENS, FLAT, dtype=dtype), weights(dtype) if normed else []
    found = []
    for call in (packed_call("bsd", kv_repeat=repeat), three_call(kv_repeat=repeat)):
        got = call(x, *w)
        torch.manual_seed(2)
        gradients = torch.autograd.grad(got, (x, *w), [torch.randn(y.shape).to(dtype) for y in got])
        with torch.no_grad():
            assert all(map(torch.equal, call(x, *w), got))
        found.append((*got, *gradients))
    assert all(map(torch.equal, *found))
    q, k, v = _apart(x.detach())
    out = [torch.empty(*y.shape[:2], n, DIM, dtype=dtype) for y, n in ((q, HEADS), (k, KV * repeat), (v, KV * repeat))]
    with torch.no_grad():  # the same call into arrays of the caller
        ROPE.apply_qk(q, k, IDS, v=v, norms=norms_of(w), out=tuple(out))
    assert all(map(torch.equal, out, found[0]))


def test_rounding_as_the_model_does():
    """Eager contexts and norms round between the steps, forward and backward, wherever q, k and v lie."""
    torch.manual_seed(0)
    rope = ROPE.replace(rounding="eager")
    x, w = leaf(BATCH, TOKENS, FLAT, dtype=torch.bfloat16), weights(torch.bfloat16)
    kinds = Norms(*[Norm(one, kind="rms", eps=1e-6, rounding="eager") for one in w[:3]])
    got = lt.apply_packed_qkv(rope, x, IDS, heads=HEADS, kv_heads=KV, layout="bsd", norms=kinds)
    outer = [torch.randn_like(y) for y in got]
    ours = torch.autograd.grad(got, (x, *w[:3]), outer)
    parts = _apart(x)
    of_qk = rope.apply_qk(*parts[:2], IDS, norms=Norms(kinds.q, kinds.k))
    nope = librope.Rope(head_dim=DIM, scaling="nope", layout="bshd")
    of_v = nope.apply(parts[2], 0, norms=Norms(kinds.v))
    theirs = torch.autograd.grad((*of_qk, of_v), (x, *w[:3]), outer)
    assert all(map(torch.equal, got, (*of_qk, of_v))) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("span", ["head", "all_heads"])
def test_weights_of_each_head_and_a_part_of_a_wider_tensor(span):
    """In float32 beside bfloat16; beside what apply_qk and the copies of PyTorch give."""
    torch.manual_seed(0)
    wide = leaf(BATCH, TOKENS, FLAT + 48, dtype=torch.bfloat16)
    w = [leaf(n, DIM) for n in (HEADS, KV, KV)]
    kinds = Norms(*[Norm(one, kind="rms_one_plus", eps=1e-6, span=span) for one in w])
    options = dict(heads=HEADS, kv_heads=KV, layout="bsd", norms=kinds)
    got = lt.apply_packed_qkv(ROPE, wide[..., 16 : 16 + FLAT], IDS, **options)
    q, k, v = _apart(wide[..., 16 : 16 + FLAT])
    nope = librope.Rope(head_dim=DIM, scaling="nope", layout="bshd")
    want = *ROPE.apply_qk(q, k, IDS, norms=Norms(kinds.q, kinds.k)), nope.apply(v, 0, norms=Norms(kinds.v))
    outer = [torch.randn_like(y) for y in got]
    found = [torch.autograd.grad(y, (wide, *w), outer) for y in (got, want)]
    assert all(map(torch.equal, got, want)) and all(map(torch.equal, *found))
    assert found[0][1].shape == (HEADS, DIM) and found[0][1].dtype == torch.float32


def test_heads_of_k_alone_are_repeated():
    """One key for all heads, as MLA has it: its gradient is the sum over them, turned back once."""
    k = leaf(BATCH, TOKENS, 1, DIM)
    q, got, v = lt.apply_qkv(ROPE, None, k, None, IDS, kv_repeat=5)
    want = ROPE.apply(k, IDS).expand(-1, -1, 5, -1)
    outer = torch.randn(want.shape)
    assert q is v is None and torch.equal(got, want)
    close(*(torch.autograd.grad(y, k, outer)[0] for y in (got, want)), 1e-6)
    added = outer[:, :, 0]
    for i in range(1, 5):
        added = added + outer[:, :, i]
    back = ROPE.apply(added[:, :, None], IDS, operation="backward")
    assert torch.equal(torch.autograd.grad(lt.apply_qkv(ROPE, None, k, None, IDS, kv_repeat=5)[1], k, outer)[0], back)


AXES = ROPE.replace(axes=3, mrope_section=(4, 2, 2))
THREE = torch.stack((IDS, IDS // 2, IDS % 7))
WHERE = {
    "an int": (ROPE, dict(positions=5)),
    "one number": (ROPE, dict(positions=torch.tensor(5))),
    "tokens": (ROPE, dict(positions=IDS[1])),
    "a list": (ROPE, dict(positions=IDS[1].tolist())),
    "of NumPy": (ROPE, dict(positions=IDS.numpy())),
    "one row": (ROPE, dict(positions=IDS[:1])),
    "int32": (ROPE, dict(positions=IDS.int())),
    "floats": (ROPE, dict(positions=IDS / 4)),
    "tb": (ROPE, dict(positions=IDS.T, positions_layout="tb")),
    "offsets": (ROPE, dict(offsets=torch.tensor([3, 70]))),
    "offsets in a list": (ROPE, dict(offsets=[3, 70])),
    "axes": (AXES, dict(positions=THREE)),
    "bta": (AXES, dict(positions=THREE.permute(1, 2, 0), positions_layout="bta")),
    "at": (AXES, dict(positions=THREE[:, 0], positions_layout="at")),
    "one id": (AXES, dict(positions=IDS, positions_layout="bt")),
    "sets": (librope.Rope.sets([ROPE, ROPE.replace(theta=10.0)]), dict(positions=3, freq_sets=torch.tensor([1, 0]).int())),
    "sets and ids": (
        librope.Rope.sets([ROPE, ROPE.replace(theta=10.0)]), dict(positions=IDS, freq_sets=torch.tensor([1, 0]).int())
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("layout", ["bsd", "sbd"])
@pytest.mark.parametrize("how", ["plain", "grad", "compiled"])
def test_positions_of_groups_are_those_of_their_tokens(where, layout, how):
    rope, options = WHERE[where]
    x = torch.randn(PACKED[layout][0], requires_grad=how != "plain")
    q, k, v = (y.contiguous() for y in PACKED[f"{layout}, groups"][2](x.detach()))
    want = *rope.apply_qk(q, k, **options), v

    def run(x):
        return lt.apply_packed_qkv(rope, x, heads=HEADS, kv_heads=KV, grouped=True, layout=layout, **options)

    if how == "compiled":
        torch._dynamo.reset()
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    got = run(x)
    assert all(torch.equal(as_bshd(a, layout), b) for a, b in zip(got, want, strict=True))
    if how != "plain":
        (found,) = torch.autograd.grad(got, x, got)
        back = *rope.apply_qk(*want[:2], operation="backward", **options), v
        assert all(map(torch.equal, PACKED[f"{layout}, groups"][2](found), back))


def test_groups_of_packed_sequences():
    x = leaf(9, FLAT)
    cuts = torch.tensor([0, 4, 9], dtype=torch.int32)
    shard = dict(shard=librope.Shard("contiguous", 1, 2))
    three = dict(positions=torch.arange(27).view(3, 9))
    for rope, options in (
        (ROPE, dict(offsets=torch.tensor([7, 100]), cu_seqlens=cuts)), (ROPE, dict(positions=3, cu_seqlens=cuts)),
        (ROPE, dict(positions=3, **shard)), (AXES, three),
    ):  # fmt: skip
        got = lt.apply_packed_qkv(rope, x, heads=HEADS, kv_heads=KV, grouped=True, layout="td", **options)
        q, k, v = _in_groups(x.detach())
        want = *rope.apply_qk(q, k, layout="thd", **options), v
        assert all(map(torch.equal, got, want))
        back = rope.apply(want[0], layout="thd", operation="backward", **options)
        assert torch.equal(_in_groups(torch.autograd.grad(got, x, got)[0])[0], back)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", ["bsd", "sbd, groups", "bsd, groups"])
def test_one_call_writes_the_packed_gradient(name, normed):
    """Nothing of PyTorch fills, copies or adds anything of its size."""
    x, w = leaf(*PACKED[name][0]), weights() if normed else []
    call = packed_call(name, kv_repeat=2)
    got = call(x, *w)
    outer = [torch.randn(y.shape) for y in got]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        torch.autograd.grad(got, (x, *w), outer)
    events = profile.events()
    assert sum(e.name == "librope::apply" for e in events) == 1
    for e in events:
        if e.name in ("aten::zero_", "aten::fill_", "aten::copy_", "aten::add", "aten::add_", "aten::cat", "aten::zeros"):
            assert normed and all(np.prod(shape, dtype=int) < x.numel() for shape in e.input_shapes), e.name


def test_only_what_a_norm_was_given_is_kept():
    def kept(call):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
            call()
        return shapes

    x, w = leaf(BATCH, TOKENS, FLAT), weights()
    q, k, v = (y.detach().requires_grad_() for y in _apart(x))
    ids = tuple(IDS.shape)
    assert kept(lambda: packed_call("bsd")(x)) == [ids]
    assert kept(lambda: lt.apply_qkv(ROPE, q, k, v, IDS)) == [ids]
    norms = Norms(k=Norm(w[0], kind="rms", eps=1e-6))
    assert kept(lambda: lt.apply_qkv(ROPE, q, k, v, IDS, norms=norms)) == [tuple(k.shape), (DIM,), ids]
    assert len(kept(lambda: packed_call("bsd")(x, *w))) == 6


def results(call, x, w, outer=None):
    got = call(x, *w)
    torch.manual_seed(3)
    outer = [torch.randn(y.shape) for y in got]
    return (*got, *torch.autograd.grad(got, (x, *w), outer))


CALLS = {
    "packed": (packed_call("bsd"), 4), "packed, repeated, without norms": (packed_call("bsd", kv_repeat=2), 0),
    "groups": (packed_call("bsd, groups", kv_repeat=2), 4), "three": (three_call(kv_repeat=2), 4),
    "three without norms": (three_call(), 0), "int": (packed_call("bsd, groups", positions=3), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("how", ["aot_eager", "inductor", "make_fx", "export", "trace", "checkpoint", "reentrant", "hooks"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_whoever_records_or_repeats_a_call_gets_its_bits(name, how):
    call, count = CALLS[name]
    torch.manual_seed(0)
    x, w = leaf(BATCH, TOKENS, FLAT), weights()[:count]
    want = results(call, x, w)
    torch._dynamo.reset()
    if how in ("aot_eager", "inductor"):
        run = torch.compile(call, fullgraph=True, backend=how)
        with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
            assert all(map(torch.equal, run(x, *w), want))
    elif how == "make_fx":
        run = make_fx(call)(x.detach(), *[y.detach() for y in w])  # the recorded operator has a gradient of its own
    elif how == "export":

        class Layer(torch.nn.Module):
            def forward(self, x, w):
                return call(x, *w)

        module = torch.export.export(Layer(), (x.detach(), tuple(w))).module()
        run = lambda x, *w: module(x, w)  # noqa: E731
    elif how == "trace":
        run = torch.jit.trace(call, (x.detach(), *[y.detach() for y in w]), check_trace=False)
    elif how in ("checkpoint", "reentrant"):
        got = checkpoint(call, x, *w, use_reentrant=how == "reentrant")
        torch.manual_seed(3)
        torch.autograd.backward(got, [torch.randn(y.shape) for y in got])
        assert all(map(torch.equal, (*got, x.grad, *[y.grad for y in w]), want))
        return
    else:
        with torch.autograd.graph.save_on_cpu(), torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda y: y):
            assert all(map(torch.equal, results(call, x, w), want))
        return
    with torch._inductor.config.patch(force_disable_caches=True):
        assert all(map(torch.equal, results(run, x, w), want))


@pytest.mark.parametrize("name", ["packed", "groups", "three"])
def test_lengths_do_not_recompile(name):
    call, count = CALLS[name]
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda x, p, *w: call(x, *w, positions=p), fullgraph=True, backend=counter, dynamic=True)
    for batch, tokens in ((2, 6), (2, 9), (3, 17)):
        x, w, ids = leaf(batch, tokens, FLAT), weights()[:count], torch.arange(tokens)
        want = results(lambda x, *w: call(x, *w, positions=ids), x, w)  # noqa: B023
        assert all(map(torch.equal, results(lambda x, *w: run(x, ids, *w), x, w), want))  # noqa: B023
    assert counter.frame_count == 1
    tokens = torch.export.Dim("tokens", min=2, max=64)

    class Layer(torch.nn.Module):
        def forward(self, x, ids, w):
            return call(x, *w, positions=ids)

    ids = torch.arange(8)
    shapes = {"x": {1: tokens}, "ids": {0: tokens}, "w": (None,) * count}
    module = torch.export.export(Layer(), (leaf(2, 8, FLAT), ids, tuple(w)), dynamic_shapes=shapes).module()
    x, ids = leaf(2, 11, FLAT), torch.arange(11)
    assert all(map(torch.equal, module(x, ids, tuple(w)), call(x, *w, positions=ids)))


@pytest.mark.parametrize("normed", [False, True])
def test_the_operators_keep_the_rules_of_operators(normed):
    torch.manual_seed(0)
    x = leaf(BATCH, TOKENS, ALL, DIM)
    norms = norms_of(weights()) if normed else None
    arrays = (*(norm_arrays(norms) or (None,) * 9), norm_forms(norms))
    arguments = (*arrays, IDS, 0, ROPE.spec, "bshd", 0, False, "", None, None)
    constants = [y.detach() if isinstance(y, torch.Tensor) else y for y in arrays]  # with norms a gradient has no gradient
    back = (*constants, IDS, 0, ROPE.spec, "bshd", 1, False, "", None, None)
    parts = [y.detach().requires_grad_() for y in x.split((HEADS, KV, KV), 2)]
    wanted = [y is not None for y in arrays[:9]]
    ops = torch.ops.librope
    outer = [torch.randn(BATCH, TOKENS, n, DIM, requires_grad=not normed) for n in (HEADS, 2 * KV, 2 * KV)]
    given = [y.detach() if normed else None for y in (x, *parts)]
    for op, inputs in (
        (ops.apply_normed, (*parts[:2], *arguments, parts[2], 2)),
        (ops.apply_packed, (x, HEADS, KV, 2, *arguments)),
        (ops.norm_gradients, (*outer[:2], *given[1:3], wanted, *back, outer[2], given[3], 2)),
        (ops.packed_gradients, (*outer, given[0], HEADS, KV, 2, wanted, *back)),
    ):
        torch.library.opcheck(op.default, inputs)
    for op, inputs in ((ops.apply_packed, (HEADS, KV, 2, *arguments)), (ops.packed_gradients, (*outer[1:], None, HEADS, KV, 2, wanted, *back))):
        with pytest.raises(NotImplementedError, match="batched gradients .* do not go through norms=, apply_qkv and"):
            torch.func.vmap(lambda y: op(y, *inputs)[0])(outer[0][None] if op is ops.packed_gradients else x[None])  # noqa: B023
    assert lt.FLOPS[ops.apply_packed](x.shape, HEADS, KV) == 3 * (parts[0].numel() + parts[1].numel())
    assert lt.FLOPS[ops.packed_gradients](parts[0].shape, parts[1].shape) == lt.FLOPS[ops.apply_packed](x.shape, HEADS, KV)


@pytest.mark.parametrize("name", ["bsd", "bsd, groups", "three"])
def test_second_derivatives_without_norms(name):
    call = three_call(3, kv_repeat=2) if name == "three" else packed_call(name, 3, kv_repeat=2)
    x = torch.randn(1, 2, FLAT, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x,), eps=1e-2, atol=2e-3, rtol=1e-2)
    assert torch.autograd.gradgradcheck(call, (x,), eps=1e-2, atol=2e-3, rtol=1e-2)
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for run in (call, compiled):
        hessian = torch.autograd.functional.hessian(lambda x: sum((y**2).sum() for y in run(x)), x)  # noqa: B023
        parts = (_in_groups if "groups" in name else _apart)(hessian.view(2 * FLAT, -1).sum(-1).view(2, FLAT))
        for part, twice in zip(parts, (2, 4, 4), strict=True):
            assert torch.allclose(part, torch.full_like(part, twice), atol=1e-4)


def test_there_are_none_through_norms():
    x, w = leaf(1, 2, FLAT), weights()
    for call in (packed_call("bsd", 3), three_call(3)):
        loss = sum((y**3).sum() for y in call(x, *w))
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(NotImplementedError, match="librope has no second derivative through norms="):
            torch.autograd.grad(g.square().sum(), x)


def test_under_autocast_weights_keep_their_dtype():
    torch.manual_seed(0)
    linear, w = torch.nn.Linear(24, FLAT), weights()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = packed_call("bsd")(linear(torch.randn(BATCH, TOKENS, 24)), *w)
    assert {y.dtype for y in got} == {torch.bfloat16}
    torch.autograd.backward(got, [torch.randn_like(y) for y in got])
    assert {y.grad.dtype for y in (linear.weight, *w)} == {torch.float32} and all(y.grad.any() for y in w)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_some_may_need_a_gradient_and_some_not(backend):
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, TOKENS, n, DIM) for n in (HEADS, KV, KV))

    def run(q, k, v, w):
        return lt.apply_qkv(ROPE, q, k, v, IDS, norms=norms_of(w), kv_repeat=2)

    torch._dynamo.reset()
    call = run if backend is None else torch.compile(run, fullgraph=True, backend=backend)
    every = [y.requires_grad_() for y in (q, k, v)] + weights()
    outer = [torch.randn(y.shape) for y in run(q, k, v, every[3:])]
    want = torch.autograd.grad(run(q, k, v, every[3:]), every, outer)
    for which in ((2,), (4,), (6,), (0, 5)):
        leaves = [y.detach().requires_grad_(i in which) for i, y in enumerate(every)]
        got = torch.autograd.grad(call(*leaves[:3], leaves[3:]), [leaves[i] for i in which], outer)
        assert all(torch.equal(a, want[i]) for a, i in zip(got, which, strict=True))
    unused = torch.autograd.grad(call(*every[:3], every[3:])[0].sum(), every, allow_unused=True)
    assert unused[0].any() and not any(y.any() for y in (*unused[1:3], *unused[4:]))


@pytest.mark.parametrize("compiled", [False, True])
def test_one_tensor_may_be_all_three(compiled):
    x = leaf(BATCH, TOKENS, KV, DIM)

    def run(x):
        return lt.apply_qkv(ROPE, x, x, x, IDS)

    torch._dynamo.reset()
    got = (torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run)(x)
    assert torch.equal(got[0], got[1]) and torch.equal(got[2], x)
    (found,) = torch.autograd.grad(sum(y.sum() for y in got), x)
    assert torch.allclose(found, 2 * ROPE.apply(torch.ones_like(x), IDS, operation="backward") + 1, atol=1e-6)


def test_a_lazily_negated_gradient_and_one_of_zeros():
    x = leaf(BATCH, TOKENS, FLAT)
    for w in ([], weights()):
        got = packed_call("bsd")(x, *w)
        outer = [torch.randn(y.shape) for y in got]
        a, b = (
            torch.autograd.grad(got, x, g, retain_graph=True)[0]
            for g in ([torch._neg_view(y) for y in outer], [-y for y in outer])
        )
        assert torch.equal(a, b)
        zeros = [torch._efficientzerotensor(y.shape) for y in outer]
        assert not torch.autograd.grad(got, x, zeros)[0].any()


def test_nothing_of_nothing():
    for shape in ((0, TOKENS, FLAT), (BATCH, 0, FLAT)):
        for grouped in (False, True):
            x, w = leaf(*shape), weights()
            got = packed_call("bsd, groups" if grouped else "bsd", positions=3)(x, *w)
            found = torch.autograd.grad(got, (x, *w), got)
            assert found[0].shape == shape and not any(y.any() for y in found[1:])


def test_meta_tensors_have_shapes():
    x = torch.empty(BATCH, TOKENS, FLAT, device="meta")
    for name in ("bsd", "bsd, groups"):
        got = packed_call(name, 3, kv_repeat=2)(x)
        assert [tuple(y.shape) for y in got] == [(BATCH, TOKENS, HEADS, DIM)] * 3 and all(y.is_meta for y in got)
    with pytest.raises(TypeError, match="norms.q.weight is on cpu"):
        packed_call("bsd", 3)(x, *weights())


def test_what_is_not_there_says_so():
    x, w = leaf(BATCH, TOKENS, FLAT), weights()
    q, k, v = _apart(x)
    rms = Norm(w[0], kind="rms", eps=1e-6)
    after = Norms(v=rms, q=Norm(w[0], kind="rms", eps=1e-6, order="after"))
    per_head = Norms(k=Norm(torch.ones(KV, DIM), kind="rms", eps=1e-6))
    together = Norms(q=Norm(torch.ones(HEADS, DIM), kind="rms", eps=1e-6, span="all_heads"))

    def packed(x=x, rope=ROPE, **options):
        return lt.apply_packed_qkv(rope, x, **{**dict(positions=3, heads=HEADS, kv_heads=KV, layout="bsd"), **options})

    def three(q=q, k=k, v=v, **options):
        return lt.apply_qkv(ROPE, q, k, v, **{**dict(positions=3), **options})

    groups = dict(grouped=True)
    image = AXES.replace(ids_per_axis=True)
    each = librope.Rope(head_dim=DIM, pairing="halves", frequency=np.ones((1, 2, DIM // 2)))
    for call, error, says in (
        (lambda: three(norms=after), NotImplementedError, "norms.q has order 'after', which has no gradient"),
        (lambda: packed(norms=after), NotImplementedError, "norms.q has order 'after', which has no gradient"),
        (lambda: three(pool=librope.Pool(1)), NotImplementedError, "^pool= is not available with a gradient"),
        (lambda: three(operation="inverse"), TypeError, r"apply_qkv\(\) got an unexpected keyword argument 'operation'"),
        (lambda: packed(cos_sin=(q, q)), TypeError, r"apply_packed_qkv\(\) got an unexpected keyword argument 'cos_sin'"),
        (lambda: three(None, None), ValueError, "q and k are both None"),
        (lambda: three(v=v.detach().numpy()), TypeError, "v is a numpy.ndarray, and must be a torch tensor"),
        (lambda: three(kv_repeat=0), ValueError, "kv_repeat is 0"),
        (lambda: three(q[:, :, 0], k[:, :, 0], v[:, :, 0], layout="bsd", kv_repeat=2), ValueError, "kv_repeat is 2, and k has layout 'bsd'"),
        (lambda: three(v=v[:, :4]), ValueError, "v has 4 tokens, and "),
        (lambda: packed(heads=5), ValueError, r"qkv has shape \(2, 6, 128\), and must have 9 heads of 16 channels"),
        (lambda: packed(heads=0), ValueError, "heads is 0"),
        (lambda: packed(None), TypeError, "^qkv is None, and must be a torch tensor"),
        (lambda: packed(x.double()), TypeError, "^qkv has dtype float64"),
        (lambda: packed(x.double(), **groups), TypeError, "^qkv has dtype float64"),
        (lambda: packed(positions=[list(range(TOKENS))], **groups), TypeError, "positions as a list must hold ints"),
        (lambda: packed(layout="bhsd"), ValueError, "must have 8 heads of 16 channels as layout 'bhsd'"),
        (lambda: packed(layout=("bshd", "bshd")), ValueError, "must be one text"),
        (lambda: packed(heads=5, **groups), ValueError, "heads is 5, and must be a multiple of kv_heads, 2"),
        (lambda: packed(batch_repeat=2, **groups), ValueError, "batch_repeat= is not for grouped=True"),
        (lambda: packed(norms=per_head, **groups), NotImplementedError, "norms.k.weight has shape .* one row"),
        (lambda: packed(norms=together, **groups), NotImplementedError, "norms.q has span 'all_heads'"),
        (lambda: packed(x.unflatten(-1, (ALL, DIM)).transpose(1, 2), layout="bhsd", **groups), ValueError, "an order of b and s, or s alone"),
        (lambda: packed(x.view(BATCH, TOKENS, 4, 2, DIM), layout="bshd", **groups), ValueError, "must have 2 groups of 4 heads"),
        (lambda: packed(positions=torch.arange(5), **groups), ValueError, "positions has shape"),
        (lambda: packed(shard=librope.Shard("contiguous", 0, 2), **groups), NotImplementedError, "shard= with grouped=True"),
        (lambda: packed(cu_seqlens=torch.tensor([0, 6]).int(), **groups), ValueError, "cu_seqlens= is for one row"),
        (lambda: packed(rope=image, positions=IDS, **groups), ValueError, "gives each token one id, and this model has 3"),
        (lambda: packed(rope=each, **groups), NotImplementedError, "grouped=True is not for a Rope whose heads have freq"),
        (lambda: packed(rope=each, norms=Norms(rms)), NotImplementedError, "norms= has no gradient where heads have freq"),
        (lambda: packed(rope=each, kv_repeat=2), NotImplementedError, "heads"),
        (lambda: torch.func.grad(lambda x: packed(x)[0].sum())(x), NotImplementedError, "not available under torch.func"),
        (lambda: torch.func.jvp(lambda x: packed(x)[0], (x,), (x,)), NotImplementedError, "no forward-mode derivative"),
        (lambda: packed(positions=torch.arange(6.0, requires_grad=True)), NotImplementedError, "with respect to positions"),
        (lambda: ROPE.apply_qk(q, k, 3, v=v), NotImplementedError, "use librope.torch.apply_qkv, which makes new ones"),
    ):
        with pytest.raises(error, match=says):
            call()
    with torch.no_grad():  # what has no gradient is there without one
        got = packed(norms=after)
        want = lt.apply_qkv(ROPE, q, k, v, 3, norms=after)
        assert all(map(torch.equal, got, want))
        pooled = packed(pool=librope.Pool(2))
        assert all(map(torch.equal, pooled, packed()))
