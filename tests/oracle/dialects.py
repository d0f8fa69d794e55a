"""Writes ../data/dialects.json: what the programs of other dialects than transformers' compute. See README.md.

    python3 tests/oracle/dialects.py meta mistral megatron     # needs torch, and these packages:
        # pip install --no-deps llama-models==0.3.0 mistral-inference==1.6.0 megatron-core==0.16.1
    python3 tests/oracle/dialects.py maxtext=EMBEDDINGS_PY     # needs jax; MaxText's src/maxtext/layers/embeddings.py

The programs' own functions rotate recorded vectors in f32, on a CPU. Those of llama-models and MaxText stand in
modules that import what is not needed here, so they are taken out of the module by name.
"""

from __future__ import annotations

import ast
import base64
import importlib.metadata
import importlib.util
import json
import math
import pathlib
import sys
import types

import numpy

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "dialects.json"
POSITIONS = [0, 1, 5, 1000]

MISTRAL_7B = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
              "norm_eps": 1e-05, "vocab_size": 32768, "rope_theta": 1000000.0}  # fmt: skip
PIXTRAL_TOWER = {"hidden_size": 1024, "num_channels": 3, "image_size": 1024, "patch_size": 16, "rope_theta": 10000.0,
                 "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_token_id": 10}  # fmt: skip
LLAMA_2_7B = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": -1}
LLAMA_3_8B = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024,
              "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0}  # fmt: skip
LLAMA_4_SCOUT = {"dim": 5120, "n_layers": 48, "n_heads": 40, "n_kv_heads": 8, "vocab_size": 202048,
                 "multiple_of": 2048, "ffn_dim_multiplier": 1.2, "norm_eps": 1e-05, "rope_theta": 500000.0,
                 "use_scaled_rope": True, "attention_chunk_size": 8192, "nope_layer_interval": 4,
                 "moe_args": {"num_experts": 16}}  # fmt: skip
# Of Megatron's arguments those that its defaults and Llama's training scripts have, as far as they bear on RoPE.
MEGATRON = {"tensor_model_parallel_size": 1, "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "kv_channels": 128, "position_embedding_type": "rope", "use_rotary_position_embeddings": False,
            "rotary_base": 10000, "rotary_percent": 1.0, "rotary_interleaved": False,
            "rotary_seq_len_interpolation_factor": None, "use_rope_scaling": False, "rope_scaling_factor": 8.0,
            "multi_latent_attention": False, "no_rope_freq": None, "mrope_section": None, "apply_rope_fusion": True,
            "fused_single_qkv_rope": False, "rope_type": None, "rotary_scaling_factor": 1.0, "mscale": 1.0,
            "mscale_all_dim": 0.0}  # fmt: skip
MEGATRON_LATENT = {**MEGATRON, "multi_latent_attention": True, "rope_type": "yarn", "qk_head_dim": 128,
                   "qk_pos_emb_head_dim": 64, "rotary_scaling_factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5,
                   "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
YARN = {"rope_type": "yarn", "max_position_embeddings": 163840, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1}  # fmt: skip

CASES = {
    "mistral": [
        {"name": "Mistral 7B v0.3", "config": MISTRAL_7B},
        {"name": "Pixtral 12B", "config": {**MISTRAL_7B, "rope_theta": 1e9, "vision_encoder": PIXTRAL_TOWER}},
        {"name": "Pixtral 12B", "kind": "vision", "axes": 2,
         "config": {**MISTRAL_7B, "rope_theta": 1e9, "vision_encoder": PIXTRAL_TOWER}},
    ],
    "meta": [
        {"name": "Llama 2 7B", "config": LLAMA_2_7B},
        {"name": "Llama 3 8B", "config": LLAMA_3_8B},
        {"name": "Llama 3.1 8B", "config": {**LLAMA_3_8B, "use_scaled_rope": True}},
        {"name": "Llama 4 Scout", "config": LLAMA_4_SCOUT},
    ],
    "megatron": [
        {"name": "defaults", "config": MEGATRON},
        {"name": "half of the head", "config": {**MEGATRON, "rotary_percent": 0.5, "rotary_base": 500000}},
        {"name": "neighbours", "config": {**MEGATRON, "rotary_interleaved": True}},
        {"name": "interpolation", "config": {**MEGATRON, "rotary_seq_len_interpolation_factor": 4}},
        {"name": "Llama 3.1", "config": {**MEGATRON, "rotary_base": 500000, "use_rope_scaling": True}},
        {"name": "latent, YaRN", "config": MEGATRON_LATENT},
        {"name": "latent", "config": {**MEGATRON_LATENT, "rope_type": "rope", "mscale_all_dim": 0.0}},
    ],
    "maxtext": [
        {"name": "Llama 3 8B", "config": {"model_name": "llama3-8b", "base_emb_dim": 4096, "base_num_decoder_layers": 32,
                                          "head_dim": 128, "rope_max_timescale": 500000, "decoder_block": "llama2"}},
        {"name": "Llama 3.1 8B", "config": {"model_name": "llama3.1-8b", "base_emb_dim": 4096, "head_dim": 128,
                                            "base_num_decoder_layers": 32, "rope_max_timescale": 500000}},
        {"name": "Gemma 3 4B", "config": {"model_name": "gemma3-4b", "decoder_block": "gemma3", "head_dim": 256,
                                          "base_num_decoder_layers": 34, "local_rope_max_timescale": 10000,
                                          "rope_max_timescale": 1000000, "rope_linear_scaling_factor": 8.0}},
        {"name": "DeepSeek V3", "config": {**YARN, "model_name": "deepseek3-671b", "attention_type": "mla",
                                           "base_num_decoder_layers": 61, "qk_nope_head_dim": 128,
                                           "qk_rope_head_dim": 64, "mscale": 1.0, "rope_max_timescale": 10000,
                                           "rope_factor": 40, "rope_interleave": True, "rope_truncate": True,
                                           "rope_attention_scaling": False}},
        {"name": "gpt-oss 20B", "config": {**YARN, "model_name": "gpt-oss-20b", "head_dim": 64,
                                           "base_num_decoder_layers": 24, "rope_max_timescale": 150000,
                                           "max_position_embeddings": 131072, "rope_factor": 32,
                                           "rope_interleave": False, "rope_truncate": False,
                                           "rope_attention_scaling": True}},
    ],
}  # fmt: skip


def taken(path, names, given):
    """Definitions of a module, with `given` for what it imports."""
    tree = ast.parse(pathlib.Path(path).read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    space = types.SimpleNamespace(**given)
    exec(compile(tree, str(path), "exec"), vars(space))  # noqa: S102
    return space


def file_of(package, *parts):
    return pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0], *parts)


