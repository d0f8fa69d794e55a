"""Rotations, gradients and norms of tensors on a GPU: the bits of the same calls on the CPU."""

import pytest
from gpu_device import (
    BATCH, DEVICE, DIM, DTYPES, GROUPS, HEADS, IDS, ROPE, ROPES, check, here, qk, same, there, torch,
)  # fmt: skip
from gpu_device import compiler, seed  # noqa: F401  (fixtures)

import librope
import librope._norm_gradients as norm_gradients
import librope.torch
from librope import Norm, Norms

# -- eager calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 5, 700])
@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("name", ROPES)
def test_rotations(name, dtype, tokens):
    rope = ROPES[name]
    q, k = qk(tokens, dtype)
    ids = torch.randint(100_000, (BATCH, tokens))

    def run(q, k, ids):
        made = []
        given = (ids, ids.int(), ids[:1], ids[0], ids[1].int(), ids.float(), 7, 2**33)
        for positions in given:
            for operation in ("forward", "backward", "inverse"):
                made += rope.apply_qk(q, k, positions, operation=operation)
        made += rope.apply_qk(q, k, offsets=ids[:, 0].contiguous())
        out = torch.empty_like(q), torch.empty_like(k)
        assert rope.apply_qk(q, k, ids, out=out)[0] is out[0]
        made += [*out, rope.apply(q, ids), rope.apply(k, 5)]
        made += rope.apply_qk(None, k, ids)[1:]
        rope.apply_qk_(q, k, ids)
        return [*made, q, k]

    check(run, q, k, ids)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
def test_views_of_a_packed_projection(dtype):
    """In place and into new tensors, also of an odd first channel; what lies beside q and k stays."""
    wide, ids = torch.randn(BATCH, 9, HEADS + 2 * GROUPS, DIM + 5).to(dtype), torch.randint(5000, (BATCH, 9))

    def run(packed, ids):
        q, k, v = packed.split([HEADS, GROUPS, GROUPS], 2)
        made = [*ROPE.apply_qk(q[..., :DIM], k[..., 3 : 3 + DIM], ids), ROPE.apply(v[..., 1 : 1 + DIM], ids)]
        ROPE.apply_qk_(q[..., :DIM], k[..., 3 : 3 + DIM], ids)
        turned = packed.transpose(1, 2)[:, :, 2:7]
        ROPE.apply_(turned[..., 2 : 2 + DIM], ids[:, 2:7].contiguous(), layout="bhsd")
        return [*made, packed]

    check(run, wide, ids)
    check(lambda x, ids: [ROPE.apply(x.transpose(1, 2), ids, layout="bhsd").contiguous()], *qk(9, dtype)[:1], ids)


@pytest.mark.parametrize("batch, tokens", [(0, 3), (2, 0)])
def test_empty_tensors(batch, tokens):
    def run(q, k, ids):
        ROPE.apply_qk_(q, k, ids)
        return [*ROPE.apply_qk(q, k, ids), *ROPE.apply_qk(q, k, 3)]

    check(run, *qk(tokens, batch=batch), torch.zeros(batch, tokens, dtype=torch.int64))


def test_packed_sequences_axes_sets_and_rows():
    q, k = (x.flatten(0, 1) for x in qk(10))
    cu_seqlens = torch.tensor([0, 3, 3, 12, 20], dtype=torch.int32)
    offsets, sets = torch.tensor([5, 0, 900, 2]), torch.tensor([0, 1, 1, 0], dtype=torch.int32)
    both = librope.Rope.sets([ROPE, ROPE.replace(theta=1e6)], layout="thd")
    mrope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", axes=3, mrope_section=[8, 12, 12], layout="thd")

    def run(q, k, cu_seqlens, offsets, sets, ids):
        made = list(both.apply_qk(q, k, offsets=offsets, cu_seqlens=cu_seqlens, freq_sets=sets))
        made += mrope.apply_qk(q, k, ids)
        for dtype in ("float32", "bfloat16"):
            rows = ROPE.cos_sin(ids[0], format="full_halves", dtype=dtype)
            made += rows
            made += ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format="full_halves", layout="thd")
        return [*made, ROPE.cos_sin(ids[0].int(), format="packed")]

    check(run, q, k, cu_seqlens, offsets, sets, torch.randint(3000, (3, 20)))


def test_a_position_that_is_one_number_on_the_device():
    check(lambda x, p: [ROPE.apply(x, p)], qk(3)[0], torch.tensor(9))


# -- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("name", ROPES)
def test_gradients(name, dtype):
    rope, (q, k), ids = ROPES[name], qk(17, dtype), torch.randint(9000, (BATCH, 17))
    outer = [torch.randn_like(x) for x in (q, k)]

    def run(q, k, ids, *outer):
        q.requires_grad_(), k.requires_grad_()
        turned = rope.apply_qk(q, k, ids)
        made = torch.autograd.grad(turned, (q, k), outer)
        one = rope.apply(q.transpose(1, 2), offsets=ids[:, 0].contiguous(), layout="bhsd")
        return [*turned, *made, *torch.autograd.grad(one.float().square().sum(), q)]

    check(run, q, k, ids, *outer)


