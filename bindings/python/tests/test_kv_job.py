"""Jobs over KV files: moves, restarts, engines, other stores, the command line."""

import contextlib
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import fsspec
import ml_dtypes
import numpy as np
import pytest

import librope
from librope import _replace, cli, kv

TOKENS, HEADS, DIM = 300, 2, 32
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", rotary_dim=16)
YARN = ROPE.replace(scaling="yarn", factor=4.0, original_max_position_embeddings=4096)
DTYPES = {"float32": (np.float32, 5e-6), "bfloat16": (ml_dtypes.bfloat16, 0.04)}


def keys_at(raw, rope, first, layout):
    """Raw keys [tokens, heads, channels], rotated and in a layout of files."""
    turned = rope.apply(raw, first, layout="thd")
    return turned if layout == "nhd" else np.ascontiguousarray(turned.transpose(1, 0, 2))


@pytest.fixture
def folder(rng, tmp_path):
    """Three layers of a document, and its raw keys by file."""
    raw = {}
    for layer, (layout, dtype) in enumerate([("nhd", "float32"), ("hnd", "float32"), ("hnd", "bfloat16")]):
        raw[f"sub/{layer}.safetensors"] = x = rng.standard_normal((TOKENS, HEADS, DIM), np.float32)
        path = tmp_path / "doc/sub" / f"{layer}.safetensors"
        k = keys_at(x, ROPE, 7, layout).astype(DTYPES[dtype][0])
        kv.write(path, k, k[..., :8].copy(), rope=ROPE, first_position=7, layout=layout, layer=layer)
    return tmp_path / "doc", raw


