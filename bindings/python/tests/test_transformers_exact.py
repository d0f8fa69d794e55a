"""patch(): what a function computes beside cosines of another dtype, in compiled code, and where layers do not turn."""

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

import librope.transformers as lt  # noqa: E402
from librope.transformers import _probe, _wrap  # noqa: E402
from test_transformers import IDS, TINY  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def clean():
    yield
    lt.unpatch()


def turned(x, cos, sin, dtype=None):
    wide = x.to(dtype or torch.promote_types(x.dtype, cos.dtype))
    half = x.shape[-1] // 2
    return wide * cos + torch.cat([-wide[..., half:], wide[..., :half]], -1) * sin


def rounds_once(q, k, cos, sin, unsqueeze_dim=1):
    """As Cohere and ERNIE 4.5: in float32, whatever q is, and then back."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turned(q, cos, sin, torch.float32).to(q.dtype), turned(k, cos, sin, torch.float32).to(k.dtype)


def promotes(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turned(q, cos, sin), turned(k, cos, sin)


def in_float64(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim).double(), sin.unsqueeze(unsqueeze_dim).double()
    return turned(q, cos, sin, torch.float64).to(q.dtype), turned(k, cos, sin, torch.float64).to(k.dtype)


def rounds_rows_first(q, k, cos, sin, unsqueeze_dim=1):
    return promotes(q, k, cos.to(q.dtype), sin.to(q.dtype), unsqueeze_dim)


def rows(tokens, dtype=torch.float32):
    angles = torch.arange(float(tokens))[None, :, None] * 1e4 ** (-torch.arange(32) / 32)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def heads(count, tokens, dtype, seed=0):
    return torch.randn(1, count, tokens, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("rows_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [rounds_once, promotes])
def test_mixed_dtypes_have_the_bits_of_the_model(function, dtype, rows_dtype):
    """Of 4 million values: one product in 50,000 lies where a second rounding shows."""
    kind = _probe.classify(function)
    q, k, (cos, sin) = heads(32, 1024, dtype), heads(32, 1024, dtype, 1), rows(1024, rows_dtype)
    for in_place in (False, True):
        wrapper = _wrap.make_wrapper(function, kind, in_place)
        for got, want in zip(wrapper(q.clone(), k.clone(), cos, sin), function(q, k, cos, sin), strict=True):
            assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize(
    "function, why", [(in_float64, "computes float32 in a way"), (rounds_rows_first, "beside float32 cosines")]
)
def test_other_arithmetic_is_not_recognised(function, why):
    with pytest.raises(_probe.NotRecognised, match=why):
        _probe.classify(function)


@torch.no_grad()
def test_a_model_that_rounds_once_beside_wide_cosines():
    """Its rows stay float32 where the model is bfloat16."""
    torch.manual_seed(0)
    config = tf.Ernie4_5Config(**{**TINY, "head_dim": 32})
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
    ids = torch.randint(3, 128, (2, 256))
    want = model(ids).logits
    assert "rounding" in str(lt.patch(model))
    assert torch.equal(model(ids).logits, want)


def test_forward_mode_in_compiled_code():
    wrapper = _wrap.make_wrapper(promotes, _probe.classify(promotes), False)
    cos, sin = rows(5)
    q, tangent = heads(3, 5, torch.float32), heads(3, 5, torch.float32, 1)

    def derivative(function):
        return lambda x: torch.func.jvp(lambda x: function(x, x, cos, sin)[0], (x,), (tangent,))[1]

    torch._dynamo.reset()
    got = torch.compile(derivative(wrapper), backend="aot_eager", fullgraph=True)(q)
    assert torch.allclose(got, derivative(promotes)(q))


def test_dtensors_in_compiled_code():
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

    dist.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        wrapper = _wrap.make_wrapper(promotes, _probe.classify(promotes), False)
        cos, sin = rows(5)
        q = heads(3, 5, torch.float32)
        parts = [DTensor.from_local(x, mesh, [Shard(1)], run_check=False) for x in (q, q)]
        tables = [DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in (cos, sin)]
        torch._dynamo.reset()
        got = torch.compile(lambda *given: wrapper(*given)[0], backend="aot_eager")(*parts, *tables)
        assert isinstance(got, DTensor) and got.shape == (1, 6, 5, 64)
        assert torch.equal(got.to_local(), promotes(q, q, cos, sin)[0])
    finally:
        dist.destroy_process_group()


@torch.no_grad()
def test_layers_without_rows_run_their_own_forward():
    """Those of BEAM that do not turn are given no cosines."""
    if not hasattr(tf, "BeamConfig"):
        pytest.skip("a transformers without BEAM")
    torch.manual_seed(0)
    config = tf.BeamConfig(**{**TINY, "num_hidden_layers": 4, "head_dim": 16})
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    want = model(IDS).logits
    assert "rms" in str(lt.patch(model, norms=True))
    assert torch.allclose(model(IDS).logits, want, 1e-5, 1e-5)
