"""The command line, through its main function and once as a program."""

import json
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import librope
from librope import cli

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
    "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip

GEMMA4 = {
    "model_type": "gemma4_text", "hidden_size": 2816, "num_attention_heads": 16, "head_dim": 256,
    "global_head_dim": 512, "num_key_value_heads": 8, "max_position_embeddings": 262144,
    "num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
}  # fmt: skip
QWEN_VL = {
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "num_hidden_layers": 28, "max_position_embeddings": 128000, "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16},
}  # fmt: skip
PHI = {
    "model_type": "phi3", "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
    "rope_theta": 1e4, "max_position_embeddings": 512, "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16,
                     "long_factor": [2.0 + i for i in range(16)]},
}  # fmt: skip


QWEN1 = {
    "model_type": "qwen", "hidden_size": 128, "num_attention_heads": 2, "kv_channels": 64,
    "num_hidden_layers": 2, "seq_length": 32, "rotary_emb_base": 10000, "use_dynamic_ntk": True,
}  # fmt: skip


LTX = {"_class_name": "LTXVideoTransformer3DModel", "num_attention_heads": 2, "attention_head_dim": 8}


def test_frequencies_of_each_head(tmp_path, capsys):
    path = str(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(LTX))
    assert cli.main(["inspect", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["kinds"][0]
    assert told["turning_channels"] == [[0, 7]]
    assert told["pairs_that_stand_still"] == 0  # but in the first head
    drawn = str(tmp_path / "a.png")
    np.save(tmp_path / "q.npy", np.ones((1, 4, 2, 8), np.float32))
    q = str(tmp_path / "q.npy")
    for command in (["plot", path, "-o", drawn], ["diff", path, path], ["check", path, q, q]):
        assert cli.main(command) == 2, command
        assert "frequencies of each head" in " ".join(capsys.readouterr().err.split()), command


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def q(rng):
    return rng.standard_normal((40, 3, 64), np.float32)


def run(capsys, *arguments):
    status = cli.main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_inspect(config, capsys, tmp_path):
    status, out, _ = run(capsys, "inspect", config)
    assert status == 0 and "llama3" in out and "500,000" in out
    assert "\x1b" not in out  # no colours when piped
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.count("│") > 2}
    assert "131,072" in rows["max_position_embeddings"]
    assert "8,192" in rows["length before scaling"]
    assert "all 2" in rows["layers"] and "0 .. 63" in rows["channels that turn"]
    status, out, _ = run(capsys, "inspect", config, "--json")
    (kind,) = json.loads(out)["kinds"]
    assert kind["head_dim"] == 64 and kind["layers"] == [0, 1]
    assert kind["longest_wavelength"] > 1e6 and kind["longest_sequence"] == 131072
    assert kind["length_before_scaling"] == 8192 and kind["turning_channels"] == [[0, 63]]
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    status, out, _ = run(capsys, "inspect", tmp_path)
    assert "sliding_attention" in out and "full_attention" in out


@pytest.mark.parametrize("name", ["attn_factor", "rope_scaling.attn_factor"])
def test_keys_are_accepted_by_name(capsys, tmp_path, q, name):
    """Of every command that reads a config."""
    path, x = tmp_path / "config.json", tmp_path / "q.npy"
    scaling = {**CONFIG["rope_scaling"], "attn_factor": 0.5}
    path.write_text(json.dumps({**CONFIG, "rope_scaling": scaling}))
    np.save(x, q)
    commands = (("inspect", path), ("plot", path, "-o", tmp_path / "a.png", "--layer", 0, "--only", "rows"),
                ("apply", path, x, tmp_path / "y.npy"), ("check", path, x, tmp_path / "y.npy"))  # fmt: skip
    for command in commands:
        if command[0] == "check":
            assert (tmp_path / "y.npy").exists()
        status, _, err = run(capsys, *command)
        assert status == 2 and "rope_scaling.attn_factor" in err
        assert run(capsys, *command, "--accept", name)[0] == 0
        status, _, err = run(capsys, *command, "--accept", name, "--accept", "rope_theta")
        assert status == 2 and '"rope_theta"' in err


def test_gguf_files_stand_where_configs_do(capsys, tmp_path):
    from test_gguf import GEMMA3, gguf

    path = tmp_path / "model"  # whatever its name
    path.write_bytes(gguf("gemma3", GEMMA3) + bytes(100))
    status, out, _ = run(capsys, "inspect", path)
    assert status == 0 and "sliding_attention" in out and "1,000,000" in out
    kinds = json.loads(run(capsys, "inspect", path, "--json")[1])["kinds"]
    assert [k["theta"] for k in kinds if k["layer_type"] == "full_attention"] == [1e6]
    picture = ("plot", path, "-o", tmp_path / "a.png", "--only", "wavelengths")
    assert run(capsys, *picture, "--layer-type", "full_attention")[0] == 0
    status, _, error = run(capsys, "inspect", path, "--accept", "rope.freq_base")
    assert status == 2 and "--accept is for keys of a config.json" in error
    status, _, error = run(capsys, "inspect", tmp_path / "none.gguf")
    assert status == 2 and "none.gguf" in error


def test_inspect_says_which_program_wrote_the_text(capsys, tmp_path):
    path = tmp_path / "params.json"
    path.write_text(json.dumps({"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256, "vocab_size": -1}))
    status, out, _ = run(capsys, "inspect", path)
    assert status == 0 and "Note: read as Meta's params.json" in out and "interleaved" in out
    assert json.loads(run(capsys, "inspect", path, "--json")[1])["notes"][0].startswith("read as Meta's")
    path.write_text(json.dumps({"model_name": "llama3-8b", "base_num_decoder_layers": 32, "head_dim": 128}))
    assert "divide" in run(capsys, "inspect", path)[1]


def test_folders_of_other_programs(capsys, tmp_path):
    from test_gguf import GEMMA3, gguf

    meta = {"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256, "vocab_size": -1}
    flux = {"_class_name": "FluxTransformer2DModel"}

    def folder(name, **texts):
        for path, text in texts.items():
            file = tmp_path / name / path.replace("__", "/").replace("_json", ".json").replace("_gguf", ".gguf")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
        return tmp_path / name

    for path, says in (
        (folder("gguf", a_gguf=gguf("gemma3", GEMMA3)), "1,000,000"),
        (folder("parts", **{f"a-0000{i}-of-00002_gguf": gguf("gemma3", GEMMA3) for i in (1, 2)}), "1,000,000"),
        (folder("meta", params_json=meta), "read as Meta's params.json"),
        (folder("pipeline", model_index_json={}, transformer__config_json=flux), "ids per token"),
    ):
        status, out, err = run(capsys, "inspect", path)
        assert status == 0 and says in out, err
        assert run(capsys, "plot", path, "-o", tmp_path / "a.png", "--only", "rows", *(
            ["--layer-type", "full_attention"] if path.name in ("gguf", "parts") else []))[0] == 0  # fmt: skip
        if path.name in ("meta", "pipeline"):  # the package reads what the commands read
            file = "params.json" if path.name == "meta" else "transformer/config.json"
            assert librope.Rope.from_config(path) == librope.Rope.from_config(path / file)
        else:
            with pytest.raises(ValueError, match=r"GGUF file \(.*a.*\.gguf\).*Model\.from_gguf"):
                librope.Rope.from_config(path)
    for path, says in (
        (folder("two", model_index_json={}, transformer__config_json=flux, transformer_2__config_json=flux),
         "is a pipeline of diffusers with 2 transformers: name one of"),
        (folder("unet", model_index_json={}, unet__config_json={}), "is a pipeline of diffusers with 0 transformers"),
        (folder("empty", x_json={}), "has no config.json, params.json or model_index.json, and no .gguf file"),
    ):
        status, _, err = run(capsys, "inspect", path)
        assert status == 2 and says in err
        with pytest.raises(FileNotFoundError if path.name == "empty" else ValueError, match=says):
            librope.Rope.from_config(path)


def test_titles_of_pictures_say_what_is_drawn(tmp_path):
    from librope.cli import kinds

    for name, text, title in (
        ("config.json", CONFIG, "llama"), ("params.json", {"dim": 64, "n_heads": 1}, tmp_path.name),
        ("config.json", {"_class_name": "FluxTransformer2DModel"}, "FluxTransformer2DModel"),
        ("mine.json", {"rope_theta": 1e4}, "mine"),
    ):  # fmt: skip
        (tmp_path / name).write_text(json.dumps(text))
        assert kinds.title(str(tmp_path / name)) == title


@pytest.mark.parametrize("command", ["inspect", "check", "apply", "plot"])
@pytest.mark.parametrize("option, value, told", [("--pairing", "interleaved", "halves"), ("--head-dim", 32, 64)])
def test_options_do_not_override_the_config(config, capsys, tmp_path, q, command, option, value, told):
    path = tmp_path / "q.npy"
    np.save(path, q)
    more = {"check": (path, path), "apply": (path, tmp_path / "out.npy"),
            "plot": ("-o", tmp_path / "a.png", "--only", "rows")}.get(command, ())  # fmt: skip
    status, _, err = run(capsys, command, config, *more, option, value)
    assert status == 2 and f"{option} is {value}, and the config tells {told} (full_attention)" in err
    assert run(capsys, command, config, *more, option, told)[0] in (0, 1)


def test_options_are_for_the_kinds_that_leave_them_open(capsys, tmp_path):
    """The tower tells its pairing, and an unknown language model does not."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN_VL, "model_type": "lama", "vision_config": {
        **QWEN_VL["vision_config"], "model_type": "qwen2_5_vl"}}))  # fmt: skip
    status, out, err = run(capsys, "inspect", path, "--json", "--pairing", "interleaved")
    assert status == 0, err
    pairings = {k["layer_type"]: k["pairing"] for k in json.loads(out)["kinds"]}
    assert pairings == {"full_attention": "interleaved", "vision": "halves"}


def test_inspect_shows_sections_and_factors(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN_VL))
    rows = {line.split("│")[1].strip(): line for line in run(capsys, "inspect", path)[1].splitlines()
            if line.count("│") > 2}  # fmt: skip
    assert "16, 24, 24" in rows["pairs of each id"] and "frequency factors" not in rows
    kinds = json.loads(run(capsys, "inspect", path, "--json")[1])["kinds"]
    assert [k["pairs_of_axes"] for k in kinds] == [[16, 24, 24], [20, 20]]


def test_unknown_options_show_the_usage_of_the_command(config, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["diff", config, config, "--seq-len", "3"])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and "usage: librope diff" in err and "--seq-len 3" in err


def test_image_models_have_no_single_position(capsys, tmp_path, rng):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"_class_name": "FluxTransformer2DModel"}))
    np.save(tmp_path / "q.npy", rng.standard_normal((6, 2, 128), np.float32))
    np.save(tmp_path / "one.npy", np.arange(6))
    np.save(tmp_path / "ids.npy", np.zeros((3, 6), int))
    names = [tmp_path / n for n in ("q.npy", "out.npy")]
    for more in ((), ("--positions", 7), ("--positions", tmp_path / "one.npy")):
        status, _, err = run(capsys, "apply", path, *names, *more)
        assert status == 2 and "positions gives each token one id" in err
        status, _, err = run(capsys, "check", path, names[0], names[0], *more)
        assert status == 2 and "positions gives each token one id" in err
    assert run(capsys, "apply", path, *names, "--positions", tmp_path / "ids.npy")[0] == 0
    assert run(capsys, "check", path, *names, "--positions", tmp_path / "ids.npy")[0] in (0, 1, 3)


def test_inspect_invents_no_layers(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "num_hidden_layers"}))
    status, out, _ = run(capsys, "inspect", path)
    assert status == 0 and "4096" not in out and "not in the config" in out
    assert json.loads(run(capsys, "inspect", path, "--json")[1])["kinds"][0]["layers"] == []


def test_inspect_partial_rotations(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA4))
    kinds = {k["layer_type"]: k for k in json.loads(run(capsys, "inspect", path, "--json")[1])["kinds"]}
    assert kinds["full_attention"]["turning_channels"] == [[0, 63], [256, 319]]
    assert kinds["full_attention"]["pairs_that_stand_still"] == 192
    assert kinds["sliding_attention"]["turning_channels"] == [[0, 255]]
    assert "0 .. 63, 256 .. 319" in run(capsys, "inspect", path)[1].replace("\n", " ")


def test_inspect_length(config, capsys, tmp_path):
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    path = tmp_path / "dynamic.json"
    path.write_text(json.dumps({**CONFIG, "rope_scaling": scaling, "max_position_embeddings": 2048}))
    kinds = [
        json.loads(run(capsys, "inspect", path, "--json", *more)[1])["kinds"][0]
        for more in ((), ("--seq-len", "9000"))
    ]
    assert kinds[0]["changes_at"] == 2049 and kinds[1]["changes_at"] == 9001
    assert kinds[1]["longest_wavelength"] > kinds[0]["longest_wavelength"]


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_plot(config, capsys, tmp_path, name):
    out = tmp_path / name
    assert run(capsys, "plot", config, "-o", out)[0] == 0
    assert out.stat().st_size > 20000
    for only in ("wavelengths", "rows", "decay", "error"):
        assert run(capsys, "plot", config, "-o", out, "--only", only)[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "config.json"])


def words_of(figure):
    found = [figure.get_suptitle()]
    for axes in figure.get_axes():
        legend = axes.get_legend()
        found += [t.get_text() for t in axes.texts] + [axes.get_title()]
        found += [t.get_text() for t in legend.get_texts()] if legend else []
    return " | ".join(found)


def test_plot_draws_all_kinds_and_true_lengths(tmp_path):
    from librope.cli import kinds, plot

    said = words_of(plot.figure(kinds.read(CONFIG), "x"))
    assert "131,072: max_position_embeddings" in said and "8,192: length before scaling" in said
    assert "trained" not in said and "llama3, theta 500,000, factor 8" in said
    said = words_of(plot.figure(kinds.read(GEMMA4), "x"))
    for words in ("full_attention", "sliding_attention", "192 of 256 pairs stand still",
                  "these pairs stand still", "128 channels turn"):  # fmt: skip
        assert words in said
    said = words_of(plot.figure(kinds.read(QWEN_VL), "x"))
    assert "full_attention, axis 2 of the ids" in said and "vision, axis 1 of the ids" in said
    said = words_of(plot.figure(kinds.read(PHI, seq_len=100), "x"))
    assert "for 100 tokens" in said and "cos and sin times" in said


def test_plot_is_measured():
    """The lines are what they say: means in closed form, errors within the stated bound."""
    from librope.cli import kinds, plot

    (kind,) = kinds.read(CONFIG)
    inv = np.asarray(kind.rope.inv_freq)
    first, last = np.array([0, 3, 1000, 70000]), np.array([0, 9, 1003, 70310])
    want = [np.cos(inv[:, None] * np.arange(a, b + 1)).mean(1) for a, b in zip(first, last, strict=True)]
    np.testing.assert_allclose(plot.mean_cosine(inv, first, last), np.stack(want, 1), atol=1e-9)
    axes = plot.figure([kind], "x", "error").get_axes()[0]
    usual, exact = (np.asarray(line.get_ydata(), float) for line in axes.get_lines()[:2])
    assert exact.max() < 1.5e-7 and usual[-1] > 1e-2 and usual[0] < 1e-7


def test_plot_refuses_what_has_no_rope(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "model_type": "smollm3", "no_rope_layers": [1, 0]}))
    status, _, err = run(capsys, "plot", path, "-o", tmp_path / "a.png", "--layer-type", "nope")
    assert status == 2 and "nothing to draw" in err and not (tmp_path / "a.png").exists()
    assert run(capsys, "plot", path, "-o", tmp_path / "a.png")[0] == 0
    assert "without RoPE" in run(capsys, "inspect", path)[1]
    np.save(tmp_path / "q.npy", np.ones((2, 1, 64), np.float32))
    status, _, err = run(capsys, "check", path, *[tmp_path / "q.npy"] * 2, "--layer-type", "nope")
    assert status == 2 and "no RoPE" in err


def test_the_picture_of_the_readme_is_made_by_its_command(capsys, tmp_path):
    from conftest import REPOSITORY

    config = REPOSITORY / "docs" / "images" / "llama31.json"
    if not config.exists():
        pytest.skip("outside of the repository")
    assert "librope plot docs/images/llama31.json -o docs/images/llama31.png" in (REPOSITORY / "README.md").read_text()
    assert run(capsys, "plot", config, "-o", tmp_path / "llama31.png")[0] == 0


def test_apply_safetensors(config, capsys, tmp_path, q):
    before, after = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    tensors = {"q": q.astype(ml_dtypes.bfloat16), "k": q[:, :1].copy(), "other": np.arange(3)}
    safetensors.numpy.save_file(tensors, before, {"made": "here"})
    assert run(capsys, "apply", config, before, after, "--positions", 5)[0] == 0
    got = safetensors.numpy.load_file(after)
    rope = librope.Rope.from_config(config, layout="thd")
    np.testing.assert_array_equal(got["q"], rope.apply(tensors["q"], 5))
    np.testing.assert_array_equal(got["k"], rope.apply(tensors["k"], 5))
    np.testing.assert_array_equal(got["other"], tensors["other"])


def test_apply_npy_in_pieces_and_inverse(config, capsys, tmp_path, q, monkeypatch):
    from librope.cli import apply

    monkeypatch.setattr(apply, "_CHUNK", 4096)
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "ids.npy", np.arange(40) * 3)
    first, second = tmp_path / "a.npy", tmp_path / "b.npy"
    ids = ("--positions", tmp_path / "ids.npy")
    assert run(capsys, "apply", config, tmp_path / "q.npy", first, *ids)[0] == 0
    rope = librope.Rope.from_config(config, layout="thd")
    np.testing.assert_array_equal(np.load(first), rope.apply(q, np.arange(40) * 3))
    assert run(capsys, "apply", config, first, second, *ids, "--operation", "inverse")[0] == 0
    np.testing.assert_allclose(np.load(second), q, atol=1e-5)


def test_bench(capsys):
    status, out, _ = run(capsys, "bench", "--tokens", 1, "--dtype", "float32", "--json")
    times = json.loads(out)[0]["microseconds"]
    assert status == 0 and all(t > 0 for t in times.values())


def test_apply_names(config, capsys, tmp_path, q):
    before, after = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    safetensors.numpy.save_file({"q_proj": q, "k_rot": q[:, :1].copy(), "q": q}, before)
    assert run(capsys, "apply", config, before, after, "--name", "q_proj", "--name", "k_rot")[0] == 0
    got, rope = safetensors.numpy.load_file(after), librope.Rope.from_config(config, layout="thd")
    np.testing.assert_array_equal(got["q_proj"], rope.apply(q, 0))
    np.testing.assert_array_equal(got["k_rot"], rope.apply(q[:, :1].copy(), 0))
    np.testing.assert_array_equal(got["q"], q)
    status, _, err = run(capsys, "apply", config, before, after, "--name", "v")
    assert status == 2 and "named v" in err and "q_proj" in err


def test_four_axes_need_a_layout(config, capsys, tmp_path, q):
    np.save(tmp_path / "q.npy", q[None])
    status, _, err = run(capsys, "apply", config, tmp_path / "q.npy", tmp_path / "r.npy")
    assert status == 2 and "--layout" in err and not (tmp_path / "r.npy").exists()
    assert run(capsys, "apply", config, tmp_path / "q.npy", tmp_path / "r.npy", "--layout", "bshd")[0] == 0


def test_writes_appear_complete_or_not_at_all(config, capsys, tmp_path, q, monkeypatch):
    from librope.cli import files

    np.save(tmp_path / "q.npy", q)
    target = tmp_path / "r.npy"
    target.write_bytes(b"what was there before")
    listing = {p.name for p in tmp_path.iterdir()}

    def cut(file, array):
        file.write(b"half of it")
        raise failure

    for failure, status in ((OSError(28, "No space left on device"), 2), (KeyboardInterrupt(), 130)):
        monkeypatch.setattr(files.np, "save", cut)
        assert run(capsys, "apply", config, tmp_path / "q.npy", target)[0] == status
        assert target.read_bytes() == b"what was there before"
        assert {p.name for p in tmp_path.iterdir()} == listing
    monkeypatch.undo()
    status, out, err = run(capsys, "apply", config, tmp_path / "q.npy", target)
    assert status == 0 and np.load(target).shape == q.shape
    assert {p.name for p in tmp_path.iterdir()} == listing


def test_an_interrupt_is_a_message(config, capsys, monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    from librope.cli import inspect

    monkeypatch.setattr(inspect, "run", interrupt)
    assert run(capsys, "inspect", config) == (130, "", "librope inspect: interrupted\n")


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x08\0\0\0\0\0\0\0{broken}"])
@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_damaged_files_are_errors(config, capsys, tmp_path, content, suffix):
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(content)
    for command in (("apply", config, path, tmp_path / f"out{suffix}"), ("check", config, path, path)):
        status, out, err = run(capsys, *command)
        assert status == 2 and path.name in err and err.startswith(f"librope {command[0]}: ")
        assert out == "" and err.count("\n") == 1


def test_missing_choices_are_told_in_options(capsys, tmp_path, q):
    np.save(tmp_path / "q.npy", q)
    files = (tmp_path / "q.npy", tmp_path / "r.npy")
    path = tmp_path / "config.json"
    for config, says in (
        (PHI, "--seq-len"), (QWEN1, "--seq-len"), (GEMMA, "--layer-type"),
        ({"rope_type": "default", "rope_theta": 1e4, "head_dim": 64}, "--pairing"),
    ):  # fmt: skip
        path.write_text(json.dumps(config))
        for command in (("apply", path, *files), ("check", path, files[0], files[0])):
            status, _, err = run(capsys, *command)
            assert status == 2 and says in err and "rope_c" not in err
            assert err.startswith(f"librope {command[0]}: ") and err.count("\n") == 1


def test_inspect_of_what_is_left_open_is_no_success(capsys, tmp_path):
    """What is known is shown, and the status is that of diff, check and plot."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "lama", "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e4}))
    says = "does not tell which channels form a pair: say --pairing halves (transformers) or "
    for command in (("inspect", path), ("diff", path, path), ("plot", path, "-o", tmp_path / "a.png")):
        status, out, err = run(capsys, *command)
        assert status == 2 and err.startswith(f"librope {command[0]}: ") and err.count("\n") == 1
        assert (says in err) == (command[0] != "plot")
        assert ("10,000" in out) == (command[0] == "inspect")
    status, out, err = run(capsys, "inspect", path, "--json")
    assert status == 2 and says in err and json.loads(out)["kinds"][0]["missing"] == ["pairing"]
    assert run(capsys, "inspect", path, "--pairing", "halves")[0] == 0
    path.write_text(json.dumps({"rope_type": "default", "rope_theta": 1e4}))
    status, _, err = run(capsys, "inspect", path)
    assert status == 2 and "--head-dim" in err and "--pairing" in err


def test_plot_without_a_length_uses_the_shortest(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PHI))
    assert run(capsys, "plot", path, "-o", tmp_path / "a.png")[0] == 0
    status, _, err = run(capsys, "plot", path, "-o", tmp_path / "a.gif")
    assert status == 2 and ".png" in err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("check", ("--positions", 10**20)),
        ("check", ("--layer", 10**11)),
        ("apply", ("--positions", 10**20)),
        ("apply", ("--layer", 10**11)),
        ("apply", ("--threads", 10**13)),
    ],
)
def test_numbers_out_of_range_are_wrong_use(config, capsys, tmp_path, q, command, option):
    """A traceback would exit with 1, which is an answer of check."""
    np.save(tmp_path / "q.npy", q)
    status, _, err = run(capsys, command, config, tmp_path / "q.npy", tmp_path / "q.npy", *option)
    assert status == 2 and str(option[1]) in err and err.count("\n") == 1


