"""Outputs of another dtype, in 8 bits and with repeated heads, and `rest`, in PyTorch: eager and compiled code has
the bits of NumPy's, and what PyTorch has to see it sees."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import librope  # noqa: E402
from librope import KVCache, Norm, Norms, Scale, Scales  # noqa: E402

torch.set_num_threads(1)
DIM, TOKENS, PAGES, SIZE = 32, 3, 3, 4
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd")
CODES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
NORMS = Norms(*[Norm(torch.linspace(0.5, 1.5, DIM), kind="rms", eps=1e-5)] * 3)


def inputs(seed=0):
    torch.manual_seed(seed)
    return [torch.randn(1, TOKENS, n, c) * 9 for n, c in ((4, DIM), (2, DIM), (2, DIM), (4, 48))]


def memory(dtype):
    """Of outputs of q, k twice as many heads, v and rest; pages of k and v; computed scales of q, v and pages."""
    shapes = (4, DIM), (4, DIM), (2, DIM), (4, 48)
    outs = [torch.zeros(1, TOKENS, *shape).to(dtype) for shape in shapes]
    pages = [torch.zeros(PAGES, SIZE, 2, DIM).to(dtype) for _ in "kv"]
    scales = torch.zeros(1, TOKENS, 4), torch.zeros(1, TOKENS, 2, 4), torch.zeros(PAGES, SIZE, 2)
    return *outs, *pages, *scales


SLOTS = torch.tensor([3, -1, 9])


def step(q, k, v, rest, q8, k8, v8, rest8, k_pages, v_pages, q_scales, v_scales, page_scales):
    """Everything in 8 bits that a call can have, with scales of every kind."""
    cache = KVCache(k_pages, v_pages, layout="nhd", slots=SLOTS, k_scale=Scale(data=page_scales, computed=True),
                    v_scale=Scale(0.25))  # fmt: skip
    scales = Scales(Scale(data=q_scales, computed=True, min_scale=1e-3), Scale(0.5),
                    Scale(data=v_scales, computed=True, group=8, power_of_two=True), Scale(0.25, round_first=True))  # fmt: skip
    ROPE.apply_qk(q, k, 5, v=v, rest=rest, cache=cache, norms=NORMS, out=(q8, k8, v8, rest8), scales=scales)
    return q8.float().sum()


def as_numpy(x):
    if x.dtype in CODES:
        return x.view(torch.uint8).numpy().view(getattr(ml_dtypes, str(x.dtype)[6:], np.int8))
    return x.numpy()


def same(a, b):
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_eager_code_has_the_bits_of_numpy(dtype):
    arrays, filled, again = inputs(), memory(dtype), memory(dtype)
    versions = [x._version for x in filled]
    step(*arrays, *filled)
    assert all(x._version > n for x, n in zip(filled, versions, strict=True))
    q8, k8, v8, rest8, k_pages, v_pages, q_scales, v_scales, page_scales = map(as_numpy, again)
    cache = KVCache(k_pages, v_pages, layout="nhd", slots=SLOTS.numpy(),
                    k_scale=Scale(data=page_scales, computed=True), v_scale=Scale(0.25))  # fmt: skip
    scales = Scales(Scale(data=q_scales, computed=True, min_scale=1e-3), Scale(0.5),
                    Scale(data=v_scales, computed=True, group=8, power_of_two=True), Scale(0.25, round_first=True))  # fmt: skip
    q, k, v, rest = map(as_numpy, arrays)
    norm = Norm(NORMS.q.weight.numpy(), kind="rms", eps=1e-5)
    ROPE.apply_qk(q, k, 5, v=v, rest=rest, cache=cache, norms=Norms(norm, norm, norm), out=(q8, k8, v8, rest8),
                  scales=scales)  # fmt: skip
    assert same(filled, again) and all(x.float().any() for x in filled)


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_compiled_code_has_the_bits_of_eager_code(dtype):
    with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        torch._dynamo.reset()
        compiled, filled, again = torch.compile(step, fullgraph=True), memory(dtype), memory(dtype)
        assert torch.equal(compiled(*inputs(), *filled), step(*inputs(), *again))
        assert same(filled, again)
        compiled(*inputs(1), *filled), step(*inputs(1), *again)
        assert same(filled, again)


def step_in_blocks(q, k, v, rest, q8, k8, v8, rest8, k_pages, v_pages):
    """Everything in blocks of Q8_0 that a call can have."""
    cache = KVCache(k_pages, v_pages, layout="nhd", slots=SLOTS)
    ROPE.apply_qk(q, k, 5, v=v, rest=rest[..., :DIM], cache=cache, out=(q8, k8, v8, rest8))
    return q8.float().sum()


def blocks():
    """The outputs and pages of step_in_blocks()."""
    shapes = *[(1, TOKENS, heads) for heads in (4, 2, 2, 4)], *[(PAGES, SIZE, 2)] * 2
    return [torch.full((*shape, DIM // 32 * 34), 77, dtype=torch.uint8) for shape in shapes]


def test_blocks_have_the_bits_of_numpy():
    arrays, filled, again = inputs(), blocks(), blocks()
    versions = [x._version for x in filled]
    step_in_blocks(*arrays, *filled)
    assert all(x._version > n for x, n in zip(filled, versions, strict=True))
    q, k, v, rest, q8, k8, v8, rest8, k_pages, v_pages = (x.numpy() for x in (*arrays, *again))
    cache = KVCache(k_pages, v_pages, layout="nhd", slots=SLOTS.numpy())
    ROPE.apply_qk(q, k, 5, v=v, rest=rest[..., :DIM], cache=cache, out=(q8, k8, v8, rest8))
    assert same(filled, again) and all((x != 77).any() for x in filled)
    for pages, slots in ((filled[4], torch.tensor([3, 9])), (k_pages, np.array([3, 9]))):
        ROPE.move(KVCache(pages, layout="nhd", slots=slots), [8, 9], [5, 7])
    assert same(filled, again)
    with pytest.raises(ValueError, match="out of q has 33 bytes of uint8"):
        ROPE.apply(arrays[0], 5, out=torch.zeros(1, TOKENS, 4, 33, dtype=torch.uint8))


def test_blocks_in_compiled_code():
    with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        torch._dynamo.reset()
        compiled, filled, again = torch.compile(step_in_blocks, fullgraph=True), blocks(), blocks()
        assert torch.equal(compiled(*inputs(), *filled), step_in_blocks(*inputs(), *again))
        assert same(filled, again)


def test_given_arrays_of_scales_are_only_read_in_compiled_code():
    q, scales = inputs()[0], torch.rand(1, TOKENS, 4) + 0.5
    before, want = scales.clone(), torch.zeros_like(q).to(torch.int8)

    def run(q, scales, out):
        return ROPE.apply(q, 5, out=out, scales=Scales(q=Scale(data=scales))).float() * 2

    with torch.no_grad():
        torch._dynamo.reset()
        run(q, scales, want)
        compiled, found = torch.compile(run, fullgraph=True), torch.zeros_like(want)
        version = scales._version
        compiled(q, scales, found)
    assert torch.equal(found, want) and want.any() and torch.equal(scales, before) and scales._version == version


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_outputs_of_another_dtype_in_compiled_code(backend):
    q, k, *_ = inputs()

    def run(q, k):
        q_out, k_out = torch.empty_like(q, dtype=torch.bfloat16), torch.empty_like(q, dtype=torch.float16)
        return ROPE.apply_qk(q, k, 5, out=(q_out, k_out))

    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        torch._dynamo.reset()
        turned = ROPE.apply_qk(q, k, 5)
        for function in (run, torch.compile(run, fullgraph=True, backend=backend)):
            found = function(q, k)
            assert torch.equal(found[0], turned[0].bfloat16())
            assert torch.equal(found[1], turned[1].half().repeat_interleave(2, 2))


def test_exported_programs_write_codes():
    class Step(torch.nn.Module):
        def forward(self, q, out, data):
            ROPE.apply(q, 5, out=out, scales=Scales(q=Scale(data=data, computed=True)))
            return out.float() * data[..., None]

    q = inputs()[0]
    arguments = q, torch.zeros_like(q).to(torch.float8_e4m3fn), torch.zeros(1, TOKENS, 4)
    with torch.no_grad():
        program = torch.export.export(Step(), tuple(x.clone() for x in arguments)).module()
        assert torch.equal(program(*[x.clone() for x in arguments]), Step()(*arguments))


def test_operator_keeps_the_rules_of_operators():
    q, k, v, rest = inputs()
    q8, k8, v8, rest8, _, _, q_scales, v_scales, _ = memory(torch.int8)
    text = "None True 0 False 0.0 False,0.5 False 0 False 0.0 False,,0.5 False 0 False 0.0 False,,0.5 False 0 False 0.0 False"
    arguments = (
        q, k, v, q8, k8, v8, None, None, "", None, None, None, None, *[None] * 9, "", torch.arange(3), 0, ROPE.spec,
        "bshd", 0, False, "", None, None, rest, rest8, text, *[None] * 6, q_scales, *[None] * 5,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.librope.apply_fused_.default, arguments)


def test_meta_and_fake_tensors_keep_the_rules_and_the_dtypes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v, rest = (x.to("meta") for x in inputs())
    out = torch.empty_like(q, dtype=torch.float8_e4m3fn)
    data = torch.empty(1, TOKENS, 4, device="meta")
    scales = Scales(q=Scale(data=data, computed=True))
    found = ROPE.apply_qk(q, k, 5, out=(out, None), scales=scales)
    assert found[0] is out and found[1].dtype == torch.float32
    for arguments, error, text in (
        (dict(out=(out, None), scales=Scales(q=Scale(data=data[:, :2]))), ValueError, "data of scales.q has shape"),
        (dict(out=(out.to(torch.float64), None)), TypeError, "out of q has dtype float64"),
        (dict(out=(None, torch.empty(1, TOKENS, 3, DIM, device="meta"))), ValueError, "out of k has 3 heads"),
        (dict(rest=rest), ValueError, "rest has nowhere to go"),
        (dict(out=(out, None)), ValueError, "out of q has dtype float8_e4m3fn, and scales.q must be a Scale"),
        (dict(out=(torch.empty(q.shape), None)), TypeError, "out of q is on cpu, and q on meta"),
        (dict(out=(out, None), scales=Scales(q=Scale(data=torch.empty(1, TOKENS, 4)))), TypeError,
         "data of scales.q is on cpu, and q on meta"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            ROPE.apply_qk(q, k, 5, **arguments)
    with FakeTensorMode():
        q, k = torch.empty(1, TOKENS, 4, DIM), torch.empty(1, TOKENS, 2, DIM)
        out = torch.empty(1, TOKENS, 4, DIM, dtype=torch.float8_e5m2)
        assert ROPE.apply_qk(q, k, 5, out=(out, None), scales=Scales(q=Scale(1)))[0].dtype == torch.float8_e5m2
        with pytest.raises(ValueError, match="out of k has 3 heads, and must have a multiple of the 2 of k"):
            ROPE.apply_qk(q, k, 5, out=(out, torch.empty(1, TOKENS, 3, DIM)), scales=Scales(q=Scale(1)))


def test_what_pytorch_has_to_see():
    q, k, v, rest = inputs()
    out, data = torch.zeros_like(q).to(torch.int8), torch.ones(1, TOKENS, 4)
    for arguments in (
        dict(out=(torch.zeros_like(q), None)),
        dict(rest=rest, out=(None, None, None, torch.zeros_like(rest))),
        dict(out=(out, None), scales=Scales(q=Scale(1))),
    ):
        with pytest.raises(NotImplementedError, match="no gradient goes through v=, cache=, rest= and out="):
            ROPE.apply_qk(q.clone().requires_grad_(), k, 5, **arguments)
    with pytest.raises(NotImplementedError, match="no gradient goes through"):
        ROPE.apply_qk(q, k, 5, out=(out, None), scales=Scales(q=Scale(data=data.clone().requires_grad_())))
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.func.vmap(lambda x: ROPE.apply(x, 5, out=torch.zeros_like(q[0]), layout="thd"))(q)
    assert not out.any()
    call = ROPE.prepare_qk(q, k, 5, out=(out, k), scales=Scales(q=Scale(data=data)))
    call.apply_qk(q, k, out=(out, k.clone()), scales=Scales(q=Scale(data=data.clone())))
    assert torch.equal(out, ROPE.apply(q, 5).round().clamp(-128, 127).to(torch.int8))
    with pytest.raises(NotImplementedError, match="prepared calls have no gradient"):
        call.apply_qk(q, k, out=(out, k), scales=Scales(q=Scale(data=data.clone().requires_grad_())))


def beside_numpy(name, requires_grad):
    """Arguments beside a q of NumPy, of which the tensor of that name may require a gradient."""
    q, _, v, rest = inputs()

    def of(one, x):
        return x.requires_grad_(requires_grad and one == name)

    weight, bias = of("norms.q.weight", torch.ones(DIM)), of("norms.q.bias", torch.ones(DIM))
    cos, sin = of("cos", torch.ones(TOKENS, DIM)), of("sin", torch.ones(TOKENS, DIM))
    rows = dict(cos_sin=(cos, sin), cos_sin_format="full_halves")
    norms = dict(positions=5, norms=Norms(Norm(weight, kind="layer_bias", eps=1e-5, bias=bias)))
    pages = KVCache(v=of("cache.v", torch.zeros(PAGES, SIZE, 2, DIM)), layout="nhd", slots=SLOTS)
    scale = Scale(data=of("data of scales.q", torch.ones(1, TOKENS, 4)))
    return {
        "positions": dict(positions=of("positions", torch.arange(float(TOKENS)))),
        "cos": rows,
        "sin": rows,
        "v": dict(positions=5, v=of("v", v), out=(None, None, torch.zeros_like(v))),
        "cache.v": dict(positions=5, v=v, cache=pages),
        "rest": dict(positions=5, rest=of("rest", rest), out=(None, None, None, torch.zeros_like(rest))),
        "norms.q.weight": norms,
        "norms.q.bias": norms,
        "data of scales.q": dict(
            positions=5, out=(torch.zeros_like(q).to(torch.int8), None), scales=Scales(q=scale)
        ),
    }[name]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["positions", "cos", "sin", "v", "cache.v", "rest", "norms.q.weight", "norms.q.bias", "data of scales.q"]
)
def test_no_gradient_is_lost_beside_arrays_of_numpy(name):
    """Autograd does not see such a call: what would get a gradient is refused, by its name."""
    q = inputs()[0].numpy()
    k = inputs()[1].numpy() if name in ("v", "cache.v") else None
    arguments = beside_numpy(name, True)
    told = pytest.raises(NotImplementedError, match=f"^{name} requires a gradient, and a call whose q and k are no")
    with told:
        ROPE.apply_qk(q, k, **arguments)
    if "out" not in arguments:
        with told:
            ROPE.apply_qk_(q, k, **arguments)
    assert np.array_equal(q, inputs()[0].numpy())
    with told:
        ROPE.prepare_qk(q, k, **arguments)
    with torch.no_grad():
        got = ROPE.apply_qk(q, k, **arguments)[0]
        prepared = ROPE.prepare_qk(q, k, **arguments)
    assert prepared and np.array_equal(got, ROPE.apply_qk(q, k, **beside_numpy(name, False))[0])


@pytest.mark.parametrize("mode", [torch.autograd.forward_ad.dual_level, lambda: FlopCounterMode(display=False)])
@pytest.mark.parametrize("name", ["positions", "cos", "v", "cache.v", "norms.q.weight"])
def test_prepared_calls_of_numpy_take_tensors_beside_them_in_every_mode(name, mode):
    q, k = (x.numpy() for x in inputs()[:2])
    k = k if name in ("v", "cache.v") else None
    want = ROPE.apply_qk(q, k, **beside_numpy(name, False))[0]
    arguments = beside_numpy(name, False)
    brought = {n: arguments[n] for n in ("v", "cache", "norms", "out") if n in arguments}
    if "cache" in brought:
        brought["cache"] = KVCache(v=brought["cache"].v, layout="nhd")
    with mode() as entered:
        prepared = ROPE.prepare_qk(q, k, **arguments)
        if name in ("v", "cache.v") and isinstance(entered, FlopCounterMode):  # which would not see what is written
            with pytest.raises(NotImplementedError, match="cannot write into a tensor in traced code"):
                prepared.apply_qk(q, k, **brought)
        else:
            assert np.array_equal(prepared.apply_qk(q, k, **brought)[0], want)


@pytest.mark.parametrize("name", ["v", "norms.q.weight"])
def test_prepared_calls_of_numpy_refuse_what_a_layer_brings_with_a_gradient(name):
    q, k = (x.numpy() for x in inputs()[:2])
    prepared = ROPE.prepare_qk(q, k, **beside_numpy(name, False))
    brought = {n: x for n, x in beside_numpy(name, True).items() if n != "positions"}
    with pytest.raises(NotImplementedError, match=f"^{name} requires a gradient, and a call whose q and k are no"):
        prepared.apply_qk(q, k, **brought)


def in_float64(x, positions, weight=None):
    """Normed, if there is a weight, and turned."""
    if weight is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    cos, sin = (t.double()[:, None] for t in ROPE.cos_sin(positions, format="full_halves"))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", ["before", "after"])
def test_gradients_of_one_key_for_all_heads(way, compiled, dtype, normed):
    """Where out= would repeat heads, expand() does, before the call or behind it, and its gradient adds them up."""
    torch.manual_seed(1)
    heads, positions = 8, torch.arange(5, 5 + TOKENS)
    q, k = (torch.randn(2, TOKENS, n, DIM).to(dtype) for n in (heads, 1))
    weight = torch.randn(DIM).to(dtype)
    outer = torch.randn(2, TOKENS, heads, DIM).to(dtype)
    leaves = [x.requires_grad_() for x in ((k, weight) if normed else (k,))]

    def turned(k, weight=None):
        norms = None if weight is None else Norms(k=Norm(weight, kind="rms", eps=1e-5))
        if way == "before":
            return ROPE.apply_qk(q, k.expand(-1, -1, heads, -1), positions, norms=norms)[1]
        return ROPE.apply_qk(q, k, positions, norms=norms)[1].expand(-1, -1, heads, -1)

    torch._dynamo.reset()
    run = torch.compile(turned, fullgraph=True, backend="aot_eager") if compiled else turned
    found = run(*leaves)
    got = torch.autograd.grad(found, leaves, outer)
    norms = Norms(k=Norm(weight.detach(), kind="rms", eps=1e-5)) if normed else None
    with torch.no_grad():
        want = ROPE.apply_qk(q, k, positions, norms=norms, out=(None, torch.empty_like(q)))[1]
    assert torch.equal(found, want)

    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = in_float64(wide[0], positions, *wide[1:])
    sums = torch.autograd.grad(exact, wide, outer.double().sum(2, keepdim=True))
    for a, b in zip(got, sums, strict=True):
        assert (a - b).abs().max() <= (2e-6 if dtype == torch.float32 else 2.0**-7) * b.abs().max()


def test_gradients_of_a_norm_of_v():
    """By a Rope without rotation, in a call of its own; together with q and k, where v needs out=, it is refused."""
    torch.manual_seed(2)
    q, k, v, _ = inputs()
    weight, outer = torch.randn(DIM).requires_grad_(), torch.randn_like(v)
    norm = Norm(weight, kind="rms", eps=1e-5)
    leaf = v.clone().requires_grad_()
    nope = librope.Rope(head_dim=DIM, scaling="nope", layout="bshd")
    found = nope.apply(leaf, 0, norms=Norms(norm))
    got = torch.autograd.grad(found, (leaf, weight), outer)
    with torch.no_grad():
        want = torch.empty_like(v)
        ROPE.apply_qk(q, k, 5, v=v, norms=Norms(v=norm), out=(None, None, want))
    assert torch.equal(found, want)
    wide = v.double().requires_grad_(), weight.detach().double().requires_grad_()
    exact = wide[0] * torch.rsqrt(wide[0].square().mean(-1, keepdim=True) + 1e-5) * wide[1]
    for a, b in zip(got, torch.autograd.grad(exact, wide, outer.double()), strict=True):
        assert (a - b).abs().max() <= 2e-6 * b.abs().max()
    for arguments in (dict(v=leaf), dict(v=v, norms=Norms(v=norm))):
        with pytest.raises(NotImplementedError, match="no gradient goes through v=, cache=, rest= and out="):
            ROPE.apply_qk(q, k, 5, out=(None, None, want), **arguments)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_scales_of_new_arrays_are_refused(grad, normed):
    """The same error with a gradient and without; Scales of nothing are none."""
    q, k = torch.randn(2, 3, 2, 32, requires_grad=grad), torch.randn(2, 3, 2, 32)
    norms = librope.Norms(q=librope.Norm(torch.ones(32), kind="rms", eps=1e-6)) if normed else None
    for name, says in (
        ("q", "^out of q has dtype float32, which is none of 8 bits, and scales.q must be None"),
        ("k", "^out of k has dtype float32, which is none of 8 bits, and scales.k must be None"),
        ("v", "^scales.v is a Scale, and out of v is None"),
        ("rest", "^scales.rest is a Scale, and out of rest is None"),
    ):
        with pytest.raises(ValueError, match=says):
            ROPE.apply_qk(q, k, 5, norms=norms, scales=Scales(**{name: Scale(0.5)}))
    with pytest.raises(ValueError, match="^scales.k is a Scale, and out of k is None"):
        ROPE.apply_qk(q, None, 5, norms=norms, scales=Scales(k=Scale(0.5)))
    for x, y in zip(
        ROPE.apply_qk(q, k, 5, norms=norms, scales=Scales()), ROPE.apply_qk(q, k, 5, norms=norms), strict=True
    ):
        assert torch.equal(x, y) and x.requires_grad == y.requires_grad


@pytest.mark.parametrize("role", ["cache", "source"])
def test_moves_refuse_scales_that_require_a_gradient(role):
    """Those that are given: they are read, and only that."""
    data = torch.full((2, 4, 1), 0.5, requires_grad=True)
    codes = torch.ones(2, 4, 1, DIM, dtype=torch.int8)
    caches = {
        name: librope.KVCache(
            codes.clone(), layout="nhd", slots=torch.tensor([slot]),
            k_scale=librope.Scale(data=data if name == role else data.detach()),
        )
        for name, slot in (("cache", 1), ("source", 2))
    }  # fmt: skip
    where = torch.tensor([3]), torch.tensor([9])
    with pytest.raises(NotImplementedError, match="^move has no gradient, and one of its tensors requires a gradient"):
        ROPE.move(caches["cache"], *where, source=caches["source"])
    with torch.no_grad():
        ROPE.move(caches["cache"], *where, source=caches["source"])
