"""Ropes of the models whose rotary code follows neither convention of families.py."""

from __future__ import annotations

import copy
import math

import torch

from families import Rope, head_dim_of, qualified

# Why a rotary class of transformers has no golden file.
SKIPPED = {
    "efficientloftr": "rotates a 2-D feature map aggregated inside the module; no position ids",
    "esmfold2": "positions are atom coordinates of a structure; no transformer language or vision model",
    "lightglue": "angles are a learned projection of keypoints: there are no frequencies",
    "seamless_m4t": "the speech encoder runs the code of wav2vec2_conformer",
    "musicflamingo": "angles are products of two position grids and time stamps, in float64 (style TT)",
    "Qwen2_5OmniDiTRotaryEmbedding": "the diffusion head rotates head 0 only, after de-interleaving it (style H0)",
}


def _table(folder, module, path, config):
    """GPT-J and CodeGen: a table [sin | cos] that attention slices; GPT-J casts it to the key's dtype."""
    small = copy.deepcopy(config)
    small.n_head, small.n_embd = 2, 2 * (config.n_embd // config.n_head)
    width = config.rotary_dim or small.n_embd // 2
    cls = module.GPTJAttention if folder == "gptj" else module.CodeGenAttention
    function = module.apply_rotary_pos_emb

    def embed(attention, dtype, positions):
        rows = attention.embed_positions[positions[:, 0]][None]
        return torch.chunk(rows.to(dtype) if folder == "gptj" else rows, 2, dim=-1)

    def rotate(q, k, embedding):
        sin, cos = embedding
        turned = [function(x[None, ..., :width], sin, cos)[0] for x in (q, k)]
        return tuple(torch.cat([y, x[..., width:]], dim=-1) for x, y in zip((q, k), turned))

    def frequencies(attention):
        return 1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.int64) / width))

    rope = Rope(
        name="", part=path, role="text", layer_type=None, config=config,
        rotary_class=qualified(module.create_sinusoidal_positions), apply_function=qualified(function),
        head_dim=small.n_embd // 2, axes=1, fresh=lambda: cls(small), embed=embed, rotate=rotate,
        inv_freq=frequencies, attention_factor=lambda m: 1.0, max_position=config.n_positions,
        notes=["inv_freq is the expression of create_sinusoidal_positions, which keeps only the table"],
    )
    if folder == "codegen":
        rope.dtypes = ("f32",)
        rope.notes.append("f32 only: attention does not cast the f32 table, so 16-bit results depend on the loader")
    return [rope]