def vectors(head_dim):
    """A vector for each position: halves of whole numbers, which every dtype has."""
    t, c = numpy.mgrid[: len(POSITIONS), :head_dim]
    return (((t * 31 + c * 7) % 17 - 8) / 2).astype(numpy.float32)


def head_dim_of(config):
    if config.get("multi_latent_attention"):
        return config["qk_head_dim"] + config["qk_pos_emb_head_dim"]
    if config.get("attention_type") == "mla":
        return config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    if "head_dim" in config:
        return config["head_dim"]
    return config.get("kv_channels") or config["dim"] // config["n_heads"]


def complex_of(code, freqs_cis, x):
    import torch

    q = torch.from_numpy(x)[None, :, None, :]
    return code.apply_rotary_emb(q, q, freqs_cis[POSITIONS])[0][0, :, 0].numpy()


def mistral(case):
    import torch
    from mistral_inference import rope

    config, end = case["config"], max(POSITIONS) + 1
    if case.get("kind") == "vision":
        tower = config["vision_encoder"]
        head_dim = tower["hidden_size"] // tower["num_attention_heads"]
        grid = rope.precompute_freqs_cis_2d(head_dim, 8, 1024, tower["rope_theta"])
        x = vectors(head_dim)
        q = torch.from_numpy(x)[:, None, :]
        case["ids"] = [[p % 7, p] for p in POSITIONS]
        rows = torch.stack([grid[h, w] for h, w in case["ids"]])
        return x, rope.apply_rotary_emb(q, q, rows)[0][:, 0].numpy()
    x = vectors(config["head_dim"])
    q = torch.from_numpy(x)[:, None, :]
    rows = rope.precompute_freqs_cis(config["head_dim"], end, config["rope_theta"])[POSITIONS]
    return x, rope.apply_rotary_emb(q, q, rows)[0][:, 0].numpy()


def meta(case):
    import torch
    from typing import Tuple

    config, end = case["config"], max(POSITIONS) + 1
    names = {"apply_scaling", "precompute_freqs_cis", "reshape_for_broadcast", "apply_rotary_emb"}
    version = "llama4" if "moe_args" in config else "llama3"
    code = taken(file_of("llama_models", version, "model.py"), names, {"torch": torch, "math": math, "Tuple": Tuple})
    x = vectors(head_dim_of(config))
    numbers = (16, 1) if version == "llama4" else ()  # those that ModelArgs of Llama 4 falls back to
    theta = config.get("rope_theta", 10000.0)
    scaled = config.get("use_scaled_rope", False)
    return x, complex_of(code, code.precompute_freqs_cis(x.shape[1], end, theta, scaled, *numbers), x)


