"""The examples run, and say what they say."""

import pathlib
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


def test_notebook(tmp_path):
    done = run("notebook.py", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"llama31.png", "scalings.png"}


# Parts of these stand in the guides of docs/.
@pytest.mark.parametrize("name", ["first_call", "lengths", "move_cache", "precision", "serving"])
def test_guides(name):
    done = run(f"{name}.py")
    assert done.returncode == 0, done.stderr


def test_paged_engine():
    pytest.importorskip("torch")
    done = run("paged_engine.py")
    assert done.returncode == 0, done.stderr
    assert "the same tokens as without librope" in done.stdout


@pytest.mark.parametrize("processes", [1, 2])
def test_ring_attention(processes):
    pytest.importorskip("torch")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    done = subprocess.run([sys.executable, *launcher, str(FOLDER / "ring_attention.py")], capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the logits of one process") == processes


def test_flux():
    pytest.importorskip("torch")  # both are in run-tests' environment of torch, which asks for it
    pytest.importorskip("diffusers")
    done = run("flux.py")
    assert done.returncode == 0, done.stderr
    assert "of the values differ" in done.stdout
