"""What llama.cpp makes of the keys of a GGUF file before it calls ggml's rope, in Python: the
arguments of ggml_rope_ext for a layer. The mode of each architecture is read from llama.cpp's
source; the rest is written down from src/llama-model.cpp (load_hparams), src/llama-context.cpp and
the graphs in src/models. Shares nothing with src/model/gguf*.cc.
"""

import dataclasses
import math
import pathlib
import re
import struct

MODES = {"NORM": 0, "NEOX": 2, "MROPE": 8, "IMROPE": 40}


def f32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def rope_types(source: pathlib.Path) -> dict[str, str]:
    """general.architecture -> what llama_model_rope_type returns, as it stands there."""
    names = dict(re.findall(r'\{ (LLM_ARCH_\w+),\s+"([^"]+)"', (source / "llama-arch.cpp").read_text()))
    text = (source / "llama-model.cpp").read_text()
    body = text[text.index("llama_rope_type llama_model_rope_type("):]
    body = body[:body.index("\n}\n")]
    types, cases = {}, []
    for line in body.split("\n"):
        if case := re.match(r"\s+case (LLM_ARCH_\w+):", line):
            cases.append(names.get(case[1]))
        elif (said := re.search(r"return (.*);", line)) and cases:
            types.update(dict.fromkeys(cases, said[1].replace("LLAMA_ROPE_TYPE_", "")))
            cases = []
    return types


@dataclasses.dataclass
class Layer:
    """The arguments for one layer; `factors` names its tensor."""
    head_dim: int
    n_dims: int
    mode: int
    n_ctx_orig: int
    offset: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    sections: tuple[int, ...] = (0, 0, 0, 0)
    factors: str | None = None


# Sliding windows: the period, negative where the first of a period is full; 0: a list is required.
PERIODS = {"afmoe": 4, "cohere2": 4, "cohere2moe": -4, "exaone-moe": 4, "gemma-embedding": 6, "gemma2": 2,
           "gemma3": 6, "gemma3n": 5, "gemma4": 0, "gpt-oss": 2, "granite_swa": 0, "laguna": -4, "llama4": 4,
           "mellum": 4, "muse-glimmer": 4, "olmo2": 4}
IF_WINDOW = {"afmoe", "gemma3", "laguna", "mellum", "olmo2"}
# Graphs that ask get_rope_freq_base for each layer, and take what follows in layers with a window.
LOCAL_10000 = {"gemma-embedding", "gemma3", "gemma3n", "gemma4"}
OWN_BASE = {"afmoe", "gemma2", "gpt-oss", "laguna", "llama4", "muse-glimmer"}
SCALE_1 = LOCAL_10000 | {"laguna", "muse-glimmer"}   # rope_freq_scale_train_swa stays 1
PLAIN = {"laguna", "mellum", "olmo2"}                # ext_factor 0, attn_factor 1, scale 1
LATENT = {"deepseek2", "deepseek32", "glm-dsa", "hy_v4", "minicpm3", "mistral4", "plm"}
READS_BETAS = {"grok", "mistral3"}
READS_LOG = {"deepseek2": 0.1, "deepseek32": 0.1, "mistral4": 0.1, "mistral3": 1.0}


def windows(keys, arch: str, layers: int) -> list[bool]:
    if arch not in PERIODS or (arch in IF_WINDOW and not keys("attention.sliding_window", 0)):
        return [False] * layers
    period = keys("attention.sliding_window_pattern", PERIODS[arch])
    if isinstance(period, list):
        return [bool(flag) for flag in period[:layers]]
    if PERIODS[arch] < 0:
        return [i % abs(period) != 0 for i in range(layers)]
    return [i % period < period - 1 for i in range(layers)]


