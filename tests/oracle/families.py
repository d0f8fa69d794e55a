"""Finds the rotary classes of a transformers config and says how each model runs them.

A `Rope` couples a model's own rotary module with its own apply function behind two calls,
`embed(dtype, positions)` and `rotate(q, k, embedding)`, so that the rest of the oracle need not know
in which of a dozen forms a model keeps its cosines. Most models share two conventions (text and
vision) and are found by the annotation of the rotary class; the tables below name the others.
Classes that follow no convention are in special.py.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import nn

# Attention slices the head to the rotary width itself before it calls the apply function.
SLICED = {"phi", "persimmon", "stablelm", "gpt_neox_japanese"}

# Which apply function an MLA attention calls; True: always, False: if config.rope_interleave.
INTERLEAVE = {
    "axk1": False, "axk2": True, "bailing_hybrid": True, "deepseek_v3": False, "deepseek_v32": True,
    "dots3_note": True, "glm4_moe_lite": False, "glm_moe_dsa": True, "longcat_flash": True,
    "mistral4": False, "mistral_large4": True, "youtu": False,
}

# The lightning indexer: [rope | nope] in a head of index_head_dim, and the function it calls.
INDEXER = {
    "axk2": "apply_rotary_pos_emb", "deepseek_v32": "apply_rotary_pos_emb",
    "glm_moe_dsa": "apply_rotary_pos_emb_interleave", "dots3_note": "apply_rotary_pos_emb_interleave",
}

# Rotary classes annotated with a config that is not the one the model gives them.
GIVEN = {
    "BltRotaryEmbedding": {"BltLocalEncoderConfig", "BltLocalDecoderConfig", "BltGlobalTransformerConfig",
                           "BltPatcherConfig"},
    "DiaRotaryEmbedding": {"DiaEncoderConfig", "DiaDecoderConfig"},
    "T5GemmaRotaryEmbedding": {"T5GemmaModuleConfig"},
    "DeepseekOcr2VisionRotaryEmbedding": {"DeepseekOcr2VisionEncoderConfig"},
    "Nemotron3DiarizationRotaryEmbedding": {"Nemotron3DiarizationAudioConfig"},
    "Qwen2_5OmniRotaryEmbedding": {"Qwen2_5OmniTextConfig", "Qwen2_5OmniTalkerConfig"},
    "Qwen3OmniMoeThinkerTextRotaryEmbedding": {"Qwen3OmniMoeTextConfig"},
    "Qwen3OmniMoeTalkerRotaryEmbedding": {"Qwen3OmniMoeTalkerTextConfig"},
    "Qwen3OmniMoeRotaryEmbedding": {"Qwen3OmniMoeTalkerCodePredictorConfig", "Qwen3OmniMoeCode2WavConfig"},
}

# Models whose attention has no RoPE at all, whatever their config says.
WITHOUT_ROPE = {"nemotron_h", "jamba", "kimi_linear"}

# Layer types that are not attention and so have no RoPE.
NO_ATTENTION = {"linear_attention", "conv", "mamba", "recurrent", "moe", "mlp"}


def _no_rope_layers(config, i):
    return not config.no_rope_layers[i]


def _only_sliding(config, i):
    return config.layer_types[i] != "sliding_attention"


def _only_sliding_if_hybrid(config, i):
    return config.sliding_window is not None and config.layer_types[i] != "sliding_attention"


def _zero_theta(config, i):
    return not config.layer_rope_theta[i]


def _cohere2_moe(config, i):
    forced = config.mlp_layer_types[i] == "dense" and config.prefix_dense_sliding_window_pattern == 1
    return _only_sliding(config, i) and not forced


# True where layer i of the model runs without RoPE: the condition of the attention class.
NOPE = {
    "smollm3": _no_rope_layers, "llama4": _no_rope_layers, "mistral_large4": _no_rope_layers,
    "cohere2": _only_sliding, "cohere2_moe": _cohere2_moe, "afmoe": _only_sliding, "flint": _only_sliding,
    "exaone4": _only_sliding_if_hybrid, "exaone_moe": _only_sliding_if_hybrid,
    "kolibri1": _only_sliding_if_hybrid,
    "granite_swa": _zero_theta, "granitemoe_swa": _zero_theta, "muse_glimmer": _zero_theta,
    "muse_spark": _zero_theta,
    "granitemoehybrid": lambda config, i: config.position_embedding_type != "rope",
    "zamba2": lambda config, i: not config.use_mem_rope,
}


@dataclass
class Rope:
    """One kind of RoPE of a model."""

    name: str  # unique in the model: the part, the layer type, or both
    part: str  # path of the sub-config in config.json, "" for its top level
    role: str  # text, vision, audio or indexer
    layer_type: str | None
    config: Any  # the sub-config, as transformers resolved it
    rotary_class: str
    apply_function: str
    head_dim: int  # channels of a head given to the apply function (plus what attention sliced off)
    axes: int
    fresh: Callable[[], Any]  # a new rotary module, without the state of earlier calls
    embed: Callable[..., Any]  # (module, dtype, positions[T, axes]) -> the model's own cos/sin object
    rotate: Callable[..., Any]  # (q[T, H, D], k[T, H, D], embedding) -> rotated q and k
    inv_freq: Callable[[Any], torch.Tensor] = None  # of the module
    attention_factor: Callable[[Any], float] = None
    rotary_dim: int | None = None  # None: twice the number of frequencies
    rotary_offset: int = 0
    max_position: int | None = None  # exclusive; for models with a table
    positions: list | None = None  # the only positions the module can be asked for
    kept: list | None = None  # which of these are recorded (indices); None: all
    float_positions: bool = False
    dtypes: tuple = ("f32", "bf16", "f16")
    tolerance: float = 3e-7  # of cos and sin against those of the f32 angle
    notes: list = field(default_factory=list)

    def rope_parameters(self):
        """The resolved dictionary of this layer type, or None where the class has no such thing."""
        parameters = getattr(self.config, "rope_parameters", None)
        if parameters and self.layer_type in parameters:
            return parameters[self.layer_type]
        return parameters or None

    def rope_type(self):
        known = self.layer_type != "unscaled" and not self.max_position
        return (self.rope_parameters() or {}).get("rope_type", "default") if known else "default"


def qualified(thing):
    return f"{thing.__module__}.{thing.__qualname__}"


def module_of(config):
    """The modeling modules beside a config class, and the name of their folder."""
    package = type(config).__module__.rsplit(".", 1)[0]
    folder = package.rsplit(".", 1)[-1]
    found = []
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if info.name.startswith("modeling_"):
            found.append(importlib.import_module(f"{package}.{info.name}"))
    return folder, found


def walk(config, path=""):
    """Yields (path, config) of a config and of all its sub-configs, outermost first."""
    yield path, config
    for key in getattr(config, "sub_configs", {}) or {}:
        sub = getattr(config, key, None)
        if sub is not None and not isinstance(sub, dict):
            yield from walk(sub, f"{path}.{key}" if path else key)


def annotation(cls):
    """Name of the config class that a rotary class takes, or None."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())
    if len(parameters) < 2 or parameters[1].annotation is inspect.Parameter.empty:
        return None
    note = parameters[1].annotation
    return note if isinstance(note, str) else note.__name__


