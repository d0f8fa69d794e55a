"""Which configs the oracle runs: the real models of ../data/models.json, hand-written ones for what
these do not cover, and the defaults of every config class of transformers that has a RoPE.

A case is {"name", "origin", "config"}; "overrides" are values that transformers needs and the config
lacks (path: value), "run_as" is the transformers model that stands for remote code.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import families

DATA = Path(__file__).resolve().parent.parent / "data"

# Remote code that transformers does not have, and the class whose RoPE is the same by its source.
RUN_AS = {
    "iquestcoder": "llama",
    "internlm": "llama", "internlm2": "llama", "baichuan": "llama", "orion": "llama", "minicpm": "llama",
    "deepseek": "llama", "nemotron-nas": "llama", "kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text",
}

OVERRIDES = {
    # transformers takes the pattern as a number where layer_types is absent, as it is in this source
    "LGAI-EXAONE/EXAONE-4.5-33B": {"text_config.sliding_window_pattern": 4},
    # since 5.17 the validation wants the key, which the alpha form does not use
    "tencent/HunyuanOCR (HunYuan-VL text)": {"rope_parameters.factor": 1.0},
}


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def fixtures():
    """The real models; entries whose source lacks rope fields are left out, with the reason."""
    cases, skipped = [], []
    for entry in json.loads((DATA / "models.json").read_text()):
        note = entry.get("note", "")
        origin = {k: entry[k] for k in ("id", "source", "tier", "note") if k in entry} | {"kind": "fixture"}
        if "TRIMMED" in note or "no rope fields" in note or "no top-level rope fields" in note:
            skipped.append({"name": entry["id"], "reason": f"not a full config: {note}"})
            continue
        cases.append({"name": slug(entry["id"]), "origin": origin, "config": entry["config"],
                      "overrides": OVERRIDES.get(entry["id"], {})})
    return cases, skipped


LLAMA = {"model_type": "llama", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2,
         "max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
FACTORS = {"short_factor": [1.0 + i / 64 for i in range(32)], "long_factor": [1.0 + i for i in range(32)]}


def scaling(name, why, **fields):
    """A Llama of head_dim 64 with other rope fields."""
    return name, why, {**LLAMA, **fields}


def hand_scalings():
    """Every rope type and every rule of the parser, on small configs."""
    two = {"model_type": "gemma3_text", "hidden_size": 1024, "num_attention_heads": 4, "head_dim": 64,
           "num_hidden_layers": 6, "max_position_embeddings": 32768}
    nested = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    phi = {"model_type": "phi3", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2,
           "max_position_embeddings": 16384, "original_max_position_embeddings": 4096, "pad_token_id": 0}
    return [
        scaling("default-theta", "theta at the top level", rope_theta=500000.0),
        scaling("default-v5", "rope_parameters of v5", rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        scaling("default-both-thetas", "theta inside the dict wins over the top level", rope_theta=10000.0,
                rope_scaling={"rope_type": "default", "rope_theta": 250000.0}),
        scaling("default-both-dicts", "rope_scaling wins over rope_parameters",
                rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                rope_scaling={"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0}),
        scaling("default-partial-ignored", "Llama's default ignores partial_rotary_factor",
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        scaling("partial-both", "partial_rotary_factor in the dict and at the top level", model_type="glm4_moe",
                head_dim=64, partial_rotary_factor=0.25,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        scaling("head-dim-null", "head_dim null", head_dim=None, rope_theta=10000.0),
        scaling("linear", "legacy 'type'", rope_scaling={"type": "linear", "factor": 4.0}),
        scaling("linear-third", "a factor that is no power of two",
                rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}),
        scaling("dynamic", "NTK growth", rope_scaling={"type": "dynamic", "factor": 2.0}),
        scaling("dynamic-theta", "NTK growth", rope_theta=1e6, max_position_embeddings=32768,
                rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
        scaling("yarn", "plain", rope_scaling=YARN),
        scaling("yarn-type-and-rope-type", "both spellings", rope_scaling={**YARN, "type": "yarn"}),
        scaling("yarn-no-original", "original length falls back to max_position_embeddings",
                rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        scaling("yarn-no-truncate", "truncate false", rope_scaling={**YARN, "truncate": False}),
        scaling("yarn-attention-factor", "given attention factor", rope_scaling={**YARN, "attention_factor": 0.75}),
        scaling("yarn-betas", "other betas", rope_scaling={**YARN, "beta_fast": 16, "beta_slow": 2}),
        scaling("yarn-betas-zero", "0 counts as unset", rope_scaling={**YARN, "beta_fast": 0, "beta_slow": 0}),
        scaling("yarn-betas-equal", "a ramp of no width", rope_scaling={**YARN, "beta_fast": 1.0, "beta_slow": 1.0}),
        scaling("yarn-mscale", "both mscales", rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}),
        scaling("yarn-mscale-zero", "mscale_all_dim 0 is falsy",
                rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0.0}),
        scaling("yarn-factor-below-one", "no mscale below 1", rope_scaling={**YARN, "factor": 0.5}),
        scaling("yarn-huge-theta", "theta 1e8", rope_theta=1e8, rope_scaling={**YARN, "factor": 48.0}),
        scaling("longrope", "factor from the lengths", max_position_embeddings=32768,
                rope_scaling={"rope_type": "longrope", "original_max_position_embeddings": 4096, **FACTORS}),
        scaling("longrope-factor", "given factor", max_position_embeddings=32768, rope_scaling={
            "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 4096, **FACTORS}),
        scaling("longrope-attention-factor", "given attention factor", max_position_embeddings=32768, rope_scaling={
            "rope_type": "longrope", "attention_factor": 1.25, "original_max_position_embeddings": 4096, **FACTORS}),
        ("phi3-su", "'su' is longrope; the top-level original length wins", {**phi, "rope_scaling": {
            "type": "su", **FACTORS}}),
        ("phi3-yarn", "Phi-3's 'yarn' is longrope", {**phi, "rope_scaling": {"type": "yarn", **FACTORS}}),
        ("phi3-partial", "longrope of a partial rotary width", {**phi, "partial_rotary_factor": 0.5, "rope_scaling": {
            "type": "longrope", "short_factor": FACTORS["short_factor"][:16],
            "long_factor": FACTORS["long_factor"][:16]}}),
        ("phimoe-mscale", "always the short factors; long_mscale beyond the original length", {
            "model_type": "phimoe", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2,
            "max_position_embeddings": 131072, "rope_scaling": {
                "type": "longrope", "short_mscale": 1.243163121016122, "long_mscale": 1.3,
                "original_max_position_embeddings": 4096, **FACTORS}}),
        ("phimoe-mscale-equal", "always the short factors, with one mscale as in the released file", {
            "model_type": "phimoe", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2,
            "max_position_embeddings": 131072, "rope_scaling": {
                "type": "longrope", "short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 4096, **FACTORS}}),
        ("granite", "dense Granite, whose class is that of a part of others", {
            "model_type": "granite", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
            "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 10000000.0}),
        scaling("llama3", "plain", rope_theta=500000.0, max_position_embeddings=131072, rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}),
        scaling("llama3-low-equals-high", "the division by zero must not leak", rope_theta=500000.0, rope_scaling={
            "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192}),
        scaling("proportional-linear", "proportional with a factor", rope_parameters={
            "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "factor": 2.0}),
        *[scaling(f"{kind}-partial", "scaled types honour partial_rotary_factor, Llama does not apply it", head_dim=64,
                  model_type="glm4_moe", partial_rotary_factor=0.5, rope_scaling=dict(fields, rope_type=kind))
          for kind, fields in [("linear", {"factor": 2.0}), ("yarn", YARN), ("dynamic", {"factor": 2.0}),
                               ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                           "original_max_position_embeddings": 4096})]],
        ("gemma3-legacy", "rope_local_base_freq; rope_scaling on the full layers only", {
            **two, "rope_theta": 1e6, "rope_local_base_freq": 20000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("gemma3-yarn-nested", "truncate of a nested dict is ignored", {**two, "rope_parameters": {
            **nested, "full_attention": {**YARN, "rope_theta": 1e6, "truncate": False}}}),
        ("gemma3-dynamic-nested", "dynamic of a nested dict", {**two, "rope_parameters": {
            **nested, "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}}}),
        ("gemma3-longrope-nested", "longrope of a nested dict", {**two, "rope_parameters": {
            **nested, "full_attention": {"rope_type": "longrope", "rope_theta": 1e6, "factor": 8.0,
                                         "original_max_position_embeddings": 4096, **FACTORS}}}),
        ("olmo3-theta", "rope_theta reaches the full layers only; sliding ones keep the class default", {
            "model_type": "olmo3", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 4,
            "max_position_embeddings": 8192, "rope_theta": 10000.0}),
        ("modernbert-thetas", "two thetas at the top level", {
            "model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6,
            "max_position_embeddings": 8192, "global_rope_theta": 160000.0, "local_rope_theta": 20000.0}),
        ("gpt-neox-pythia", "rotary_pct and rotary_emb_base", {
            "model_type": "gpt_neox", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6,
            "max_position_embeddings": 2048, "rotary_pct": 0.25, "rotary_emb_base": 20000}),
        ("granite-swa-thetas", "a theta per layer, 0 is NoPE", {
            "model_type": "granite_swa", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 4,
            "max_position_embeddings": 8192, "rope_theta": 10000.0,
            "layer_rope_theta": [10000.0, 500000.0, 0, 10000.0]}),
        ("deepseek-v3-halves", "rope_interleave false", {
            "model_type": "deepseek_v3", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 2,
            "qk_rope_head_dim": 64, "rope_interleave": False, "rope_theta": 10000.0}),
        ("granitemoehybrid-rope", "position_embedding_type rope", {
            "model_type": "granitemoehybrid", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 4,
            "position_embedding_type": "rope", "layer_types": ["mamba", "attention", "mamba", "attention"]}),
        ("zamba2-rope", "use_mem_rope", {"model_type": "zamba2", "use_mem_rope": True}),
        ("mimo-v2-flash-thetas", "raw config: swa_rope_theta and another partial factor", {
            "model_type": "mimo_v2_flash", "hidden_size": 1024, "num_attention_heads": 8, "head_dim": 192,
            "num_hidden_layers": 6, "rope_theta": 1e6, "swa_rope_theta": 20000.0, "partial_rotary_factor": 0.25}),
    ]


def hand_models():
    """Real models whose fields the survey of variants quotes and models.json does not hold."""
    text = {"head_dim": 128, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
            "num_hidden_layers": 8, "rope_theta": 500000.0}
    qwen = {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
            "num_hidden_layers": 28, "max_position_embeddings": 32768, "rope_theta": 1000000.0}
    llama3 = {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}
    mla = {"hidden_size": 2048, "num_attention_heads": 16, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
           "v_head_dim": 128, "max_position_embeddings": 163840}
    vision = {"hidden_size": 1152, "num_heads": 16, "depth": 27, "patch_size": 16, "spatial_merge_size": 2}
    return [
        ("llava-1-5-7b", "llava-hf/llava-1.5-7b-hf", {
            "model_type": "llava", "text_config": {"model_type": "llama", "max_position_embeddings": 4096}}),
        ("llava-v1-6-34b", "llava-hf/llava-v1.6-34b-hf", {"model_type": "llava_next", "text_config": {
            "model_type": "llama", "hidden_size": 7168, "num_attention_heads": 56, "num_hidden_layers": 60,
            "num_key_value_heads": 8, "max_position_embeddings": 4096, "rope_theta": 5000000.0}}),
        ("qwen2-audio-7b", "Qwen/Qwen2-Audio-7B-Instruct", {"model_type": "qwen2_audio", "text_config": {
            "model_type": "qwen2", "max_position_embeddings": 8192, "rope_theta": 10000}}),
        ("janus-pro-7b", "deepseek-community/Janus-Pro-7B", {"model_type": "janus", "text_config": {
            "model_type": "llama", "max_position_embeddings": 16384, "num_hidden_layers": 30}}),
        ("iquest-coder", "IQuestLab/IQuest-Coder-V1-40B-Instruct", {
            "model_type": "iquestcoder", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
            "head_dim": 128, "num_hidden_layers": 80, "max_position_embeddings": 131072, "rope_theta": 500000.0}),
        ("ultrabert", "dmis-lab/UltraBERT-150M", {
            "model_type": "ultrabert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6,
            "max_position_embeddings": 32768, "attention_windows": [128, 128, 0, 128, 128, 0],
            "rope_theta": [20000.0, 20000.0, 1280000.0, 20000.0, 20000.0, 1280000.0]}),
        ("ultravbert", "athrael-soju/UltraVBERT", {"model_type": "ultravbert", "text_config": {
            "model_type": "ultrabert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6}}),
        ("llama4-scout", "meta-llama/Llama-4-Scout-17B-16E", {
            "model_type": "llama4", "text_config": {
                **text, "model_type": "llama4_text", "max_position_embeddings": 10485760,
                "rope_scaling": {**llama3, "low_freq_factor": 1.0, "high_freq_factor": 1.0}},
            "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408, "num_attention_heads": 16,
                              "image_size": 56, "patch_size": 14, "rope_theta": 10000}}),
        ("llama4-maverick", "meta-llama/Llama-4-Maverick-17B-128E", {
            "model_type": "llama4", "text_config": {**text, "model_type": "llama4_text",
                                                    "max_position_embeddings": 1048576, "rope_scaling": None},
            "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408, "num_attention_heads": 16,
                              "image_size": 56, "patch_size": 14, "rope_theta": 10000}}),
        ("exaone4-32b", "LGAI-EXAONE/EXAONE-4.0-32B", {
            "model_type": "exaone4", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
            "num_hidden_layers": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
            "rope_theta": 1000000.0, "rope_scaling": {**llama3, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
        ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", {
            "model_type": "deepseek_v2", **mla, "num_hidden_layers": 27, "rope_theta": 10000, "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096, "type": "yarn"}}),
        ("kimi-k2-instruct", "moonshotai/Kimi-K2-Instruct", {
            "model_type": "kimi_k2", **mla, "hidden_size": 7168, "num_attention_heads": 64, "num_hidden_layers": 61,
            "max_position_embeddings": 131072, "rope_theta": 50000.0, "rope_scaling": {
                "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096, "type": "yarn"}}),
        ("olmo-3-1-32b", "allenai/Olmo-3.1-32B-Instruct", {
            "model_type": "olmo3", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
            "num_hidden_layers": 8, "max_position_embeddings": 65536, "rope_theta": 500000, "rope_scaling": {
                "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                "original_max_position_embeddings": 8192, "rope_type": "yarn"}}),
        ("devstral-small-2", "mistralai/Devstral-Small-2-24B-Instruct-2512", {
            "model_type": "ministral3", "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128,
            "num_hidden_layers": 40, "max_position_embeddings": 393216, "rope_parameters": {
                "rope_type": "yarn", "type": "yarn", "rope_theta": 1e8, "factor": 48.0, "beta_fast": 32.0,
                "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 8192}}),
        ("minicpm-2b-128k", "openbmb/MiniCPM-2B-128k", {
            "model_type": "minicpm", "hidden_size": 2304, "num_attention_heads": 36, "num_hidden_layers": 40,
            "max_position_embeddings": 65536, "rope_theta": 1e6, "rope_scaling": {"type": "dynamic", "factor": 4.0}}),
        ("gemma-3-4b-it", "google/gemma-3-4b-it", {
            "model_type": "gemma3", "text_config": {
                "model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4,
                "head_dim": 256, "num_hidden_layers": 34, "max_position_embeddings": 131072, "sliding_window": 1024,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}}),
        ("qwen2-vl-7b", "Qwen/Qwen2-VL-7B-Instruct", {
            **qwen, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "patch_size": 14,
                              "spatial_merge_size": 2, "temporal_patch_size": 2}}),
        ("qwen3-vl-32b", "Qwen/Qwen3-VL-32B-Instruct", {
            "model_type": "qwen3_vl", "text_config": {
                "model_type": "qwen3_vl_text", "head_dim": 128, "hidden_size": 5120, "num_attention_heads": 64,
                "num_key_value_heads": 8, "num_hidden_layers": 64, "max_position_embeddings": 262144,
                "rope_theta": 5000000, "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20],
                                                        "rope_type": "default"}},
            "vision_config": {"model_type": "qwen3_vl", **vision}}),
        ("qwen3-5-27b", "Qwen/Qwen3.5-27B", {
            "model_type": "qwen3_5", "text_config": {
                "model_type": "qwen3_5_text", "head_dim": 256, "hidden_size": 5120, "num_attention_heads": 24,
                "num_key_value_heads": 4, "num_hidden_layers": 8, "max_position_embeddings": 262144,
                "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default",
                                    "rope_theta": 10000000, "partial_rotary_factor": 0.25}},
            "vision_config": {"model_type": "qwen3_5", **vision}}),
        ("qwen3-next-80b", "Qwen/Qwen3-Next-80B-A3B-Instruct", {
            "model_type": "qwen3_next", "head_dim": 256, "hidden_size": 2048, "num_attention_heads": 16,
            "num_key_value_heads": 2, "num_hidden_layers": 8, "max_position_embeddings": 262144,
            "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_scaling": None}),
        ("glm-4-1v-9b", "zai-org/GLM-4.1V-9B-Thinking", {
            "model_type": "glm4v", "text_config": {
                "model_type": "glm4v_text", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
                "num_hidden_layers": 40, "max_position_embeddings": 65536, "partial_rotary_factor": 0.5,
                "rope_theta": 10000.0, "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}},
            "vision_config": {"model_type": "glm4v_vision", "hidden_size": 1536, "num_heads": 12, "depth": 24,
                              "patch_size": 14, "spatial_merge_size": 2}}),
        ("glm-4-5v", "zai-org/GLM-4.5V", {
            "model_type": "glm4v_moe", "text_config": {
                "model_type": "glm4v_moe_text", "hidden_size": 4096, "num_attention_heads": 96, "head_dim": 128,
                "num_key_value_heads": 8, "num_hidden_layers": 46, "max_position_embeddings": 131072,
                "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
                "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}},
            "vision_config": {"model_type": "glm4v_moe_vision", "hidden_size": 1536, "num_heads": 12, "depth": 24,
                              "patch_size": 14, "spatial_merge_size": 2}}),
        ("qwen3-omni-30b", "Qwen/Qwen3-Omni-30B-A3B-Instruct", {
            "model_type": "qwen3_omni_moe_thinker", "text_config": {
                "model_type": "qwen3_omni_moe_text", "head_dim": 128, "hidden_size": 2048, "num_attention_heads": 32,
                "num_key_value_heads": 4, "num_hidden_layers": 48, "max_position_embeddings": 65536,
                "rope_theta": 1000000, "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20],
                                                        "rope_type": "default", "type": "default"}},
            "vision_config": {"model_type": "qwen3_omni_moe_vision_encoder", **vision}}),
        ("muse-glimmer", "meta-models/Muse-Glimmer-30B", {
            "model_type": "muse_glimmer_text", "head_dim": 128, "hidden_size": 2048, "num_attention_heads": 16,
            "num_hidden_layers": 8, "max_position_embeddings": 131072, "rope_theta": 500000.0,
            "layer_rope_theta": [500000.0, 500000.0, 500000.0, 0, 500000.0, 500000.0, 500000.0, 0]}),
    ]


def hand():
    made = []
    for name, why, config in hand_scalings():
        made.append({"name": f"hand-{name}", "origin": {"kind": "hand", "note": why}, "config": config})
    for name, model, config in hand_models():
        note = "rope fields as quoted in the survey of variants; layer count may be reduced"
        made.append({"name": f"model-{name}", "origin": {"kind": "hand", "id": model, "note": note}, "config": config})
    return made


# Fields of a saved config that bear on RoPE, and those of them that are about its parameters.
RELEVANT = re.compile(
    r"rope|rotary|theta|head|nope|^hidden_size$|^embed_dim$|^n_embd$|^n_positions$|max_position|^layer_types$"
    r"|num_hidden|^n_layer|sliding_window|global_attn|kv_channels|no_rope|position_embedding_type|mlp_layer_types"
    r"|prefix_dense|compress|index_head|image_size|patch_size|spatial_merge|projection_dim|^depth$|memory_attention"
    r"|_layers$|mem_rope|model_type|first_k_dense|full_attention_interval|block_types|layers_block_type")
PARAMETERS = re.compile(
    r"^rope_(theta|parameters|scaling|local)|^(global|local)_rope_theta$|partial_rotary|layer_rope_theta")


def relevant(saved, parameters):
    """The part of a saved config that bears on RoPE, with or without the rope parameters."""
    kept = {}
    for key, value in saved.items():
        if key == "per_layer_config":
            kept.update({key: value} if value else {})
        elif isinstance(value, dict) and (key.endswith("_config") or key == "model_type"):
            kept[key] = relevant(value, parameters)
        elif RELEVANT.search(key) and (parameters or not PARAMETERS.search(key)):
            kept[key] = value
    return kept


def class_defaults():
    """The defaults of every outermost config class with a RoPE of its own: "config" without the rope
    parameters, which the class has to supply, and "config_saved" as this transformers writes them."""
    made, failed, inner, whole = [], [], set(), {}
    for name in sorted(CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[name]()
        except Exception as error:
            whole[name] = error
            continue
        whole[name] = config
        inner |= {type(sub).__name__ for path, sub in families.walk(config) if path}
    for name, config in whole.items():
        if isinstance(config, Exception) or type(config).__name__ in inner:
            continue
        try:
            folder, modules = families.module_of(config)
        except ImportError as error:
            failed.append({"name": f"class-{slug(name)}", "reason": f"needs a package that is not installed: {error}"})
            continue
        own = [m for m in modules if families.rotary_classes(m)] or folder in ("gptj", "codegen", "roformer", "vjepa2")
        if not own and folder not in families.WITHOUT_ROPE:
            continue
        saved = {"model_type": name} | json.loads(json.dumps(config.to_dict(), sort_keys=True)) | {"model_type": name}
        made.append({
            "name": f"class-{slug(name)}",
            "origin": {"kind": "class-default", "id": type(config).__name__},
            "config": relevant(saved, False),
            "config_saved": relevant(saved, True),
        })
    failed += [{"name": f"class-{slug(n)}", "reason": f"the class has no usable defaults: {e}"}
               for n, e in whole.items() if isinstance(e, Exception)]
    return made, failed


def build(case, config):
    """The transformers config object of a case's config dict."""
    fields = copy.deepcopy(config)
    for path, value in case.get("overrides", {}).items():
        *parents, last = path.split(".")
        place = fields
        for parent in parents:
            place = place[parent]
        place[last] = value
    name = fields.pop("model_type")
    name = RUN_AS.get(name, name)
    if name not in CONFIG_MAPPING:
        raise LookupError(f"transformers has no model type '{name}': remote code")
    return CONFIG_MAPPING[name].from_dict(fields)
