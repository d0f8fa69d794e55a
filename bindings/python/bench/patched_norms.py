"""Norms and rotation of a patched layer of transformers, beside the layer's own, in one run on the CPU.

    python bench/patched_norms.py [--threads N] [--tokens N ..] [--json]

Medians of interleaved rounds, in microseconds, of what a layer of a Qwen3 does between its projections and
its attention, for 32 + 8 heads x 128. Projections give what is there already, and attention nothing.
"""

from __future__ import annotations

import copy

import torch
import transformers
from comparison import compare, medians
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

import librope.transformers

HEADS = {"q_proj": 32, "k_proj": 8, "v_proj": 8}
CONFIG = dict(hidden_size=256, num_attention_heads=32, num_key_value_heads=8, head_dim=128, num_hidden_layers=1,
              attn_implementation="eager")  # fmt: skip


class Given(torch.nn.Module):
    def __init__(self, out):
        super().__init__()
        self.out = out

    def forward(self, x):
        return self.out


def no_attention(module, q, k, v, mask, **options):
    return q.transpose(1, 2), None


modeling_qwen3.eager_attention_forward = modeling_qwen3_moe.eager_attention_forward = no_attention


@torch.no_grad()
def measure(tokens, dtype, pool):
    # The same code twice, of which one is patched; a copy of a patched layer keeps its norms.
    plain = modeling_qwen3_moe.Qwen3MoeAttention(transformers.Qwen3MoeConfig(**CONFIG), 0).to(dtype).eval()
    fused = modeling_qwen3.Qwen3Attention(transformers.Qwen3Config(**CONFIG), 0).to(dtype).eval()
    hidden = torch.randn(1, tokens, 256).to(dtype)
    rows = modeling_qwen3.Qwen3RotaryEmbedding(fused.config)(hidden, torch.arange(tokens)[None])
    with librope.transformers.patched(fused, norms=True) as report:
        assert report.norms[0].norms, report
        layers = {"transformers": plain, "patch()": copy.deepcopy(fused), "patch(norms=True)": fused}
        for layer in layers.values():
            for name, heads in HEADS.items():
                setattr(layer, name, Given(torch.randn(1, tokens, 128 * heads).to(dtype)))
            layer.o_proj = torch.nn.Identity()
        ways = [lambda layer=layer: layer(hidden, rows, None) for layer in layers.values()]
        return dict(zip(layers, medians(ways)))


RATIOS = {"as fast as transformers": lambda t, times: times["transformers"] / t}

if __name__ == "__main__":
    compare(measure, RATIOS, tokens=[1, 64, 512, 2048])
