"""patch(): logits and generated tokens of tiny random models, with and without."""

import functools
import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

import librope  # noqa: E402
import librope.torch  # noqa: E402
import librope.transformers as lt  # noqa: E402
from librope.transformers import _probe  # noqa: E402

torch.set_num_threads(1)
tf.logging.set_verbosity_error()

TINY = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
    vocab_size=256, intermediate_size=64, max_position_embeddings=256, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip
HEAD = dict(head_dim=16)
MLA = dict(
    num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
    v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
    first_k_dense_replace=1, moe_intermediate_size=32, n_shared_experts=1,
)  # fmt: skip
FAMILIES = {
    "llama": ("LlamaConfig", {}, "halves"),
    "mistral": ("MistralConfig", HEAD, "halves"),
    "qwen2": ("Qwen2Config", {}, "halves"),
    "qwen3": ("Qwen3Config", HEAD, "halves"),
    "gemma2": ("Gemma2Config", HEAD, "halves"),
    "gemma3": ("Gemma3TextConfig", HEAD, "halves"),
    "phi3": ("Phi3Config", {}, "halves"),
    "gpt_neox": ("GPTNeoXConfig", {}, "halves"),
    "glm": ("GlmConfig", HEAD, "interleaved"),
    "cohere": ("CohereConfig", {}, "interleaved"),
    "deepseek_v3": ("DeepseekV3Config", MLA, "interleaved_to_halves"),
    "gpt_oss": ("GptOssConfig", dict(HEAD, num_local_experts=2, num_experts_per_tok=1), "halves"),
    "olmo2": ("Olmo2Config", {}, "halves"),
}


@pytest.fixture(autouse=True)
def clean():
    yield
    lt.unpatch()


@pytest.fixture
def count(monkeypatch):
    """How often librope ran: a wrapper that always falls back would pass every comparison."""
    calls = []
    real = librope.torch.rotate_by_rows
    monkeypatch.setattr(
        librope.torch, "rotate_by_rows", lambda *a: (calls.append(a[4]), real(*a))[1]
    )
    return calls


def make(family, dtype=torch.float32):
    name, extra, _ = FAMILIES[family]
    if not hasattr(tf, name):
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    config = getattr(tf, name)(**{**TINY, **extra})
    # Not model.to(dtype), which would round the frequencies as well.
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    return model.eval()


IDS = torch.randint(3, 256, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_and_generation(family, dtype, count):
    model = make(family, dtype)
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0  # left padding

    def run():
        return (
            model(IDS).logits,
            model(IDS, attention_mask=mask).logits,
            model.generate(IDS, max_new_tokens=4, do_sample=False),
        )

    want = run()
    with lt.patched(model) as report:
        assert report and FAMILIES[family][2] in {e.kind.pairing for e in report.patched}
        got = run()
    assert FAMILIES[family][2] in count
    assert len(count) >= 2 * (1 + 1 + 4) - 6  # every layer with RoPE, every step
    calls = len(count)
    # Products and sums are rounded as PyTorch rounds them: nothing may differ.
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w)
    again = run()
    assert len(count) == calls and torch.equal(again[0], want[0])


@torch.no_grad()
def test_in_place(count):
    model = make("phi3", torch.bfloat16)
    want = model(IDS).logits
    lt.patch(model, in_place=True)
    assert torch.equal(model(IDS).logits, want) and count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@torch.no_grad()
