"""The examples run, and say what they say."""

import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FOLDER = HERE if (HERE / "tiny_llama.py").exists() else HERE.parent / "examples"


def run(name, *arguments):
    return subprocess.run([sys.executable, str(FOLDER / name), *arguments], capture_output=True,
                          text=True)  # fmt: skip


def test_tiny_llama():
    done = run("tiny_llama.py")
    assert done.returncode == 0, done.stderr
    assert "the same without a cache" in done.stdout


def test_numpy_engine():
    done = run("numpy_engine.py")
    assert done.returncode == 0, done.stderr
    assert "the tokens of plain code" in done.stdout


def test_patch_norms():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    done = run("patch_norms.py")
    assert done.returncode == 0, done.stderr
    assert "the tokens of the model as it was" in done.stdout


def test_notebook(tmp_path):
    done = run("notebook.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"llama31.png", "scalings.png"}


# Parts of these stand in the guides of docs/.
@pytest.mark.parametrize("name", ["first_call", "kv_files", "lengths", "move_cache", "precision", "serving"])
def test_guides(name):
    done = run(f"{name}.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_paged_engine(dtype):
    pytest.importorskip("torch")
    done = run("paged_engine.py", dtype)
    assert done.returncode == 0, done.stderr
    says = re.search(f"{dtype}: the best tokens of plain code, .* in (\\d+) of (\\d+) places", done.stdout)
    clear, tokens = says.groups()
    assert int(tokens) == 127
    assert int(clear) == 127 if dtype == "float32" else int(clear) > 64


def test_mla_rows():
    pytest.importorskip("ml_dtypes")
    done = run("mla_rows.py")
    assert done.returncode == 0, done.stderr
    assert "656 bytes and 12 queries: those of plain code" in done.stdout


def test_engine_8bit():
    pytest.importorskip("torch")
    done = run("engine_8bit.py")
    assert done.returncode == 0, done.stderr
    assert "a cache of 130560 bytes instead of 491520" in done.stdout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_train_packed(dtype):
    pytest.importorskip("torch")
    done = run("train_packed.py", dtype)
    assert done.returncode == 0, done.stderr
    assert f"torch.{dtype}: 4 gradients within" in done.stdout


def torchrun(name, processes):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    return subprocess.run([sys.executable, *launcher, str(FOLDER / name)], capture_output=True, text=True)


@pytest.mark.parametrize("processes", [1, 2])
def test_ring_attention(processes):
    pytest.importorskip("torch")
    done = torchrun("ring_attention.py", processes)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the logits of one process") == processes


def test_sharded_positions():
    pytest.importorskip("torch")
    done = torchrun("sharded_positions.py", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("32 tokens, the bits of one process") == 2


def test_ring_attention_jax(monkeypatch):
    jax = pytest.importorskip("jax")
    if not hasattr(jax, "shard_map"):
        pytest.skip("this JAX has no jax.shard_map")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    done = run("ring_attention_jax.py")
    assert done.returncode == 0, done.stderr
    assert "4 devices: the bits of one" in done.stdout


def test_flux():
    pytest.importorskip("torch")  # both are in run-tests' environment of torch, which asks for it
    pytest.importorskip("diffusers")
    done = run("flux.py")
    assert done.returncode == 0, done.stderr
    assert "of the values differ" in done.stdout
