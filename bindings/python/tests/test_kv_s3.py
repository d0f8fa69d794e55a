"""KV files in S3: jobs over s3:// with a server of this machine (moto), as s3fs speaks to it."""

import json
import os
import subprocess
import sys

import fsspec
import numpy as np
import pytest

import librope
from librope import cli, kv

s3fs = pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves")


@pytest.fixture(scope="module")
def store():
    """The store, for fsspec by its configuration: addresses alone say what is meant."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    before = dict(fsspec.config.conf)
    fsspec.config.conf["s3"] = {"key": "nobody", "secret": "nothing", "endpoint_url": f"http://{host}:{port}"}
    try:
        fs = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)  # another one than kv's
        fs.mkdir("s3://keys", create_parents=True)
        yield fs
    finally:
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)
        running.stop()


@pytest.fixture
def document(store, rng, tmp_path):
    """Three layers, here and in the store."""
    for layer in range(3):
        k = rng.standard_normal((40, 2, 16), np.float32)
        for top in (tmp_path, "s3://keys"):
            kv.write(f"{top}/doc/sub/{layer}.safetensors", k, k, rope=ROPE, first_position=3, layout="nhd", layer=layer)
    yield tmp_path
    store.rm("s3://keys/doc", recursive=True)


def content(store, folder):
    return {p.rpartition("/")[2]: store.cat(p) for p in store.find(folder)}


def local(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*.safetensors"))}


def test_inspect_read_and_verify(store, document, capsys):
    assert content(store, "s3://keys/doc") == local(document / "doc")
    info, k, v = kv.read("s3://keys/doc/sub/1.safetensors", rope=ROPE)
    assert (info.layer, info.first_position) == (1, 3) and np.array_equal(k, v)
    assert [o.what for o in kv.verify("s3://keys/doc", rope=ROPE)] == ["well"] * 3
    assert cli.main(["kv", "inspect", "s3://keys/doc", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [f"s3://keys/doc/sub/{n}.safetensors" for n in range(3)]
    with pytest.raises(FileNotFoundError):
        kv.inspect("s3://keys/doc/none.safetensors")
    with pytest.raises(FileNotFoundError, match="no such file"):
        kv.verify("s3://keys/none")


def test_what_others_write_meanwhile(store, document):
    """fsspec remembers listings, and what they say of sizes."""
    assert len(kv.verify("s3://keys/doc")) == 3
    data = store.cat("s3://keys/doc/sub/0.safetensors")
    store.pipe("s3://keys/doc/sub/3.safetensors", data)
    assert len(kv.verify("s3://keys/doc")) == 4
    assert len(kv.move("s3://keys/doc", "s3://keys/copy", to=9)) == 4
    store.rm("s3://keys/copy/sub/0.safetensors")
    assert [o.what for o in kv.move("s3://keys/doc", "s3://keys/copy", to=9)] == ["moved"] + ["already"] * 3
    k = np.ones((400, 2, 16), np.float32)
    kv.write(document / "long.safetensors", k, rope=ROPE, first_position=0, layout="nhd")
    store.pipe("s3://keys/doc/sub/0.safetensors", (document / "long.safetensors").read_bytes())
    assert kv.inspect("s3://keys/doc/sub/0.safetensors").tokens == 400
    store.rm("s3://keys/copy", recursive=True)


def test_moves_and_restarts(store, document):
    for target, changes in ((None, {"by": 5, "job": "j"}), ("moved", {"to": 90})):
        kv.move(document / "doc", target and document / target, **changes)
        address = target and f"s3://keys/doc/{target}"
        if target:  # below its source
            with pytest.raises(ValueError, match="lies in s3://keys/doc"):
                kv.move("s3://keys/doc", address, **changes)
            address = "s3://keys/moved"
        assert [o.what for o in kv.move("s3://keys/doc", address, block=1 << 10, **changes)] == ["moved"] * 3
        want = local(document / (target or "doc"))
        assert content(store, address or "s3://keys/doc") == want
        assert [o.what for o in kv.move("s3://keys/doc", address, **changes)] == ["already"] * 3
        # One that was not done yet, and one that is damaged since.
        if target:
            store.rm("s3://keys/moved/sub/1.safetensors")
            bad = want["2.safetensors"][:-60] + b"\7" + want["2.safetensors"][-59:]
            store.pipe("s3://keys/moved/sub/2.safetensors", bad)
            with pytest.raises(kv.Refused, match="1 of 3 .*s3://keys/moved/sub/2.safetensors: the checksum of v") as e:
                kv.move("s3://keys/doc", address, **changes)
            assert [o.what for o in e.value.outcomes] == ["already", "moved", "refused"]
            assert content(store, address) == {**want, "2.safetensors": bad}


def test_by_the_command(store, document):
    """In a process of its own, which has the store from the environment."""
    kv.move(document / "doc", document / "moved", by=5)
    of_store = {f"FSSPEC_S3_{name.upper()}": value for name, value in fsspec.config.conf["s3"].items()}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "librope", "kv", *words], env=os.environ | of_store, capture_output=True, text=True
        )

    done = run("move", "s3://keys/doc", "s3://keys/by", "--by", "5")
    assert done.returncode == 0 and done.stdout.startswith("3 moved ("), done.stderr
    assert content(store, "s3://keys/by") == local(document / "moved")
    again = run("move", "s3://keys/doc", "s3://keys/by", "--by", "5", "--json")
    assert again.returncode == 0 and again.stdout.count("already") == 3, again.stderr
    assert run("verify", "s3://keys/by").stdout == "3 of 3 files are well\n"
    refused = run("move", "s3://keys/doc", "s3://keys/by", "--by", "6")
    assert refused.returncode == 2 and "s3://keys/by/sub/0.safetensors" in refused.stderr
    assert content(store, "s3://keys/by") == local(document / "moved")
    store.rm("s3://keys/by", recursive=True)


def test_a_header_does_not_cost_the_file(store, tmp_path, monkeypatch):
    """Of 24 MiB inspect fetches what comes at once, and a move twice at most."""
    fetched, fetch = [], s3fs.S3File._fetch_range
    monkeypatch.setattr(s3fs.S3File, "_fetch_range", lambda f, a, b: fetched.append(b - a) or fetch(f, a, b))
    k = np.ones((24 << 14, 1, 16), np.float32)
    kv.write("s3://keys/large/0.safetensors", k, rope=ROPE, first_position=0, layout="nhd")
    kv.inspect("s3://keys/large/0.safetensors")
    assert 0 < sum(fetched) <= 10 << 20
    fetched.clear()
    kv.move("s3://keys/large", "s3://keys/larger", to=5)
    assert 24 << 20 < sum(fetched) <= 48 << 20 and len(fetched) < 12
    store.rm("s3://keys/large", recursive=True)
    store.rm("s3://keys/larger", recursive=True)


def test_what_is_damaged_behind_its_header_leaves_nothing(store, document):
    path = "s3://keys/doc/sub/0.safetensors"
    data = store.cat(path)
    store.pipe(path, data[:-60] + b"\7" + data[-59:])
    with pytest.raises(kv.Refused, match=f"1 of 3 .*{path}: the checksum of v"):
        kv.move("s3://keys/doc", "s3://keys/behind", to=1)
    assert {*content(store, "s3://keys/behind")} == {"1.safetensors", "2.safetensors"}
