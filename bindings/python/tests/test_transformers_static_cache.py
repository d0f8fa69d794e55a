"""transformers' static cache: patched models generate into it what they generate without librope, and a whole model
whose layers write it by `cache=` is the model."""

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

import librope  # noqa: E402
import librope.torch  # noqa: E402
import librope.transformers as lt  # noqa: E402
from test_transformers import HEAD, TINY  # noqa: E402

torch.set_num_threads(1)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
# Of the largest value: what norms in another order of sums, and cosines of librope's own, may change in three layers.
NEARLY = {torch.float32: 1e-5, torch.bfloat16: 2.0**-5}
IDS = torch.randint(3, 256, (2, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def clean():
    yield
    lt.unpatch()


def make(dtype):
    torch.manual_seed(0)
    config = tf.Qwen3Config(**{**TINY, **HEAD, "num_hidden_layers": 3})
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    for name, weight in model.named_parameters():
        if name.endswith("proj.weight"):
            weight.data.normal_(0, 0.3)  # so that other attention is other tokens
        elif "q_norm" in name or "k_norm" in name:
            weight.data.normal_(1, 0.5)
    return model


def off(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


def generated(model, **options):
    """Ids and logits of each step."""
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0  # left padding
    out = model.generate(
        IDS, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_logits=True,
        return_dict_in_generate=True, **options,
    )  # fmt: skip
    return out.sequences[:, IDS.shape[1] :], torch.stack(out.logits, 1), out.past_key_values


@DTYPES
@torch.no_grad()
def test_generation_into_static_cache(dtype, monkeypatch):
    """Token by token; and the cache holds the same keys and values."""
    calls, real = [], librope.torch.rotate_by_rows
    monkeypatch.setattr(librope.torch, "rotate_by_rows", lambda *a: (calls.append(a[11]), real(*a))[1])
    model = make(dtype)
    ids, logits, cache = generated(model, cache_implementation="static")
    assert type(cache) is tf.StaticCache and len(ids.unique()) > 6
    with lt.patched(model) as report:
        assert report
        got = generated(model, cache_implementation="static")
    assert calls == [None] * 12 * len(cache.layers)
    assert torch.equal(got[0], ids) and torch.equal(got[1], logits)
    for ours, theirs in zip(got[2].layers, cache.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    with lt.patched(model, norms=True) as report:
        assert "rms, eager rounding" in str(report)
        calls.clear()
        got = generated(model, cache_implementation="static")
    assert len(calls) == 12 * len(cache.layers) and None not in calls
    assert torch.equal(got[0], ids)
    assert off(got[1], logits) <= NEARLY[dtype]


def loop(model, ids, past, cache, norms):
    """The logits of new tokens, by the model's own modules in a loop of this test's, which never calls update() of
    the cache: librope stores keys and values, of all layers. norms: in the same call."""
    body, rope = model.model, librope.Rope.from_config(model.config, layout=("bshd", "bshd"))
    x = body.embed_tokens(ids)
    tokens = ids.shape[1]
    positions = torch.arange(past, past + tokens)
    rows = body.rotary_emb(x, positions[None])
    length = cache.layers[0].keys.shape[2]
    mask = torch.where(torch.arange(length) <= positions[:, None], 0.0, torch.finfo(x.dtype).min).to(x.dtype)[None, None]
    for layer, memory in zip(body.layers, cache.layers, strict=True):
        own, h = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (p(h).unflatten(-1, (-1, own.head_dim)) for p in (own.q_proj, own.k_proj, own.v_proj))
        where = librope.KVCache(memory.keys, memory.values, layout="hnd", starts=past)
        if norms:
            normed = librope.Norms(*[
                librope.Norm(one.weight, kind="rms", eps=one.variance_epsilon, rounding="eager")
                for one in (own.q_norm, own.k_norm)
            ])  # fmt: skip
            q, none = rope.apply_qk(q, k, past, v=v, cache=where, norms=normed)
        else:
            q, none = rope.apply_qk(
                own.q_norm(q), own.k_norm(k), cos_sin=rows, cos_sin_format="full_halves", v=v, cache=where
            )
        assert none is None
        mixed, _ = modeling_qwen3.eager_attention_forward(
            own, q.transpose(1, 2), memory.keys, memory.values, mask, scaling=own.scaling
        )
        x = x + own.o_proj(mixed.flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(body.norm(x))


@pytest.mark.parametrize("norms", [False, True], ids=["rows", "norms"])
@DTYPES
@torch.no_grad()
def test_a_whole_model_writes_the_static_cache(dtype, norms):
    """Prompt, decode steps and a chunk of several tokens. By the model's own cosines bit for bit: keys, values, logits,
    and slots that nobody has written; with positions and norms but for what follows from sums in another order."""
    model = make(dtype)
    ours, theirs = (tf.StaticCache(config=model.config, max_cache_len=24) for _ in range(2))
    for layer in ours.layers:
        layer.lazy_initialization(*[torch.empty(2, TINY["num_key_value_heads"], 1, 16, dtype=dtype)] * 2)
    new, past, seen = IDS, 0, []
    nearly = NEARLY[dtype] if norms else 0
    for step in range(10):
        want = model(new, past_key_values=theirs, use_cache=True).logits
        got = loop(model, new, past, ours, norms)
        past += new.shape[1]
        for a, b in zip(ours.layers, theirs.layers, strict=True):
            for name, x, y in (("keys", a.keys, b.keys), ("values", a.values, b.values)):
                assert not x[:, :, past:].any() and x[:, :, :past].any(-1).all(), name
                assert off(x, y) <= nearly, (step, name)
        assert off(got, want) <= nearly, step
        best = want[:, -1].argmax(-1, keepdim=True)
        assert torch.equal(got[:, -1].argmax(-1, keepdim=True), best)
        seen.append(best)
        new = torch.cat([best, IDS[:, :2]], 1) if step == 5 else best
    assert len(torch.cat(seen).unique()) > 6 and past == 7 + 9 + 2
