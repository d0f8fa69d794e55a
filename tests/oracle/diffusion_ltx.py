"""Cases of LTX-Video and LTX-2, whose heads have frequencies of their own, for diffusion_cases.py."""

from __future__ import annotations

import torch
from diffusers.models.transformers import transformer_ltx

from diffusion_case import Case, halves, interleaved, zeros

LTX_SMALL = {"num_layers": 1, "in_channels": 4, "caption_channels": 8}


def unturned(inner_dim, axes):
    """The pairs before the first that turns."""
    return inner_dim // 2 - axes * (inner_dim // (2 * axes))


def ltx(name, grid, fps, config=None, scale=None):
    t, h, w = grid
    config = config or {}
    heads, head_dim = config.get("num_attention_heads", 32), config.get("attention_head_dim", 64)
    vae = scale or (8, 32, 32)
    scales = (vae[0] / fps, vae[1], vae[2])  # LTXPipeline.__call__
    pad = unturned(heads * head_dim, 3)

    def run(model, dtype):
        model(hidden_states=zeros(1, t * h * w, 4, dtype=dtype), encoder_hidden_states=zeros(1, 3, 8, dtype=dtype),
              timestep=torch.ones(1), encoder_attention_mask=torch.ones(1, 3), num_frames=t, height=h, width=w,
              rope_interpolation_scale=scales)

    def ids():
        rope = transformer_ltx.LTXVideoRotaryPosEmbed(
            6, patch_size=config.get("patch_size", 1), patch_size_t=config.get("patch_size_t", 1))
        return rope._prepare_video_coords(1, t, h, w, scales, torch.device("cpu"))[0] * 2 - 1

    args = {"grids": [grid], "text": 0, "fps": fps} | ({"scale": scale} if scale else {})
    return Case(name, "LTXVideoTransformer3DModel", (), run, args, config,
                {**LTX_SMALL, "cross_attention_dim": heads * head_dim}, ids, head=head_dim, heads=heads,
                firsts=(pad, pad + 1, pad + 2))


def ltx2(name, kind, grid, sound, fps, config):
    t, h, w = grid
    config = {"num_attention_heads": 4, "attention_head_dim": 16, "audio_num_attention_heads": 4,
              "audio_attention_head_dim": 8, "audio_cross_attention_dim": 32, **config}
    small = {**LTX_SMALL, "audio_in_channels": 4, "cross_attention_dim": 64}
    patches = config.get("patch_size_t", 1), config.get("patch_size", 1), config.get("audio_patch_size_t", 1)
    sizes = {"num_frames": t * patches[0], "height": h * patches[1], "width": w * patches[1]}

    def run(model, dtype):
        model(hidden_states=zeros(1, t * h * w, 4, dtype=dtype), timestep=torch.ones(1),
              audio_hidden_states=zeros(1, sound, 4, dtype=dtype), encoder_hidden_states=zeros(1, 3, 8, dtype=dtype),
              audio_encoder_hidden_states=zeros(1, 3, 8, dtype=dtype), **sizes, fps=fps,
              audio_num_frames=sound * patches[2])

    def ids():  # the coordinates are the model's; that it centres them is not to be seen from outside
        model = case.make()
        if kind.endswith("video"):
            coords = model.rope.prepare_video_coords(1, **sizes, device="cpu", fps=fps)
        else:
            coords = model.audio_rope.prepare_audio_coords(1, sound * patches[2], "cpu")
        rope = {"video": model.rope, "audio": model.audio_rope}.get(kind, model.cross_attn_rope)
        base = (rope.base_num_frames, rope.base_height, rope.base_width)
        middle = (coords[0, :axes, :, 0] + coords[0, :axes, :, 1]) / 2.0
        return torch.stack([middle[a] / base[a] * 2 - 1 for a in range(axes)], dim=-1)

    axes = 3 if kind == "video" else 1
    prefix = "" if kind == "video" else "audio_"
    heads, head_dim = config[prefix + "num_attention_heads"], config[prefix + "attention_head_dim"]
    pad = unturned(heads * head_dim, axes)
    args = {"grids": [grid], "text": 0, "fps": fps} if kind.endswith("video") else {"grids": [[sound, 1, 1]], "text": 0}
    # Of a block: video, audio, both with their text, video that asks audio, audio that asks video.
    attention, side = {"video": (0, "query"), "audio": (1, "query"), "cross_video": (4, "query"),
                       "cross_audio": (4, "key")}[kind]
    case = Case(name, "LTX2VideoTransformer3DModel", (), run, args, config, small, ids,
                halves if config.get("rope_type") == "split" else interleaved, attention, kind, head=head_dim,
                heads=heads, firsts=tuple(pad + a for a in range(axes)), side=side)
    return case
