"""KV files: what docs/kv-file.md says of them, and what is refused by name."""

import json
import pickle

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import xxhash

import librope
from librope import kv

TOKENS, HEADS, DIM = 37, 3, 16
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def rope():
    return librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", rotary_dim=8)


def arrays(rng, layout="nhd", dtype="float32"):
    shape = (TOKENS, HEADS, DIM) if layout == "nhd" else (HEADS, TOKENS, DIM)
    return (rng.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for _ in "kv")


@pytest.fixture
def path(rope, rng, tmp_path):
    path = tmp_path / "a.safetensors"
    kv.write(path, *arrays(rng), rope=rope, first_position=5, layout="nhd", layer=2, note="a prompt")
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_what_is_written_is_read(rope, rng, tmp_path, layout, dtype):
    path = tmp_path / "a.safetensors"
    k, v = arrays(rng, layout, dtype)
    written = kv.write(path, k, v, rope=rope, first_position=-5, layout=layout)
    info, read_k, read_v = kv.read(path, rope=rope)
    assert info == written == kv.inspect(path) == pickle.loads(pickle.dumps(info))
    assert (info.tokens, info.heads, info.head_dim, info.v_head_dim, info.dtype) == (TOKENS, HEADS, DIM, DIM, dtype)
    assert read_k.dtype == read_v.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(read_k, k)
    np.testing.assert_array_equal(read_v, v)
    assert [o.what for o in kv.verify(path, rope=rope)] == ["well"]


def test_safetensors_reads_it_and_writes_it(path, rope):
    """By the document alone: a program that has safetensors and xxhash needs no librope."""
    with safetensors.safe_open(path, "np") as file:
        text = file.metadata()["librope_kv"]
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    told = json.loads(text)
    assert told["digest"] == rope.digest()
    assert told["tensors"] == {"k": "key", "v": "value", "checksum": "xxh3_128"}
    assert (told["first_position"], told["tokens"], told["layer"], told["note"]) == (5, TOKENS, 2, "a prompt")
    rows = [xxhash.xxh3_128_digest(x) for x in (text.encode(), tensors["k"].tobytes(), tensors["v"].tobytes())]
    assert tensors["checksum"].tobytes() == b"".join(rows)
    assert safetensors.numpy.save(tensors, {"librope_kv": text}) == path.read_bytes()


def test_keys_alone_and_values_of_another_width(rope, rng, tmp_path):
    k, v = arrays(rng)
    path = tmp_path / "a.safetensors"
    kv.write(path, k, rope=rope, first_position=0, layout="nhd")
    info, read, none = kv.read(path)
    assert none is info.v_head_dim is None and np.array_equal(read, k)
    kv.write(path, k[..., :8].copy(), v, rope=rope, first_position=0, layout="nhd")  # the rotated span alone
    assert (kv.inspect(path).head_dim, kv.inspect(path).v_head_dim) == (8, DIM)


def test_tensors_of_torch(rope, tmp_path):
    torch = pytest.importorskip("torch")  # run-tests asks for it in its environment of torch
    path, k = tmp_path / "a.safetensors", torch.randn(TOKENS, HEADS, DIM).to(torch.bfloat16)
    info = kv.write(path, k, k, rope=rope, first_position=0, layout="nhd")
    assert info.dtype == "bfloat16"
    assert kv.read(path)[1].tobytes() == k.view(torch.int16).numpy().tobytes()


def test_the_digest_is_of_the_frequencies_that_turned_the_keys(rng, tmp_path):
    """LongRoPE's keys of the one length and the other, whose Rope.digest is the same."""
    config = {"head_dim": DIM, "theta": 1e4, "pairing": "halves", "scaling": "longrope", "max_position_embeddings": 4096,
              "original_max_position_embeddings": 64, "short_factor": [1.0] * 8,
              "long_factor": [2.0 + i for i in range(8)]}  # fmt: skip
    short, long = (librope.Rope(**config, seq_len=n) for n in (64, 65))
    assert short.digest() == long.digest()
    path, (k, _) = tmp_path / "a.safetensors", arrays(rng)
    infos = [kv.write(path, k, rope=r, first_position=0, layout="nhd") for r in (short, long)]
    assert infos[0].digest != infos[1].digest
    by_hand = librope.Rope(head_dim=DIM, pairing="halves", inv_freq=long.inv_freq,
                           attention_factor=long.attention_factor)  # fmt: skip
    assert infos[1].digest == by_hand.digest()
    both = librope.Rope.sets([short, long])
    for number in (0, 1):
        assert kv.write(path, k, rope=both, frequency_set=number, first_position=0, layout="nhd").digest == infos[number].digest
        kv.read(path, rope=both, frequency_set=number)
    with pytest.raises(ValueError, match="of another RoPE"):
        kv.read(path, rope=short)