def test_in_place_leaves_what_overlaps(dtype, count):
    """Calls that the model's own function takes: the results are new then, and q and k stay."""
    from transformers.models.llama import modeling_llama

    lt.patch(make("llama"), in_place=True)
    f = modeling_llama.apply_rotary_pos_emb
    q, k = torch.randn(2, 2, 4, 5, 16).to(dtype)
    angles = torch.randn(2, 5, 8)
    cos, sin = (torch.cat([t, t], -1).to(dtype) for t in (angles.cos(), angles.sin()))
    both = torch.randn(2, 6, 5, 16).to(dtype)
    for arguments in (
        (q, k[:, :1].expand(2, 4, 5, 16)), (q[:1].expand(2, 4, 5, 16), k), (q, q), (both[:, :4], both[:, 2:]),
    ):  # fmt: skip
        kept, versions = [x.clone() for x in arguments], [x._version for x in arguments]
        want = f.__wrapped__(*arguments, cos, sin)
        for _ in range(2):
            got = f(*arguments, cos, sin)
            assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
        assert all(torch.equal(x, y) for x, y in zip(arguments, kept, strict=True))
        assert all(x._version == version for x, version in zip(arguments, versions, strict=True))
    assert len(count) == 4 * 2 * 2  # in place is tried first
    want = f.__wrapped__(both[:, :4], both[:, 4:], cos, sin)
    got = f(both[:, :4], both[:, 4:], cos, sin)
    assert torch.equal(both, torch.cat(want, 1)) and got[0].data_ptr() == both.data_ptr()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("q_heads, k_heads, dim", [(4, 0, 16), (0, 4, 16), (0, 0, 16), (2, 1, 1026)])
@torch.no_grad()
def test_sizes_that_librope_does_not_take(q_heads, k_heads, dim, in_place, count):
    from transformers.models.llama import modeling_llama

    lt.patch(make("llama"), in_place=in_place)
    f = modeling_llama.apply_rotary_pos_emb
    q, k = torch.randn(1, q_heads, 3, dim), torch.randn(1, k_heads, 3, dim)
    cos, sin = torch.randn(2, 1, 3, dim)
    for got, want in zip(f(q, k, cos, sin), f.__wrapped__(q, k, cos, sin), strict=True):
        assert torch.equal(got, want)
    assert not count


@torch.no_grad()
def test_qwen2_vl(count):
    torch.manual_seed(0)
    config = tf.Qwen2VLConfig(
        text_config=dict(TINY, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}),
        vision_config=dict(depth=2, embed_dim=32, num_heads=2, hidden_size=64, patch_size=4,
                           spatial_merge_size=2, temporal_patch_size=2),
        image_token_id=250, video_token_id=251, vision_start_token_id=252, vision_end_token_id=253,
    )  # fmt: skip
    model = tf.Qwen2VLForConditionalGeneration(config).eval()
    ids = torch.tensor([[3, 4, 252, 250, 250, 250, 250, 253, 7, 8]])
    inputs = dict(pixel_values=torch.randn(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]),
                  mm_token_type_ids=(ids == 250).long())  # fmt: skip
    want = model(ids, **inputs).logits, model.generate(ids, max_new_tokens=3, do_sample=False, **inputs)
    with lt.patched(model) as report:
        assert len(report.patched) == 2  # text and vision
        got = model(ids, **inputs).logits, model.generate(ids, max_new_tokens=3, do_sample=False, **inputs)
    assert len(count) >= 4
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w)


@torch.no_grad()
def test_static_cache_and_autocast(count):
    model = make("llama")
    want = model.generate(IDS, max_new_tokens=3, do_sample=False)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(IDS).logits
    lt.patch(model)
    got = model.generate(IDS, max_new_tokens=3, do_sample=False, cache_implementation="static")
    assert torch.equal(got, want) and count
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(IDS).logits, cast)


