"""Measures what a model's rotary code does, without knowing how it does it.

Rotating the unit vectors shows the linear map of every position exactly (1 * cos and 0 * sin do not
round), and from that map follow the pairs of channels, the cosines and sines that were really used,
and, by comparing products computed here with the model's 16-bit outputs, where it rounds.
"""

from __future__ import annotations

import base64

import numpy as np
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def array(tensor):
    """A tensor as {"dtype", "shape", "data"}: base64 of its little-endian elements."""
    tensor = tensor.detach().contiguous()
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64"}
    raw = tensor.view(torch.int16) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    data = base64.b64encode(raw.numpy().astype(raw.numpy().dtype.newbyteorder("<")).tobytes()).decode()
    return {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data": data}


def linear_map(rope, module, dtype, positions):
    """[tokens, in channel, out channel]: entry (i, j) is what channel j gets from a 1 in channel i."""
    unit = torch.eye(rope.head_dim, dtype=dtype).expand(len(positions), -1, -1)
    return rope.rotate(unit, unit, rope.embed(module, dtype, positions))[0]


def pair_channels(kind, rope, span):
    """Channels (in0, in1, out0, out1) of every pair, in pair order."""
    i = torch.arange(span // 2)
    if kind == "halves_per_axis":
        block = span // rope.axes
        first = i // (block // 2) * block + i % (block // 2)
        pairs = (first, first + block // 2) * 2
    else:
        halves, interleaved = (i, i + span // 2), (2 * i, 2 * i + 1)
        pairs = {"halves": halves * 2, "interleaved": interleaved * 2,
                 "interleaved_to_halves": interleaved + halves}[kind]
    return [channel + rope.rotary_offset for channel in pairs]


def coefficients(maps, channels):
    """cos and sin of both outputs of each pair: y0 = cos x0 - sin x1, y1 = cos2 x1 + sin2 x0."""
    in0, in1, out0, out1 = channels
    return maps[:, in0, out0], 0 - maps[:, in1, out0], maps[:, in1, out1], maps[:, in0, out1]


def find_pairing(rope, maps, span):
    """The pairing whose map, built from its coefficients, is the measured one exactly."""
    outside = torch.ones(rope.head_dim, dtype=bool)
    outside[rope.rotary_offset:rope.rotary_offset + span] = False
    kinds = ["halves", "interleaved", "interleaved_to_halves"] + ["halves_per_axis"] * (rope.axes > 1)
    for kind in kinds:
        channels = in0, in1, out0, out1 = pair_channels(kind, rope, span)
        cos, sin, cos2, sin2 = coefficients(maps, channels)
        built = torch.diag(outside.to(maps.dtype)).expand_as(maps).clone()
        built[:, in0, out0], built[:, in1, out0] = cos, -sin
        built[:, in1, out1], built[:, in0, out1] = cos2, sin2
        if torch.equal(built, maps):
            return kind, channels
    raise ValueError("the linear map is not made of pairs")


def match_frequencies(frequencies, axes, cos, sin, positions, scale, tolerance):
    """The (frequency, axis) of every pair: the candidate whose cosines and sines are nearest at all
    positions. Of equals, the frequency in the pair's own place wins, then the first axis."""
    angle = torch.stack([positions[:, a].float()[:, None] * frequencies[None] for a in range(axes)], dim=1)
    angle = torch.cat([angle, -angle], dim=1).double().numpy()  # [tokens, sign * axes, candidates]
    cos, sin = cos.double().numpy() / scale, sin.double().numpy() / scale
    inv_freq, axis = [], []
    for pair in range(cos.shape[1]):
        error = np.abs(np.cos(angle) - cos[:, pair, None, None]).max(0)
        error = np.maximum(error, np.abs(np.sin(angle) - sin[:, pair, None, None]).max(0))
        if error.min() > tolerance:
            raise ValueError(f"no frequency fits pair {pair}: best error {error.min():.3g}")
        fits = np.argwhere(error <= error.min() + 2.0**-40)
        slot, candidate = min(fits, key=lambda fit: (fit[1] != pair, fit[0]))
        inv_freq.append(-frequencies[candidate] if slot >= axes else frequencies[candidate])
        axis.append(int(slot % axes))
    return torch.stack(inv_freq), axis


def find_rounding(dtype, x, y, channels, rows16, rows32):
    """Which of librope's rounding policies gives the model's 16-bit output bit for bit."""
    in0, in1, out0, out1 = channels
    x0, x1 = x[..., in0], x[..., in1]

    def turn(rows, math):
        cos, sin, cos2, sin2 = (r[:, None].to(math) for r in rows)
        a, b = x0.to(math), x1.to(math)
        return (a * cos - b * sin).to(dtype), (b * cos2 + a * sin2).to(dtype)

    for name, rows, math in (("eager", rows16, dtype), ("cos_sin", rows16, torch.float32),
                             ("float32", rows32, torch.float32)):
        y0, y1 = turn(rows, math)
        if torch.equal(y0, y[..., out0]) and torch.equal(y1, y[..., out1]):
            return name
    return None


def inputs(seed, tokens, heads, head_dim):
    """Random values that bf16, f16 and f32 all represent exactly, so that one copy serves all."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, heads, head_dim, generator=generator).bfloat16()
    return torch.where(x.abs() < 2.0**-10, torch.zeros_like(x), x)
