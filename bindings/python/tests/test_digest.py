"""Digests: Rope.digest and Model.digest, and the text of docs/digest.md made anew."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import struct
from typing import Any

import numpy as np
import pytest

import librope

REPOSITORY = pathlib.Path(os.environ.get("LIBROPE_REPOSITORY", pathlib.Path(__file__).parents[3]))
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 3,
         "rope_theta": 500000.0}  # fmt: skip


def bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def text_of(rope: librope.Rope, same: str) -> str:
    """docs/digest.md for a Rope of one length, with halves or neighbours and float32 angles."""
    n, start = rope.pairs, rope.rotary_offset
    lines = [f"librope {same}1"]
    if same != "angles":
        lines.append(f"head {rope.head_dim}")
    lines.append("angles 0")
    if same == "bits":
        lines.append(f"rounding {['float32', 'eager', 'cos_sin'].index(rope.config.get('rounding', 'float32'))}")
    lines += ["from 0", f"factor {bits(rope.attention_factor)} softmax {bits(rope.softmax_factor)}"]
    pairs = []
    for i, f in enumerate(rope.inv_freq):
        channels = (i, i + n) if rope.pairing == "halves" else (2 * i, 2 * i + 1)
        a, b = (start + c for c in channels)
        where = f"{i}" if same == "angles" else f"{a} {b} {a} {b}"
        pairs.append((i if same == "angles" else a, f"pair {where} axis 0 angle {bits(f)}"))
    return "".join(line + "\n" for line in lines + [line for _, line in sorted(pairs)])


def made(rope: librope.Rope, same: str) -> str:
    return f"{same}1:{hashlib.sha256(text_of(rope, same).encode()).hexdigest()}"


@pytest.mark.parametrize("same", ["rotation", "angles", "bits"])
@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize("fields", [
    {}, {"rotary_dim": 24, "rotary_offset": 40}, {"rounding": "eager"},
    {"scaling": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    {"scaling": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
     "mscale": 1.0, "mscale_all_dim": 1.0},
    {"scaling": "linear", "factor": 3.0, "attention_factor": 1.5},
])  # fmt: skip
def test_the_text_of_the_document(same: Any, pairing: Any, fields: dict[str, Any]) -> None:
    rope = librope.Rope(**{"head_dim": 64, "theta": 10000.0, "pairing": pairing, **fields})
    assert rope.digest(same) == made(rope, same)


def test_the_example_of_the_document() -> None:
    document = (REPOSITORY / "docs/digest.md").read_text("utf-8")
    block = re.search(r"```text\n(.*?)```", document, re.S)
    assert block is not None
    text = block[1]
    rope = librope.Rope(head_dim=4, theta=10000.0, pairing="halves")
    assert text == text_of(rope, "rotation")
    assert f"`{rope.digest()}`" in document


def test_of_a_model() -> None:
    model = librope.Model(LLAMA)
    kind = model.digest("full_attention")
    assert kind == model.rope().digest() != model.digest()
    text = "librope rotation1\n" + 3 * f"layer {kind}\n"
    assert model.digest() == f"rotation1:{hashlib.sha256(text.encode()).hexdigest()}"
    assert librope.Model(json.dumps(LLAMA, indent=3).encode()).digest() == model.digest()
    assert librope.Model({**LLAMA, "rope_theta": 500001.0}).digest() != model.digest()


def test_one_ulp() -> None:
    rope = librope.Rope(head_dim=64, theta=10000.0, pairing="halves")
    table = [float(f) for f in rope.inv_freq]
    seen = {rope.digest()}
    for i in range(len(table)):
        other = list(table)
        other[i] = float(np.nextafter(np.float32(other[i]), np.float32(2)))
        seen.add(librope.Rope(head_dim=64, pairing="halves", inv_freq=other).digest())
    assert len(seen) == 1 + len(table)
    assert librope.Rope(head_dim=64, pairing="halves", inv_freq=table).digest() == rope.digest()


def ropes_of(case: dict[str, Any]) -> list[librope.Rope]:
    """Of every kind of layer of a config of the fixtures, at every length that they have."""
    try:
        model = librope.Model(case["config"])
    except (ValueError, NotImplementedError):  # refused: test_oracle knows which
        return []
    found = []
    for kind in model.layer_types:
        fields = model.config(kind)
        for record in case["ropes"]:
            for length in record["lengths"]:
                more = {} if length["seq_len"] is None else {"seq_len": length["seq_len"]}
                if fields.get("scaling") != "nope":
                    more |= {"pairing": fields.get("pairing", record["pairing"])}
                try:
                    found.append(librope.Rope.from_fields({**fields, **more}))
                except ValueError:  # needs a length, and this record has none
                    continue
    return found


def turned(rope: librope.Rope) -> bytes:
    """What the digest speaks of, seen from outside: the bits of a head at some positions, whose ids differ, and
    what one cannot see there."""
    positions = np.array([0, 1, -3, 4097, 2**24 - 1])
    if rope.valid_below is not None:
        rope = by_hand(rope, rope.inv_freq)  # at positions that no sequence of its length has
    ids = positions if rope.axes == 1 else np.stack([positions + 7 * a for a in range(rope.axes)])
    x = np.arange(2, 2 + rope.head_dim, dtype=np.float32) * np.ones((len(positions), 1, 1), np.float32)
    x = rope.replace(rounding="float32").apply(x, ids, layout="thd")
    rest = (rope.config.get("angle", "float32"), rope.softmax_factor, rope.head_dim)
    return hashlib.sha256(x.tobytes() + repr(rest).encode()).digest()


def test_over_every_config(oracle_folder: pathlib.Path) -> None:
    """The digests of KV files, over all configs behind docs/models.md: two are equal where heads turn alike, whatever
    dialect told it, and no others are."""
    from librope.kv._schema import digest_of

    by_digest: dict[str, set[bytes]] = {}
    by_bits: dict[bytes, set[str]] = {}
    count = 0
    for case in json.loads((oracle_folder / "index.json").read_text())["cases"]:
        for rope in ropes_of(json.loads((oracle_folder / case["file"]).read_text())):
            digest, bits_of = digest_of(rope, 0), turned(rope)
            by_digest.setdefault(digest, set()).add(bits_of)
            by_bits.setdefault(bits_of, set()).add(digest)
            count += 1
            if rope.axes == 1 and rope.softmax_factor == 1 and rope.config.get("angle", "float32") == "float32":
                check_by_hand(rope, digest)
    assert count > 400 and len(by_digest) > 100
    assert not [d for d, seen in by_digest.items() if len(seen) > 1]
    assert not [d for d in by_bits.values() if len(d) > 1]


def check_by_hand(rope: librope.Rope, digest: str) -> None:
    """The frequencies alone are the same RoPE, and with a bit of one changed they are another."""
    if rope.config.get("scaling") == "nope":
        return
    table = np.asarray(rope.inv_freq)
    assert by_hand(rope, table).digest() == digest
    pair = len(table) // 3
    table[pair] = np.nextafter(np.float32(table[pair]), np.float32(2))
    assert by_hand(rope, table).digest() != digest


def by_hand(rope: librope.Rope, table: Any) -> librope.Rope:
    """The channels and factor of a Rope, with these frequencies."""
    names = ("head_dim", "pairing", "rotary_dim", "rotary_offset", "attention_factor")
    return librope.Rope.from_fields({n: getattr(rope, n) for n in names} | {"inv_freq": table})


def test_errors() -> None:
    rope = librope.Rope(head_dim=64, theta=10000.0, pairing="halves")
    with pytest.raises(ValueError, match="same is 'sense', and must be one of rotation, angles, bits"):
        rope.digest("sense")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layer_type is 'vision'"):
        librope.Model(LLAMA).digest("vision")
    unknown = librope.Model({"model_type": "no_such", "head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 1})
    with pytest.raises(ValueError, match="digest: layer type .*pairing is required"):
        unknown.digest()
    assert unknown.digest(same="angles")