def test_gradients_and_checkpointing(count):
    model = make("llama").train()

    def grads():
        model.zero_grad()
        model(IDS, labels=IDS, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    want = grads()
    lt.patch(model)
    plain = grads()
    model.gradient_checkpointing_enable()
    recomputed = grads()
    assert len(count) == 2 + 4
    for w, a, b in zip(want, plain, recomputed, strict=True):
        assert torch.allclose(a, w, rtol=1e-5, atol=1e-7) and torch.equal(a, b)


@torch.no_grad()
def test_compile():
    torch._dynamo.reset()
    model = make("llama")
    lt.patch(model)
    want = model(IDS, use_cache=False).logits
    got = torch.compile(model, fullgraph=True)(IDS, use_cache=False).logits
    assert torch.allclose(got, want, atol=1e-5)


def test_patch_twice_and_two_families():
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral

    original = modeling_llama.apply_rotary_pos_emb
    llama, mistral = make("llama"), make("mistral")
    lt.patch(llama)
    lt.patch(type(llama))
    lt.patch(mistral)
    wrapper = modeling_llama.apply_rotary_pos_emb
    assert wrapper is not original and wrapper.__wrapped__ is original
    lt.unpatch(llama)
    assert modeling_llama.apply_rotary_pos_emb is wrapper
    lt.unpatch(llama)
    assert modeling_llama.apply_rotary_pos_emb is original
    assert hasattr(modeling_mistral.apply_rotary_pos_emb, "_librope_kind")
    lt.unpatch()
    assert not hasattr(modeling_mistral.apply_rotary_pos_emb, "_librope_kind")
    with pytest.raises(TypeError, match="model or its class"):
        lt.patch("llama")


def test_what_is_interrupted_or_gone_leaves_nothing(monkeypatch):
    import sys

    from transformers.models.llama import modeling_llama

    original = modeling_llama.apply_rotary_pos_emb
    llama, mistral = make("llama"), make("mistral")

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(lt, "_patch_norms", interrupted)
        lt.patch(llama, norms=True)
    assert modeling_llama.apply_rotary_pos_emb is original
    lt.patch(mistral)
    lt.patch(llama)
    with monkeypatch.context() as context:
        context.delitem(sys.modules, type(mistral).__module__)
        with pytest.warns(librope.LibropeWarning, match="mistral"):
            lt.unpatch()
    assert modeling_llama.apply_rotary_pos_emb is original
    lt.unpatch(type(llama))


@pytest.mark.parametrize("first", [False, True])
@torch.no_grad()
def test_in_place_is_the_same_for_all_models_of_a_module(first):
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral

    original = modeling_llama.apply_rotary_pos_emb
    lt.patch(make("llama"), in_place=first)
    named = rf"in_place={not first}, but .*llama\.apply_rotary_pos_emb is patched with in_place={first}"
    for again in (lt.patch, lambda *a, **k: lt.patched(*a, **k).__enter__()):
        with pytest.raises(ValueError, match=named):
            again(make("llama"), in_place=not first)
    lt.patch(make("mistral"), in_place=not first)
    q, k, rows = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), torch.randn(2, 1, 3, 16)
    for module, in_place in ((modeling_llama, first), (modeling_mistral, not first)):
        out = module.apply_rotary_pos_emb(q, k, *rows)
        assert (out[0].data_ptr() == q.data_ptr()) == in_place
    lt.unpatch(make("llama"))
    assert modeling_llama.apply_rotary_pos_emb is original  # what was refused was not counted
    lt.patch(make("llama"), in_place=not first)


def test_a_function_that_was_imported_while_it_was_patched():
    from transformers.models.llama import modeling_llama

    original = modeling_llama.apply_rotary_pos_emb
    lt.patch(make("llama"))
    mine = types.ModuleType("a_module_of_mine")
    sys.modules[mine.__name__] = mine
    try:
        mine.apply_rotary_pos_emb = modeling_llama.apply_rotary_pos_emb
        mine.Model = type("Model", (tf.LlamaForCausalLM,), {"__module__": mine.__name__})
        assert len(lt.patch(mine.Model).patched) == 2
        assert mine.apply_rotary_pos_emb.__wrapped__ is original
        lt.unpatch()
        assert mine.apply_rotary_pos_emb is original
    finally:
        del sys.modules[mine.__name__]


