#!/usr/bin/env python3
"""Writes ../data/angles.json: what models compute whose angles are no product of one position and one frequency.

Runs the rotary classes and apply functions of diffusers (Mochi, LTX-Video, LTX-2), timm (RoPE-Mixed),
transformers (LightGlue) and vit-pytorch (golden gate RoPE), of small sizes, and records what goes in (positions,
frequencies of axes, heads and pairs, a head of numbers: config.frequency of rope.h) and what comes out (cos and sin
of tokens, heads and pairs, the turned head). The classes of LTX keep their frequencies to themselves: they are
repeated here, and what the classes make of them is checked against them.

The cosines and sines of FoPE are sums of several, and of no angle at all: of lmdeploy's FoPE (Intern-S1-Pro) the
rows of each head are recorded, and q and k before and after. Its modules are loaded without lmdeploy itself, whose
dependencies they do not need.

    pip install torch torchvision diffusers timm transformers vit-pytorch psutil
    pip install --no-deps lmdeploy
    tests/oracle/angles.py [FILE]
"""

import base64
import importlib
import importlib.metadata
import json
import pathlib
import sys
import types

import numpy as np
import torch
from diffusers.models.transformers import transformer_ltx as ltx
from diffusers.models.transformers import transformer_ltx2 as ltx2
from diffusers.models.transformers import transformer_mochi as mochi
from timm.layers import pos_embed_sincos as vit
from transformers.models.lightglue import configuration_lightglue, modeling_lightglue as lightglue
from vit_pytorch import vit_nd_rotary

TOKENS = {"num_frames": 2, "height": 3, "width": 2}


def array(tensor):
    values = np.ascontiguousarray(tensor.detach().numpy().astype("<f4"))
    data = base64.b64encode(values.tobytes()).decode()
    return {"dtype": "f32", "shape": list(values.shape), "data": data}


def arrays(tensors):
    return {key: None if value is None else array(value) for key, value in tensors.items()}


def case(name, source, pairing, positions, frequency, cos, sin, turned=None, x=None, matrix=False):
    """positions [tokens, axes], frequency [axes, heads, pairs], cos and sin [tokens, heads, pairs], x and
    turned [tokens, heads, channels]; matrix: the angle is a matrix product, which need not round each product."""
    angles = torch.einsum("ta,ahp->thp", positions.double(), frequency.double())
    assert (angles.cos() - cos).abs().max() < 1e-4 * max(1, angles.abs().max()), name
    assert (angles.sin() - sin).abs().max() < 1e-4 * max(1, angles.abs().max()), name
    tensors = {"positions": positions, "frequency": frequency, "cos": cos, "sin": sin, "x": x,
               "turned": turned}  # fmt: skip
    return {"name": name, "source": source, "pairing": pairing, "matrix": matrix, **arrays(tensors)}


def mochi_case():
    heads, pairs = 3, 8
    frequency = torch.randn(3, heads, pairs)  # learned
    rope = mochi.MochiRoPE()
    positions = rope._get_positions(**TOKENS, dtype=torch.float32)
    cos, sin = rope(frequency, **TOKENS, dtype=torch.float32)
    # What turns heads is inside of a processor: adjacent channels, and nothing to call.
    return case("mochi", "diffusers MochiRoPE", "interleaved", positions, frequency, cos, sin, matrix=True)


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


def lightglue_case():
    """The frequencies are the weights of a linear layer, one set for all heads; ids are key points."""
    heads, pairs, points = 2, 8, 12
    encoder = lightglue.LightGluePositionalEncoder(configuration_lightglue.LightGlueConfig(
        descriptor_dim=heads * 2 * pairs, num_attention_heads=heads))  # fmt: skip
    positions = 2 * torch.rand(points, 2) - 1  # as normalize_keypoints of the model leaves them
    (embeddings,) = encoder(positions[None])
    cos, sin = (t[0, :, None, ::2] for t in embeddings)
    x = torch.randn(1, 1, points, 2 * pairs)
    turned, _ = lightglue.apply_rotary_pos_emb(x, x, *embeddings)
    return case("lightglue", "transformers LightGluePositionalEncoder", "interleaved", positions,
                encoder.projector.weight.T[:, None], cos, sin, turned[0].swapaxes(0, 1), x[0].swapaxes(0, 1),
                matrix=True)  # fmt: skip


