"""Runs the transformers of diffusers and writes what their attention gets to tests/data/diffusion.json.

    pip install torch==2.15.0 diffusers==0.42.1 transformers==5.23.0
    python tests/oracle/diffusion.py [--out FILE] [--only TEXT]

A transformer is made with one head and few blocks, from the configuration of the case, which keeps the
class's defaults wherever it says nothing. Its ids, or the sizes of its latents, are those of its pipeline
(diffusion_cases.py, diffusion_ltx.py). The norms of q and k are replaced: they give one and the same vector for each token.
What arrives at the attention is therefore that vector, rotated by the position of its token, in the order
in which the attention has the tokens. No weight matters. Nothing here re-implements RoPE.

The file has in `defaults`, for each class, two configurations that say the same: `needed`, what the class does
not run without, and `saved`, all arguments with their defaults, as save_pretrained writes them. In `cases`, for each
case:

| key | meaning |
|---|---|
| `name`, `config` | the case; a transformer/config.json, the input of `rope_model_create` |
| `args`, `type` | what `rope_model_latent_ids` gets: grids, text, ..; the kind of layers |
| `tokens`, `axes` | the size of the ids |
| `ids` | the pipeline's own, [axes, tokens]; absent where it hands over sizes and no ids |
| `first` | [tokens, axes, 2] f32: cos and sin of the first pair of each axis, as applied |
| `rows` | the tokens of what follows |
| `cos_sin` | [rows, pairs, 2] f32: cos and sin, as applied; of all heads if each has its own |
| `x`, `f32`, `bf16` | [head_dim] f32, and what became of it in models of both dtypes: [rows, head_dim], or [rows, heads, head_dim]; no f32 where the model rounds all to bf16 |

An array is {"dtype", "shape", "data"}, base64 of little-endian elements (see README.md).
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import pathlib
import platform
import sys
import zlib

import torch

import diffusion_cases
from probe import array

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "diffusion.json"
NORMS = ("norm_q", "norm_k", "norm_added_q", "norm_added_k", "q_norm", "k_norm", "query_norm", "key_norm",
         "q_rms_norm", "k_rms_norm", "q_rms_norm_t", "k_rms_norm_t",
         "img_attn_q_norm", "img_attn_k_norm", "txt_attn_q_norm", "txt_attn_k_norm")

PROJECTIONS = ("to_q", "to_k")


class Captured(Exception):
    """q has been seen."""


class Fixed(torch.nn.Module):
    """Gives the same vector for every token, in place of a norm or of a projection."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, given, *_):
        x = self.x.to(given.dtype)
        return x.expand(*given.shape[:-1], x.numel()).clone()


def modules_of(model, leaves):
    return [name for name, _ in model.named_modules() if name.rsplit(".", 1)[-1] in leaves]


def cast(model, dtype):
    """Rounds what from_pretrained rounds: weights, but for modules that are to stay in f32. No tables."""
    saved, kept = model.state_dict(), set(model._keep_in_fp32_modules or ())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in saved and not kept & set(name.split(".")):
            tensor.data = tensor.data.to(dtype)


def same_where_seen(query, key):
    """Whether keys are the queries; those of padding may be 0."""
    padding = (key == 0).all(-1, keepdim=True)
    return not padding[:, 0].any() and torch.equal(query.where(~padding, torch.zeros_like(query)), key)


