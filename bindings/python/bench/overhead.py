"""What a call from Python costs beyond the C call: medians in nanoseconds.

    python bench/overhead.py [--json] [--decode] [--torch]

The C call is the same rope_apply_qk on the same arrays, repeated in C. Each row runs in an order
that changes from round to round, so that a slow second hits all of them. --decode: one token alone; --torch: of torch tensors.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

import librope
from librope._ffi import lib

try:
    import ml_dtypes

    BF16 = ml_dtypes.bfloat16
except ImportError:
    BF16 = np.float32


def median_ns(calls, rounds=201, budget=0.0005):
    """Median time of every call, interleaved. Samples are shorter than a scheduler's time slice, so
    that a busy machine disturbs few of them."""
    counts = []
    for call in calls:
        call(1)
        start = time.perf_counter()
        call(3)
        counts.append(max(1, int(budget / max((time.perf_counter() - start) / 3, 1e-8))))
    times = [[] for _ in calls]
    for r in range(rounds):
        for i in [(r + j) % len(calls) for j in range(len(calls))]:
            start = time.perf_counter_ns()
            calls[i](counts[i])
            times[i].append((time.perf_counter_ns() - start) / counts[i])
    return [statistics.median(t) for t in times]


def python_loop(function, *arguments):
    def run(n):
        for _ in range(n):
            function(*arguments)

    return run


def measure(tokens, dtype, q_heads=32, k_heads=8):
    # 4096 tokens of bf16 get two buffers of 40 MiB: larger than the caches.
    rope = librope.Rope(head_dim=128, theta=500000.0, pairing="halves", layout="thd")
    rng = np.random.default_rng(0)
    q = rng.standard_normal((tokens, q_heads, 128), np.float32).astype(dtype)
    k = rng.standard_normal((tokens, k_heads, 128), np.float32).astype(dtype)
    positions = np.arange(tokens)
    if "--torch" in sys.argv:
        import torch

        bits = {2: torch.bfloat16}.get(q.itemsize, torch.float32)
        q, k = (torch.from_numpy(x.view(np.int16) if x.itemsize == 2 else x).view(bits) for x in (q, k))
        positions = torch.from_numpy(positions)
        empty = torch.empty_like
    else:
        empty = np.empty_like
    step = rope.bind(q, k, positions)
    prepared = rope.prepare_qk(q, k, positions)

    def c_call(n):
        assert lib.call_repeatedly(step._context, step._args, n) == 0

    def loop(n):  # the loop itself, taken off
        for _ in range(n):
            pass

    names = ["C call", "bind()", "apply_qk_", "apply_qk_ (int position)", "apply_qk",
             "prepared.apply_qk_", "prepared.apply_qk", "apply_qk (new arrays)",
             "prepared.apply_qk (new arrays)", "prepare_qk", "loop"]  # fmt: skip
    out = (empty(q), empty(k))
    times = median_ns(
        [
            c_call,
            python_loop(step),
            python_loop(rope.apply_qk_, q, k, positions),
            python_loop(rope.apply_qk_, q, k, 0),
            python_loop(lambda: rope.apply_qk(q, k, positions, out=out)),
            python_loop(prepared.apply_qk_, q, k),
            python_loop(lambda: prepared.apply_qk(q, k, out=out)),
            python_loop(rope.apply_qk, q, k, positions),
            python_loop(prepared.apply_qk, q, k),
            python_loop(rope.prepare_qk, q, k, positions),
            loop,
        ]
    )
    return {name: t - (times[-1] if name != "C call" else 0) for name, t in zip(names[:-1], times)}


def main():
    results = {}
    for tokens, dtype in ((1, np.float32), (1, BF16), (4096, BF16))[: 2 if "--decode" in sys.argv else 3]:
        row = measure(tokens, dtype)
        results[f"{tokens} tokens {np.dtype(dtype).name}"] = row
    if "--json" in sys.argv:
        print(json.dumps(results, indent=1))
        return
    print(f"librope {librope.__version__}, 32 + 8 heads x 128, {'torch' if '--torch' in sys.argv else 'NumPy'}, medians")
    for name, row in results.items():
        base = row["C call"]
        print(f"\n{name}: C call {base:,.0f} ns")
        for what, t in row.items():
            if what != "C call":
                print(f"  {what:30} {t:12,.0f} ns   +{t - base:9,.0f} ns   x {t / base:.3f}")


if __name__ == "__main__":
    main()
