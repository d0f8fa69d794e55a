"""librope.record: what engines rotate is recorded as it is, and librope check reads it."""

import json

import numpy as np
import pytest

import librope
from librope import cli, record

torch = pytest.importorskip("torch", reason="torch is not installed")


def status_of(tmp_path, capsys, config, recording, *options):
    (tmp_path / "config.json").write_text(json.dumps(config))
    recording.save(tmp_path / "run.safetensors")
    status = cli.main(["check", str(tmp_path), str(tmp_path / "run.safetensors"), "--json", *options])
    out, error = capsys.readouterr()
    return status, json.loads(out) if out else error


def llama(**changes):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        intermediate_size=64, vocab_size=50, max_position_embeddings=131072,
        rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, **changes},
    )  # fmt: skip
    return config, transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_llama_of_transformers(tmp_path, capsys, dtype):
    config, model = llama()
    rotary = model.model.rotary_emb
    table = rotary.inv_freq.clone()
    model.to(dtype)
    rotary.inv_freq = table  # which the cast has rounded
    before = dict(vars(__import__("sys").modules[type(model).__module__]))
    with torch.no_grad(), record.watch(model) as run:
        model(torch.randint(0, 50, (2, 24)))
    assert dict(vars(__import__("sys").modules[type(model).__module__])) == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert list(run) == [f"model.layers.{n}.self_attn.{x}" for n in (0, 1) for x in "qk"]
    assert run["model.layers.1.self_attn.k"].before.shape == (2, 24, 2, 32)
    status, found = status_of(tmp_path, capsys, config.to_dict(), run)
    assert status == 0  # torch's own cosines differ from librope's in the last bit of float32
    assert min(t["ulp"]["same"] for t in found["tensors"]) > (0.7 if dtype == torch.float32 else 0.999)
    wrong = {**config.to_dict(), "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    status, found = status_of(tmp_path, capsys, wrong, run)
    assert status == 1
    # Everything else in the model is as it says: what is recorded is what the attention gets.
    assert {t["explanations"][0]["fields"]["theta"] for t in found["tensors"]} == {5e5}


def test_frequencies_that_a_cast_has_rounded(tmp_path, capsys):
    """model.to(torch.bfloat16) rounds inv_freq, too."""
    config, model = llama()
    model.to(torch.bfloat16)
    with torch.no_grad(), record.watch(model) as run:
        model(torch.randint(0, 50, (1, 40)))
    status, found = status_of(tmp_path, capsys, config.to_dict(), run)
    assert status == 1
    assert all(t["explanations"][0]["words"] == ["inv_freq in bfloat16"] for t in found["tensors"])


def test_steps_of_generation(tmp_path, capsys):
    config, model = llama()
    with record.watch(model) as run:
        model.generate(torch.randint(0, 50, (1, 30)), max_new_tokens=4, do_sample=False)
    steps = [t.positions.ravel().tolist() for n, t in run.items() if "layers.0.self_attn" in n and n.endswith("q")]
    assert steps == [list(range(30)), [30], [31], [32]]
    assert "model.layers.1.self_attn@3.k" in run
    assert status_of(tmp_path, capsys, config.to_dict(), run)[0] == 0
    with record.watch(model, calls=1) as run:
        model.generate(torch.randint(0, 50, (1, 30)), max_new_tokens=4, do_sample=False)
    assert len(run) == 4


def test_an_exception_puts_everything_back():
    _, model = llama()
    import sys

    function = sys.modules[type(model).__module__].apply_rotary_pos_emb
    with pytest.raises(RuntimeError, match="stop"), record.watch(model):
        assert sys.modules[type(model).__module__].apply_rotary_pos_emb is not function
        raise RuntimeError("stop")
    assert sys.modules[type(model).__module__].apply_rotary_pos_emb is function
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_several_ids_per_token(tmp_path, capsys):
    """Qwen2-VL's language model: ids of three axes, behind cosines that are made once."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
    text = transformers.Qwen2VLTextConfig(
        hidden_size=128, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, vocab_size=50,
        intermediate_size=64, rope_parameters=rope, max_position_embeddings=4096,
    )  # fmt: skip
    model = transformers.Qwen2VLTextModel(text).eval()
    ids = torch.stack([torch.arange(24) // 12, torch.arange(24) % 12 // 4, torch.arange(24) % 4])[:, None]
    with torch.no_grad(), record.watch(model) as run:
        model(inputs_embeds=torch.randn(1, 24, 128), position_ids=ids)
    assert all(np.array_equal(t.positions, ids.numpy()) for t in run.values()) and len(run) == 4
    config = {"model_type": "qwen2_vl", "text_config": text.to_dict()}
    status, found = status_of(tmp_path, capsys, config, run, "--layer-type", "full_attention")
    assert status == 0, found
    swapped = record.Recording()
    for n, t in run.items():
        swapped.add(n, t.before, t.after, t.positions[[0, 2, 1]], layout="bshd")
    status, found = status_of(tmp_path, capsys, config, swapped, "--layer-type", "full_attention")
    assert status == 1
    assert all(t["explanations"][0]["words"] == ["axes in the order 0, 2, 1"] for t in found["tensors"])


def test_a_flux_block_of_diffusers():
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    from librope.cli.check import grade, inputs, sample

    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=32, num_attention_heads=3,
        joint_attention_dim=16, pooled_projection_dim=8, axes_dims_rope=(8, 12, 12),
    ).eval()  # fmt: skip
    rows, columns, words = 4, 6, 5
    image = torch.stack(torch.meshgrid(*(torch.arange(float(n)) for n in (1, rows, columns)), indexing="ij"), -1)
    with torch.no_grad(), record.watch(model) as run:
        model(hidden_states=torch.randn(1, rows * columns, 4), encoder_hidden_states=torch.randn(1, words, 16),
              pooled_projections=torch.randn(1, 8), timestep=torch.tensor([0.5]),
              img_ids=image.reshape(-1, 3), txt_ids=torch.zeros(words, 3))  # fmt: skip
    assert list(run) == ["transformer_blocks.0.attn.q", "transformer_blocks.0.attn.k",
                         "single_transformer_blocks.0.attn.q", "single_transformer_blocks.0.attn.k"]  # fmt: skip
    rope = librope.Rope(head_dim=32, theta=1e4, pairing="interleaved", axes=3,
                        pair_axis=[0] * 4 + [1] * 6 + [2] * 6,
                        inv_freq=[1e4 ** (-2 * i / d) for d in (8, 12, 12) for i in range(d // 2)])  # fmt: skip
    items = [inputs.Item(n, sample.make(t.before, t.after, t.positions, "bshd", rope), rope, "full_attention", {})
             for n, t in run.items()]  # fmt: skip
    assert all(t.positions.shape == (3, 1, words + rows * columns) for t in run.values())
    for g in grade.grade(items):
        assert g.word in (grade.IDENTICAL, grade.RIGHT), g.near


def test_layouts_that_shapes_do_not_tell():
    class Attention(torch.nn.Module):
        def forward(self, x, cos):
            return apply_my_rope(x, cos)

    globals()["apply_my_rope"] = lambda x, cos: x * cos  # noqa: E731  (a function must stand in the module)
    apply_my_rope.__name__ = "apply_my_rope"
    x = torch.randn(1, 3, 3, 4)
    model = Attention()
    with record.watch(model) as run:
        model(x, torch.randn(3, 4))
    assert not run and "q: shape (1, 3, 3, 4) does not tell tokens from heads" in run.left_out[0]
    with record.watch(model, layout="bhsd") as run:
        model(x, torch.randn(3, 4))
    assert run["q"].before.shape == (1, 3, 3, 4) and np.array_equal(run["q"].before, x.numpy().swapaxes(1, 2))
    with record.watch(model) as run:
        model(torch.randn(1, 2, 3, 4), torch.randn(3, 4))
    assert run["q"].before.shape == (1, 3, 2, 4)


def test_what_cannot_be_watched(tmp_path):
    with pytest.raises(TypeError, match="must be a torch.nn.Module"), record.watch("model"):
        pass
    with pytest.raises(ValueError, match="no function named"), record.watch(torch.nn.Linear(2, 2)):
        pass
    _, model = llama()
    with record.watch(model) as run:
        pass
    with pytest.raises(ValueError, match="none of the functions was called: apply_rotary_pos_emb"):
        run.save(tmp_path / "a.npz")