def test_positions_are_those_of_the_rope_that_the_file_names(rng, tmp_path):
    """Dynamic NTK has the digest of no scaling for a short sequence, and is not meant for positions of a long one."""
    plain = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves")
    dynamic = plain.replace(scaling="dynamic", factor=2.0, max_position_embeddings=4096, seq_len=100)
    path, (k, _) = tmp_path / "a.safetensors", arrays(rng)
    last = dynamic.valid_below - 2
    with pytest.raises(ValueError, match=f"must be below {last + 1}"):  # the rule is that of calls
        dynamic.apply(k, last + 1 - TOKENS + 1, layout="thd")
    dynamic.apply(k, last - TOKENS + 1, layout="thd")
    for keys in ("rotated", "raw"):
        with pytest.raises(ValueError, match=f"37 tokens at {last + 1}: it must be below {last + 1}, because in a sequence of"):
            kv.write(path, k, rope=dynamic, first_position=last + 1 - TOKENS + 1, layout="nhd", keys=keys)
        assert not path.exists()
        assert kv.write(path, k, rope=dynamic, first_position=last - TOKENS + 1, layout="nhd", keys=keys)
        path.unlink()
    info = kv.write(path, k, rope=plain, first_position=9000, layout="nhd")
    assert info.digest == info.at(rope=dynamic, first_position=0).digest
    kv.read(path, rope=plain)
    for call in (kv.read, kv.verify):
        with pytest.raises(ValueError, match="a.safetensors: first_position is 9000, and the last"):
            call(path, rope=dynamic)
        for sets in ([dynamic, plain], [plain, dynamic]):
            assert call(path, rope=librope.Rope.sets(sets))
    kv.write(path, k, rope=dynamic, first_position=100, layout="nhd")
    changed(path, lambda told, x: told.update(first_position=9000))
    for call in (kv.inspect, kv.read, kv.verify):
        with pytest.raises(ValueError, match="a.safetensors: first_position is 9000, and the last"):
            call(path)


def test_a_rope_of_several_frequency_sets(rng, tmp_path):
    """A folder of a model's layers, some turned by the one set, some by the other, is that of its rope."""
    one, other, third = (librope.Rope(head_dim=DIM, theta=t, pairing="halves") for t in (1e4, 1e6, 1e7))
    both = librope.Rope.sets([one, other])
    k, _ = arrays(rng)
    for number in (0, 1):
        kv.write(tmp_path / f"{number}.safetensors", k, rope=both, frequency_set=number, first_position=0, layout="nhd")
    kv.write(tmp_path / "2.safetensors", k, rope=other, first_position=0, layout="nhd")
    assert len(kv.verify(tmp_path, rope=both)) == 3
    kv.read(tmp_path / "1.safetensors", rope=both)
    with pytest.raises(kv.Refused, match="2 of 3 .*1.safetensors.*2.safetensors"):
        kv.verify(tmp_path, rope=both, frequency_set=0)
    with pytest.raises(kv.Refused, match=f"2 of 3 .* digest is {other.digest()}, and must be {one.digest()} or {third.digest()}"):
        kv.verify(tmp_path, rope=librope.Rope.sets([one, third]))
    for number, error in ((2, ValueError), (-1, ValueError), (True, TypeError), (0.0, TypeError)):
        for call in (kv.read, kv.verify):
            with pytest.raises(error, match=f"frequency_set is {number}, and "):
                call(tmp_path / "1.safetensors", rope=both, frequency_set=number)
        with pytest.raises(error, match=f"frequency_set is {number}, and "):
            kv.write(tmp_path / "no.safetensors", k, rope=both, frequency_set=number, first_position=0, layout="nhd")
    with pytest.raises(ValueError, match="rope has 2 frequency sets: frequency_set must say which turned the keys"):
        kv.write(tmp_path / "no.safetensors", k, rope=both, first_position=0, layout="nhd")