def _roformer(module, path, config):
    """A table of float64 sines and cosines, cast to float32; interleaved."""
    width = config.hidden_size // config.num_attention_heads
    function = module.RoFormerSelfAttention.apply_rotary_position_embeddings

    def fresh():
        table = module.RoFormerSinusoidalPositionalEmbedding(config.max_position_embeddings, width)
        table.weight = torch.nn.Parameter(table.create_weight(), requires_grad=False)
        return table

    def rotate(q, k, embedding):
        q, k = function(embedding, q.transpose(0, 1)[None], k.transpose(0, 1)[None])
        return q[0].transpose(0, 1), k[0].transpose(0, 1)

    return [Rope(
        name="", part=path, role="text", layer_type=None, config=config,
        rotary_class=qualified(module.RoFormerSinusoidalPositionalEmbedding), apply_function=qualified(function),
        head_dim=width, axes=1, fresh=fresh,
        embed=lambda m, dtype, p: m(None, position_ids=p[:, 0])[None, None].to(dtype), rotate=rotate,
        inv_freq=lambda m: torch.tensor([10000 ** (-2 * i / width) for i in range(width // 2)]),
        attention_factor=lambda m: 1.0, max_position=config.max_position_embeddings, tolerance=2e-4,
        notes=["angles in float64; inv_freq is 10000 ** (-2i/D) rounded to float32, which the module does not keep"],
    )]


def _clvp(module, path, config):
    """Rotates q, k and v; positions are 0 .. n-1. The cosines stay float32."""
    cls, function = module.ClvpRotaryPositionalEmbedding, module.apply_rotary_pos_emb

    def embed(rotary, dtype, positions):
        angles = rotary(torch.zeros(1, int(positions.max()) + 1, 1))
        return angles.cos().squeeze(0), angles.sin().squeeze(0), positions.T

    def rotate(q, k, embedding):
        cos, sin, ids = embedding
        width = cos.shape[-1]
        q, k = (x.transpose(0, 1)[None] for x in (q, k))
        turned = function(q[..., :width], k[..., :width], k[..., :width], cos, sin, ids)
        q, k = (torch.cat([y, x[..., width:]], dim=-1) for x, y in zip((q, k), turned))
        return q[0].transpose(0, 1), k[0].transpose(0, 1)

    return [Rope(
        name="", part=path, role="text", layer_type=None, config=config, rotary_class=qualified(cls),
        apply_function=qualified(function), head_dim=config.hidden_size // config.num_attention_heads, axes=1,
        fresh=lambda: cls(config), embed=embed, rotate=rotate, inv_freq=lambda m: m.inv_freq,
        attention_factor=lambda m: 1.0, max_position=4096, dtypes=("f32",),
        notes=["v is rotated like k", "f32 only: cos and sin are never cast, so 16-bit inputs leave as float32"],
    )]


def _llama4_vision(module, path, config):
    """Complex table of a whole image; x = column + 1, y = row + 1, the class token last and still."""
    cls, function = module.Llama4VisionRotaryEmbedding, module.vision_apply_rotary_emb
    side = config.image_size // config.patch_size
    grid = [[i % side + 1, i // side + 1] for i in range(side * side)] + [[0, 0]]
    kept = [*range(0, side * side, side - 1), side * side]  # each row and column, and the class token
    width = config.hidden_size // config.num_attention_heads

    def rotate(q, k, embedding):
        return tuple(x[0] for x in function(q[None], k[None], embedding))

    def frequencies(rotary):
        return 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, width // 2, 2).float() / (width // 2)))

    return [Rope(
        name="", part=path, role="vision", layer_type=None, config=config, rotary_class=qualified(cls),
        apply_function=qualified(function), head_dim=width, axes=2, fresh=lambda: cls(config),
        embed=lambda m, dtype, p: m(torch.zeros(1)), rotate=rotate, inv_freq=frequencies,
        attention_factor=lambda m: 1.0, rotary_dim=width, positions=grid, kept=kept,
        notes=["positions are (column + 1, row + 1), (0, 0) for the class token",
               "inv_freq is the expression of _compute_freqs_ci, which keeps only the table"],
    )]


def _dinov3(folder, module, path, config):
    """Patch centres in [-1, 1], times 2 pi; the first rounding of the product is in the position."""
    cls = next(c for n, c in vars(module).items() if n.endswith(("RopePositionEmbedding", "Dinov3RotaryEmbedding")))
    patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    height, width = 3, 4
    coordinates = module.get_patches_center_coordinates(height, width, torch.float32, torch.device("cpu"))

    def embed(rotary, dtype, positions):
        return rotary(torch.zeros(1, 1, height * patch, width * patch, dtype=dtype))

    def rotate(q, k, embedding):
        q, k = module.apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], *embedding)
        return q[0].transpose(0, 1), k[0].transpose(0, 1)

    head_dim = config.hidden_size // config.num_attention_heads
    return [Rope(
        name="", part=path, role="vision", layer_type=None, config=config, rotary_class=qualified(cls),
        apply_function=qualified(module.apply_rotary_pos_emb), head_dim=head_dim, axes=2,
        fresh=lambda: cls(config).eval(), embed=embed, rotate=rotate, inv_freq=lambda m: m.inv_freq,
        attention_factor=lambda m: 1.0, rotary_dim=head_dim, positions=(2 * math.pi * coordinates).tolist(), float_positions=True,
        notes=[f"image of {height} x {width} patches; positions are 2 pi * (y, x) of the patch centres, in float32",
               "prefix tokens (class, registers) are not rotated"],
    )]


def _vjepa2(module, path, config):
    """Three blocks of channels; cosines are tiled as halves while pairs are interleaved, so the two
    channels of a pair turn by different angles: not a rotation."""
    function = module.VJEPA2RopeAttention.apply_rotary_embeddings
    width = config.hidden_size // config.num_attention_heads
    block = 2 * (width // 3 // 2)

    def rotate(q, k, positions):
        ids = tuple(positions.T)
        attention = module.VJEPA2RopeAttention(config, config.hidden_size, config.num_attention_heads)
        q, k = (function(attention, x.transpose(0, 1)[None], ids) for x in (q, k))
        return q[0].transpose(0, 1), k[0].transpose(0, 1)

    return [Rope(
        name="", part=path, role="vision", layer_type=None, config=config,
        rotary_class=qualified(module.rotate_queries_or_keys), apply_function=qualified(function), head_dim=width,
        axes=3, fresh=lambda: None, embed=lambda m, dtype, p: p, rotate=rotate,
        inv_freq=lambda m: 1.0 / 10000 ** (torch.arange(block // 2, dtype=torch.float32) / (block / 2.0)),
        attention_factor=lambda m: 1.0, rotary_dim=3 * block, dtypes=("f32",),
        notes=["inv_freq is the expression of rotate_queries_or_keys, computed in the dtype of x: f32 only",
               "axes are frame, row, column"],
    )]


def _conformer(module, path, config, prefix):
    """The hidden states are rotated before the projections, head by head; positions are 0 .. n-1."""
    cls = getattr(module, f"{prefix}RotaryPositionalEmbedding")
    attention_cls = getattr(module, f"{prefix}SelfAttention")
    width = config.hidden_size // config.num_attention_heads
    small = copy.deepcopy(config)
    small.num_attention_heads = 1
    small.hidden_size = width

    def rotate(q, k, embedding):
        turned = []
        for x in (q, k):
            attention = attention_cls(small)
            attention.num_heads, attention.head_size = x.shape[1], width
            y = attention._apply_rotary_embedding(x.flatten(1)[None], embedding)
            turned.append(y[0].unflatten(-1, (-1, width)))
        return tuple(turned)

    count = 6
    return [Rope(
        name="", part=path, role="audio", layer_type=None, config=config, rotary_class=qualified(cls),
        apply_function=qualified(attention_cls._apply_rotary_embedding), head_dim=width, axes=1,
        fresh=lambda: cls(config), embed=lambda m, dtype, p: m(torch.zeros(1, count, 1, dtype=dtype)), rotate=rotate,
        inv_freq=lambda m: m.inv_freq, attention_factor=lambda m: 1.0, positions=[[i] for i in range(count)],
        notes=["applied to the hidden states, before the projections of q and k"],
    )]


def find(folder, modules, path, config):
    """The Ropes of a config with its own ways, [] if it is skipped, None if it follows a convention."""
    name = type(config).__name__
    module = modules[0] if modules else None
    if folder in SKIPPED or name == "Qwen2_5OmniDiTConfig":
        return []
    if folder in ("gptj", "codegen"):
        return _table(folder, module, path, config)
    if folder == "roformer":
        return _roformer(module, path, config)
    if folder == "clvp":
        return _clvp(module, path, config) if name == "ClvpEncoderConfig" else []
    if name == "Llama4VisionConfig":
        return _llama4_vision(module, path, config)
    if folder in ("dinov3_vit", "sapiens2", "eomt_dinov3") and hasattr(config, "patch_size"):
        return _dinov3(folder, module, path, config)
    if folder == "vjepa2":
        return _vjepa2(module, path, config)
    if folder in ("wav2vec2_bert", "wav2vec2_conformer"):
        prefix = {"wav2vec2_bert": "Wav2Vec2Bert", "wav2vec2_conformer": "Wav2Vec2Conformer"}[folder]
        return _conformer(module, path, config, prefix)
    return None
