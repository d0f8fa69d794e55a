#!/usr/bin/env python3
"""Writes the seed corpus of gguf_fuzz into a folder: a file for every record of
tests/data/gguf.json, with the keys that llama.cpp's converter writes."""
import base64
import hashlib
import json
import pathlib
import struct
import sys

TYPES = {"uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"), "uint32": (4, "I"),
         "int32": (5, "i"), "float32": (6, "f"), "bool": (7, "?"), "uint64": (10, "Q"), "int64": (11, "q"),
         "float64": (12, "d")}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(kind, said):
    if kind == "string":
        return struct.pack("<I", STRING) + string(said)
    number, letter = TYPES[kind.removesuffix("[]")]
    if kind.endswith("[]"):
        return struct.pack(f"<IIQ{len(said)}{letter}", ARRAY, number, len(said), *said)
    return struct.pack("<I" + letter, number, said)


def gguf(record):
    tensors = {name: base64.b64decode(data) for name, data in record["tensors"].items()}
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(record["keys"]))
    for key, (kind, said) in record["keys"].items():
        out += string(key) + value(kind, said)
    data = b""
    for name, values in tensors.items():
        out += string(name) + struct.pack("<IQIQ", 1, len(values) // 4, 0, len(data))
        data += values + bytes(-len(values) % ALIGNMENT)
    return out + bytes(-len(out) % ALIGNMENT) + data


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    recorded = pathlib.Path(__file__).parent.parent / "data" / "gguf.json"
    for record in json.loads(recorded.read_text())["records"]:
        content = gguf(record)
        (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)


if __name__ == "__main__":
    main()