def rotary_classes(module):
    return [
        cls
        for name, cls in vars(module).items()
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__ == module.__name__
        and re.search(r"Rot|Rope|RoPE", name) and "Attention" not in name
    ]


def takes(cls, config):
    """Whether a rotary class belongs to this config. Some text classes are annotated with the outer
    config and given the text config."""
    wanted, have = annotation(cls), type(config).__name__
    if cls.__name__ in GIVEN:
        return have in GIVEN[cls.__name__]
    if wanted == have:
        return not (hasattr(config, "text_config") and "Vision" not in cls.__name__)
    if wanted and "Vision" not in cls.__name__ and "Audio" not in cls.__name__:
        text = {wanted.replace("Config", "TextConfig"), wanted.replace("VLConfig", "TextConfig")}
        return have in text
    return False


def head_dim_of(config, folder):
    """Channels of a head as its attention class computes them."""
    if getattr(config, "qk_rope_head_dim", None) and folder != "deepseek_v4":
        return config.qk_rope_head_dim  # MLA: the slice is a tensor of its own
    if getattr(config, "head_dim", None):
        return config.head_dim
    if hasattr(config, "memory_attention_downsample_rate"):
        heads = config.memory_attention_downsample_rate * config.memory_attention_num_attention_heads
        return config.memory_attention_hidden_size // heads
    hidden = getattr(config, "embed_dim", None) if folder == "qwen2_vl" else None
    return (hidden or config.hidden_size) // config.num_attention_heads


def _embed_text(layer_type, axes):
    def embed(module, dtype, positions):
        ids = positions.T[:, None] if axes > 1 else positions.T
        extra = {"layer_type": layer_type} if layer_type else {}
        return module(torch.zeros(1, dtype=dtype), position_ids=ids, **extra)

    return embed


