"""librope diff: finds the GGUF file whose RoPE is not its config's, and calls two dialects of one model the
same. Files are written by the package gguf."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY

from librope.cli import main
from librope.cli.diff.converted import PERMUTED

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE if (HERE / "first_llama31.py").exists() else HERE.parent / "examples"
DATA = REPOSITORY / "tests/data"
gguf = pytest.importorskip("gguf")

QWEN = {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "num_hidden_layers": 28, "rope_theta": 1e6, "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}  # fmt: skip
QWEN_KEYS = {"block_count": 28, "context_length": 131072, "embedding_length": 3584, "attention.head_count": 28,
             "rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
             "rope.scaling.original_context_length": 32768}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
         "rope_theta": 500000.0, "max_position_embeddings": 131072,
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192}}  # fmt: skip
LLAMA_KEYS = {"block_count": 32, "context_length": 131072, "embedding_length": 4096, "attention.head_count": 32,
              "rope.freq_base": 500000.0}  # fmt: skip


class Files:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def json(self, name: str, config: dict[str, Any]) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        return str(path)

    def gguf(self, name: str, architecture: str, keys: dict[str, Any], factors: Any = None,
             sections: Any = None) -> str:  # fmt: skip
        path = self.folder / name
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in keys.items():
            add = writer.add_string if isinstance(value, str) else (
                writer.add_float32 if isinstance(value, float) else writer.add_uint32)  # fmt: skip
            add(f"{architecture}.{key}", value)
        if sections is not None:
            writer.add_rope_dimension_sections(sections)
        if factors is not None:
            writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return str(path)


@pytest.fixture
def files(tmp_path: pathlib.Path) -> Files:
    return Files(tmp_path)


def cli(*arguments: str) -> SimpleNamespace:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def diff(*arguments: str, status: int) -> dict[str, Any]:
    done = cli("diff", "--json", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["same"] == (status == 0)
    return found


def counted(found: dict[str, Any]) -> dict[str, Any]:
    """What differs, by name."""
    return {f["what"]: f for g in found["groups"] for f in g["findings"] if f["counts"]}


def llama3_factors() -> Any:
    """What the converter writes for LLAMA: frequencies over those of llama3."""
    plain = 1 / 500000.0 ** (np.arange(64) / 64)
    wavelength, low, high = 2 * np.pi / plain, 8192 / 1.0, 8192 / 4.0
    smooth = (8192 / wavelength - 1.0) / 3.0
    return np.where(wavelength < high, 1, np.where(wavelength > low, 8, 1 / ((1 - smooth) / 8 + smooth)))


def test_a_file_of_its_config_is_the_same(files: Files) -> None:
    found = diff(files.json("config.json", QWEN), files.gguf("a.gguf", "qwen2", QWEN_KEYS), status=0)
    assert found["verdict"] == "the same RoPE: every frequency has the same bits"
    digests = [found[side]["digests"] for side in "ab"]
    assert digests[0]["rotation"] == digests[1]["rotation"]


@pytest.mark.parametrize("key, value, differs", [
    ("rope.scaling.factor", 8.0, "angles"),
    ("rope.scaling.original_context_length", 16384, "angles"),
    ("rope.freq_base", 1e5, "angles"),
    ("rope.scaling.attn_factor", 0.5, "factor on cos and sin"),
    ("attention.key_length", 64, "head_dim"),
])  # fmt: skip
def test_one_wrong_key_is_found(files: Files, key: str, value: Any, differs: str) -> None:
    config = files.json("config.json", QWEN)
    found = diff(config, files.gguf("a.gguf", "qwen2", {**QWEN_KEYS, key: value}), status=1)
    assert differs in counted(found)
    assert found["groups"][0]["layers"] == list(range(28))


def test_forgotten_yarn_is_found_with_its_position(files: Files) -> None:
    config = files.json("config.json", QWEN)
    keys = {k: v for k, v in QWEN_KEYS.items() if not k.startswith("rope.scaling")}
    group = diff(config, files.gguf("a.gguf", "qwen2", keys), status=1)["groups"][0]
    (span,) = group["lengths"]
    assert span["pairs_that_differ"] == list(range(24, 64))
    f = 1e6 ** (-np.arange(64) / 64)
    first = int(np.ceil(1e-3 / (0.75 * f).max()))
    assert 1 <= span["from_position"] <= 2 * max(first, 1)
    assert {"scaling", "factor"} <= {f["what"] for f in group["findings"]}
    wider = diff(config, str(files.folder / "a.gguf"), "--bound", "0.1", status=1)["groups"][0]["lengths"][0]
    assert wider["from_position"] > 50 * span["from_position"]
    # Where sequences are shorter than that, it makes no difference to the angles; the factor remains.
    short = diff(config, str(files.folder / "a.gguf"), "--bound", "0.5", "--length", "50", status=0)
    assert short["groups"][0]["lengths"][0]["from_position"] is None


def test_the_wrong_pairing_is_found(files: Files) -> None:
    config = files.json("config.json", QWEN)
    found = diff(config, files.gguf("a.gguf", "llama", QWEN_KEYS), status=1)
    assert list(counted(found)) == ["pairing"]
    assert "not known to permute" in counted(found)["pairing"]["said"]
    # Nor may a file of permuted weights say an architecture of halves.
    plain = {**LLAMA, "rope_scaling": None}
    found = diff(files.json("llama.json", plain), files.gguf("b.gguf", "qwen2", LLAMA_KEYS), status=1)
    assert "writes a llama as llama" in counted(found)["pairing"]["said"]
    diff(config, str(files.folder / "a.gguf"), "--same", "angles", status=0)


def test_permuted_weights_are_told_and_no_difference(files: Files) -> None:
    config = files.json("config.json", LLAMA)
    file = files.gguf("a.gguf", "llama", LLAMA_KEYS, llama3_factors())
    for pair in ((config, file), (file, config)):
        found = diff(*pair, status=0)
        (pairing,) = [f for f in found["groups"][0]["findings"] if f["what"] == "pairing"]
        assert "permutes q and k of a llama" in pairing["said"]
        assert found["groups"][0]["lengths"][0]["pairs_off_by_rounding"]
    assert "pairing" in counted(diff(config, file, "--same", "rotation", status=1))
    assert "angles" in counted(diff(config, file, "--bound", "0", status=1))


def test_two_texts_of_one_dialect_may_not_permute(files: Files) -> None:
    a = files.json("a.json", {"model_type": "no_such", "head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 2})
    done = cli("diff", a, a)
    assert done.returncode == 2
    assert "--pairing halves" in done.stderr
    diff(a, a, "--pairing", "halves", status=0)
    gptj = files.json("b.json", {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
                                 "num_hidden_layers": 2, "rope_theta": 1e4})  # fmt: skip
    found = diff(a, gptj, "--pairing", "interleaved", status=1)
    assert "nonsense" in counted(found)["pairing"]["said"]


def test_options_that_nothing_leaves_open(files: Files) -> None:
    config = files.json("config.json", QWEN)
    done = cli("diff", config, config, "--pairing", "interleaved")
    assert (done.returncode, "--pairing: both tell it" in done.stderr) == (2, True)


def test_defaults_that_are_spelt_out_explain_nothing(files: Files) -> None:
    scaling = {**QWEN["rope_scaling"], "beta_fast": 32.0, "beta_slow": 1.0}
    a, b = files.json("a.json", QWEN), files.json("b.json", {**QWEN, "rope_theta": 1e5, "rope_scaling": scaling})
    (group,) = diff(a, b, status=1)["groups"]
    assert {f["what"] for f in group["findings"] if f["said"] == "explains it"} == {"theta"}
    plain = {k: v for k, v in QWEN.items() if k != "rope_scaling"}
    group = diff(files.json("c.json", {**plain, "max_position_embeddings": 4096}), a, status=1)["groups"][0]
    named = {f["what"] for f in group["findings"] if f["said"] == "explains it"}
    assert {"scaling", "factor"} <= named and not {"beta_fast", "axes", "theta"} & named


def test_params_json_is_named_and_has_its_own_order(files: Files) -> None:
    llama = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
             "rope_theta": 10000.0}  # fmt: skip
    meta = {"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256, "vocab_size": -1}
    a, b = files.json("config.json", llama), files.json("params.json", meta)
    found = diff(a, b, status=1)
    assert (found["a"]["dialect"], found["b"]["dialect"]) == ("config.json", "Meta's params.json")
    assert list(counted(found)) == ["pairing"] and "--same angles" in counted(found)["pairing"]["said"]
    assert diff(a, b, "--same", "angles", status=0)


def test_inspect_shows_frequency_factors(files: Files) -> None:
    done = cli("inspect", files.gguf("a.gguf", "llama", LLAMA_KEYS, llama3_factors()))
    (row,) = [line for line in done.stdout.splitlines() if "frequency factors" in line]
    assert "64 numbers, 1 .. 8" in row


def test_the_first_files_of_llama_3_1(files: Files) -> None:
    """The case of README.md, by the example that writes it."""
    config, file = files.json("config.json", LLAMA), str(files.folder / "a.gguf")
    subprocess.run([sys.executable, str(EXAMPLES / "first_llama31.py"), config, file], check=True)
    found = diff(config, file, status=1)
    assert found["groups"][0]["lengths"][0]["pairs_that_differ"] == list(range(29, 64))


def test_lengths_of_longrope(files: Files) -> None:
    phi = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2,
           "rope_theta": 10000.0, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
           "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}}  # fmt: skip
    other = json.loads(json.dumps(phi))
    other["rope_scaling"]["long_factor"][3] = 2.5
    found = diff(files.json("a.json", phi), files.json("b.json", other), status=1)
    spans = found["groups"][0]["lengths"]
    assert [(s["from"], s["pairs_that_differ"]) for s in spans] == [(1, []), (4097, [3])]
    assert "sequences of 4,097 tokens and more" in counted(found)["angles"]["said"]


def test_layers_that_differ_are_named(files: Files) -> None:
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    cohere = {"model_type": "cohere2", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4,
              "rope_theta": 50000.0, "layer_types": kinds}  # fmt: skip
    other = {**cohere, "layer_types": kinds[1:] + kinds[:1]}
    found = diff(files.json("a.json", cohere), files.json("b.json", other), status=1)
    assert found["verdict"] == "not the same RoPE: in layers 2 to 3"
    shorter = {**cohere, "num_hidden_layers": 3, "layer_types": kinds[:3]}
    found = diff(files.json("a.json", cohere), files.json("b.json", shorter), status=1)
    assert [(f["what"], f["a"], f["b"]) for f in found["findings"]] == [("layers", "4", "3")]


def test_kinds_that_cannot_be_matched_are_no_agreement(files: Files) -> None:
    """Without the number of layers, kinds are matched by their names; what is left over counts."""
    plain = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e4}
    kinds = {"model_type": "gemma3_text", "hidden_size": 2560, "head_dim": 256, "num_attention_heads": 8,
             "rope_theta": 1e6, "rope_local_base_freq": 1e4}  # fmt: skip
    diff(files.json("b.json", kinds), files.json("c.json", kinds), status=0)
    keys = {"block_count": 6, "context_length": 8192, "embedding_length": 512, "attention.head_count": 8,
            "rope.freq_base": 1e4}  # fmt: skip
    llama = files.gguf("a.gguf", "llama", keys)
    diff(files.json("a.json", plain), llama, status=0)
    found = diff(files.json("b.json", kinds), llama, status=1)
    assert any(f["counts"] for f in found["findings"])


def test_a_tower_is_a_file_of_its_own(files: Files) -> None:
    models = json.loads((DATA / "models.json").read_text())
    (config,) = [m["config"] for m in models if m["id"] == "Qwen/Qwen2.5-VL-7B-Instruct"]
    config["num_hidden_layers"] = 28
    keys = {"block_count": 28, "context_length": 128000, "embedding_length": 3584, "attention.head_count": 28,
            "rope.freq_base": 1e6}  # fmt: skip
    text = {k: v for k, v in config.items() if k != "vision_config"}
    path = files.gguf("a.gguf", "qwen2vl", keys, sections=[16, 24, 24, 0])
    found = diff(files.json("a.json", config), path, status=0)
    assert [(f["what"], f["counts"]) for f in found["findings"]] == [("vision", False)]
    diff(str(files.folder / "a.json"), files.json("b.json", text), status=1)
    other = files.gguf("b.gguf", "qwen2vl", keys, sections=[24, 20, 20, 0])
    assert "axes" in counted(diff(str(files.folder / "a.json"), other, status=1))


def test_folders_and_models_of_the_cache(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    config = files.json("model/config.json", QWEN)
    diff(str(files.folder / "model"), config, status=0)
    empty = files.folder / "empty"
    empty.mkdir()
    done = cli("diff", str(empty), config)
    assert (done.returncode, "no config.json, params.json or model_index.json" in done.stderr) == (2, True)
    files.gguf("empty/a.gguf", "qwen2", QWEN_KEYS)
    diff(str(empty), config, status=0)
    files.gguf("empty/b.gguf", "qwen2", QWEN_KEYS)
    done = cli("diff", str(empty), config)
    assert (done.returncode, "a.gguf, b.gguf" in done.stderr) == (2, True)
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(files.folder / "hub"))
    snapshot = files.folder / "hub/models--Qwen--Qwen2/snapshots/0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN))
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0123")
    diff("Qwen/Qwen2", config, status=0)
    done = cli("diff", "Qwen/Qwen3", config)
    assert (done.returncode, "cache has no such model" in done.stderr) == (2, True)


def test_tables_and_pictures(files: Files) -> None:
    config, file = files.json("config.json", QWEN), files.gguf("a.gguf", "llama", QWEN_KEYS)
    done = cli("diff", config, file, "--plot", str(files.folder / "a.png"))
    assert done.returncode == 1
    assert "not the same RoPE: in all layers" in done.stdout
    assert (files.folder / "a.png").read_bytes()[:4] == b"\x89PNG"
    done = cli("diff", config, config, "--plot", str(files.folder / "a.txt"))
    assert (done.returncode, "--plot" in done.stderr) == (2, True)


@pytest.mark.parametrize("arguments, said", [
    (["--bound", "-1"], "--bound is -1.0"), (["--bound", "nan"], "--bound is nan"),
    (["--length", "0"], "--length is 0"), (["--accept", "x"], "--accept: both are read without it"),
])  # fmt: skip
def test_wrong_options(files: Files, arguments: list[str], said: str) -> None:
    config = files.json("config.json", QWEN)
    done = cli("diff", config, config, *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_the_table_of_the_converter() -> None:
    """By what the converter wrote: architectures of neighbours for configs of halves."""
    recorded = json.loads((DATA / "gguf.json").read_text())["records"]
    found: dict[str, set[str]] = {}
    for record in recorded:
        case = json.loads((DATA / f"oracle/{record['case']}.json").read_text())
        architecture = record["keys"]["general.architecture"][1]
        ropes = {r["pairing"] for r in case["ropes"] if r["role"] == "text"}
        if ropes == {"halves"} and architecture in neighbours() and not architecture.startswith("deepseek"):
            found.setdefault(architecture, set()).add(case["config"]["model_type"])
    assert {a: set(types) for a, types in PERMUTED.items() if a != "deepseek"} == found


def neighbours() -> set[str]:
    text = (DATA.parents[1] / "docs/gguf.md").read_text()
    row = text[text.index("| neighbours (ggml's NORM)") :].split("\n")[0].split("|")[2]
    return set(row.replace("`", "").replace(" ", "").split(","))


