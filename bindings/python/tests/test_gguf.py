"""Model.from_gguf: files, bytes and buffers, and what the library says about them."""

import mmap
import pathlib
import pickle
import struct

import pytest

import librope

UINT32, FLOAT32, STRING = 4, 6, 8
GEMMA3 = {"block_count": 6, "embedding_length": 2560, "attention.key_length": 256,
          "attention.sliding_window": 1024, "rope.freq_base": 1e6}


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def gguf(architecture: str, keys: dict[str, float]) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, 1 + len(keys))
    out += text("general.architecture") + struct.pack("<I", STRING) + text(architecture)
    for key, value in keys.items():
        kind, letter = (UINT32, "I") if isinstance(value, int) else (FLOAT32, "f")
        out += text(f"{architecture}.{key}") + struct.pack("<I" + letter, kind, value)
    return out


def check(model: librope.Model) -> None:
    assert model.layers == ("sliding_attention",) * 5 + ("full_attention",)
    assert model.config("full_attention")["theta"] == 1e6
    assert model.config("sliding_attention")["theta"] == 1e4
    rope = model.rope(layer=5, layout="bshd")
    assert rope.head_dim == 256
    assert rope.config["pairing"] == "halves"


def test_bytes_and_buffers():
    content = gguf("gemma3", GEMMA3)
    for source in (content, bytearray(content), memoryview(content), content + b"weights"):
        check(librope.Model.from_gguf(source))


def test_files(tmp_path: pathlib.Path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf("gemma3", GEMMA3) + bytes(1 << 21))
    check(librope.Model.from_gguf(path))
    check(librope.Model.from_gguf(str(path)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        check(librope.Model.from_gguf(mapped))
    with pytest.raises(FileNotFoundError):
        librope.Model.from_gguf(tmp_path / "none.gguf")


def test_it_is_pickled_by_its_source(tmp_path: pathlib.Path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf("gemma3", GEMMA3))
    for source in (path, path.read_bytes()):
        check(pickle.loads(pickle.dumps(librope.Model.from_gguf(source))))


def test_pairs_are_those_of_the_file():
    llama = {"block_count": 2, "embedding_length": 512, "attention.head_count": 8}
    model = librope.Model.from_gguf(gguf("llama", llama))
    assert model.config("full_attention")["pairing"] == "interleaved"


def test_errors():
    whole = gguf("gemma3", GEMMA3)
    with pytest.raises(ValueError, match="ends after 40 bytes, inside key 1 of 6"):
        librope.Model.from_gguf(whole[:40])
    with pytest.raises(ValueError, match='must begin with "GGUF"'):
        librope.Model.from_gguf(b'{"model_type": "llama"}')
    with pytest.raises(NotImplementedError, match=r"gemma3.rope.freq_bsae \(1\) speaks of RoPE"):
        librope.Model.from_gguf(gguf("gemma3", {**GEMMA3, "rope.freq_bsae": 1.0}))
    with pytest.raises(NotImplementedError, match=r'general.architecture \("bert"\)'):
        librope.Model.from_gguf(gguf("bert", GEMMA3))
    with pytest.raises(TypeError):
        librope.Model.from_gguf(5)
    with pytest.raises(ValueError, match="zero byte"):
        librope.Model.from_gguf("a\0b")


def test_keys_that_a_program_has_parsed():
    keys = {f"gemma3.{key}": value for key, value in GEMMA3.items()}
    source = {"general.architecture": "gemma3", "tokenizer.ggml.tokens": ["a", "b"], **keys}
    model = librope.Model.from_gguf(source, factors={})
    check(model)
    check(pickle.loads(pickle.dumps(model)))
    llama = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
             "llama.attention.head_count": 8}
    factors = {"rope_freqs.weight": [1.0, 2.0, 3.0, 4.0]}
    given = librope.Model.from_gguf(llama, factors=factors)
    assert list(given.config("full_attention")["freq_factors"]) == [1, 2, 3, 4]
    assert pickle.loads(pickle.dumps(given)).config("full_attention") == given.config("full_attention")
    sections = {**llama, "general.architecture": "qwen2vl"}
    sections = {key.replace("llama", "qwen2vl"): value for key, value in sections.items()}
    sections["qwen2vl.rope.dimension_sections"] = [1, 1, 2, 0]
    assert librope.Model.from_gguf(sections, factors={}).config("full_attention")["axes"] == 3


def test_gguf_is_no_json(tmp_path):
    """And Model says who reads it, before it reads a file of many GiB."""
    whole = gguf("gemma3", GEMMA3)
    (tmp_path / "a.gguf").write_bytes(whole)
    for config in (whole, bytearray(whole), tmp_path / "a.gguf", str(tmp_path / "a.gguf"), whole.decode("latin-1")):
        for read in (librope.Model, librope.Rope.from_config):
            with pytest.raises(ValueError, match=r"config is a GGUF file, .* librope.Model.from_gguf"):
                read(config)


def test_keys_that_are_wrong():
    llama = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
             "llama.attention.head_count": 8}
    with pytest.raises(NotImplementedError, match=r"llama.rope.new \(1\) speaks of RoPE"):
        librope.Model.from_gguf({**llama, "llama.rope.new": 1}, factors={})
    with pytest.raises(ValueError, match="general.architecture is missing"):
        librope.Model.from_gguf({}, factors={})
    with pytest.raises(TypeError, match=r"source\['x'\] is a dict"):
        librope.Model.from_gguf({**llama, "x": {}}, factors={})
    with pytest.raises(TypeError, match=r"source\['x'\] is a list"):
        librope.Model.from_gguf({**llama, "x": [1, 2.0]}, factors={})
    with pytest.raises(TypeError, match="must have names"):
        librope.Model.from_gguf({**llama, 5: 1}, factors={})
    with pytest.raises(TypeError, match="factors is missing"):
        librope.Model.from_gguf(llama)
    for factors, says in (
        ([("rope_freqs.weight", [1.0])], "factors is a list, and must be a dictionary"),
        ("12345678", "factors is a str, and must be a dictionary"),
        ({"rope_freqs.weight": "1234"}, r"factors\['rope_freqs.weight'\] is '1234', and must be a sequence"),
        ({"rope_freqs.weight": 1.0}, r"factors\['rope_freqs.weight'\] is 1.0, and must be a sequence"),
        ({"rope_freqs.weight": [1.0, "2"]}, r"factors\['rope_freqs.weight'\]\[1\] is '2', and must be a number"),
    ):
        with pytest.raises(TypeError, match=says):
            librope.Model.from_gguf(llama, factors=factors)
    with pytest.raises(TypeError, match="factors are for a source of keys"):
        librope.Model.from_gguf(gguf("gemma3", GEMMA3), factors={})
    with pytest.raises(ValueError, match="rope_freqs.weight.* 1 values"):
        librope.Model.from_gguf(llama, factors={"rope_freqs.weight": [1.0]})