def content(folder):
    folder = pathlib.Path(folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_keys(folder, raw, rope, first):
    for name, x in raw.items():
        info, k, v = kv.read(folder / name, rope=rope)
        assert info.first_position == first
        want = keys_at(x, rope, first, info.layout)
        np.testing.assert_allclose(k.astype(np.float32), want, atol=DTYPES[info.dtype][1])
        before = keys_at(x, ROPE, 7, info.layout).astype(k.dtype)[..., :8]
        np.testing.assert_array_equal(v, before)


@pytest.mark.parametrize(("changes", "rope", "first"), [
    ({"to": 4000}, ROPE, 4000),
    ({"by": -7}, ROPE, 0),
    ({"rope": YARN}, YARN, 7),
    ({"rope": librope.Rope.sets([ROPE, YARN]), "frequency_set": 1, "to": 100000}, YARN, 100000),
])  # fmt: skip
@pytest.mark.parametrize("block", [1, 4096, 2 << 20])
def test_moved_keys_are_those_of_the_new_place(folder, tmp_path, changes, rope, first, block):
    source, raw = folder
    before = content(source)
    outcomes = kv.move(source, tmp_path / "moved", block=block, **changes)
    assert [o.what for o in outcomes] == ["moved"] * 3
    assert [o.path for o in outcomes] == [str(source / n) for n in raw]
    if changes.get("frequency_set"):
        for name in raw:
            info = kv.inspect(tmp_path / "moved" / name)
            assert (info.rope.freq_sets, info.frequency_set) == (2, 1)
    check_keys(tmp_path / "moved", raw, rope, first)
    assert content(source) == before
    # The bits do not depend on the blocks, and in place they are the same.
    kv.move(source, tmp_path / "again", **changes)
    assert content(tmp_path / "again") == content(tmp_path / "moved")
    job = {"job": "j"} if "by" in changes else {}
    kv.move(source, block=block, **changes, **job)
    if not job:
        assert content(source) == content(tmp_path / "moved")
    check_keys(source, raw, rope, first)


def test_raw_keys(folder, tmp_path):
    source, raw = folder
    kv.move(source, tmp_path / "raw", keys="raw", to=90)
    for name, x in raw.items():
        info, k, _ = kv.read(tmp_path / "raw" / name)
        assert (info.keys, info.first_position) == ("raw", 90)
        want = x if info.layout == "nhd" else x.transpose(1, 0, 2)
        np.testing.assert_allclose(k.astype(np.float32), want, atol=DTYPES[info.dtype][1])
    kv.move(tmp_path / "raw", to=3)  # they have no position in them
    for name in raw:
        assert np.array_equal(kv.read(tmp_path / "raw" / name)[1], kv.read(tmp_path / "raw" / name)[1])
    kv.move(tmp_path / "raw", keys="rotated", rope=YARN)
    check_keys(tmp_path / "raw", raw, YARN, 3)


def test_a_job_that_is_started_again(folder, tmp_path):
    source, raw = folder
    kv.move(source, to=20)
    after = content(source)
    assert {o.what for o in kv.move(source, to=20)} == {"already"}
    assert content(source) == after
    # By a distance: the job's name tells.
    with pytest.raises(ValueError, match="by= in place needs job="):
        kv.move(source, by=5)
    with pytest.raises(ValueError, match="by= in place needs job="):
        kv.move(source, source, by=5)
    kv.move(source, by=5, job="first")
    assert {o.what for o in kv.move(source, by=5, job="first")} == {"already"}
    with pytest.raises(kv.Refused, match="job 'first' has moved it from 20 to 25, and that is another"):
        kv.move(source, by=6, job="first")
    kv.move(source, by=5, job="second")
    check_keys(source, raw, ROPE, 30)
    # An older job that is started again, also after one without a name.
    kv.move(source, to=40)
    before = content(source)
    for job in ("first", "second"):
        with pytest.raises(kv.Refused, match=f"3 of 3 .*job '{job}' has moved it before, and job None since"):
            kv.move(source, by=5, job=job)
    assert content(source) == before
    assert kv.inspect(source / next(iter(raw))).moved.earlier == ("first", "second")
    kv.move(source, to=30)
    # Elsewhere: what is there must be what this job writes.
    kv.move(source, tmp_path / "moved", by=5)
    assert {o.what for o in kv.move(source, tmp_path / "moved", by=5)} == {"already"}
    before = content(tmp_path / "moved")
    with pytest.raises(kv.Refused, match="it is there, and not what this move makes of"):
        kv.move(source, tmp_path / "moved", by=6)
    assert content(tmp_path / "moved") == before


@pytest.mark.parametrize("tensor", ["k", "v", "table", "other values"])
def test_what_a_restart_calls_done_is_whole(folder, tmp_path, tensor):
    """A moved file whose data are damaged is refused, in its place and elsewhere, unless its header is trusted."""
    source, raw = folder
    for target, changes in ((tmp_path / "moved", {"by": 5}), (None, {"to": 99})):
        kv.move(source, target, **changes)
        path = (target or source) / list(raw)[0]
        good = path.read_bytes()
        if tensor == "other values":  # whose checksum is right
            if target is None:
                continue
            info, k, v = kv.read(path)
            kv.write(tmp_path / "other.safetensors", k, v + 1, rope=ROPE, first_position=0, layout=info.layout)
            other = (tmp_path / "other.safetensors").read_bytes()
            size = v.nbytes + 48
            path.write_bytes(good[:-size] + other[-size:-48] + good[-48:-16] + other[-16:])
            kv.verify(path)
        else:
            at = {"k": len(good) // 2, "v": -60, "table": -5}[tensor]
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        damaged = content(target or source)
        with pytest.raises(kv.Refused, match=f"1 of 3 .*{path}: .*(is damaged|not what this move)") as e:
            kv.move(source, target, **changes)
        assert [o.what for o in e.value.outcomes] == ["refused", "already", "already"]
        if tensor == "k":  # the header and the table are well
            assert {o.what for o in kv.move(source, target, trust=True, **changes)} == {"already"}
        assert content(target or source) == damaged
        path.write_bytes(good)
        if target:
            path.unlink()
            assert [o.what for o in kv.move(source, target, **changes)] == ["moved", "already", "already"]
            assert path.read_bytes() == good


def test_a_worker_that_does_not_see_the_store(folder):
    def engine(function, tasks):
        shutil.rmtree(folder[0])
        return map(function, tasks)

    with pytest.raises(kv.Refused, match="3 of 3 .*/0.safetensors: not found: does the process that moves it see"):
        kv.move(folder[0], to=3, engine=engine)


def test_moves_between_ropes_of_one_digest_and_other_lengths(folder, tmp_path):
    """Dynamic NTK for a short sequence turns as no scaling does, up to the position where it changes."""
    source, raw = folder
    dynamic = ROPE.replace(scaling="dynamic", factor=2.0, max_position_embeddings=4096, seq_len=100)
    match = "3 of 3 .*/0.safetensors: first_position is 9000, and the last of 300 tokens at 9299: it must be below"
    with pytest.raises(kv.Refused, match=match):
        kv.move(source, tmp_path / "no", rope=dynamic, to=9000)
    assert not (tmp_path / "no").exists()
    kv.move(source, rope=dynamic)  # the angles are the same, and how far they go is not
    assert {i.after.own_rope.valid_below for i in kv.move(source, rope=dynamic)} == {dynamic.valid_below}
    with pytest.raises(kv.Refused, match=match):
        kv.move(source, to=9000)
    kv.move(source, tmp_path / "far", rope=ROPE, to=9000)
    check_keys(tmp_path / "far", raw, ROPE, 9000)
    # Back by a distance: a restart does not ask what the new rope says of the old place.
    for _ in range(2):
        outcomes = kv.move(tmp_path / "far", rope=dynamic, by=-8000, job="back")
    assert {o.what for o in outcomes} == {"already"}
    kv.move(source, tmp_path / "near", to=1000)
    near, far = ({n: kv.read(tmp_path / where / n)[1] for n in raw} for where in ("near", "far"))
    for name in raw:
        np.testing.assert_allclose(far[name].astype(np.float32), near[name].astype(np.float32), atol=0.08)


def test_what_is_refused_is_named_and_stays(folder, tmp_path):
    source, raw = folder
    names = list(raw)
    good = (source / names[0]).read_bytes()
    broken = {
        "a-bit": (good[:-60] + bytes([good[-60] ^ 1]) + good[-59:], "checksum of v"),
        "a-key": (good[:9000] + bytes([good[9000] ^ 1]) + good[9001:], "checksum of k"),
        "short": (good[:-10], "truncated"),
        "foreign": (b"\0" * 100, "no KV file"),
        "far": (good, ""),
    }
    for name, (data, _) in broken.items():
        (source / f"{name}.safetensors").write_bytes(data)
    (source / "read.me").write_text("not a KV file, and none of the job")
    before = content(source)
    for target in (tmp_path / "moved", None):
        with pytest.raises(kv.Refused) as e:
            kv.move(source, target, to=9)
        why = {o.path: o.why for o in e.value.outcomes if o.what == "refused"}
        assert len(why) == 4 and len(e.value.outcomes) == 8
        for name, (_, match) in broken.items():
            path = str(source / f"{name}.safetensors")
            assert name == "far" or (path in why[path] and match in why[path])
        left = content(source)
        assert all(left[f"{n}.safetensors"] == before[f"{n}.safetensors"] for n in broken if n != "far")
        assert left.keys() == before.keys()  # and nothing beside them
    assert {*content(tmp_path / "moved")} == {"far.safetensors", *names}
    with pytest.raises(kv.Refused, match=r"4 of 8 files were refused: .*a-bit.*; .*; \.\.\."):
        kv.verify(source)
    with pytest.raises(kv.Refused, match="digest is"):
        kv.verify(source / names[0], rope=YARN)
    with pytest.raises(kv.Refused, match="pairing of the rope is interleaved, and its keys have halves"):
        kv.move(source / names[0], rope=librope.Rope(head_dim=DIM, theta=1e4, pairing="interleaved", rotary_dim=16))
    with pytest.raises(kv.Refused, match="pass 2"):
        kv.move(source / names[0], to=2**63 - 1)


def test_arguments(folder, tmp_path):
    source, _ = folder
    before = content(source)
    for error, match, arguments in [
        (ValueError, "needs one of to", {}),
        (ValueError, "at most one", {"to": 1, "by": 1}),
        (TypeError, "to is 1.5", {"to": 1.5}),
        (ValueError, "lies in", {"to": 1, "target": source / "moved"}),
        (FileNotFoundError, "no such", {"to": 1, "source": source / "no"}),
        (FileNotFoundError, "has no .safetensors", {"to": 1, "source": tmp_path / "empty"}),
        (kv.Refused, "keys is 'turned'", {"keys": "turned"}),
        (kv.Refused, "frequency_set is 4", {"frequency_set": 4}),
    ]:
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(error, match=match):
            kv.move(**{"source": source, **arguments})
        assert content(source) == before


def test_a_file_keeps_its_mode(folder):
    source, raw = folder
    paths = [source / n for n in raw]
    paths[0].chmod(0o640)
    kv.move(source, to=1)
    assert paths[0].stat().st_mode & 0o777 == 0o640


def test_an_object_store(folder):
    """Not local: blocks through fsspec, and a file that appears when it is complete."""
    source, _ = folder
    store = fsspec.filesystem("memory")
    for top in ("/doc", "/moved", "/other"):
        if store.exists(top):
            store.rm(top, recursive=True)
    for name, data in content(source).items():
        store.pipe(f"/doc/{name}", data)
    store.pipe("/doc/bad.safetensors", b"\0" * 50)
    for target in ("memory://moved", None):
        with pytest.raises(kv.Refused, match="1 of 4 files were refused: memory://.*bad.safetensors: no KV file"):
            kv.move("memory://doc", target, to=9)
    kv.move(source, to=9)
    for name, data in content(source).items():
        assert store.cat(f"/moved/{name}") == store.cat(f"/doc/{name}") == data
    assert store.cat("/doc/bad.safetensors") == b"\0" * 50
    # A file that is damaged behind its header: nothing appears.
    data = store.cat("/doc/sub/0.safetensors")
    store.pipe("/doc/sub/0.safetensors", data[:-60] + b"\7" + data[-59:])
    with pytest.raises(kv.Refused, match="checksum of v"):
        kv.move("memory://doc/sub/0.safetensors", "memory://other", to=1)
    assert not store.exists("/other") or store.find("/other") == []


def test_memory_is_that_of_two_blocks(tmp_path):
    """A process moves 48 MiB in blocks of 1 MiB, after a small file, and grows by less than two of them."""
    program = r"""
import re, sys
from librope import kv

def most():  # bytes so far; getrusage would begin with those of the parent
    return int(re.search(r"VmHWM:\s*(\d+) kB", open("/proc/self/status").read())[1]) << 10

kv.move(sys.argv[1] + "/small.safetensors", to=5)
before = most()
kv.move(sys.argv[1] + "/large.safetensors", to=5, block=1 << 20)
print(most() - before)
"""
    for name, tokens in (("small", 10), ("large", 6 << 12)):
        x = np.ones((tokens, 8, 128), ml_dtypes.bfloat16)
        rope = librope.Rope(head_dim=128, theta=1e4, pairing="halves")
        kv.write(tmp_path / f"{name}.safetensors", x, rope=rope, first_position=0, layout="nhd")
    assert (tmp_path / "large.safetensors").stat().st_size > 48 << 20
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2 << 20


# Killed, and started again.

JOB = """
import sys
from librope import kv
print("ready", flush=True)
kv.move(sys.argv[1], sys.argv[2] or None, by=5, job="j", block=1 << 14)
"""
#: Everyday; kv_kills.txt has the result of 100.
KILLS = int(os.environ.get("LIBROPE_TEST_KILLS", "4"))


def start(source, target):
    process = subprocess.Popen([sys.executable, "-c", JOB, str(source), str(target or "")], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("in_place", [True, False])
def test_killed_and_started_again(rng, tmp_path, in_place):
    """Killed at random points until KILLS of them have struck, each job ends with the bytes of one that ran on."""
    source, target = tmp_path / "doc", None if in_place else tmp_path / "moved"
    x = rng.standard_normal((2000, 4, 64), np.float32)
    rope = librope.Rope(head_dim=64, theta=1e4, pairing="halves")
    for layer in range(8):
        kv.write(source / f"{layer}.safetensors", x, x, rope=rope, first_position=3, layout="nhd", layer=layer)
    originals = tmp_path / "originals"
    shutil.copytree(source, originals)
    begin = time.monotonic()
    assert start(source, target).wait() == 0
    usual = time.monotonic() - begin
    begin = time.monotonic()
    process = start(source, target)  # nothing to do: what starting and ending take
    idle = time.monotonic() - begin
    assert process.wait() == 0
    whole = content(target or source)
    dice, kills, between, inside = random.Random(7), 0, 0, 0
    while kills < KILLS:
        for folder in (source, *([target] if target else [])):
            shutil.rmtree(folder)
        shutil.copytree(originals, source)
        while kills < KILLS:
            process = start(source, target)
            try:
                process.wait(dice.uniform(0, max(usual - idle, 0.02)))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            now = content(target or source)
            between += 0 < sum(now.get(n) == data for n, data in whole.items()) < len(whole)
            inside += any(name.startswith(".") for name in now)
            for name, data in now.items():  # each is whole: the old one, the new one, or a hidden part
                assert name.startswith(".") or data in (whole[name], (originals / name).read_bytes())
    assert start(source, target).wait() == 0
    assert content(target or source) == whole
    if not in_place:
        assert content(source) == content(originals)
    print(f"{kills} kills, {between} of them between the first file and the last, {inside} while one was written")


# Engines.


@pytest.fixture
def many(rng, tmp_path):
    """Enough files that two workers share them, what one process makes of them, and one that is refused."""
    for layer in range(12):
        x = rng.standard_normal((50 + layer, HEADS, DIM), np.float32)
        kv.write(tmp_path / "doc" / f"{layer:02}.safetensors", x, x, rope=ROPE, first_position=layer, layout="nhd")
    kv.move(tmp_path / "doc", tmp_path / "want", by=50, rope=YARN)
    (tmp_path / "doc/bad.safetensors").write_bytes(b"\0" * 100)
    return tmp_path


def check_engine(folder, engine):
    seen = []
    with pytest.raises(kv.Refused, match="1 of 13 files were refused: .*bad.safetensors: no KV file") as e:
        kv.move(folder / "doc", folder / "moved", by=50, rope=YARN, engine=engine, seen=lambda o, n: seen.append(n))
    assert [o.what for o in e.value.outcomes] == ["moved"] * 12 + ["refused"] and seen == [13] * 13
    assert content(folder / "moved") == content(folder / "want")
    (folder / "doc/bad.safetensors").unlink()
    assert {o.what for o in kv.move(folder / "doc", folder / "moved", by=50, rope=YARN, engine=engine)} == {"already"}
    assert {o.what for o in kv.verify(folder / "moved", rope=YARN, engine=engine)} == {"well"}


ENGINES = ["dask", pytest.param("ray", marks=pytest.mark.filterwarnings("ignore"))]


@contextlib.contextmanager
def cluster(name):
    """An engine with two workers on this machine."""
    if name == "dask":
        distributed = pytest.importorskip("distributed")
        with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
            yield kv.on_dask(client)
        return
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield kv.on_ray()
    finally:
        ray.shutdown()


@pytest.mark.parametrize("name", ENGINES)
def test_engines(many, name):
    with cluster(name) as engine:
        check_engine(many, engine)
    if name == "dask":
        assert len(kv.verify(many / "moved", engine=kv.on_dask())) == 12  # a cluster of its own


def workers_of(name):
    """The processes of the cluster that run tasks."""
    if name == "dask":
        return list(sys.modules["distributed"].get_client().run(os.getpid).values())
    psutil = pytest.importorskip("psutil")  # which distributed needs
    lines = ((p.pid, " ".join(p.cmdline())) for p in psutil.Process().children(recursive=True))
    return [pid for pid, line in lines if line.startswith(("ray::_run", "ray::IDLE"))]


@pytest.mark.parametrize("name", ENGINES)
def test_workers_that_are_killed(many, name):
    """Their files are given to others, and end with the same bytes."""
    killed = []

    def kill(outcome, count):
        if not killed:
            killed.extend(workers_of(name))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    (many / "doc/bad.safetensors").unlink()
    with cluster(name) as engine:
        done = kv.move(many / "doc", many / "moved", by=50, rope=YARN, engine=engine, seen=kill)
    assert killed and len(done) == 12 and {o.what for o in done} <= {"moved", "already"}
    assert {n: d for n, d in content(many / "moved").items() if not n.startswith(".")} == content(many / "want")


def test_without_an_engine(monkeypatch):
    for name, make in (("distributed", kv.on_dask), ("ray", kv.on_ray)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ModuleNotFoundError, match=f"needs .*{name}"):
            make()


# The command line.


def run(capsys, *arguments):
    status = cli.main(["kv", *map(str, arguments)])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_commands(folder, capsys, tmp_path):
    source, raw = folder
    status, out, _ = run(capsys, "inspect", source, "--json")
    told = json.loads(out)
    assert status == 0 and list(told) == [str(source / n) for n in raw]
    assert told[str(source / next(iter(raw)))]["first_position"] == 7
    status, out, _ = run(capsys, "inspect", source / next(iter(raw)))
    assert status == 0 and "306" in out and "rotated" in out
    status, out, err = run(capsys, "move", source, tmp_path / "moved", "--to", 50)
    assert (status, err) == (0, "") and out.startswith("3 moved (") and "0 moved before, 0 refused" in out
    check_keys(tmp_path / "moved", raw, ROPE, 50)
    assert "0 moved (0 bytes), 3 moved before" in run(capsys, "move", source, tmp_path / "moved", "--to", 50)[1]
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "rope_theta": 1e4,
        "head_dim": DIM,
    }))  # fmt: skip
    status, _, err = run(capsys, "move", source, "--config", config)
    assert status == 2 and f"librope kv move: {source}" in err and "rotary_dim" in err
    status, out, _ = run(capsys, "verify", source)
    assert (status, out) == (0, "3 of 3 files are well\n")
    status, out, _ = run(capsys, "verify", source, "--config", config, "--json")
    assert status == 1 and {(x["well"], "digest" in x["why"]) for x in json.loads(out)} == {(False, True)}
    status, out, err = run(capsys, "move", source, "--by", 5)
    assert status == 2 and err.startswith("librope kv: --by in place needs --job, the name")
    status, out, err = run(capsys, "move", source, "--by", 5, "--job", "j")
    assert status == 0
    check_keys(source, raw, ROPE, 12)