def test_what_cannot_be_written(rope, rng, tmp_path):
    path = tmp_path / "a.safetensors"
    k, v = arrays(rng)
    images = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", axes=2, mrope_section=[4, 4])
    heads = librope.Rope(head_dim=DIM, pairing="interleaved", frequency=np.ones((1, HEADS, DIM // 2)))
    for error, match, change in [
        (TypeError, "first_position is 1.5", {"first_position": 1.5}),
        (ValueError, "pass 2", {"first_position": 2**63 - TOKENS + 1}),
        (ValueError, "layer is -1", {"layer": -1}),
        (ValueError, "layout is 'bshd', and must be 'nhd' or 'hnd'", {"layout": "bshd"}),
        (ValueError, "keys is 'turned'", {"keys": "turned"}),
        (ValueError, "frequency_set is 1, and the rope has 1", {"frequency_set": 1}),
        (ValueError, "note is 3", {"note": 3}),
        (TypeError, "must be a librope.Rope", {"rope": None}),
        (ValueError, "the rope has 2 axes", {"rope": images}),
        (ValueError, "frequencies of each head", {"rope": heads}),
        (ValueError, "head_dim is 16, and must be 64", {"rope": librope.Rope(head_dim=64, theta=1e4, pairing="halves")}),
        (ValueError, "k has shape", {"k": k[0]}),
        (ValueError, "strides", {"k": k[..., ::-1]}),
        (ValueError, r"strides.*\.contiguous\(\)", {"k": k[:, :2], "v": None}),
        (TypeError, "k is int32, and must be one of float32, float16", {"k": k.astype(np.int32), "v": None}),
        (ValueError, "v is float32", {"v": v[:-1]}),
        (ValueError, "v is float16", {"v": v.astype(np.float16)}),
    ]:  # fmt: skip
        arguments = {"k": k, "v": v, "rope": rope, "first_position": 0, "layout": "nhd", **change}
        with pytest.raises(error, match=match):
            kv.write(path, arguments.pop("k"), arguments.pop("v"), **arguments)
        assert not any(tmp_path.iterdir()), match


def test_a_name_that_no_job_finds(rope, rng, tmp_path):
    with pytest.raises(ValueError, match=r"path is '.*a\.t', and must end in \.safetensors"):
        kv.write(tmp_path / "a.t", next(arrays(rng)), rope=rope, first_position=0, layout="nhd")
    assert not any(tmp_path.iterdir())


def test_integers_of_numpy(rope, rng, tmp_path):
    path = tmp_path / "a.safetensors"
    info = kv.write(path, next(arrays(rng)), rope=rope, first_position=np.int64(5), layout="nhd", layer=np.int32(2),
                    frequency_set=np.int8(0))  # fmt: skip
    assert kv.inspect(path) == info and (info.first_position, info.layer) == (5, 2)
    kv.move(path, to=np.int64(9))
    kv.verify(path, rope=rope, frequency_set=np.int64(0))
    assert kv.inspect(path).first_position == 9


def changed(path, change):
    """The file with other metadata, whose checksum is right."""
    tensors = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "np") as file:
        told = json.loads(file.metadata()["librope_kv"])
    metadata, tensors = change(told, tensors) or ({}, tensors)
    text = json.dumps(told)
    if "checksum" in tensors:
        table = tensors["checksum"].copy()
        table[0] = np.frombuffer(xxhash.xxh3_128_digest(text.encode()), np.uint8)
        tensors["checksum"] = table
    safetensors.numpy.save_file(tensors, path, {"librope_kv": text, **metadata})


MISTAKES = {
    "version is 2, and this librope reads 1": lambda told, x: told.update(version=2),
    "digest is .*, and the rest of the metadata say": lambda told, x: told.update(digest="rotation1:00"),
    "digest is": lambda told, x: told["rope"][0].update(theta=10001.0),
    "its rope is none: .*theta": lambda told, x: told["rope"][0].pop("theta") and None,
    "its rope is none: ropes is empty": lambda told, x: told.update(rope=[]),
    "layer is not in its metadata": lambda told, x: told.pop("layer") and None,
    "colour is no metadata of a KV file": lambda told, x: told.update(colour=1),
    "first_position is 5.0": lambda told, x: told.update(first_position=5.0),
    "first_position is True": lambda told, x: told.update(first_position=True),
    "tensor 'k' is .*, and its metadata say": lambda told, x: told.update(tokens=TOKENS + 1),
    "tensor 'v' is none of a KV file": lambda told, x: told.update(v_head_dim=None, tensors={"k": "key", "checksum": "xxh3_128"}),
    "tensors is .*value": lambda told, x: told["tensors"].update(k="value"),
    "layout is 'bhsd'": lambda told, x: told.update(layout="bhsd"),
    "rotary_dim is 8.0": lambda told, x: told.update(rotary_dim=8.0),
    "rotary_dim is 16": lambda told, x: told.update(rotary_dim=16),
    "moved is": lambda told, x: told.update(moved={"job": 3, "first_position": 0, "rope": "", "checksum": "", "earlier": []}),
    "moved is .*earlier": lambda told, x: told.update(moved={"job": "j", "first_position": 0, "rope": "", "checksum": "", "earlier": [0]}),
    "moved is .*, and must be": lambda told, x: told.update(moved={"job": "j", "first_position": 0, "rope": "", "checksum": ""}),
    "moved is .*, and must be .* rope": lambda told, x: told.update(moved={"job": "j", "first_position": 0, "rope": 1, "checksum": "", "earlier": []}),
    "moved is ": lambda told, x: told.update(moved=[1]),
    "moved is 0": lambda told, x: told.update(moved=0),
    "its rope is none": lambda told, x: told.update(rope=["x"]),
    "tensor 'q' is none": lambda told, x: ({}, {**x, "q": x["k"]}),
    "tensor 'checksum' is not there": lambda told, x: ({}, {n: x[n] for n in "kv"}),
    "its metadata has 'model' beside librope_kv": lambda told, x: ({"model": "llama"}, x),
}


@pytest.mark.parametrize("match", MISTAKES)
def test_a_file_that_contradicts_itself(path, match):
    changed(path, MISTAKES[match])
    for call in (kv.inspect, kv.read, kv.verify):
        with pytest.raises(ValueError, match=match) as e:
            call(path)
        assert str(path) in str(e.value)


def test_a_number_of_the_rope_may_be_written_in_several_ways(path):
    changed(path, lambda told, x: told["rope"][0].update(theta=10000))
    assert kv.verify(path)


def test_files_that_are_none(path, tmp_path):
    whole = path.read_bytes()
    for content in (b"", b"\0" * 7, b"\xff" * 64, b"\2" + b"\0" * 7 + b"[]", b"\2" + b"\0" * 7 + b"{}",
                    whole[:-1], whole[:200], whole + b"\0"):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path}: (no KV file|it has .* bytes, and must have)"):
            kv.inspect(path)
    safetensors.numpy.save_file({"k": np.ones(3)}, path)
    with pytest.raises(ValueError, match="no KV file: its header has no metadata librope_kv"):
        kv.inspect(path)
    deep = b"[" * 100000
    path.write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(ValueError, match="no KV file"):
        kv.inspect(path)
    with pytest.raises(FileNotFoundError):
        kv.inspect(tmp_path / "b.safetensors")


def test_every_bit_counts(path, rng):
    """A file with any one bit changed is refused."""
    whole = path.read_bytes()
    bits = {*range(8 * 8), *rng.integers(0, 8 * len(whole), 300).tolist(), *range(8 * len(whole) - 48 * 8, 8 * len(whole), 5)}
    survived = []
    for bit in sorted(bits):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            kv.read(path)
        except ValueError as e:
            assert str(path) in str(e)
        else:
            survived.append(bit)
    text = 8 + int.from_bytes(whole[:8], "little")
    assert all(whole[bit // 8 : text].strip() == b"" and bit // 8 < text for bit in survived)  # blanks behind the header


def test_values_that_are_not_finite(rope, rng, tmp_path):
    for dtype, name in [("float32", "k"), ("bfloat16", "v"), ("float16", "k")]:
        tensors = dict(zip("kv", arrays(rng, dtype=dtype), strict=True))
        tensors[name][20, 1, 3] = np.inf if name == "k" else np.nan
        path = tmp_path / "a.safetensors"
        kv.write(path, **tensors, rope=rope, first_position=0, layout="nhd")
        kv.read(path)
        with pytest.raises(kv.Refused, match=f"1 values of {name} are not finite"):
            kv.verify(path)


def with_header(path, change, encoding="utf-8"):
    """The file with another text as its header, and of its metadata the right checksum."""
    whole = path.read_bytes()
    at = 8 + int.from_bytes(whole[:8], "little")
    header = change(json.loads(whole[8:at])).encode(encoding, "surrogatepass")
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[at:])


def with_metadata(path, change):
    def header(entries):
        entries["__metadata__"]["librope_kv"] = text = change(entries["__metadata__"]["librope_kv"])
        told[:] = [xxhash.xxh3_128_digest(text.encode())]
        return json.dumps(entries)

    told = []
    with_header(path, header)
    whole = path.read_bytes()
    path.write_bytes(whole[:-48] + told[0] + whole[-32:])


K16 = '{"k":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},'


@pytest.mark.parametrize(("match", "change", "encoding"), [
    ("'k' stands twice in its header", lambda x: K16 + json.dumps(x)[1:], "utf-8"),
    ("'__metadata__' stands twice in its header", lambda x: '{"__metadata__": {},' + json.dumps(x)[1:], "utf-8"),
    ("'dtype' stands twice in its header", lambda x: json.dumps(x).replace('"dtype"', '"dtype": "F16", "dtype"', 1), "utf-8"),
    *[("no KV file: its header has no metadata", json.dumps, e) for e in ("utf-16", "utf-32", "utf-8-sig")],
    ("no KV file: its header has no metadata", lambda x: json.dumps(x)[:-1] + ', "\ud800": 1}', "utf-8"),
    *[("no KV file: its header has no metadata", lambda x, w=w: w[0] + json.dumps(x) + w[1], "utf-8")
      for w in ((" ", ""), ("\n", ""), ("", "\n"), ("", "\0"))],
])  # fmt: skip
def test_a_header_that_others_read_otherwise(path, match, change, encoding):
    with_header(path, change, encoding)
    for call in (kv.inspect, kv.read, kv.verify):
        with pytest.raises(ValueError, match=f"{path}: {match}"):
            call(path)


@pytest.mark.parametrize(("match", "change"), [
    ("'keys' stands twice in its metadata librope_kv", lambda x: '{"keys": "raw", ' + x[1:]),
    ("'theta' stands twice in its metadata librope_kv", lambda x: x.replace('"theta"', '"theta": 1.0, "theta"')),
    ("its metadata librope_kv is not that of a KV file", lambda x: x.replace('"theta": 10000.0', '"theta": NaN')),
    ("note is ", lambda x: x.replace("a prompt", "\\ud800")),
])  # fmt: skip
def test_metadata_that_others_read_otherwise(path, match, change):
    with_metadata(path, lambda text: text)
    kv.read(path)
    with_metadata(path, change)
    for call in (kv.inspect, kv.read, kv.verify):
        with pytest.raises(ValueError, match=f"{path}: {match}"):
            call(path)


def test_a_header_has_a_limit(path, rope, rng):
    """At which memory is some twenty MiB; who writes a file is told, and can read what he has written."""
    before = path.read_bytes()
    (k, _), arguments = arrays(rng), {"rope": rope, "first_position": 0, "layout": "nhd"}
    with pytest.raises(ValueError, match="the header has .* and must have at most 1048576: note has 1048576 characters"):
        kv.write(path, k, **arguments, note="x" * (1 << 20))
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1
    kv.write(path, k, **arguments, note="x" * 1_040_000)
    kv.read(path)
    with_header(path, lambda x: json.dumps(x) + " " * (1 << 13))
    with pytest.raises(ValueError, match=f"{path}: no KV file: its header has 10.* bytes, and must have at most 1048576"):
        kv.inspect(path)
    with pytest.raises(ValueError, match="note is "):
        kv.write(path, k, **arguments, note="\ud800")
