"""Writes ../data/torch_pow.json: theta^(2i / dim) as torch computes it on a CPU. See README.md.

    "$(tests/oracle/setup)" tests/oracle/powers.py

All elements go through torch's vectors: tensors are filled up to a multiple of 64 elements, and are too
small to be cut for threads. Vectors of AVX2 and AVX-512 have the same bits.
"""

from __future__ import annotations

import base64
import json
import math
import platform

import numpy
import torch

import cases

WIDTHS = range(2, 1025, 2)
# In clear: what common models have.
TABLES = [(10000, 64), (10000, 128), (10000, 256), (500000, 64), (500000, 128), (1e6, 128), (1e6, 512), (1e7, 128),
          (8e6, 128), (150000, 64)]  # fmt: skip
# Beside those of the recorded configurations: round ones, and what dynamic NTK makes of 10000.
MORE_THETAS = [1.5, 2, 10, 100, 1000, 5000, 12000, 26000, 160000, 250000, 1e8, 1e9, 1e10, 1e11, 0.5,
               10143.896, 15873.105, 20415.473, 41062.39, 83213.7, 167984.19, 500123.44]  # fmt: skip
SEEDS, PAIRS = (1, 2, 3, 4), 1 << 18


def power(base, exponents):
    """torch.pow of f32 arrays, of a multiple of 64 elements, in pieces below the size that threads share."""
    result = numpy.empty_like(exponents)
    for at in range(0, len(exponents), 16384):
        piece = slice(at, at + 16384)
        some = base if isinstance(base, float) else torch.from_numpy(base[piece])
        result[piece] = torch.pow(some, torch.from_numpy(exponents[piece])).numpy()
    return result


def powers(theta, exponents):
    filled = numpy.zeros(-(-len(exponents) // 64) * 64, numpy.float32)
    filled[: len(exponents)] = exponents
    return power(float(theta), filled)[: len(exponents)]


def exponents_of(width):
    return numpy.arange(0, width, 2).astype(numpy.float32) / numpy.float32(width)


def all_exponents():
    """2i / dim of every width, without those that a smaller one has."""
    found = []
    for width in WIDTHS:
        new = [math.gcd(i, width // 2) == 1 for i in range(width // 2)]
        found.append(exponents_of(width)[new])
    return numpy.concatenate(found)


def hash_of(values):
    """Hash::Word of tests/bits/hash.h, word by word."""
    state = 0xCBF29CE484222325
    for word in values.view(numpy.uint32).tolist():
        state = (state ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 32
    return f"{state:016x}"


def random_numbers(seed, count):
    """Random of tests/support/random.h."""
    step = 0x9E3779B97F4A7C15
    start = numpy.uint64((seed * step + 1) & 0xFFFFFFFFFFFFFFFF)
    z = start + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(step)
    z = (z ^ z >> numpy.uint64(30)) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> numpy.uint64(27)) * numpy.uint64(0x94D049BB133111EB)
    return z ^ z >> numpy.uint64(31)


def random_pairs(seed):
    """Bases from 2^-20 to 2^41, and exponents below 1."""
    z = random_numbers(seed, 2 * PAIRS)
    binade = numpy.uint64(107) + (z[::2] >> numpy.uint64(32)) % numpy.uint64(61)
    bits = binade << numpy.uint64(23) | z[::2] & numpy.uint64(0x7FFFFF)
    exponents = (z[1::2] >> numpy.uint64(40)).astype(numpy.float32) * numpy.float32(2**-24)
    return bits.astype(numpy.uint32).view(numpy.float32), exponents


def thetas_in(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if "theta" in key and isinstance(inner, (int, float)) and inner > 0:
                yield inner
            yield from thetas_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from thetas_in(inner)


def recorded_thetas():
    files = sorted((cases.DATA / "oracle").glob("*.json")) + [cases.DATA / "models.json"]
    return {theta for file in files for theta in thetas_in(json.loads(file.read_text()))}


def main():
    torch.set_num_threads(1)
    exponents = all_exponents()
    thetas = sorted({float(numpy.float32(theta)) for theta in recorded_thetas() | set(MORE_THETAS)})
    result = {
        "description": "theta^(2i / dim) by torch.pow of f32, every element in torch's vectors; see tests/data/README.md",
        "versions": {"torch": torch.__version__, "numpy": numpy.__version__, "machine": platform.machine(),
                     "cpu_capability": torch.backends.cpu.get_cpu_capability()},
        "tables": [
            {"theta": theta, "dim": dim,
             "powers": {"dtype": "f32", "shape": [dim // 2],
                        "data": base64.b64encode(powers(theta, exponents_of(dim)).tobytes()).decode()}}
            for theta, dim in TABLES],
        "widths": {"first": WIDTHS[0], "last": WIDTHS[-1], "exponents": len(exponents)},
        "hashes": {repr(theta): hash_of(powers(theta, exponents)) for theta in thetas},
        "random": {"pairs": PAIRS, "hashes": {str(seed): hash_of(power(*random_pairs(seed))) for seed in SEEDS}},
    }  # fmt: skip
    (cases.DATA / "torch_pow.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(thetas)} thetas, {len(exponents)} exponents each")


main()