def test_hidden_files_of_others_stay(tmp_path):
    k = np.ones((3, HEADS, DIM), np.float32)
    kv.write(tmp_path / "a.safetensors", k, rope=ROPE, first_position=0, layout="nhd")
    hidden = tmp_path / ".prompt.20261124.safetensors"
    hidden.write_bytes((tmp_path / "a.safetensors").read_bytes())
    left = tmp_path / ".a.safetensors.librope-abcd1234.safetensors"
    left.write_bytes(b"")
    kv.move(tmp_path, to=3)
    assert hidden.exists() and not left.exists()


def test_one_of_several_frequency_sets_is_named(tmp_path):
    with pytest.raises(ValueError, match="rope has 2 frequency sets: frequency_set must say"):
        kv.move(tmp_path, rope=librope.Rope.sets([ROPE, ROPE.replace(theta=5e5)]))


@pytest.mark.parametrize("name", ["a*b", "a?", "l[0]"])
def test_names_that_fsspec_expands_are_refused(name):
    k = np.ones((3, HEADS, DIM), np.float32)
    with pytest.raises(ValueError, match="must be without"):
        kv.write(f"memory://names/{name}.safetensors", k, rope=ROPE, first_position=0, layout="nhd")
    assert not fsspec.filesystem("memory").exists("/names")