def test_patched_takes_back_its_own():
    """And not that of another, which is newer."""
    from transformers.models.llama import modeling_llama

    original, model = modeling_llama.apply_rotary_pos_emb, make("llama")
    with lt.patched(model):
        lt.patch(model)
    assert modeling_llama.apply_rotary_pos_emb.__wrapped__ is original
    with lt.patched(model):
        lt.unpatch()
        lt.patch(model)
    assert modeling_llama.apply_rotary_pos_emb.__wrapped__ is original
    lt.unpatch(model)
    assert modeling_llama.apply_rotary_pos_emb is original


def test_other_functions_are_in_the_report():
    """Of complex numbers, of positions."""
    for cls, name, takes in (
        ("Llama4ForCausalLM", "llama4.modeling_llama4.apply_rotary_emb", "xq, xk, freqs_cis"),
        ("DeepseekV2ForCausalLM", "deepseek_v2.modeling_deepseek_v2.apply_rotary_emb", "xq, xk, freqs_cis"),
        ("VJEPA2Model", "vjepa2.modeling_vjepa2.rotate_queries_or_keys", "x, pos"),
    ):
        report = lt.patch(getattr(tf, cls))
        assert not report
        assert f"{name}: left alone: takes {takes}: not tensors, then cos and sin" in str(report)
    assert len(lt.patch(tf.LlamaForCausalLM).entries) == 1  # without rotate_half(x)


def test_somebody_elses_patch_is_left():
    from transformers.models.llama import modeling_llama

    original = modeling_llama.apply_rotary_pos_emb
    model = make("llama")
    lt.patch(model)
    try:
        modeling_llama.apply_rotary_pos_emb = mine = lambda *a: original(*a)
        with pytest.warns(librope.LibropeWarning, match="somebody else"):
            lt.unpatch(model)
        assert modeling_llama.apply_rotary_pos_emb is mine
    finally:
        modeling_llama.apply_rotary_pos_emb = original


@torch.no_grad()
def test_somebody_elses_patch_between_two(monkeypatch):
    """The second stands around it, also for norms, and takes back to it."""
    model = make("qwen3")
    module, attention = sys.modules[type(model).__module__], type(model.model.layers[0].self_attn)
    forward, calls, real = attention.forward, [], librope.torch.rotate_by_rows
    lt.patch(model, norms=True)
    ours = module.apply_rotary_pos_emb

    def mine(q, k, cos, sin, unsqueeze_dim=1):
        return ours(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", mine)
    lt.patch(model, norms=True)
    monkeypatch.setattr(librope.torch, "rotate_by_rows", lambda *a: (calls.append(a[11]), real(*a))[1])
    model(IDS)
    assert len(calls) == 2 and None not in calls
    lt.unpatch(model)
    assert module.apply_rotary_pos_emb is mine and attention.forward is forward
    lt.unpatch(model)


@torch.no_grad()
def test_fallback(count):
    """Arguments librope does not take go to the original."""
    from transformers.models.llama import modeling_llama

    lt.patch(make("llama"))
    f = modeling_llama.apply_rotary_pos_emb
    q, k = torch.randn(2, 2, 3, 5, 16, dtype=torch.float64)
    cos, sin = torch.randn(2, 2, 5, 16, dtype=torch.float64)
    for a, b in zip(f(q, k, cos, sin), f.__wrapped__(q, k, cos, sin), strict=True):
        assert torch.equal(a, b)
    assert not count
    f(q.float(), k.float(), cos.float(), sin.float(), unsqueeze_dim=1)
    assert count


@pytest.mark.parametrize("of", ["q", "cos", "sin", "q then cos", "cos then q"])
def test_forward_mode(of, count):
    """With respect to cos and sin it is the original's."""
    from torch.func import jvp
    from transformers.models.llama import modeling_llama

    lt.patch(make("llama"))
    f = modeling_llama.apply_rotary_pos_emb
    q, k, cos, sin = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16), *torch.randn(2, 1, 5, 16)

    def derivative(f):
        by_q = lambda cos: jvp(lambda q: f(q, k, cos, sin), (q,), (q,))[1]  # noqa: E731
        by_cos = lambda q: jvp(lambda cos: f(q, k, cos, sin), (cos,), (cos,))[1]  # noqa: E731
        return {
            "q": lambda: by_q(cos),
            "cos": lambda: by_cos(q),
            "sin": lambda: jvp(lambda sin: f(q, k, cos, sin), (sin,), (sin,))[1],
            "q then cos": lambda: jvp(by_q, (cos,), (cos,))[1],
            "cos then q": lambda: jvp(by_cos, (q,), (q,))[1],
        }[of]()

    torch.testing.assert_close(derivative(f), derivative(f.__wrapped__))
    assert bool(count) == (of == "q")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@torch.no_grad()
