"""KV files of a model whose layers have different RoPEs: each is that of its layer."""

import json

import numpy as np
import pytest

import librope
from librope import cli, kv

GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
    "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
#: The next of the family: other frequencies in the last layer, which has full attention.
LONGER = GEMMA | {"rope_theta": 5e6}
TOKENS = 20


@pytest.fixture
def model():
    return librope.Model(GEMMA)


@pytest.fixture
def longer(tmp_path):
    path = tmp_path / "longer.json"
    path.write_text(json.dumps(LONGER))
    return path


@pytest.fixture
def raw(rng):
    return rng.standard_normal((6, TOKENS, 2, 16), np.float32)


@pytest.fixture
def folder(tmp_path, model, raw):
    for layer, x in enumerate(raw):
        rope = model.rope(layer=layer)
        k = rope.apply(x, 7, layout="thd")
        kv.write(tmp_path / f"doc/{layer}.safetensors", k, rope=rope, first_position=7, layout="nhd", layer=layer)
    return tmp_path / "doc"


def check_keys(folder, model, raw, first):
    for layer, x in enumerate(raw):
        rope = model.rope(layer=layer)
        info, k, _ = kv.read(folder / f"{layer}.safetensors", rope=rope)
        assert (info.layer, info.first_position) == (layer, first)
        np.testing.assert_allclose(k, rope.apply(x, first, layout="thd"), atol=5e-6)


@pytest.mark.parametrize("how", ["model", "dictionary", "command"])
def test_each_file_has_the_rope_of_its_layer(folder, model, raw, longer, tmp_path, how, capsys):
    other = librope.Model(LONGER)
    ropes = other if how == "model" else {n: other.rope(layer=n) for n in range(6)}
    if how == "command":
        assert cli.main(["kv", "move", str(folder), str(tmp_path / "moved"), "--to", "100", "--config", str(longer)]) == 0
        assert cli.main(["kv", "verify", str(tmp_path / "moved"), "--config", str(longer)]) == 0
        assert "6 of 6 files are well" in capsys.readouterr().out
    else:
        kv.move(folder, tmp_path / "moved", rope=ropes, to=100)
    check_keys(tmp_path / "moved", other, raw, 100)
    kv.verify(tmp_path / "moved", rope=ropes)
    kv.verify(folder, rope=model)
    with pytest.raises(kv.Refused, match=r"1 of 6 .*/5\.safe.*another RoPE.*\(theta 5000000.0, and not 1000000.0\)"):
        kv.verify(tmp_path / "moved", rope=model)
    assert kv.read(folder / "5.safetensors", rope=model)[0].layer == 5
    with pytest.raises(ValueError, match=r"5\.safetensors: its keys are of another RoPE"):
        kv.read(folder / "5.safetensors", rope=ropes)


def test_a_kind_that_is_named_is_for_its_layers(folder, longer, tmp_path, capsys):
    moved = tmp_path / "moved"
    for name, value in (("--layer-type", "full_attention"), ("--layer", "5")):
        assert cli.main(["kv", "move", str(folder), str(moved), "--config", str(longer), name, value]) == 2
        out, err = capsys.readouterr()
        assert "5 refused" in out
        assert "/0.safetensors: its layer is 0, and the RoPE that was given is that of layers 5\n" in err
        assert [p.name for p in moved.iterdir()] == ["5.safetensors"]


def test_files_that_do_not_say_their_layer(model, raw, tmp_path, longer, capsys):
    rope = model.rope(layer=5)
    path = tmp_path / "a.safetensors"
    kv.write(path, rope.apply(raw[5], 0, layout="thd"), rope=rope, first_position=0, layout="nhd")
    with pytest.raises(kv.Refused, match="a.safetensors: it does not say its layer"):
        kv.move(path, to=5, rope=librope.Model(LONGER))
    kv.verify(path, rope={None: rope})
    assert cli.main(["kv", "move", str(path), "--config", str(longer), "--layer-type", "full_attention"]) == 0
    # Where the layers do not differ, it need not.
    same = librope.Model(GEMMA | {"rope_local_base_freq": 5e6, "rope_theta": 5e6})
    kv.verify(path, rope=same)


def test_what_is_no_rope_is_named(folder, capsys):
    for what in (3, {}, {0: "x"}):
        with pytest.raises(TypeError, match="must be a librope.Rope, a librope.Model, or a dictionary"):
            kv.move(folder, rope=what)
    assert cli.main(["kv", "move", str(folder), "--to", "3", "--layer", "0"]) == 2
    assert "--layer needs --config" in capsys.readouterr().err


def test_keys_with_exact_angles(model, raw, longer, tmp_path, capsys):
    """The command takes them with --angle; a move does not change how angles are made."""
    exact = model.rope(layer=0, angle="exact")
    path = tmp_path / "exact/0.safetensors"
    kv.write(path, exact.apply(raw[0], 0, layout="thd"), rope=exact, first_position=0, layout="nhd", layer=0)
    with pytest.raises(kv.Refused, match="angle of the rope is float32, and its keys have exact: a move changes freq"):
        kv.move(path, rope=model)
    with pytest.raises(kv.Refused, match=r"another RoPE.*\(angle exact, and not float32\)"):
        kv.verify(path, rope=model)
    config = ["--config", str(longer), "--angle", "exact"]
    assert cli.main(["kv", "verify", str(path), *config]) == 0
    assert cli.main(["kv", "move", str(path), "--to", "9", *config]) == 0
    info, k, _ = kv.read(path, rope=exact)
    np.testing.assert_allclose(k, exact.apply(raw[0], 9, layout="thd"), atol=5e-6)