def test_links(folder, tmp_path):
    """A target is below its source through a link, too; a link is not replaced, and not passed over."""
    source, raw = folder
    (source / "out").mkdir()
    (tmp_path / "link").symlink_to(source / "out")
    before = content(source)
    for target in (tmp_path / "link", tmp_path / "link/more", source.parent / "link/../out"):
        with pytest.raises(ValueError, match=r"(link|out).* lies in"):
            kv.move(source, target, by=5, job="j")
    # A target above the source puts what lies deeper into the source.
    deep = source / "sub/sub/3.safetensors"
    deep.parent.mkdir()
    shutil.copy(source / "sub/0.safetensors", deep)
    with pytest.raises(ValueError, match=r"sub/3.safetensors lies in .*doc/sub"):
        kv.move(source / "sub", source, by=5, job="j")
    shutil.rmtree(deep.parent)
    # The same folder by another name: in place.
    (tmp_path / "same").symlink_to(source)
    with pytest.raises(ValueError, match="by= in place needs job="):
        kv.move(source, tmp_path / "same", by=5)
    assert content(source) == before
    # Links to folders and to files.
    (source / "more").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="doc/more: it is a symbolic link to a folder"):
        kv.move(source, to=5)
    (source / "more").rename(source / ".more")  # hidden, as files may be
    assert len(kv.verify(source)) == 3
    (source / ".more").unlink()
    (source / "out").rmdir()
    original = tmp_path / "original.safetensors"
    (source / "sub/1.safetensors").rename(original)
    (source / "sub/1.safetensors").symlink_to(original)
    with pytest.raises(kv.Refused, match=f"1 of 3 .*sub/1.safetensors: it is a symbolic link.*{original}") as e:
        kv.move(source, to=7 + 5)
    assert [o.what for o in e.value.outcomes] == ["moved", "refused", "moved"]
    assert original.read_bytes() == before["sub/1.safetensors"] and (source / "sub/1.safetensors").is_symlink()
    kv.move(source / "sub/1.safetensors", tmp_path / "moved", to=12)  # read where it leads
    assert not (tmp_path / "moved/1.safetensors").is_symlink()
    (source / "sub/1.safetensors").unlink()
    (source / "sub/1.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="symbolic link"):
        kv.write(source / "sub/1.safetensors", np.ones((3, HEADS, DIM), np.float32), rope=ROPE, first_position=0, layout="nhd")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_is_not_locked_yet_may_be_removed(folder, monkeypatch):
    """By another job, which begins between the making of a file and its lock."""
    source, raw = folder
    locked, begun = fcntl.flock, []

    def lock(file, how):
        if how == fcntl.LOCK_EX and len(begun) < 2:
            begun.append(file)
            _replace.remove_left(source / "sub", ".safetensors")
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    kv.move(source, to=20)
    assert len(begun) == 2 and content(source).keys() == raw.keys()
    check_keys(source, raw, ROPE, 20)