def layers_of(record: dict, types: dict[str, str], tokens: int) -> list[Layer | None]:
    """None: a layer that the graph does not rotate."""
    arch = record["keys"]["general.architecture"][1]

    def keys(name, default=None):
        return record["keys"].get(f"{arch}.{name}", [None, default])[1]

    count = keys("block_count") - keys("nextn_predict_layers", 0)
    heads = keys("attention.head_count")
    heads = heads[0] if isinstance(heads, list) else heads
    head_dim = keys("attention.key_length", keys("embedding_length") // heads)
    n_rot = keys("rope.dimension_count", head_dim)
    scaling = keys("rope.scaling.type", "linear")
    factor = keys("rope.scaling.factor", keys("rope.scale_linear", 0.0))
    scale = 1.0 if factor == 0 or scaling == "none" else f32(1.0 / factor)
    ext = 1.0 if scaling == "yarn" else 0.0
    attn = keys("rope.scaling.attn_factor", 1.0)
    if ext:
        def mscale(m):
            return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0
        all_dim = keys("rope.scaling.yarn_log_multiplier", 0.0) / READS_LOG.get(arch, 1.0)
        if arch in READS_LOG and all_dim:
            first = all_dim if arch == "deepseek2" and abs(all_dim - 1) > 1e-6 else 1.0
            attn *= mscale(first) / mscale(all_dim)
        else:
            attn *= mscale(1.0)
        attn /= 1.0 + 0.1 * math.log(factor)
    sections = tuple((keys("rope.dimension_sections", []) + [0] * 4)[:4])
    said = types[arch]
    if "use_mrope" in said:
        said = "MROPE" if sections[0] > 0 and sections[1] > 0 else said.split(":")[1].strip()
    mode = MODES[said]
    context = keys("context_length")
    original = keys("rope.scaling.original_context_length", context)
    factors = None
    if "rope_factors_long.weight" in record["tensors"]:
        factors = "rope_factors_long.weight" if tokens > original else "rope_factors_short.weight"
    elif "rope_freqs.weight" in record["tensors"]:
        factors = "rope_freqs.weight"
    out = []
    swa = windows(keys, arch, count)
    kv = keys("attention.head_count_kv")
    for i in range(count):
        layer = Layer(head_dim, n_rot, mode, original, 0, keys("rope.freq_base", 10000.0), scale, ext, attn,
                      sections=sections if mode in (8, 40) else (0, 0, 0, 0), factors=factors)
        if arch in READS_BETAS:
            layer.beta_fast = keys("rope.scaling.yarn_beta_fast", 8.0 if arch == "grok" else 32.0)
            layer.beta_slow = keys("rope.scaling.yarn_beta_slow", 1.0)
        if arch in LATENT:
            layer.head_dim = keys("attention.key_length_mla", head_dim)
            layer.offset = layer.head_dim - n_rot
        if swa[i]:
            local = 10000.0 if arch in LOCAL_10000 else layer.freq_base
            if arch in LOCAL_10000 | OWN_BASE:
                layer.freq_base = keys("rope.freq_base_swa", local)
            if arch in SCALE_1 | PLAIN:
                layer.freq_scale = 1.0
            if arch in PLAIN:
                layer.ext_factor, layer.attn_factor = 0.0, 1.0
            if arch in ("gemma4", "laguna"):
                layer.n_dims = keys("rope.dimension_count_swa", n_rot)
                layer.head_dim = keys("attention.key_length_swa", head_dim)
                layer.factors = None
        unrotated = (
            arch in ("afmoe", "llama4", "smollm3") and (i + 1) % 4 == 0
            or arch in ("cohere2", "exaone-moe", "muse-glimmer") and not swa[i]
            or arch == "cohere2moe" and not swa[i] and i >= keys("leading_dense_block_count", 0)
            or arch in ("granite", "granitehybrid") and not keys("rope.scaling.finetuned", True)
            or arch == "granite_swa" and not (keys("attention.rope_pattern") or [1] * count)[i]
            or isinstance(kv, list) and kv[i] == 0)
        out.append(None if unrotated else layer)
    return out
