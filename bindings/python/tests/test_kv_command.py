"""librope kv: its commands, options that stand for nothing, and other commands that are given a KV file."""

import json
import pathlib

import numpy as np
import pytest

import librope
from librope import cli, kv

TOKENS, HEADS, DIM = 300, 2, 32
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", rotary_dim=16)


@pytest.fixture
def folder(rng, tmp_path):
    """Three layers of a document in a folder, and their names."""
    names = [f"sub/{layer}.safetensors" for layer in range(3)]
    for layer, name in enumerate(names):
        x = rng.standard_normal((TOKENS, HEADS, DIM), np.float32).astype(np.float32 if layer < 2 else np.float16)
        kv.write(tmp_path / "doc" / name, x, x[..., :8].copy(), rope=ROPE, first_position=7, layout="nhd", layer=layer)
    return tmp_path / "doc", names


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()}


def run(capsys, *arguments):
    status = cli.main(["kv", *map(str, arguments)])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_what_stands_for_nothing_is_refused(folder, tmp_path):
    source, names = folder
    before = content(source)
    for error, match, arguments in [
        (ValueError, "block is 0, and must be positive", {"block": 0}),
        (ValueError, "block is -1, and must be positive", {"block": -1}),
        (TypeError, "block is 1.5", {"block": 1.5}),
        (ValueError, "target is .*/a.safetensors, and must be a folder", {"target": tmp_path / "a.safetensors"}),
        (ValueError, "frequency_set is 1, and the rope has 1", {"rope": ROPE, "frequency_set": 1}),
    ]:
        with pytest.raises(error, match=match):
            kv.move(**{"source": source / names[0], "to": 1, **arguments})
    for make in (kv.on_dask, kv.on_ray):
        pytest.importorskip("distributed" if make is kv.on_dask else "ray")
        for workers in (0, -1):
            with pytest.raises(ValueError, match=f"workers is {workers}, and must be positive"):
                make(workers=workers)
    assert content(source) == before and not (tmp_path / "a.safetensors").exists()


def test_a_store_that_says_nothing(folder, monkeypatch):
    def nothing(*_):
        raise NotImplementedError

    monkeypatch.setattr("librope.kv._job.write_blocks", nothing)
    with pytest.raises(kv.Refused, match=r"/0.safetensors: NotImplementedError"):
        kv.move(folder[0], to=3)


def test_commands_show_the_files_of_a_mixed_folder(folder, capsys, tmp_path):
    """Those that are well, and name the others; for programs, too."""
    source, names = folder
    (source / "foreign.safetensors").write_bytes(b"\0" * 100)
    good = [str(source / n) for n in names]
    status, out, err = run(capsys, "inspect", source)
    assert status == 2 and out.count("7 .. 306") == 3 and out.count("\nRoPE ") == 1 and "theta 10000.0" in out
    assert err == f"librope kv inspect: {source}/foreign.safetensors: no KV file: its header has no metadata librope_kv\n"
    status, out, err = run(capsys, "inspect", source, "--json")
    told = json.loads(out)
    assert (status, err) == (2, "") and "no KV file" in told.pop(f"{source}/foreign.safetensors")["why"]
    assert list(told) == good and {x["first_position"] for x in told.values()} == {7}
    for what, size in (("moved", HEADS * TOKENS * 40), ("already", HEADS * TOKENS * 40)):
        status, out, err = run(capsys, "move", source, tmp_path / "moved", "--to", 50, "--json")
        foreign, *others = json.loads(out)
        assert (status, err) == (2, "") and "no KV file" in foreign["why"]
        assert (foreign["what"], foreign["before"], foreign["after"]) == ("refused", None, None)
        assert [(x["path"], x["what"], x["why"]) for x in others] == [(n, what, "") for n in good]
        assert [x["bytes"] for x in others] == [size * 4, size * 4, size * 2]
        assert {(x["before"]["first_position"], x["after"]["first_position"]) for x in others} == {(7, 50)}
        assert {x["after"]["digest"] for x in others} == {ROPE.digest()}


def test_options_without_what_they_are_for(folder, capsys):
    source, _ = folder
    before = content(source)
    for match, options in [
        ("move needs one of --to, --by, --config, --frequency-set and --keys", []),
        ("--workers needs --on dask or --on ray", ["--to", 1, "--workers", 0]),
        ("--address needs --on dask or --on ray", ["--to", 1, "--address", "tcp://127.0.0.1:1"]),
        ("--workers and --address: a cluster that runs", ["--to", 1, "--on", "dask", "--workers", 2, "--address", "x"]),
    ]:
        status, out, err = run(capsys, "move", source, *options)
        assert (status, out) == (2, "") and err.startswith(f"librope kv: {match}")
    assert content(source) == before


def test_other_commands_know_a_kv_file(folder, capsys, tmp_path):
    """None takes it for a description, or turns its keys behind its back."""
    source, names = folder
    path, config = str(source / names[0]), tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 1e4}))
    foreign = tmp_path / "foreign.safetensors"
    length = len(b'{"__metadata__":{"a":"b"}}')
    foreign.write_bytes(length.to_bytes(8, "little") + b'{"__metadata__":{"a":"b"}}')
    before = content(source)
    shown, moved = "KV file: librope kv inspect shows it", "is a KV file, whose keys are moved and checked by librope kv"
    for match, arguments in [
        (shown, ["inspect", path]),
        (shown, ["diff", path, str(config)]),
        (shown, ["diff", str(config), path]),
        (shown, ["plot", path]),
        (shown, ["kv", "verify", path, "--config", path]),
        ("it has KV files, which librope kv inspect shows", ["inspect", str(source / "sub")]),
        ("it has KV files, which librope kv inspect shows", ["diff", str(source / "sub"), str(config)]),
        ("is a .safetensors file, and a config must be JSON", ["inspect", str(foreign)]),
        (moved, ["apply", str(config), path, str(tmp_path / "turned.safetensors")]),
        (moved, ["check", str(config), path]),
    ]:
        assert cli.main(arguments) == 2
        assert match in capsys.readouterr().err, arguments
    assert content(source) == before and not (tmp_path / "turned.safetensors").exists()
    with pytest.raises(ValueError, match="KV file"):
        librope.Model(path)
