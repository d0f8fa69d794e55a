"""Models of transformers on a GPU: patched, they compute what they computed."""

import sys

import pytest
from gpu_device import DEVICE, DTYPES, IDS, ROPE, qk, same, there, torch
from gpu_device import compiler, seed  # noqa: F401  (fixtures)

import librope

TINY = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, head_dim=16, vocab_size=256,
    intermediate_size=64, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def model_of(family, dtype=torch.float32, **fields):
    tf = pytest.importorskip("transformers")
    tf.logging.set_verbosity_error()
    config = getattr(tf, f"{family}Config")(**{**TINY, **fields})
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    return model.to(DEVICE).eval()


@pytest.fixture
def count(monkeypatch):
    """How often librope ran, and on which devices."""
    pytest.importorskip("transformers")
    import librope.transformers

    calls, real = [], librope.torch.rotate_by_rows
    monkeypatch.setattr(librope.torch, "rotate_by_rows", lambda *a: (calls.append(a[0].device), real(*a))[1])
    yield calls
    librope.transformers.unpatch()


TOKENS = torch.randint(3, 256, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@torch.no_grad()
def test_patched_models(family, dtype, count):
    """The function of the model's module bit for bit, and with it logits and generated tokens."""
    model, ids = model_of(family, dtype), there(TOKENS)
    module = sys.modules[type(model).__module__]
    q, k = (there(x).to(dtype).transpose(1, 2) for x in qk(9))
    rows = [x.to(dtype) for x in ROPE.cos_sin(there(torch.arange(9))[None], format="full_halves")]

    def run():
        turned = module.apply_rotary_pos_emb(q, k, *rows)
        return [*turned, model(ids).logits, model.generate(ids, max_new_tokens=4, do_sample=False)]

    want = run()
    report = librope.transformers.patch(model)
    assert report.patched and not report.left_devices
    count.clear()
    got = run()
    assert len(count) >= 1 + 2 * (1 + 4) and set(count) == {DEVICE}
    same(got[:2], want[:2])
    torch.testing.assert_close(got[2], want[2], rtol=1e-5, atol=1e-6)
    assert torch.equal(got[3], want[3])
    librope.transformers.unpatch(model)
    if family == "Qwen3":
        report = librope.transformers.patch(model, norms=True)
        assert "normed in the same call" in str(report)
        count.clear()
        got = model(ids).logits
        assert len(count) == 2
        assert float((got - want[2]).abs().max()) <= 2**-6 * float(want[2].abs().max())


def test_training_of_a_patched_model(count):
    model, ids = model_of("Llama").train(), there(TOKENS)

    def gradients():
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    want = gradients()
    librope.transformers.patch(model)
    got = gradients()
    assert count
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_a_compiled_patched_model(count, monkeypatch, compiler):  # noqa: F811
    from torch._inductor.utils import run_and_get_code

    monkeypatch.undo()  # nothing between the model and librope
    model, ids = model_of("Llama", num_hidden_layers=1), there(TOKENS)
    librope.transformers.patch(model)
    want = model(ids, use_cache=False).logits
    got, code = run_and_get_code(compiler(model, fullgraph=True), ids, use_cache=False)
    assert "librope.apply_rows" in "".join(code)
    torch.testing.assert_close(got.logits, want, rtol=1e-5, atol=1e-5)
