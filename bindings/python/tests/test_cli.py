"""The command line, through its main function and once as a program."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("rich")
safetensors = pytest.importorskip("safetensors.numpy")

import librope  # noqa: E402
from librope import cli  # noqa: E402

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
    assert status == 0 and "llama3" in out and "500,000" in out and "8,192" in out
    assert "\x1b" not in out  # no colours when piped
    status, out, _ = run(capsys, "inspect", config, "--json")
    (kind,) = json.loads(out)["kinds"]
    assert kind["head_dim"] == 64 and kind["layers"] == [0, 1]
    assert kind["longest_wavelength"] > 1e6
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    status, out, _ = run(capsys, "inspect", tmp_path)
    assert "sliding_attention" in out and "full_attention" in out


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
    pytest.importorskip("matplotlib")
    out = tmp_path / name
    assert run(capsys, "plot", config, "-o", out)[0] == 0
    assert out.stat().st_size > 20000
    assert run(capsys, "plot", config, "-o", out, "--only", "decay")[0] == 0


def test_apply_safetensors(config, capsys, tmp_path, q):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    before, after = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    tensors = {"q": q.astype(ml_dtypes.bfloat16), "k": q[:, :1].copy(), "other": np.arange(3)}
    safetensors.save_file(tensors, before, {"made": "here"})
    assert run(capsys, "apply", config, before, after, "--positions", 5)[0] == 0
    got = safetensors.load_file(after)
    rope = librope.Rope.from_config(config)
    np.testing.assert_array_equal(got["q"], rope.apply(tensors["q"], 5))
    np.testing.assert_array_equal(got["k"], rope.apply(tensors["k"], 5))
    np.testing.assert_array_equal(got["other"], tensors["other"])
    status, out, _ = run(capsys, "check", config, before, after, "--positions", 5)
    assert status == 0 and "bit for bit" in out


def test_apply_npy_in_pieces_and_inverse(config, capsys, tmp_path, q, monkeypatch):
    from librope.cli import apply

    monkeypatch.setattr(apply, "_CHUNK", 4096)
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "ids.npy", np.arange(40) * 3)
    first, second = tmp_path / "a.npy", tmp_path / "b.npy"
    ids = ("--positions", tmp_path / "ids.npy")
    assert run(capsys, "apply", config, tmp_path / "q.npy", first, *ids)[0] == 0
    rope = librope.Rope.from_config(config)
    np.testing.assert_array_equal(np.load(first), rope.apply(q, np.arange(40) * 3))
    assert run(capsys, "apply", config, first, second, *ids, "--operation", "inverse")[0] == 0
    np.testing.assert_allclose(np.load(second), q, atol=1e-5)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda r, q: r.replace(pairing="interleaved").apply(q, 0), "pairing interleaved"),
        (lambda r, q: r.apply(q, 1), "positions +1"),
        (lambda r, q: r.replace(theta=10000.0).apply(q, 0), "theta 10000"),
        (lambda r, q: r.apply(q, 0, operation="inverse"), "the inverse rotation"),
        (lambda r, q: librope.Rope(head_dim=64, theta=5e5, pairing="halves").apply(q, 0),
         "without the scaling"),
        (lambda r, q: q, "not rotated at all"),
    ],
)  # fmt: skip
def test_check_tells_the_mistake(config, capsys, tmp_path, q, mistake, says):
    rope = librope.Rope.from_config(config)
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "r.npy", mistake(rope, q))
    files = (tmp_path / "q.npy", tmp_path / "r.npy")
    status, out, _ = run(capsys, "check", config, *files)
    assert status == 1 and "does not match" in out and says in out
    status, out, _ = run(capsys, "check", config, *files, "--json")
    found = json.loads(out)
    assert status == 1 and found["explained"] and any(says in w for w in found["best"]["wrong"])


def test_check_admits_ignorance(config, capsys, tmp_path, q, rng):
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "r.npy", rng.standard_normal(q.shape).astype(np.float32))
    status, out, _ = run(capsys, "check", config, tmp_path / "q.npy", tmp_path / "r.npy")
    assert status == 1 and "nothing tried fits" in out


def test_bench(capsys):
    status, out, _ = run(capsys, "bench", "--tokens", 1, "--dtype", "float32", "--json")
    times = json.loads(out)[0]["microseconds"]
    assert status == 0 and all(t > 0 for t in times.values())


def test_wrong_use(capsys, tmp_path):
    assert run(capsys)[0] == 2
    status, _, err = run(capsys, "inspect", tmp_path / "none.json")
    assert status == 2 and "none.json" in err
    (tmp_path / "bad.json").write_text("{")
    status, _, err = run(capsys, "inspect", tmp_path / "bad.json")
    assert status == 2 and err.startswith("librope inspect:")


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "librope.cli", "--version"], capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stdout.startswith("librope 0")
