"""One token through 32 layers with a paged cache: a call for each layer beside one that is prepared.

    python bench/decode_step.py [--json]

Layers of an 8B llama: 32 + 8 + 8 heads of 128 and a cache of its own each, pages [64, 16, 8, 128]; q turns in
place, or into a new array; once more with norms of q and k, as Qwen3 has them. Medians of interleaved rounds on one thread, in microseconds for the whole step;
preparing the call is a part of it. Before they are timed, both ways have left the same bits.
"""

from __future__ import annotations

import json
import sys

import ml_dtypes
import numpy as np
import torch
from comparison import medians

import librope

LAYERS, Q_HEADS, HEADS, DIM, PAGES, PAGE_SIZE = 32, 32, 8, 128, 64, 16
ROPE = librope.Rope(head_dim=DIM, theta=500000.0, pairing="halves", layout="thd")


class Step:
    """The arrays of all layers, their norms, and where the token goes."""

    def __init__(self, library, dtype, normed):
        def heads(count):
            return [self.array(torch.randn(1, count, DIM).to(dtype)) for _ in range(LAYERS)]

        self.library = library
        self.q, self.k, self.v = heads(Q_HEADS), heads(HEADS), heads(HEADS)
        self.memory = [self.array(torch.zeros(2, PAGES, PAGE_SIZE, HEADS, DIM, dtype=dtype)) for _ in range(LAYERS)]
        self.caches = [librope.KVCache(*memory, layout="nhd") for memory in self.memory]
        self.norms = [self.norms_of(dtype) if normed else None for _ in range(LAYERS)]
        self.slots, self.position = self.array(torch.tensor([777])), self.array(torch.tensor([1000]))

    def array(self, x):
        if self.library == "torch":
            return x
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()

    def norms_of(self, dtype):
        weights = torch.randn(2, DIM).to(dtype)
        return librope.Norms(*[librope.Norm(self.array(w), kind="rms", eps=1e-6, rounding="float32") for w in weights])

    def call_each(self, in_place):
        apply = ROPE.apply_qk_ if in_place else ROPE.apply_qk
        for q, k, v, cache, norms in zip(self.q, self.k, self.v, self.caches, self.norms):
            apply(q, k, self.position, v=v, cache=cache.at(slots=self.slots), norms=norms)

    def prepared(self, in_place):
        where = self.caches[0].at(slots=self.slots)
        call = ROPE.prepare_qk(self.q[0], self.k[0], self.position, v=self.v[0], cache=where, norms=self.norms[0])
        apply = call.apply_qk_ if in_place else call.apply_qk
        for q, k, v, cache, norms in zip(self.q, self.k, self.v, self.caches, self.norms):
            apply(q, k, v=v, cache=cache, norms=norms)

    def result(self, way):
        """What a way has written, from the same input."""

        def values(arrays):
            return [x.float().numpy().copy() if self.library == "torch" else x.astype(np.float32) for x in arrays]

        before = values(self.q)
        for memory in self.memory:
            memory[...] = 0
        way(True)
        written = values(self.q + self.memory)
        for q, old in zip(self.q, before):
            q[...] = torch.from_numpy(old) if self.library == "torch" else old
        return written


def measure(library, dtype, normed):
    step = Step(library, dtype, normed)
    if not all(map(np.array_equal, step.result(step.call_each), step.result(step.prepared))):
        raise AssertionError("other bits in a prepared call")
    ways = {
        "a call each, in place": lambda: step.call_each(True),
        "prepared, in place": lambda: step.prepared(True),
        "a call each, new arrays": lambda: step.call_each(False),
        "prepared, new arrays": lambda: step.prepared(False),
    }
    return dict(zip(ways, medians(list(ways.values()))))


def main():
    torch.set_num_threads(1)
    rows = [
        (library, str(dtype)[6:] + normed * ", norms", measure(library, dtype, normed))
        for normed in (False, True)
        for library in ("numpy", "torch")
        for dtype in (torch.float32, torch.bfloat16)
    ]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    print(f"librope {librope.__version__}, torch {torch.__version__}: one token, {LAYERS} layers, one thread")
    for library, dtype, times in rows:
        print(f"\n{library}, {dtype}")
        for name, t in times.items():
            print(f"  {name:26} {t:10,.1f} us   {t / LAYERS:6.2f} us per layer")


if __name__ == "__main__":
    with torch.no_grad():
        main()