def test_no_exception_is_an_answer_of_check(config, capsys, monkeypatch):
    from librope.cli import inspect

    def fail(arguments):
        raise ZeroDivisionError("of something unforeseen")

    monkeypatch.setattr(inspect, "run", fail)
    status, _, err = run(capsys, "inspect", config)
    assert (status, err) == (2, "librope inspect: ZeroDivisionError: of something unforeseen\n")


@pytest.mark.parametrize(
    ("content", "known"),
    [
        ({**CONFIG, "model_type": "lama"}, ("500,000", "64", "131,072", "8,192", "--pairing halves")),
        ({"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
         ("1,000,000", "32,768", "4", "--head-dim")),
    ],
)  # fmt: skip
def test_inspect_shows_what_is_known(capsys, tmp_path, content, known):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    status, out, err = run(capsys, "inspect", path)
    assert status == 2 and all(k in out + err for k in known)
    status, out, _ = run(capsys, "inspect", path, "--pairing", "halves", "--head-dim", 64)
    assert status == 0 and "0 .. 63" in out and "--pairing" not in out


def test_npy_files_do_not_keep_bfloat16(config, capsys, tmp_path, q):
    np.save(tmp_path / "q.npy", q.astype(ml_dtypes.bfloat16))
    status, _, err = run(capsys, "apply", config, tmp_path / "q.npy", tmp_path / "r.npy")
    assert status == 2 and "do not keep bfloat16" in err and "safetensors" in err


def test_files_are_named_as_the_user_named_them(config, capsys, tmp_path, q):
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "objects.npy", np.array([{}]))
    out = tmp_path / "none" / "r.npy"
    status, _, err = run(capsys, "apply", config, tmp_path / "q.npy", out)
    assert status == 2 and err == f"librope apply: {out}: No such file or directory\n"
    status, _, err = run(capsys, "apply", config, tmp_path / "objects.npy", out)
    assert status == 2 and "holds Python objects" in err and "allow_pickle" not in err
    status, _, err = run(capsys, "apply", config, tmp_path / "q.npy", tmp_path / "r.npy", "--layout", "htd",
                         "--positions", tmp_path / "ids.npy")  # fmt: skip
    assert status == 2


def test_options_have_their_dashes(config, capsys, tmp_path, q):
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "ids.npy", np.arange(7))
    status, _, err = run(capsys, "apply", config, tmp_path / "q.npy", tmp_path / "r.npy",
                         "--positions", tmp_path / "ids.npy")  # fmt: skip
    assert status == 2 and "(see --layout)" in err
    with pytest.raises(SystemExit):
        run(capsys, "bench", "--dtype", "f64")
    assert "bfloat16" in capsys.readouterr().err


def test_wrong_use(capsys, tmp_path):
    assert run(capsys)[0] == 2
    status, _, err = run(capsys, "inspect", tmp_path / "none.json")
    assert status == 2 and "none.json" in err
    (tmp_path / "bad.json").write_text("{")
    status, _, err = run(capsys, "inspect", tmp_path / "bad.json")
    assert status == 2 and err.startswith("librope inspect:")


@pytest.mark.parametrize("module", ["librope", "librope.cli"])
def test_as_a_program(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert re.match(r"librope 0\.\d+\.\d+( \([0-9a-f]{12}\))?, cpu ", done.stdout)