def test_what_does_not_fit_a_remembered_call(dtype, count):
    """Also where a call of the same shapes and strides came before."""
    from transformers.models.llama import modeling_llama

    lt.patch(make("llama"))
    f = modeling_llama.apply_rotary_pos_emb
    q, k = torch.randn(2, 2, 3, 5, 16).to(dtype)
    cos, sin = torch.randn(2, 2, 5, 16).to(dtype)
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    for _ in range(2):
        f(q, k, cos, sin)
    calls = len(count)
    assert calls == 2
    for arguments in (
        (q, k, cos, sin.to(other)), (torch._neg_view(q), k, cos, sin), (q, torch._neg_view(k), cos, sin),
        (q, k, torch._neg_view(cos), sin), (q, k, cos, torch._neg_view(sin)),
    ):  # fmt: skip
        for a, b in zip(f(*arguments), f.__wrapped__(*arguments), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)
    assert len(count) == calls


def test_probe_knows_what_it_does_not_know():
    def scaled(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        turn = lambda x: 2 * (_probe.rotate(x, cos[..., :8], sin[..., :8], "halves"))  # noqa: E731
        return turn(q), turn(k)

    with pytest.raises(_probe.NotRecognised, match="none of the rotations"):
        _probe.classify(scaled)

    def three(q, k, v, cos, sin):
        return q, k, v

    with pytest.raises(_probe.NotRecognised, match="3 tensors"):
        _probe.classify(three)


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        ("gptj", "apply_rotary_pos_emb", "interleaved, split"),
        ("nanochat", "apply_rotary_pos_emb", "halves, backwards"),
        ("gpt_oss", "apply_rotary_pos_emb", "halves, split"),
        ("gemma3n", "apply_rotary_pos_emb", "halves, full_halves"),
        ("cohere2", "apply_rotary_pos_emb", "interleaved, full_interleaved rows, float32"),
        ("qwen2_5_vl", "apply_rotary_pos_emb_vision", "halves, full_halves rows, float32"),
    ],
)
def test_census(module, name, kind):
    import importlib

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    assert str(_probe.classify(getattr(m, name))).startswith(kind)


def test_example():
    import pathlib
    import runpy

    here = pathlib.Path(__file__).parent
    folder = here if (here / "patch_transformers.py").exists() else here.parent / "examples"
    assert runpy.run_path(str(folder / "patch_transformers.py"))["main"]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_from_config_is_what_the_layers_do(family, dtype, monkeypatch):
    """q and k of every layer of the real model, rotated from its config alone."""
    model = make(family, dtype)
    seen = []
    real = librope.torch.rotate_by_rows

    def record(q, k, cos, sin, pairing, rotary_dim, rounding, layout, *rest):
        out = real(q, k, cos, sin, pairing, rotary_dim, rounding, layout, *rest)
        seen.append((q, k, layout, out))
        return out

    monkeypatch.setattr(librope.torch, "rotate_by_rows", record)
    with lt.patched(model):
        model(IDS)
    assert len(seen) == model.config.num_hidden_layers
    for layer, (q, k, layout, want) in enumerate(seen):
        rope = librope.Rope.from_config(model.config, layer=layer)
        got = rope.apply_qk(q, k, 0, layout=layout)
        for g, w in zip(got, want, strict=True):
            if dtype == torch.float32:
                assert torch.allclose(g, w, atol=2e-6 * float(w.abs().max().clamp(min=1)))
            else:  # a cosine on the edge between two bf16 values may fall to the other side
                assert (g.to(dtype) == w.to(dtype)).float().mean() > 0.97
                assert torch.allclose(g.float(), w.float(), atol=2e-2, rtol=2e-2)


