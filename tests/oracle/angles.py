#!/usr/bin/env python3
"""Writes ../data/angles.json: what models with the general angle compute (config.frequency of rope.h).

Runs the rotary classes and apply functions of diffusers (Mochi, LTX-Video, LTX-2) and timm (RoPE-Mixed), of
small sizes, and records what goes in (positions, frequencies of axes, heads and pairs, a head of numbers) and what
comes out (cos and sin of tokens, heads and pairs, the turned head). The classes of LTX keep their frequencies to
themselves: they are repeated here, and what the classes make of them is checked against them.

    pip install torch diffusers timm
    tests/oracle/angles.py [FILE]
"""

import base64
import json
import pathlib
import sys

import diffusers
import numpy as np
import timm
import torch
from diffusers.models.transformers import transformer_ltx as ltx
from diffusers.models.transformers import transformer_ltx2 as ltx2
from diffusers.models.transformers import transformer_mochi as mochi
from timm.layers import pos_embed_sincos as vit

TOKENS = {"num_frames": 2, "height": 3, "width": 2}


def array(tensor):
    values = np.ascontiguousarray(tensor.detach().numpy().astype("<f4"))
    data = base64.b64encode(values.tobytes()).decode()
    return {"dtype": "f32", "shape": list(values.shape), "data": data}


def case(name, source, pairing, positions, frequency, cos, sin, turned=None, x=None):
    """positions [tokens, axes], frequency [axes, heads, pairs], cos and sin [tokens, heads, pairs], x and
    turned [tokens, heads, channels]."""
    angles = torch.einsum("ta,ahp->thp", positions.double(), frequency.double())
    assert (angles.cos() - cos).abs().max() < 1e-4 * max(1, angles.abs().max()), name
    assert (angles.sin() - sin).abs().max() < 1e-4 * max(1, angles.abs().max()), name
    tensors = {"positions": positions, "frequency": frequency, "cos": cos, "sin": sin, "x": x,
               "turned": turned}  # fmt: skip
    arrays = {key: None if value is None else array(value) for key, value in tensors.items()}
    return {"name": name, "source": source, "pairing": pairing, **arrays}


def mochi_case():
    heads, pairs = 3, 8
    frequency = torch.randn(3, heads, pairs)  # learned
    rope = mochi.MochiRoPE()
    positions = rope._get_positions(**TOKENS, dtype=torch.float32)
    cos, sin = rope(frequency, **TOKENS, dtype=torch.float32)
    # What turns heads is inside of a processor: adjacent channels, and nothing to call.
    return case("mochi", "diffusers MochiRoPE", "interleaved", positions, frequency, cos, sin)


def slots(frequencies, heads, pairs):
    """[axes, heads, pairs] of frequencies that the axes share, pair by pair over all heads, behind pairs of 0."""
    axes, count = 3, len(frequencies)
    flat = torch.zeros(axes, heads * pairs)
    first = heads * pairs - axes * count
    for n in range(axes * count):
        flat[n % axes, first + n] = frequencies[n // axes]
    return flat.unflatten(-1, (heads, pairs))


def ltx_case():
    heads, pairs = 4, 8
    dim = heads * 2 * pairs  # 64: one pair stays, as of LTX's 2048
    rope = ltx.LTXVideoRotaryPosEmbed(dim)
    hidden = torch.randn(1, 12, dim)
    scale = (8 / 25, 32, 32)
    grid = rope._prepare_video_coords(1, *TOKENS.values(), scale, hidden.device)
    cos, sin = rope(hidden, *TOKENS.values(), scale)
    turned = ltx.apply_rotary_emb(hidden, (cos, sin))
    frequencies = 10000.0 ** torch.linspace(0.0, 1.0, dim // 6) * torch.pi / 2.0
    by_heads = [t[0].unflatten(-1, (heads, -1)) for t in (cos[..., ::2], sin[..., ::2], turned, hidden)]
    return case("ltx", "diffusers LTXVideoRotaryPosEmbed", "interleaved", grid[0] * 2 - 1,
                slots(frequencies, heads, pairs), *by_heads)  # fmt: skip


def ltx2_case():
    heads, pairs = 4, 8
    dim = heads * 2 * pairs
    rope = ltx2.LTX2AudioVideoRotaryPosEmbed(dim, rope_type="split", num_attention_heads=heads)
    coords = rope.prepare_video_coords(1, *TOKENS.values(), device="cpu")
    cos, sin = rope(coords)  # [batch, heads, tokens, pairs]
    grid = coords.mean(-1) / torch.tensor([20, 2048, 2048])[:, None]
    hidden = torch.randn(1, 12, dim)
    turned = ltx2.apply_split_rotary_emb(hidden, (cos, sin))
    powers = 10000.0 ** torch.linspace(0.0, 1.0, dim // 6, dtype=torch.float64)
    frequencies = (powers * torch.pi / 2.0).float()
    x, y = (t[0].unflatten(-1, (heads, -1)) for t in (hidden, turned))
    return case("ltx2", "diffusers LTX2AudioVideoRotaryPosEmbed, split", "halves",
                grid[0].T * 2 - 1, slots(frequencies, heads, pairs),
                cos[0].swapaxes(0, 1), sin[0].swapaxes(0, 1), y, x)  # fmt: skip


def timm_case():
    heads, pairs, shape = 3, 8, [3, 4]
    rope = vit.RotaryEmbeddingMixed(heads * 2 * pairs, 2, heads, feat_shape=shape)
    embed = rope.get_embed(shape)[1]  # of a layer: [heads, tokens, sin and cos of channels]
    x = torch.randn(heads, 12, 2 * pairs)
    turned = vit.apply_rot_embed_cat(x, embed)
    sin, cos = (t[..., ::2].swapaxes(0, 1) for t in embed.chunk(2, -1))
    positions = torch.stack([rope.t_x, rope.t_y], -1)
    return case("rope_mixed", "timm RotaryEmbeddingMixed", "interleaved", positions, rope.freqs[:, 1],
                cos, sin, turned.swapaxes(0, 1), x.swapaxes(0, 1))  # fmt: skip


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    where = pathlib.Path(__file__).parent.parent / "data" / "angles.json"
    file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else where
    versions = {m.__name__: m.__version__ for m in (torch, diffusers, timm)}
    cases = [mochi_case(), ltx_case(), ltx2_case(), timm_case()]
    text = json.dumps({"format": 1, "versions": versions, "cases": cases}, indent=1)
    file.write_text(text + "\n")
    print(f"{len(cases)} cases: {file}")


if __name__ == "__main__":
    main()
