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


def content(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


ONE = "the RoPE that was given is one for all files"


@pytest.mark.parametrize("keys", ["rotated", "raw"])
@pytest.mark.parametrize("which", [0, 5, "llama"])
def test_one_rope_is_not_given_to_the_layers_of_several(folder, model, raw, tmp_path, capsys, which, keys):
    """Neither that of one of the kinds, nor a third, nor the model of another family whose layers do not differ."""
    if keys == "raw":
        kv.move(folder, keys="raw")
    llama = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 6, "rope_theta": 5e5}
    other = librope.Model(llama)
    rope = other.rope() if which == "llama" else model.rope(layer=which)
    (folder / "damaged.safetensors").write_bytes(b"\0" * 100)  # is refused later, by its name
    before = content(folder)
    for target in (None, tmp_path / "moved"):
        for ropes in (rope, *([other] if which == "llama" else [])):
            with pytest.raises(ValueError, match=rf"{ONE}, .*/0.safetensors and .*/5.* \(theta 10000.0, and not 1000000.0\)"):
                kv.move(folder, target, rope=ropes, to=100)
    config = tmp_path / "llama.json"
    config.write_text(json.dumps(llama))
    assert cli.main(["kv", "move", str(folder), str(tmp_path / "moved"), "--to", "1", "--config", str(config)]) == 2
    assert ONE in capsys.readouterr().err
    assert content(folder) == before and not (tmp_path / "moved").exists()
    # Who means it says so, and one kind alone, or one file, is no folder of several.
    (folder / "damaged.safetensors").unlink()
    kv.move(folder, tmp_path / "meant", rope=dict.fromkeys(range(6), rope))
    (folder / "5.safetensors").unlink()
    kv.move(folder, tmp_path / "local", rope=rope)


def test_one_rope_is_not_given_to_several_that_do_not_say_their_layer(model, raw, tmp_path, longer, capsys):
    for layer in (0, 5):
        rope = model.rope(layer=layer)
        kv.write(tmp_path / f"doc/{layer}.safetensors", rope.apply(raw[layer], 0, layout="thd"), rope=rope, first_position=0,
                 layout="nhd", layer=None if layer == 0 else 5)  # fmt: skip
    ropes = {None: model.rope(layer=5), 5: model.rope(layer=5)}
    kv.move(tmp_path / "doc", tmp_path / "moved", rope=ropes)  # one of them
    five = model.rope(layer=5)
    kv.write(tmp_path / "doc/5.safetensors", five.apply(raw[5], 0, layout="thd"), rope=five, first_position=0, layout="nhd")
    with pytest.raises(ValueError, match=f"{ONE} that do not say their layer, "):
        kv.move(tmp_path / "doc", tmp_path / "again", rope=ropes)
    assert cli.main(["kv", "move", str(tmp_path / "doc"), "--config", str(longer), "--layer-type", "full_attention"]) == 2
    assert f"{ONE} that do not say their layer" in capsys.readouterr().err


def test_one_rope_goes_on_where_it_was_killed(raw, tmp_path):
    """In place: what is moved already has another RoPE than the rest. Chunks in LongRoPE's short and long frequencies
    are of one."""
    short, long = (
        librope.Rope(head_dim=16, theta=1e4, pairing="halves", scaling="longrope", max_position_embeddings=4096,
                     original_max_position_embeddings=64, short_factor=[1.0] * 8, long_factor=[2.0 + i for i in range(8)],
                     seq_len=n)
        for n in (64, 4096)
    )  # fmt: skip
    for n, rope in enumerate((short, long, long)):
        kv.write(tmp_path / f"{n}.safetensors", rope.apply(raw[n], 7, layout="thd"), rope=rope, first_position=7, layout="nhd")
    plain = librope.Rope(head_dim=16, theta=2e4, pairing="halves")
    for rope, to in ((plain, 7), (long, 100), (plain, 9)):
        kv.move(tmp_path / "0.safetensors", rope=rope, to=to)
        done = [o.what for o in kv.move(tmp_path, rope=rope, to=to)]
        assert done == ["already", "moved", "moved"]
        for n in range(3):
            k = kv.read(tmp_path / f"{n}.safetensors", rope=rope)[1]
            np.testing.assert_allclose(k, rope.apply(raw[n], to, layout="thd"), atol=2e-5)
    assert [o.what for o in kv.move(tmp_path, rope=plain, to=9)] == ["already"] * 3


def test_one_rope_moves_what_it_turned_already(model, raw, tmp_path):
    """Files that have the one RoPE by now, whatever they had before they were given it, each by itself."""
    plain = librope.Rope(head_dim=16, theta=2e4, pairing="halves")
    for layer in (0, 5):
        rope, path = model.rope(layer=layer), tmp_path / f"{layer}.safetensors"
        kv.write(path, rope.apply(raw[layer], 7, layout="thd"), rope=rope, first_position=7, layout="nhd")
        kv.move(path, rope=plain, to=7)
    for to, done in ((50, "moved"), (50, "already")):
        assert [o.what for o in kv.move(tmp_path, rope=plain, to=to)] == [done] * 2
    for layer in (0, 5):
        k = kv.read(tmp_path / f"{layer}.safetensors", rope=plain)[1]
        np.testing.assert_allclose(k, plain.apply(raw[layer], 50, layout="thd"), atol=2e-5)
