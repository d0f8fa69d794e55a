#!/usr/bin/env python3
"""Writes the seed corpus of model_fuzz into a folder: every configuration of tests/data/models.json
and dialects.json, and every rope dictionary in them, one per file."""
import hashlib
import json
import pathlib
import sys

DICTIONARIES = ("rope_parameters", "rope_scaling")


def dictionaries(value):
    if isinstance(value, dict):
        for key, member in value.items():
            if key in DICTIONARIES and isinstance(member, dict):
                yield member
            yield from dictionaries(member)


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    models = pathlib.Path(__file__).parent.parent / "data" / "models.json"
    configs = [entry["config"] for entry in json.loads(models.read_text())]
    others = json.loads((models.parent / "dialects.json").read_text())["dialects"]
    configs += [case["config"] for cases in others.values() for case in cases]
    for config in configs:
        for value in (config, *dictionaries(config)):
            text = json.dumps(value).encode()
            (folder / hashlib.sha1(text).hexdigest()).write_bytes(text)


if __name__ == "__main__":
    main()