def _embed_vision(module, dtype, positions):
    batched = "freq[:, :, 0]" in inspect.getsource(type(module).recomposition_frequencies)
    return module(torch.zeros(1, dtype=dtype), position_ids=positions[None] if batched else positions), positions


def _rotate_text(function, complex_layout=None, sliced=None):
    """q and k as [1, H, T, D]; functions of one tensor are called twice."""
    single = "q" not in inspect.signature(function).parameters and "xq" not in inspect.signature(function).parameters

    def rotate(q, k, embedding):
        q, k = (x.transpose(0, 1)[None] for x in (q, k))
        rest = None
        if sliced:
            rest = [x[..., sliced:] for x in (q, k)]
            q, k = (x[..., :sliced] for x in (q, k))
        if complex_layout == "bshd":
            q, k = (x.transpose(1, 2) for x in function(q.transpose(1, 2), k.transpose(1, 2), embedding))
        elif complex_layout == "bhsd":
            q, k = function(q, k, embedding)
        elif single:
            q, k = function(q, *embedding), function(k, *embedding)
        else:
            q, k = function(q, k, *embedding)
        if rest:
            q, k = (torch.cat(pair, dim=-1) for pair in zip((q, k), rest))
        return q[0].transpose(0, 1), k[0].transpose(0, 1)

    return rotate


def _rotate_vision(function, folder):
    """Most towers take [T, H, D]; the others are told by name."""

    def rotate(q, k, embedding):
        (cos, sin), positions = embedding
        if function.__name__ == "apply_multidimensional_rope":
            return tuple(function(x[None], cos, sin, positions[None])[0] for x in (q, k))
        if "_2d" in function.__name__ or folder == "pixtral":
            q, k = (x.transpose(0, 1)[None] for x in (q, k))
            extra = {"unsqueeze_dim": 0} if folder == "pixtral" else {}
            q, k = function(q, k, cos, sin, **extra)
            return q[0].transpose(0, 1), k[0].transpose(0, 1)
        return function(q, k, cos, sin)

    return rotate


def _apply_name(folder, module, role, config):
    """Name of the apply function that the attention of this role calls."""
    if role == "vision":
        names = ["apply_rotary_pos_emb_vision", "apply_multidimensional_rope", "apply_rotary_pos_emb_2d",
                 "apply_rotary_pos_emb_2d_self_attn"]
    elif role == "text" and folder in INTERLEAVE and (INTERLEAVE[folder] or config.rope_interleave):
        names = ["apply_rotary_pos_emb_interleave"]
    else:
        names = []
    for name in names + ["apply_rotary_pos_emb", "apply_rotary_emb"]:
        if hasattr(module, name):
            return name
    return None


def _axes(cls, config, folder, role):
    if not hasattr(cls, "recomposition_frequencies"):
        return 1
    if role == "vision":
        return 3 if folder == "minimax_m3_vl" else 2
    if folder == "hunyuan_vl":
        return len(config.rope_parameters["mrope_section"])
    return 2 if folder == "neomme" else 3


def _variants(cls, config, folder):
    """(label, layer type, config, constructor arguments) of every kind of RoPE of a class."""
    if folder in ("granite_swa", "granitemoe_swa"):  # the model builds one module per theta
        for theta in sorted({theta for theta in config.layer_rope_theta if theta}):
            other = copy.deepcopy(config)
            other.rope_parameters = {**other.rope_parameters, "rope_theta": theta}
            yield f"theta_{theta:g}", None, other, {}
    elif folder == "molmo2":
        for label in ("scaled", "unscaled"):
            yield label, None, config, {"scaled": label == "scaled"}
    elif folder in ("esm", "evolla"):
        yield None, None, config, {}
    elif "layer_type" in inspect.signature(cls.forward).parameters:
        for layer_type, value in sorted(config.rope_parameters.items()):
            used = folder == "deepseek_v4" or layer_type in (config.layer_types or [])
            if isinstance(value, dict) and used:
                yield layer_type, layer_type, config, {}
    else:
        yield None, None, config, {}