def test_second_derivatives_and_rows():
    def run(q, k, ids, dy):
        q.requires_grad_()
        rows = ROPE.cos_sin(ids, format="full_halves")
        turned = ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format="full_halves")[0]
        (g,) = torch.autograd.grad((ROPE.apply(q, ids) ** 2 * dy).sum(), q, create_graph=True)
        return [*torch.autograd.grad(turned, q, dy, retain_graph=True), g, *torch.autograd.grad(g, q, dy)]

    q, k = qk(6)
    check(run, q, k, torch.arange(6), torch.randn_like(q))


def normed(q, k, ids, q_weight, k_weight, k_bias, *outer):
    leaves = [x.requires_grad_() for x in (q, k, q_weight, k_weight, k_bias)]
    norms = Norms(
        Norm(q_weight, kind="rms", eps=1e-6), Norm(k_weight, bias=k_bias, kind="layer_bias", eps=1e-5)
    )  # fmt: skip
    turned = ROPE.apply_qk(q, k, ids, norms=norms)
    return [*turned, *torch.autograd.grad(turned, leaves, outer)]


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("tokens", [3, 300])
def test_gradients_of_norms(monkeypatch, dtype, tokens):
    """Weights' gradients are sums of parts, of which a GPU makes more, and PyTorch adds these up in an order of its
    own: the bits of the CPU are those of one part."""
    q, k = qk(tokens, dtype)
    tensors = (
        q, k, torch.randint(9000, (BATCH, tokens)), torch.randn(DIM).to(dtype),
        torch.randn(GROUPS, DIM).to(dtype), torch.randn(GROUPS, DIM).to(dtype),
        torch.randn_like(q), torch.randn_like(k),
    )  # fmt: skip
    want, got = normed(*map(here, tensors)), normed(*map(there, tensors))
    same(got[:4], want[:4])
    for g, w in zip(got[4:], want[4:], strict=True):
        tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2.0**-7}[dtype]
        assert g.device == DEVICE and (g.cpu() - w).abs().max() <= tolerance * w.abs().max()
    monkeypatch.setattr(norm_gradients, "parts_of", lambda tokens, on_cuda: min(1, tokens))
    check(normed, *tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("grouped", [False, True])
def test_packed_gradients(monkeypatch, dtype, grouped):
    """Of a projection with q, k and v in it, norms of all three and repeated heads, by weights' gradients of one part."""
    monkeypatch.setattr(norm_gradients, "parts_of", lambda tokens, on_cuda: min(1, tokens))
    tokens, repeat = 70, HEADS // GROUPS
    packed = torch.randn(BATCH, tokens, (HEADS + 2 * GROUPS) * DIM).to(dtype)

    def run(packed, ids, weight, *outer):
        leaves = [x.requires_grad_() for x in (packed, weight)]
        norms = Norms(*[Norm(weight, kind="rms", eps=1e-6) for _ in "qkv"])
        made = []
        for options in (dict(norms=norms), {}):
            for positions in (dict(positions=ids), dict(positions=5), dict(offsets=ids[:, 0].contiguous())):
                got = librope.torch.apply_packed_qkv(
                    ROPE, packed, heads=HEADS, kv_heads=GROUPS, grouped=grouped, kv_repeat=repeat, layout="bsd",
                    **options, **positions,
                )  # fmt: skip
                made += [*got, *torch.autograd.grad(got, leaves[: 1 + bool(options)], outer)]
        return made

    outer = [torch.randn(BATCH, tokens, HEADS, DIM).to(dtype) for _ in "qkv"]
    check(run, packed, torch.randint(9000, (BATCH, tokens)), torch.randn(DIM).to(dtype), *outer)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("kind", ["rms", "rms_one_plus", "rms_plain", "layer"])
def test_norms(kind, dtype):
    """Also of all heads together, behind the rotation, and rounded step by step; v on its way to an output."""
    q, k = qk(40, dtype)

    def run(q, k, v, ids, weight, all_weights):
        made = []
        for options in (
            {}, {"span": "all_heads", "rounding": "rounded"}, {"order": "after"}, {"rounding": "rounded"},
            {"rounding": "eager"},
        ):  # fmt: skip
            given = () if kind == "rms_plain" else (all_weights if "span" in options else weight,)
            norms = Norms(Norm(*given, kind=kind, eps=1e-6, **options), v=Norm(kind="rms_plain", eps=1e-6))
            v_out = torch.empty_like(v)
            made += ROPE.apply_qk(q, k, ids, v=v, norms=norms, out=(torch.empty_like(q), torch.empty_like(k), v_out))
            made.append(v_out)
        return made

    check(run, q, k, torch.randn_like(k), torch.arange(40), torch.randn(DIM), torch.randn(HEADS, DIM))


# -- compiled code ----------------------------------------------------------------------------------


def test_compiled_code_with_gradients(compiler):  # noqa: F811
    """Products by powers of two, which are exact, so that the bits are those of eager code and of the CPU."""

    def turned(q, k, ids):
        return [4 * x for x in ROPE.apply_qk(q * 2, k * 2, ids)]

    def gradients(run, where):
        q, k = (where(x).requires_grad_() for x in tensors)
        got = run(q, k, where(ids))
        return [*got, *torch.autograd.grad(got, (q, k), [where(x) for x in outer])]

    tensors, ids = qk(12, torch.bfloat16), torch.randint(4000, (BATCH, 12))
    outer = [torch.randn_like(x) for x in tensors]
    got = gradients(compiler(turned, fullgraph=True), there)
    same(got, gradients(turned, there))
    same(got, gradients(turned, here))