def test_devices_that_librope_cannot_take_go_to_the_original(count):
    """Meta tensors raised once; MPS, XPU and CUDA without its backend take the same way."""
    from transformers.models.llama import modeling_llama

    with torch.device("meta"):
        model = make("llama")
    report = lt.patch(model)
    assert report and report.left_devices == ("meta",)
    assert "tensors on meta go to the functions as they were" in str(report)
    assert model(IDS.to("meta")).logits.shape == (2, 9, 256) and not count
    f = modeling_llama.apply_rotary_pos_emb
    q, cos = torch.randn(1, 2, 3, 16), torch.randn(1, 3, 16)
    f(q, q.clone(), cos, cos)
    assert count


@pytest.mark.parametrize("norms", [False, True])
def test_default_device_and_dtype(norms):
    model = make("qwen3")
    report = lt.patch(model, norms=norms)
    assert report and (not norms or "normed in the same call" in str(report))
    lt.unpatch()
    try:
        torch.set_default_device("meta")
        assert lt.patch(model, norms=norms) == report
        lt.unpatch()
        torch.set_default_device(None)
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            torch.set_default_dtype(dtype)
            assert lt.patch(model, norms=norms) == report
            lt.unpatch()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert lt.patch(type(model)) and torch.empty(1).is_meta


def test_compiled_training_of_gpt_oss():
    """Eager attention hands over keys whose strides Inductor had changed."""
    torch._dynamo.reset()
    model = make("gpt_oss").train()
    model(IDS, labels=IDS, use_cache=False).loss.backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    lt.patch(model)
    torch.compile(model)(IDS, labels=IDS, use_cache=False).loss.backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    for g, w in zip(got, want, strict=True):
        assert torch.allclose(g, w, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("folder", ["qwen2_vl", "qwen2_5_vl"])
def test_prompt_ids_are_those_of_get_rope_index(folder):
    """Text, an image of 4 x 6 patches, text, a video of 3 frames of 8 x 10 patches, text."""
    prefix = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}[folder]
    model_class, config = getattr(tf, f"{prefix}Model"), getattr(tf, f"{prefix}Config")()
    assert config.vision_config.spatial_merge_size == 2
    kinds = [0] * 5 + [1] * 6 + [0] * 2 + [2] * 60 + [0] * 4
    model = types.SimpleNamespace(config=config)
    model.get_vision_position_ids = functools.partial(model_class.get_vision_position_ids, model)
    timed = {"second_per_grid_ts": torch.tensor([1.0])} if folder == "qwen2_5_vl" else {}
    config.vision_config.tokens_per_second = 1
    want, delta = model_class.get_rope_index(
        model, torch.zeros(1, len(kinds), dtype=torch.long), mm_token_type_ids=torch.tensor([kinds]),
        image_grid_thw=torch.tensor([[1, 4, 6]]), video_grid_thw=torch.tensor([[3, 8, 10]]), **timed,
    )  # fmt: skip
    part = librope.PromptPart
    ids, next_id = librope.prompt_ids([part(5, t=1, h=2, w=3), part(2, t=3, h=4, w=5), part(4)])
    assert torch.equal(torch.from_numpy(ids), want[:, 0])
    assert next_id == len(kinds) + int(delta[0, 0])