def rotated(case, x, dtype):
    """The q of the case's attention, [tokens, head_dim] or, with heads, [tokens, heads, head_dim], if it was x
    everywhere before the rotation."""
    torch.manual_seed(0)
    model = case.make().eval()
    cast(model, dtype)
    found = modules_of(model, NORMS) or modules_of(model, PROJECTIONS)
    if case.heads:  # one norm for all; other attentions may have another width
        x = x.repeat(case.heads)
        found = [name for name in found if model.get_submodule(name).normalized_shape == x.shape]
    assert found, f"{case.name}: nothing makes q and k"
    for name in found:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Fixed(x))
    modules = [m for name, m in sys.modules.items()
               if name.startswith("diffusers.models") and hasattr(m, "dispatch_attention_fn")]
    calls = []

    def dispatch(query, key, *_, **__):
        if case.side in ("query", "key"):
            seen = (query if case.side == "query" else key)[0].detach()
            calls.append(seen if case.heads else seen[:, 0])
            if len(calls) > case.attention:
                raise Captured
            return query
        if query.shape != key.shape or not same_where_seen(query, key):
            return query  # a refiner, or text beside latents
        calls.append((query[0] if case.heads else query[0, :, 0]).detach())
        if len(calls) > case.attention:
            raise Captured
        return query

    def scaled(query, key, *_, **__):
        return dispatch(query.transpose(1, 2), key.transpose(1, 2)).transpose(1, 2)

    def summed(_, key):  # of linear attention: [batch, heads, tokens, head_dim]
        calls.append(key[0, 0].detach())
        raise Captured

    kept = [m.dispatch_attention_fn for m in modules]
    kept_scaled = torch.nn.functional.scaled_dot_product_attention
    kept_linear = torch.matmul, torch.nn.functional.relu
    if case.side == "linear":
        torch.matmul, torch.nn.functional.relu = summed, lambda x: x
    for module in modules:
        module.dispatch_attention_fn = dispatch
    torch.nn.functional.scaled_dot_product_attention = scaled
    try:
        with torch.no_grad():
            case.run(model, dtype)
    except Captured:
        pass
    finally:
        for module, function in zip(modules, kept, strict=True):
            module.dispatch_attention_fn = function
        torch.nn.functional.scaled_dot_product_attention = kept_scaled
        torch.matmul, torch.nn.functional.relu = kept_linear
    assert len(calls) > case.attention, f"{case.name}: q and k turn differently, or not at all"
    return calls[case.attention]


def table_of(case):
    """[tokens, pairs, 2] f32: cos and sin as the module `table` hands them over, in matrices."""
    torch.manual_seed(0)
    model = case.make().eval()
    found = []
    model.get_submodule(case.table).register_forward_hook(lambda _, __, out: found.append(out))
    with torch.no_grad():
        case.run(model, torch.float32)
    matrices = found[0].reshape(-1, sum(case.dims) // 2, 2, 2)
    return matrices[:, :, :, 0].contiguous()


def record(case):
    head_dim = case.head_dim
    pairs = case.pairs(sum(case.dims) or head_dim)
    if case.table:
        cos_sin = table_of(case)
    else:
        first = torch.zeros(head_dim)
        first[pairs[:, 0]] = 1
        turned = rotated(case, first, torch.float32)
        cos_sin = torch.stack([turned[..., pairs[:, 0]], turned[..., pairs[:, 1]]], dim=-1).flatten(1, -2)
    tokens = len(cos_sin)
    rows = sorted({0, 1, tokens // 3, tokens // 2, tokens - 2, tokens - 1})
    x = torch.randn(head_dim, generator=torch.Generator().manual_seed(zlib.crc32(case.name.encode())))
    entry = {"name": case.name, "config": case.config_json(), "args": case.args, "type": case.type,
             "tokens": tokens, "axes": case.axes,
             "first": array(cos_sin[:, case.first_pairs]), "rows": rows, "cos_sin": array(cos_sin[rows]), "x": array(x)}
    if not case.table:
        entry["f32"] = array(rotated(case, x, torch.float32)[rows])
    entry["bf16"] = array(rotated(case, x.to(torch.bfloat16), torch.bfloat16)[rows])
    if case.ids is not None:
        ids = case.ids()
        assert ids.shape == (tokens, case.axes), (case.name, ids.shape, tokens)
        entry["ids"] = array(ids.to(torch.float32).T.contiguous())
    return entry


def main():
    import diffusers
    import transformers

    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # the advice to use from_pretrained, followed in rotated()
    entries = []
    for case in diffusion_cases.cases():
        if options.only in case.name:
            print(case.name, file=sys.stderr)
            entries.append(record(case))
    versions = {"diffusers": diffusers.__version__, "torch": torch.__version__,
                "transformers": transformers.__version__, "python": platform.python_version(),
                "cpu": torch.backends.cpu.get_cpu_capability()}
    text = json.dumps({"format": 1, "versions": versions, "date": datetime.date.today().isoformat(),
                       "made_by": "tests/oracle/diffusion.py", "defaults": list(diffusion_cases.defaults()),
                       "cases": entries}, separators=(",", ":"))
    lines = text.replace('{"name"', '\n{"name"').replace('{"needed"', '\n{"needed"')
    options.out.write_text(lines + "\n")


if __name__ == "__main__":
    main()
