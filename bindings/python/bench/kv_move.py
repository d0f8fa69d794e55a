"""The job of librope.kv beside a copy of the same files: one run on the CPU.

    python bench/kv_move.py [--files N] [--mebibytes N] [--block BYTES] [--folder DIR] [--json]

A folder of files of keys and values, 8 heads of 128, [tokens, heads, channels]. Both ways read them from the page
cache and bring each new file, and its name, to the disk before the next: shutil.copyfile, and kv.move to another
position, in another folder. What a round has written is removed before the next. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time

import ml_dtypes
import numpy as np

import librope
from librope import kv

HEADS, DIM = 8, 128
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def synced(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def copied(source, target):
    target.mkdir()
    for file in sorted(source.iterdir()):
        shutil.copyfile(file, target / file.name)
        synced(target / file.name)
        synced(target)


def seconds(way, target):
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    begin = time.perf_counter()
    way()
    return time.perf_counter() - begin


def measure(folder, dtype, arguments):
    """Bytes per second of the copy and of the move."""
    rope = librope.Rope(head_dim=DIM, theta=500000.0, pairing="halves")
    size = np.dtype(DTYPES[dtype]).itemsize
    tokens = (arguments.mebibytes << 20) // (2 * HEADS * DIM * size)
    source, target = folder / dtype, folder / "target"
    source.mkdir()
    rng = np.random.default_rng(0)
    for i in range(arguments.files):
        k, v = (rng.standard_normal((tokens, HEADS, DIM), np.float32).astype(DTYPES[dtype]) for _ in "kv")
        kv.write(source / f"{i}.safetensors", k, v, rope=rope, first_position=0, layout="nhd", layer=i)
    ways = {
        "copy": lambda: copied(source, target),
        "move": lambda: kv.move(source, target, to=4096, block=arguments.block),
    }
    times = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            times[name].append(seconds(way, target))
    total = sum(file.stat().st_size for file in source.iterdir())
    return {name: total / statistics.median(t) for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mebibytes", type=int, default=64, help="of a file")
    parser.add_argument("--block", type=int, default=2 << 20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where the files are; a temporary one, if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = {dtype: measure(pathlib.Path(folder), dtype, arguments) for dtype in DTYPES}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for dtype, speeds in found.items():
        shown = ", ".join(f"{name} {speed / 1e9:.2f} GB/s" for name, speed in speeds.items())
        print(f"{dtype}: {shown}, quotient {speeds['move'] / speeds['copy']:.2f}")


if __name__ == "__main__":
    main()