def megatron(case):
    import torch

    torch.cuda.current_device = lambda: "cpu"  # where tables are put
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding

    c, latent = case["config"], case["config"]["multi_latent_attention"]
    mscale, usual = 1.0, {"use_cpu_initialization": True, "rotary_base": c["rotary_base"]}
    width = c["qk_pos_emb_head_dim"] if latent else c["kv_channels"]
    if latent and c["rope_type"] == "yarn":
        yarn = YarnRotaryEmbedding(
            width, scaling_factor=c["rotary_scaling_factor"], beta_fast=c["beta_fast"], beta_slow=c["beta_slow"],
            original_max_position_embeddings=c["original_max_position_embeddings"],
            mscale=c["mscale"], mscale_all_dim=c["mscale_all_dim"], **usual)  # fmt: skip
        freqs, mscale = yarn.get_emb(max(POSITIONS) + 1)
    else:
        rope = RotaryEmbedding(
            width, c["rotary_percent"], rotary_interleaved=c["rotary_interleaved"],
            seq_len_interpolation_factor=c["rotary_seq_len_interpolation_factor"], rope_scaling=c["use_rope_scaling"],
            rope_scaling_factor=c["rope_scaling_factor"], **usual)  # fmt: skip
        freqs = rope.get_emb(max(POSITIONS) + 1)
    x = vectors(head_dim_of(c))
    still = c["qk_head_dim"] if latent else 0
    t = torch.from_numpy(x)[:, None, None, :]
    turned = rope_utils._apply_rotary_pos_emb_bshd(
        t[..., still:], freqs[POSITIONS], rotary_interleaved=c["rotary_interleaved"],
        multi_latent_attention=latent, mscale=mscale)  # fmt: skip
    return x, torch.cat((t[..., :still], turned), dim=-1)[:, 0, 0].numpy()


def maxtext(case, path):
    import jax
    import jax.numpy as jnp

    class Anything:  # annotations and defaults
        def __getattr__(self, name):
            return self

    names = {"RotaryEmbedding", "LLaMARotaryEmbedding", "YarnRotaryEmbedding"}
    nnx = types.SimpleNamespace(Module=object, Rngs=object)
    given = {name: Anything() for name in ("Mesh", "DType", "Array")}
    given["ShardMode"] = types.SimpleNamespace(AUTO="auto", EXPLICIT="explicit")
    code = taken(path, names, {**given, "nnx": nnx, "jax": jax, "jnp": jnp, "math": math})
    c = case["config"]
    latent = c.get("attention_type") == "mla"
    width = c["qk_rope_head_dim"] if latent else c["head_dim"]
    usual = {"embedding_dims": width, "mesh": None, "fprop_dtype": jnp.float32}
    most = c["rope_max_timescale"]
    if c["model_name"].startswith("llama3.1"):
        rope = code.LLaMARotaryEmbedding(1, most, use_scale=c.get("rope_use_scale", True), **usual)
    elif c.get("rope_type") == "yarn":
        rope = code.YarnRotaryEmbedding(
            max_position_embeddings=max(POSITIONS) + 1, rope_theta=most, rope_factor=c["rope_factor"],
            original_max_position_embeddings=c["original_max_position_embeddings"], beta_fast=c["beta_fast"],
            beta_slow=c["beta_slow"], interleave=c["rope_interleave"], truncate=c["rope_truncate"],
            attention_scaling=c["rope_attention_scaling"], **usual)  # fmt: skip
    else:
        local = case.get("kind") == "sliding_attention"
        most = c["local_rope_max_timescale"] if local else most
        factor = 1.0 if local else c.get("rope_linear_scaling_factor", 1.0)
        rope = code.RotaryEmbedding(1, most, rope_linear_scaling_factor=factor, **usual)
    x = vectors(head_dim_of(c))
    still = x.shape[1] - width
    turned = [rope(jnp.asarray(x[None, t : t + 1, None, still:]), jnp.array([[p]])) for t, p in enumerate(POSITIONS)]
    return x, numpy.concatenate([x[:, :still], numpy.concatenate(turned, 1)[0, :, 0]], -1)


PROGRAMS = {"meta": (meta, "llama-models"), "mistral": (mistral, "mistral-inference"),
            "megatron": (megatron, "megatron-core"), "maxtext": (maxtext, None)}  # fmt: skip


def array(values):
    values = numpy.ascontiguousarray(values, numpy.float32)
    return {"dtype": "f32", "shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}


def main():
    result = json.loads(DATA.read_text()) if DATA.exists() else {"versions": {}, "dialects": {}}
    result["description"] = "vectors that programs with configurations of their own rotate; see tests/data/README.md"
    result["positions"] = POSITIONS
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        function, package = PROGRAMS[name]
        cases = CASES[name]
        if name == "maxtext":
            cases = cases + [{**case, "kind": "sliding_attention"} for case in cases if "Gemma" in case["name"]]
        found = []
        for case in cases:
            case = dict(case)
            x, y = function(case, path) if path else function(case)
            found.append({**case, "before": array(x), "after": array(y)})
        result["dialects"][name] = found
        result["versions"][name] = (f"{package} {importlib.metadata.version(package)}, torch"
                                    if package else "src/maxtext/layers/embeddings.py at e591f30cbbf2, jax 0.10.2")  # fmt: skip
    result["dialects"] = dict(sorted(result["dialects"].items()))
    DATA.write_text(json.dumps(result, indent=1) + "\n")


main()
