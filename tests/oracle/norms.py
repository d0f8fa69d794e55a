#!/usr/bin/env python3
"""Writes ../data/norms.json: what transformers' own norms of q, and its apply functions beside them, compute.

Runs the norm class and apply_rotary_pos_emb of each model on heads [tokens, heads, head_dim] in bf16, f16 and f32, in
the order of the model's attention, with weights, cos and sin of that dtype (cos and sin in f32 where the model keeps
them so), and records what goes in and what comes out.

`exact` inputs are small whole numbers whose sums are exact in f32 in any order: the norm then has one result, and a
model that rounds each step has one, too. The others are normally distributed, and a sum depends on its order.

    "$(tests/oracle/setup)" tests/oracle/norms.py [FILE]
"""

import base64
import importlib
import json
import pathlib
import sys

import torch
import transformers

HEADS, TOKENS, DIM = 2, 3, 128
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# model, norm class, its size, kind, span, order and rounding of the norm, of the context; pairing;
# whether cos and sin stay f32
MODELS = [
    ("qwen3", "Qwen3RMSNorm", DIM, "RMS", "HEAD", "BEFORE", "EAGER", "EAGER", "HALVES", False),
    ("gemma3", "Gemma3RMSNorm", DIM, "RMS_ONE_PLUS", "HEAD", "BEFORE", "ROUNDED", "EAGER", "HALVES", False),
    ("olmo2", "Olmo2RMSNorm", HEADS * DIM, "RMS", "ALL_HEADS", "BEFORE", "ROUNDED", "FLOAT32", "HALVES", True),
    ("cohere", "CohereLayerNorm", (HEADS, DIM), "LAYER", "HEAD", "BEFORE", "ROUNDED", "COS_SIN", "INTERLEAVED", False),
    ("hunyuan_v1_dense", "HunYuanDenseV1RMSNorm", DIM, "RMS", "HEAD", "AFTER", "EAGER", "EAGER", "HALVES", False),
]  # fmt: skip


def array(tensor):
    tensor = tensor.detach().contiguous()
    name = {dtype: name for name, dtype in DTYPES.items()}[tensor.dtype]
    bits = tensor.view(torch.int32 if name == "f32" else torch.int16).numpy()
    data = base64.b64encode(bits.astype("<i4" if name == "f32" else "<i2").tobytes()).decode()
    return {"dtype": name, "shape": list(tensor.shape), "data": data}


def inputs(exact):
    if not exact:
        return torch.randn(TOKENS, HEADS, DIM) * torch.tensor([0.05, 1, 30]).view(-1, 1, 1)
    # Each number once more with the other sign: the mean is 0.
    half = torch.randint(-8, 9, (TOKENS, HEADS, DIM // 2)).float()
    half[..., 0] = 1  # no head of zeros
    return torch.cat([half, -half], dim=-1)


def run(model, norm_class, size, order, pairing, f32_rows, dtype, x):
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    norm = getattr(module, norm_class)(size, eps=1e-6)
    weight = torch.rand(size) * 2 - 0.5
    norm.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
    angles = torch.arange(TOKENS)[:, None] * 10000 ** (-torch.arange(DIM // 2) / (DIM // 2))
    angles = angles.repeat_interleave(2, -1) if pairing == "INTERLEAVED" else torch.cat([angles, angles], -1)
    cos, sin = (rows.to(torch.float32 if f32_rows else dtype) for rows in (angles.cos(), angles.sin()))

    def normed(heads):  # [tokens, heads, dim]
        return norm(heads.flatten(-2)).view_as(heads) if size == HEADS * DIM else norm(heads)

    def turned(heads):
        return module.apply_rotary_pos_emb(heads[None], heads[None], cos[None], sin[None], unsqueeze_dim=2)[0][0]

    y = turned(normed(x)) if order == "BEFORE" else normed(turned(x))
    assert y.dtype == dtype and y.shape == x.shape
    return {"x": array(x), "weight": array(norm.weight), "cos": array(cos), "sin": array(sin), "y": array(y)}


def main():
    torch.manual_seed(20261124)
    torch.set_num_threads(1)
    cases = []
    for model, norm_class, size, kind, span, order, rounding, context, pairing, f32_rows in MODELS:
        for dtype_name, dtype in DTYPES.items():
            for exact in (True, False):
                arrays = run(model, norm_class, size, order, pairing, f32_rows, dtype, inputs(exact).to(dtype))
                cases.append(
                    {"name": f"{model} {dtype_name}{' exact' if exact else ''}", "class": norm_class, "kind": kind,
                     "span": span, "order": order, "norm_rounding": rounding, "rounding": context,
                     "pairing": pairing, "eps": 1e-6, "exact": exact, **arrays}
                )  # fmt: skip
    here = pathlib.Path(__file__).resolve().parent
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "data" / "norms.json"
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    path.write_text(json.dumps({"versions": versions, "cases": cases}, indent=1) + "\n")
    print(f"{len(cases)} cases in {path}")


if __name__ == "__main__":
    main()