def golden_gate_case():
    """Directions of a quasi-random sequence through all heads' pairs, each times a frequency; here with 3 axes.
    The class returns turned heads alone: those of (1, 0) are cos and sin."""
    heads, pairs, tokens = 3, 8, 12
    rope = vit_nd_rotary.GoldenGateRoPENd(3, heads, 2 * pairs, 0.2, 20.0, 0.25)
    positions = 2 * torch.rand(tokens, 3) - 1
    unit = torch.zeros(1, heads, tokens, 2 * pairs)
    unit[..., :pairs] = 1
    cos, sin = (t.swapaxes(0, 1) for t in rope(unit, positions[None])[0].chunk(2, -1))
    x = torch.randn(1, heads, tokens, 2 * pairs)
    return case("golden_gate", "vit-pytorch GoldenGateRoPENd", "halves", positions, rope.freqs.movedim(-1, 0), cos,
                sin, rope(x, positions[None])[0].swapaxes(0, 1), x[0].swapaxes(0, 1))  # fmt: skip


def lmdeploy(name):
    """A module of lmdeploy, without what its packages import."""
    root, package = importlib.metadata.distribution("lmdeploy").locate_file(""), "lmdeploy"
    for part in ("pytorch", "backends", "default", name):
        stub = sys.modules.setdefault(package, types.ModuleType(package))
        stub.__path__ = [str(root.joinpath(*package.split(".")))]
        package += "." + part
    return importlib.import_module(package)


def fope_case():
    """Rows of each head of k; adjacent heads of q share them. The frequencies that turn less than once within the
    longest sequence are dropped, and their pairs have cos and sin 1."""
    heads, groups, pairs, tokens = 2, 2, 8, 6
    fope = lmdeploy("rotary_embedding")
    inv_freq = 1e4 ** (-torch.arange(pairs) / pairs)
    rope = fope.FopeRotaryEmbeddingImpl(2 * pairs, 4096, params=fope.FopeParameters(
        num_key_value_heads=heads, fope_sep_head=True, inv_freq=inv_freq))  # fmt: skip
    kept = len(rope.inv_freq)
    assert 0 < kept < pairs
    coefficients = torch.eye(kept) + 0.3 * torch.randn(2, heads, kept, kept)  # learned
    positions = torch.tensor([[0, 1, 2, 17, 1021, 4095]])
    cos, sin = (t[0] for t in rope(torch.empty(1, tokens, 1), positions, *coefficients))
    q, k = torch.randn(tokens, groups * heads, 2 * pairs), torch.randn(tokens, heads, 2 * pairs)
    # As lmdeploy's ApplyRotaryEmb: a row for each token and head of k, and the heads of q that go with it.
    by_row = [x.view(tokens * heads, -1, 2 * pairs) for x in (q, k)]
    apply = lmdeploy("apply_rotary_emb").DefaultApplyRotaryEmbImpl()
    turned_q, turned_k = apply.forward(*by_row, cos.flatten(0, 1), sin.flatten(0, 1), inplace=False)
    tensors = {"cos": cos[..., :pairs], "sin": sin[..., :pairs], "q": q, "k": k,
               "turned_q": turned_q.view(q.shape), "turned_k": turned_k.view(k.shape)}  # fmt: skip
    return {"name": "fope", "source": "lmdeploy FopeRotaryEmbeddingImpl", "pairing": "halves", **arrays(tensors)}


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    where = pathlib.Path(__file__).parent.parent / "data" / "angles.json"
    file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else where
    packages = ("torch", "diffusers", "timm", "transformers", "vit-pytorch", "lmdeploy")
    versions = {"torch": torch.__version__, **{name: importlib.metadata.version(name) for name in packages[1:]}}
    cases = [mochi_case(), ltx_case(), ltx2_case(), timm_case(), lightglue_case(), golden_gate_case()]
    rows = [fope_case()]
    text = json.dumps({"format": 1, "versions": versions, "cases": cases, "rows": rows}, indent=1)
    file.write_text(text + "\n")
    print(f"{len(cases)} cases, {len(rows)} of rows: {file}")


if __name__ == "__main__":
    main()