def _standard(folder, module, cls, path, config):
    """The Ropes of a class that follows the text or the vision convention."""
    if hasattr(cls, "compute_axial_rope_parameters"):
        role = "vision"
    else:
        role = "audio" if "Audio" in type(config).__name__ else "text"
    function = getattr(module, _apply_name(folder, module, role, config) or "", None)
    if function is None:
        raise LookupError(f"no apply function for {qualified(cls)}")
    for label, layer_type, own, extra in _variants(cls, config, folder):
        axes = _axes(cls, own, folder, role)
        types = getattr(own, "layer_types", None) or []
        layer = own.per_layer_config[types.index(layer_type)] if layer_type in types else own
        head_dim = head_dim_of(layer, folder)
        prefix = f"{layer_type}_" if layer_type else ""
        if role == "vision":
            embed, rotate = _embed_vision, _rotate_vision(function, folder)
        else:
            width = int(head_dim * own.rope_parameters.get("partial_rotary_factor", 1.0)) if folder in SLICED else None
            layout = {"llama4": "bshd", "deepseek_v2": "bhsd"}.get(folder)
            embed = _embed_text(layer_type, axes)
            rotate = _rotate_text(function, layout, width)
        yield Rope(
            name="", part=path, role=role, layer_type=layer_type or label, config=own, rotary_class=qualified(cls),
            apply_function=qualified(function), head_dim=head_dim, axes=axes,
            fresh=lambda cls=cls, own=own, extra=extra: cls(own, **extra).eval(), embed=embed, rotate=rotate,
            inv_freq=lambda m, p=prefix: getattr(m, "original_inv_freq" if folder == "phimoe" else f"{p}inv_freq"),
            attention_factor=lambda m, p=prefix: getattr(m, f"{p}attention_scaling"),
        )
        if role == "text" and folder in INDEXER and layer_type is None:
            yield _indexer(module, cls, path, own, embed, INDEXER[folder])


def _indexer(module, cls, path, config, embed, name):
    """The lightning indexer rotates the first qk_rope_head_dim channels of its own heads."""
    function, width = getattr(module, name), config.qk_rope_head_dim
    rotate = _rotate_text(function, sliced=width)
    return Rope(
        name="", part=path, role="indexer", layer_type=None, config=config, rotary_class=qualified(cls),
        apply_function=qualified(function), head_dim=config.index_head_dim, axes=1, fresh=lambda: cls(config),
        embed=embed, rotate=rotate, inv_freq=lambda m: m.inv_freq, attention_factor=lambda m: m.attention_scaling,
    )


def find(config):
    """All Ropes of a config and its sub-configs, and the reasons for what could not be run."""
    import special

    ropes, problems = [], []
    for path, sub in walk(config):
        try:
            folder, modules = module_of(sub)
        except ImportError as error:
            problems.append(f"{type(sub).__name__}: {error}")
            continue
        made = special.find(folder, modules, path, sub)
        if made is not None:
            ropes += made
            continue
        for module in modules:
            for cls in rotary_classes(module):
                if takes(cls, sub):
                    try:
                        ropes += list(_standard(folder, module, cls, path, sub))
                    except Exception as error:  # recorded in index.json, never dropped
                        problems.append(f"{qualified(cls)}: {type(error).__name__}: {error}")
    count = {}
    for rope in ropes:
        base = rope.role if rope.role != "text" else (rope.layer_type or "text")
        if rope.role != "text" and rope.layer_type:
            base = f"{rope.role}.{rope.layer_type}"
        count[base] = count.get(base, 0) + 1
        rope.name = base if count[base] == 1 else f"{base}.{count[base]}"
    return ropes, problems


def layers(config, ropes):
    """For every layer of the language model the index of its Rope, -1 where it has none; or None if
    the config does not say how many layers there are."""
    text = config.get_text_config()
    path = next(p for p, c in walk(config) if c is text)
    folder, _ = module_of(text)
    count = getattr(text, "num_hidden_layers", None)
    mine = {r.layer_type: i for i, r in enumerate(ropes) if r.part == path and r.role == "text"}
    if folder in WITHOUT_ROPE and count:
        return [-1] * count
    if not count or not mine or isinstance(count, (list, tuple)):
        return None
    types = getattr(text, "layer_types", None) or [None] * count
    result = []
    for i in range(count):
        if folder in NOPE and NOPE[folder](text, i) or types[i] in NO_ATTENTION:
            result.append(-1)
        elif folder == "deepseek_v4":
            result.append(mine["main" if types[i] == "sliding_attention" else "compress"])
        elif folder in ("granite_swa", "granitemoe_swa"):
            result.append(mine[f"theta_{text.layer_rope_theta[i]:g}"])
        elif folder == "molmo2":
            result.append(mine["scaled" if i in text.rope_scaling_layers else "unscaled"])
        else:
            result.append(mine.get(types[i], mine.get(None, -1)))
    return result
