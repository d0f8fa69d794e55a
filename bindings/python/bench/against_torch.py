"""librope beside transformers' apply function, eager and compiled, in one run on the CPU.

    python bench/against_torch.py [--threads N] [--json]

Medians of interleaved rounds, in microseconds, of rotating q and k as a layer of an 8B llama has
them: 32 + 8 heads x 128, views [b, h, s, d] of [b, s, h, d] memory. All ways start from the same
tensors and end with rotated ones. "in place" writes over its input, which eager code cannot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import transformers
from transformers.models.llama import modeling_llama

import librope
import librope.transformers


def medians(calls, rounds=61, budget=0.002, limit=20.0):
    """Interleaved; samples short enough that a busy machine disturbs few of them; limit in seconds."""
    counts = []
    for call in calls:
        for _ in range(3):
            call()
        start = time.perf_counter()
        call()
        counts.append(max(1, int(budget / max(time.perf_counter() - start, 1e-7))))
    times = [[] for _ in calls]
    end = time.perf_counter() + limit
    for r in range(rounds):
        if r >= 7 and time.perf_counter() > end:
            break
        for i in [(r + j) % len(calls) for j in range(len(calls))]:
            start = time.perf_counter()
            for _ in range(counts[i]):
                calls[i]()
            times[i].append((time.perf_counter() - start) / counts[i])
    return [1e6 * statistics.median(t) for t in times]


def measure(tokens, dtype, pool):
    rope = librope.Rope(head_dim=128, theta=10000.0, pairing="halves", layout="bhsd")
    q = torch.randn(1, tokens, 32, 128).to(dtype).transpose(1, 2)
    k = torch.randn(1, tokens, 8, 128).to(dtype).transpose(1, 2)
    ids = torch.arange(tokens)[None]
    config = transformers.LlamaConfig(head_dim=128, rope_theta=10000.0)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(q, ids)
    eager = modeling_llama.apply_rotary_pos_emb
    compiled = torch.compile(eager)
    with librope.transformers.patched(modeling_llama.LlamaModel):
        patched = modeling_llama.apply_rotary_pos_emb
    with librope.transformers.patched(modeling_llama.LlamaModel, in_place=True):
        patched_ = modeling_llama.apply_rotary_pos_emb
    out = (torch.empty_like(q), torch.empty_like(k))
    step = rope.bind(q, k, ids)
    ways = {
        "eager": lambda: eager(q, k, cos, sin),
        "torch.compile": lambda: compiled(q, k, cos, sin),
        "patch()": lambda: patched(q, k, cos, sin),
        "patch(in_place=True)": lambda: patched_(q, k, cos, sin),
        "apply_qk": lambda: rope.apply_qk(q, k, ids, pool=pool),
        "apply_qk, out=": lambda: rope.apply_qk(q, k, ids, out=out, pool=pool),
        "apply_qk_": lambda: rope.apply_qk_(q, k, ids, pool=pool),
        "bind()": step,
    }
    return dict(zip(ways, medians(list(ways.values()))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512, 4096])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pool = librope.Pool(arguments.threads) if arguments.threads > 1 else None
    rows = []
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for tokens in arguments.tokens:
                rows.append((str(dtype)[6:], tokens, measure(tokens, dtype, pool)))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{arguments.threads} thread(s)")  # fmt: skip
    for dtype, tokens, times in rows:
        print(f"\n{dtype}, {tokens} tokens")
        for name, t in times.items():
            print(f"  {name:22} {t:12,.1f} us   x {times['eager'] / t:6.2f} of eager, "
                  f"x {times['torch.compile'] / t:6.2f} of compiled")  # fmt: skip


if __name__ == "__main__":
    main()
