"""librope beside transformers' apply function, eager and compiled, in one run on the CPU.

    python bench/against_torch.py [--threads N] [--tokens N ..] [--json]

Medians of interleaved rounds, in microseconds, of rotating q and k as a layer of an 8B llama has
them: 32 + 8 heads x 128, views [b, h, s, d] of [b, s, h, d] memory. All ways start from the same
tensors and end with rotated ones. "in place" writes over its input, which eager code cannot.
"""

from __future__ import annotations

import torch
import transformers
from comparison import compare, medians
from transformers.models.llama import modeling_llama

import librope
import librope.transformers


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


RATIOS = {
    "as fast as eager": lambda t, times: times["eager"] / t,
    "as fast as compiled": lambda t, times: times["torch.compile"] / t,
}

if __name__ == "__main__":
    compare(measure, RATIOS, tokens=[1, 512, 4096])
