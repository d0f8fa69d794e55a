"""Prepared calls of torch tensors with a cache: the bits of apply_qk, and no way past what PyTorch has to see."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_torch_kv_cache import CANARY, PLACES, memory, slots_of  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import librope  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, h, 16) for h in (4, 2, 2))


def prepared(qkv, where="slots", **options):
    q, k, v = qkv
    cache = librope.KVCache(*memory(), layout="nhd", **PLACES[where][1])
    return ROPE.prepare_qk(q, k, 5, v=v, cache=cache, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["[2, pages]", "[pages, 2]"])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_bits_of_apply_qk(qkv, dtype, form, where, packed, in_place):
    """Of tensors of their own, and of heads of a packed projection; two layers, each twice."""

    def layer(scale):
        q, k, v = (scale * x.to(dtype) for x in qkv)
        return torch.cat([q, k, v], 2).split([4, 2, 2], 2) if packed else (q, k, v)

    told = PLACES[where][1]
    q, k, v = layer(1)
    call = ROPE.prepare_qk(q, k, 5, v=v, cache=librope.KVCache(*memory(form, dtype=dtype), layout="nhd", **told),
                           out=(q, None) if in_place else None)  # fmt: skip
    caches = [librope.KVCache(*memory(form, dtype=dtype), layout="nhd") for _ in range(2)]
    for scale in (1, -3):
        for cache in caches:
            cache.k.fill_(CANARY), cache.v.fill_(CANARY)
            expected = librope.KVCache(*memory(form, dtype=dtype), layout="nhd", **told)
            q, k, v = layer(scale)
            want, _ = ROPE.apply_qk(q, k, 5, v=v, cache=expected)
            version = cache.k._version
            if in_place:
                assert call.apply_qk_(q, k, v=v, cache=cache) is None
                got = q
            else:
                got, none = call.apply_qk(q, k, v=v, cache=cache)
                assert none is None
            assert torch.equal(got, want) and cache.k._version > version
            assert torch.equal(cache.k, expected.k) and torch.equal(cache.v, expected.v)
            assert not (slots_of(cache.k) == CANARY).all()
            assert torch.equal(k, layer(scale)[1]) and torch.equal(v, layer(scale)[2])
            assert call._short(q, k, v, cache, None, in_place) is not None  # which is what makes it quick


def test_memory_that_changed_since_is_seen(qkv):
    q, k, v = qkv
    call, cache = prepared(qkv), librope.KVCache(*memory(), layout="nhd")
    for _ in range(2):
        call.apply_qk(q, k, v=v, cache=cache)
    with torch.no_grad():
        other = torch.full_like(cache.k, CANARY)
        old, cache.k.data = cache.k.data, other
        kept = old.clone()
        call.apply_qk(q, 2 * k, v=v, cache=cache)
        assert torch.equal(old, kept) and not (other == CANARY).all()
        for wrong, says in ((other[:3], r"cache.k has shape"), (other.transpose(0, 1), "cache.k has (shape|strides)"),
                            (torch._neg_view(other), "cache.k is a lazily negated view")):  # fmt: skip
            cache.k = wrong
            with pytest.raises((ValueError, TypeError), match=says):
                call.apply_qk(q, k, v=v, cache=cache)
        freed = torch.zeros_like(other)
        freed.untyped_storage().resize_(0)
        cache.k = freed
        with pytest.raises(ValueError, match="cache.k has no memory: its storage was freed"):
            call.apply_qk(q, k, v=v, cache=cache)
        cache.k = other.half()
        with pytest.raises(TypeError, match="cache.k has dtype float16"):
            call.apply_qk(q, k, v=v, cache=cache)


def test_q_goes_to_a_tensor_that_is_given(qkv):
    q, k, v = qkv
    told = PLACES["slots"][1]
    cache, expected = (librope.KVCache(*memory(), layout="nhd") for _ in range(2))
    want, _ = ROPE.apply_qk(q, k, 5, v=v, cache=librope.KVCache(expected.k, expected.v, layout="nhd", **told))
    call = prepared(qkv, out=(torch.empty_like(q), None))
    for _ in range(2):
        out = torch.zeros_like(q)
        version = out._version
        got, none = call.apply_qk(q, k, v=v, cache=cache, out=(out, None))
        assert got is out and none is None and torch.equal(out, want) and out._version > version
        assert torch.equal(cache.k, expected.k) and torch.equal(cache.v, expected.v)
    for other in (torch.zeros_like(q).double(), torch.zeros(2, 3, 16, 4).transpose(2, 3), np.zeros((2, 3, 2, 16))):
        with pytest.raises((ValueError, TypeError), match="out of q"):
            call.apply_qk(2 * q, k, v=v, cache=cache, out=(other, None))
    with pytest.raises(ValueError, match="out of q is required"):
        call.apply_qk(2 * q, k, v=v, cache=cache)


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_gradients_are_refused(qkv, which):
    call, cache = prepared(qkv), librope.KVCache(*memory(), layout="nhd")
    names = ("q", "k", "v")
    q, k, v = (x.clone().requires_grad_() if n == which else x for n, x in zip(names, qkv))
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="prepared calls have no gradient"):
            call.apply_qk(q, k, v=v, cache=cache)
        with torch.no_grad():
            call.apply_qk(q, k, v=v, cache=cache)  # which notes the memory
    with pytest.raises(NotImplementedError, match="prepared calls have no gradient"):
        prepared((q, k, v))
    cache.k = cache.k.clone().requires_grad_()
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="prepared calls have no gradient"):
            call.apply_qk(*qkv[:2], v=qkv[2], cache=cache)
        with torch.no_grad():
            call.apply_qk(*qkv[:2], v=qkv[2], cache=cache)


def test_writes_are_announced_to_autograd(qkv):
    q, k, v = qkv
    call, cache = prepared(qkv), librope.KVCache(*memory(), layout="nhd")
    with torch.no_grad():
        call.apply_qk(q, k, v=v, cache=cache)
    for written in ("k", "v"):
        y = torch.ones(16, requires_grad=True)
        z = (getattr(cache, written) * y).sum()
        with torch.no_grad():
            call.apply_qk(q, k, v=v, cache=cache)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


def test_what_records_calls_is_refused_and_the_profiler_sees(qkv):
    q, k, v = qkv
    call, cache = prepared(qkv), librope.KVCache(*memory(), layout="nhd")
    call.apply_qk(q, k, v=v, cache=cache)
    with FlopCounterMode(display=False), pytest.raises(NotImplementedError):
        call.apply_qk(q, k, v=v, cache=cache)
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError, match="not available in compiled"):
        torch.compile(lambda q: call.apply_qk(q + 1, k, v=v, cache=cache), backend="eager")(q)
    with torch.profiler.profile() as profile:
        call.apply_qk(q, k, v=v, cache=cache)
    assert [e.count for e in profile.key_averages() if e.key == "librope::apply"] == [1]


def test_arrays_of_numpy_are_the_same_to_it(qkv):
    call = prepared(qkv)
    want, expected = None, librope.KVCache(*memory(), layout="nhd", **PLACES["slots"][1])
    want, _ = ROPE.apply_qk(*qkv[:2], 5, v=qkv[2], cache=expected)
    k, v = (x.numpy().copy() for x in memory())
    got, _ = call.apply_qk(*(x.numpy() for x in qkv[:2]), v=qkv[2].numpy(), cache=librope.KVCache(k, v, layout="nhd"))
    assert type(got) is np.ndarray and np.array_equal(got, want.numpy())
    assert np.array_equal(k, expected.k.numpy()) and np.array_equal(v, expected.v.numpy())


def norms_of(kind, dtype=torch.float32):
    """Those of a layer, of q, k and v, with weights as modules have them."""
    made = []
    for heads in (4, 2, 2):
        weight, bias = (torch.nn.Parameter(torch.randn(heads, 16).to(dtype)) for _ in range(2))
        options = {"kind": kind, "eps": 1e-6, "rounding": "rounded"}
        if kind == "given":
            options = {"kind": "rms", "span": "given", "rstd": torch.rand(2, 3) + 1}
        if kind == "rms_one_plus":
            weight = torch.nn.Parameter(weight[0].detach().clone())
        made.append(librope.Norm(
            None if kind == "rms_plain" else weight, bias=bias if kind == "layer_bias" else None, **options,
        ))  # fmt: skip
    return librope.Norms(*made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["rms", "rms_one_plus", "rms_plain", "layer_bias", "given"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("stored", ["alike", "8 bits"])
@torch.no_grad()
def test_norms_of_each_layer(qkv, dtype, kind, in_place, stored):
    torch.manual_seed(2)

    def pages():
        if stored == "alike":
            return librope.KVCache(*memory(dtype=dtype), layout="nhd")
        scale = librope.Scale(0.05)
        k, v = (x.to(torch.float8_e4m3fn) for x in memory())
        return librope.KVCache(k, v, layout="nhd", k_scale=scale, v_scale=scale)

    q, k, v = (x.to(dtype) for x in qkv)
    told = PLACES["paged"][1]
    call = ROPE.prepare_qk(q, k, 5, v=v, cache=pages().at(**told), norms=norms_of(kind, dtype))
    cache = pages()
    for _ in range(2):
        norms, expected = norms_of(kind, dtype), pages()
        want, _ = ROPE.apply_qk(q, k, 5, v=v, cache=expected.at(**told), norms=norms)
        if in_place:
            got = q.clone()
            call.apply_qk_(got, k, v=v, cache=cache, norms=norms)
        else:
            got, none = call.apply_qk(q, k, v=v, cache=cache, norms=norms)
            assert none is None
        assert torch.equal(got, want) and not torch.equal(got, ROPE.apply_qk(q, k, 5)[0])
        for a, b in ((cache.k, expected.k), (cache.v, expected.v)):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        assert call._short(got, k, v, cache, norms, in_place) is not None  # which is what makes it quick


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_norms_without_a_cache(qkv, dtype):
    torch.manual_seed(3)

    def pair():
        norms = norms_of("rms", dtype)
        return librope.Norms(norms.q, norms.k)

    def packed():
        return torch.cat([x.to(dtype) for x in qkv], 2).split([4, 2, 2], 2)[:2]

    q, k = packed()
    norms, call = pair(), ROPE.prepare_qk(q, k, 5, norms=pair())
    in_place = ROPE.prepare_qk(q, k, 5, norms=pair(), out=(q, k))
    want = ROPE.apply_qk(q, k, 5, norms=norms)
    version = q._version
    for got in (call.apply_qk(q, k, norms=norms), call._short(q, k, None, None, norms, False)):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert q._version == version
    for way in (in_place.apply_qk_, lambda *x, norms: in_place._short(*x, None, None, norms, True)):
        got = packed()
        version = got[0]._version
        way(*got, norms=norms)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) and got[0]._version > version
    with pytest.raises(ValueError, match=r"prepare_qk\(\.\.\., out=\(q, k\)\)"):
        call.apply_qk_(q, k, norms=norms)


def test_norms_that_changed_since_are_seen(qkv):
    q, k, v = qkv
    cache, norms = librope.KVCache(*memory(), layout="nhd"), norms_of("rms")
    with torch.no_grad():
        call = ROPE.prepare_qk(q, k, 5, v=v, cache=cache.at(**PLACES["slots"][1]), norms=norms)
        for _ in range(2):
            call.apply_qk(q, k, v=v, cache=cache, norms=norms)
        norms.q.weight.data = torch.randn(4, 16)  # other memory
        want, _ = ROPE.apply_qk(q, k, 5, norms=librope.Norms(norms.q, norms.k))
        assert torch.equal(call.apply_qk(q, k, v=v, cache=cache, norms=norms)[0], want)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="prepared calls have no gradient"):
            call.apply_qk(q, k, v=v, cache=cache, norms=norms)
    with pytest.raises(NotImplementedError, match="prepared calls have no gradient"):
        ROPE.prepare_qk(q, k, 5, v=v, cache=cache.at(**PLACES["slots"][1]), norms=norms)
    with torch.no_grad():
        for wrong, error, says in (
            (torch.randn(16), ValueError, r"norms.q.weight has shape \(16,\)"),
            (torch.randn(16, 4).t(), ValueError, "norms.q.weight has strides"),
            (torch.randn(4, 16).half(), TypeError, "norms.q.weight has dtype float16"),
            (torch._neg_view(torch.randn(4, 16)), TypeError, "norms.q.weight is a lazily negated view"),
            (torch.empty(4, 16, device="meta"), NotImplementedError, "prepared calls are not available"),
        ):  # fmt: skip
            norms.q.weight = wrong
            with pytest.raises(error, match=says):
                call.apply_qk(q, k, v=v, cache=cache, norms=norms)
        norms.q.weight = torch.zeros(4, 16)
        norms.q.weight.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="norms.q.weight has no memory: its storage was freed"):
            call.apply_qk(q, k, v=v, cache=cache, norms=norms)
        norms.q.weight = torch.ones(4, 16).numpy()  # of another library: not the short way
        ones = librope.Norms(librope.Norm(torch.ones(4, 16), kind="rms", eps=1e-6, rounding="rounded"), norms.k)
        want, _ = ROPE.apply_qk(q, k, 5, norms=ones)
        assert torch.equal(call.apply_qk(q, k, v=v, cache=cache, norms=norms)[0], want)


def test_scales_of_outputs_are_brought_by_each_layer(qkv):
    """Those that were prepared are an example: no way takes them in silence."""
    q, k, v = qkv
    scales, q8 = librope.Scales(q=librope.Scale(0.05)), torch.zeros(q.shape, dtype=torch.float8_e4m3fn)
    call = prepared(qkv, scales=scales, out=(q8, None))
    cache = librope.KVCache(*memory(), layout="nhd")
    call.apply_qk(q, k, v=v, cache=cache, out=(q8, None), scales=scales)
    for given in (None, librope.Scales(q=librope.Scale(0.1))):
        with pytest.raises(ValueError, match="^scales.q has other scales than those that were prepared"):
            call.apply_qk(q, k, v=v, cache=cache, out=(q8, None), scales=given)
