"""Which transformers of diffusers are run, with which sizes, and the ids that their pipelines make."""

from __future__ import annotations

import inspect
import types

import diffusers
import torch
from diffusers.pipelines.consisid.pipeline_consisid import ConsisIDPipeline  # diffusers. has it with OpenCV only
from diffusers.pipelines.longcat_image import pipeline_longcat_image

from diffusion_case import Case, halves, halves_per_axis, zeros
from diffusion_ltx import ltx, ltx2


FLUX_SMALL = {"num_layers": 1, "num_single_layers": 0, "num_attention_heads": 1, "joint_attention_dim": 8,
              "pooled_projection_dim": 8, "in_channels": 4}


def flux(name, grids, text, config=None):
    pipeline = diffusers.FluxPipeline

    def image_ids():
        ids = [pipeline._prepare_latent_image_ids(1, h, w, "cpu", torch.float32) for _, h, w in grids]
        for i, of_grid in enumerate(ids):
            of_grid[..., 0] = i  # FluxKontextPipeline.prepare_latents: 1 for the image that is given
        return torch.cat(ids)

    def text_ids():
        return torch.zeros(text, 3)  # FluxPipeline.encode_prompt

    def run(model, dtype):
        tokens = sum(h * w for _, h, w in grids)
        model(hidden_states=zeros(1, tokens, 4, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              pooled_projections=zeros(1, 8, dtype=dtype), timestep=torch.ones(1), img_ids=image_ids(),
              txt_ids=text_ids())

    return Case(name, "FluxTransformer2DModel", tuple((config or {}).get("axes_dims_rope", (16, 56, 56))), run,
                {"grids": grids, "text": text}, config or {}, FLUX_SMALL,
                ids=lambda: torch.cat([text_ids(), image_ids()]))


def qwen_image(name, grids, text, config=None):
    small = {"num_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 8, "in_channels": 4}
    small |= {"use_additional_t_cond": True} if (config or {}).get("use_layer3d_rope") else {}

    def run(model, dtype):
        tokens = sum(t * h * w for t, h, w in grids)
        extra = {"additional_t_cond": torch.zeros(1, dtype=torch.long)} if model.config.use_additional_t_cond else {}
        model(hidden_states=zeros(1, tokens, 4, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              timestep=torch.ones(1), img_shapes=[[tuple(g) for g in grids]], **extra)

    return Case(name, "QwenImageTransformer2DModel", (16, 56, 56), run, {"grids": grids, "text": text},
                config or {}, small)


def sana_video(name, grid, dims, config=None):
    t, h, w = grid

    def run(model, dtype):
        model(hidden_states=zeros(1, 16, t, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, 3, 8, dtype=dtype))

    small = {"num_layers": 1, "num_attention_heads": 1, "num_cross_attention_heads": 1, "cross_attention_head_dim": 8,
             "cross_attention_dim": sum(dims), "caption_channels": 8}
    return Case(name, "SanaVideoTransformer3DModel", dims, run, {"grids": [grid], "text": 0}, config or {}, small,
                side="linear")


def wan(name, grid, class_name="WanTransformer3DModel", dims=(44, 42, 42), config=None, small=None, extra=None):
    t, h, w = grid

    def run(model, dtype):
        given = {k: f(dtype) for k, f in (extra or {}).items()}
        model(hidden_states=zeros(1, 16, t, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, 3, 8, dtype=dtype), **given)

    return Case(name, class_name, dims, run, {"grids": [grid], "text": 0}, config or {},
                {"num_layers": 1, "num_attention_heads": 1, "text_dim": 8, "ffn_dim": 16, **(small or {})})


FLUX_LIKE = {"num_layers": 1, "num_single_layers": 0, "num_attention_heads": 1, "joint_attention_dim": 8, "in_channels": 4}


def flux2(name, grids, text, config=None):
    pipeline = diffusers.Flux2Pipeline
    latents = [torch.zeros(1, 4, h, w) for _, h, w in grids]

    def image_ids():
        ids = [pipeline._prepare_latent_ids(latents[0])]
        if latents[1:]:
            ids.append(pipeline._prepare_image_ids(latents[1:]))
        return torch.cat(ids, dim=1)

    def text_ids():
        return pipeline._prepare_text_ids(torch.zeros(1, text, 8))

    def run(model, dtype):
        tokens = sum(h * w for _, h, w in grids)
        model(hidden_states=zeros(1, tokens, 4, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              timestep=torch.ones(1), guidance=torch.ones(1), img_ids=image_ids(), txt_ids=text_ids())

    dims = tuple((config or {}).get("axes_dims_rope", (32, 32, 32, 32)))
    return Case(name, "Flux2Transformer2DModel", dims, run, {"grids": grids, "text": text}, config or {},
                FLUX_LIKE, ids=lambda: torch.cat([text_ids(), image_ids()], dim=1)[0])


def flux_like(name, class_name, grid, text, pipeline, text_ids, config=None, small=None, batch=False, **extra):
    def image_ids():
        return getattr(diffusers, pipeline)._prepare_latent_image_ids(1, grid[1], grid[2], "cpu", torch.float32)

    def run(model, dtype):
        given = {"timestep": torch.ones(1), "img_ids": image_ids(), "txt_ids": text_ids(text)}
        if batch:
            given["txt_ids"] = given["txt_ids"][None]
        given |= {k: f(dtype) for k, f in extra.items()}
        model(hidden_states=zeros(1, grid[1] * grid[2], 4, dtype=dtype),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype), **given)

    return Case(name, class_name, (16, 56, 56), run, {"grids": [grid], "text": text}, config or {},
                {**FLUX_LIKE, **(small or {})},
                ids=lambda: torch.cat([text_ids(text), image_ids().reshape(-1, 3)]))


def ovis_text(text):
    ids = torch.zeros(text, 3)  # OvisImagePipeline._prepare_prompt_embeds
    ids[..., 1] = ids[..., 1] + torch.arange(text)[None, :]
    ids[..., 2] = ids[..., 2] + torch.arange(text)[None, :]
    return ids


def hunyuan_video(name, grid, text, config=None):
    t, h, w = grid
    config = config or {}
    dims = tuple(config.get("rope_axes_dim", (16, 56, 56)))

    def run(model, dtype):
        model(hidden_states=zeros(1, 16, t, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype), encoder_attention_mask=torch.ones(1, text),
              pooled_projections=zeros(1, 8, dtype=dtype), guidance=torch.ones(1))

    small = {"num_layers": 1, "num_single_layers": 0, "num_refiner_layers": 1, "num_attention_heads": 1,
             "text_embed_dim": 8, "pooled_projection_dim": 8}
    return Case(name, "HunyuanVideoTransformer3DModel", dims, run, {"grids": [grid], "text": text}, config, small)


def hunyuan_video15(name, grid, text):
    t, h, w = grid

    def run(model, dtype):
        ones = lambda n: torch.ones(1, n)  # noqa: E731
        model(hidden_states=zeros(1, 65, t, h, w, dtype=dtype), timestep=torch.ones(1, dtype=dtype),
              encoder_hidden_states=zeros(1, text - 3, 8, dtype=dtype), encoder_attention_mask=ones(text - 3),
              encoder_hidden_states_2=zeros(1, 1, 8, dtype=dtype), encoder_attention_mask_2=ones(1),
              image_embeds=torch.ones(1, 2, 8, dtype=dtype))

    small = {"num_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 1, "text_embed_dim": 8,
             "text_embed_2_dim": 8, "image_embed_dim": 8}
    return Case(name, "HunyuanVideo15Transformer3DModel", (16, 56, 56), run, {"grids": [grid], "text": text},
                {}, small)


def hunyuan_image(name, grid, text, config=None):
    t, h, w = grid
    config = config or {}
    frames = len(config.get("patch_size", (1, 1))) == 3

    def run(model, dtype):
        sides = (t, 2 * h, 2 * w) if frames else (h, w)
        model(hidden_states=zeros(1, 4, *sides, dtype=dtype), timestep=torch.ones(1, dtype=dtype),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype), encoder_attention_mask=torch.ones(1, text))

    small = {"in_channels": 4, "num_layers": 1, "num_single_layers": 0, "num_refiner_layers": 1,
             "num_attention_heads": 1, "text_embed_dim": 8}
    return Case(name, "HunyuanImageTransformer2DModel", tuple(config.get("rope_axes_dim", (64, 64))), run,
                {"grids": [grid], "text": text}, config, small)


def cogvideo(name, grid, text, dims=(16, 24, 24), config=None, pipeline=diffusers.CogVideoXPipeline):
    t, h, w = grid
    config = {"use_rotary_positional_embeddings": True, **(config or {})}
    patch, patch_t = config.get("patch_size", 2), config.get("patch_size_t")

    def run(model, dtype):
        maker = types.SimpleNamespace(vae_scale_factor_spatial=8, transformer=model)
        frames = t * (patch_t or 1)
        rotary = pipeline._prepare_rotary_positional_embeddings(
            maker, 8 * patch * h, 8 * patch * w, frames, torch.device("cpu"))
        model(hidden_states=zeros(1, frames, 16, patch * h, patch * w, dtype=dtype),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype), timestep=torch.ones(1), image_rotary_emb=rotary)

    return Case(name, pipeline.__name__.replace("Pipeline", "Transformer3DModel"), dims, run, {"grids": [grid], "text": text}, config,
                {"num_layers": 1, "num_attention_heads": 1, "text_embed_dim": 8})


def cogview4(name, grid, text, config=None):
    _, h, w = grid

    def run(model, dtype):
        two = torch.ones(1, 2)
        model(hidden_states=zeros(1, 16, 2 * h, 2 * w, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              timestep=torch.ones(1), original_size=two, target_size=two, crop_coords=two)

    return Case(name, "CogView4Transformer2DModel", (20, 20), run, {"grids": [grid], "text": text}, config or {},
                {"num_layers": 1, "num_attention_heads": 1, "text_embed_dim": 8}, pairs=halves)


def cosmos(name, grid, fps=None, config=None, dims=(44, 42, 42)):
    t, h, w = grid
    config = config or {}

    def run(model, dtype):
        model(hidden_states=zeros(1, 16, t, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, 3, 8, dtype=dtype), fps=fps)

    small = {"num_layers": 1, "num_attention_heads": 1, "text_embed_dim": 8, "concat_padding_mask": False,
             "extra_pos_embed_type": None}
    args = {"grids": [grid], "text": 0} | ({"fps": fps} if fps else {})
    return Case(name, "CosmosTransformer3DModel", dims, run, args, config, small, pairs=halves)


def lumina2(name, grid, text, config=None):
    _, h, w = grid

    def run(model, dtype):
        model(hidden_states=zeros(1, 16, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype), encoder_attention_mask=torch.ones(1, text, dtype=torch.int64))

    small = {"num_layers": 1, "num_refiner_layers": 0, "hidden_size": 96, "num_attention_heads": 1,
             "num_kv_heads": 1, "cap_feat_dim": 8, "multiple_of": 8}
    return Case(name, "Lumina2Transformer2DModel", (32, 32, 32), run, {"grids": [grid], "text": text}, config or {}, small)


def z_image(name, grid, text, config=None):
    t, h, w = grid

    def run(model, dtype):
        model([zeros(16, t, 2 * h, 2 * w, dtype=dtype)], torch.ones(1), [zeros(text, 8, dtype=dtype)])

    small = {"n_layers": 1, "n_refiner_layers": 0, "dim": 128, "n_heads": 1, "n_kv_heads": 1, "cap_feat_dim": 8}
    return Case(name, "ZImageTransformer2DModel", (32, 48, 48), run, {"grids": [grid], "text": text}, config or {}, small)


def hidream(name, grid, text, dims=(64, 32, 32), config=None):
    _, h, w = grid
    config = {"axes_dims_rope": list(dims), "patch_size": 2, **(config or {})}

    def run(model, dtype):
        one = text // 2
        model(hidden_states=zeros(1, 4, 2 * h, 2 * w, dtype=dtype), timesteps=torch.ones(1),
              encoder_hidden_states_t5=zeros(1, text - 2 * one, 8, dtype=dtype),
              encoder_hidden_states_llama3=zeros(1, 1, one, 8, dtype=dtype), pooled_embeds=zeros(1, 8, dtype=dtype))

    small = {"num_layers": 1, "num_single_layers": 0, "num_attention_heads": 1, "in_channels": 4, "text_emb_dim": 8,
             "caption_channels": [8, 8], "llama_layers": [0]}
    return Case(name, "HiDreamImageTransformer2DModel", dims, run, {"grids": [grid], "text": text}, config, small,
                head=128)


def kandinsky5(name, grid, text, kind, scale=None, dims=(16, 24, 24), config=None):
    t, h, w = grid
    size = 4 * sum(dims)  # of a time embedding, too

    def run(model, dtype):  # positions as Kandinsky5T2VPipeline counts them
        model(hidden_states=zeros(1, t, 2 * h, 2 * w, 4, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype), pooled_projections=zeros(1, 8, dtype=dtype),
              visual_rope_pos=[torch.arange(n) for n in grid], text_rope_pos=torch.arange(text),
              scale_factor=tuple(scale or (1.0, 1.0, 1.0)))

    small = {"in_text_dim": 8, "in_text_dim2": 8, "time_dim": size, "model_dim": sum(dims), "ff_dim": 8,
             "num_text_blocks": 1, "num_visual_blocks": 1}
    visual = kind == "visual"
    args = {"grids": [grid], "text": 0} if visual else {"grids": [], "text": text}
    return Case(name, "Kandinsky5Transformer3DModel", dims if visual else (sum(dims),), run,
                args | ({"scale": scale} if scale else {}), config or {}, small, attention=int(visual),
                type=kind, table=f"{kind}_rope_embeddings")


def allegro(name, grid, config=None):
    t, h, w = grid

    def run(model, dtype):
        maker = types.SimpleNamespace(vae_scale_factor_spatial=8, transformer=model)
        rotary = diffusers.AllegroPipeline._prepare_rotary_positional_embeddings(
            maker, 1, 16 * h, 16 * w, t, torch.device("cpu"))
        model(hidden_states=zeros(1, 4, t, 2 * h, 2 * w, dtype=dtype), encoder_hidden_states=zeros(1, 1, 3, 8, dtype=dtype),
              timestep=torch.ones(1), image_rotary_emb=rotary)

    return Case(name, "AllegroTransformer3DModel", (32, 32, 32), run, {"grids": [grid], "text": 0}, config or {},
                {"num_layers": 1, "num_attention_heads": 1, "caption_channels": 8, "cross_attention_dim": 96},
                pairs=halves_per_axis)


def krea2(name, grid, text, config=None):
    _, h, w = grid
    config = config or {}

    def ids():
        return diffusers.Krea2Pipeline.prepare_position_ids(text, h, w, "cpu")

    def run(model, dtype):
        model(hidden_states=zeros(1, h * w, 4, dtype=dtype), encoder_hidden_states=zeros(1, text, 2, 8, dtype=dtype),
              timestep=torch.ones(1), position_ids=ids())

    small = {"in_channels": 4, "num_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
             "intermediate_size": 8, "text_hidden_dim": 8, "num_text_layers": 2, "text_num_attention_heads": 1,
             "text_num_key_value_heads": 1, "text_intermediate_size": 8, "num_layerwise_text_blocks": 0,
             "num_refiner_text_blocks": 0}
    return Case(name, "Krea2Transformer2DModel", tuple(config.get("axes_dims_rope", (32, 48, 48))), run,
                {"grids": [grid], "text": text}, config, small, ids)


def bria_fibo(name, grids, text, config=None):
    def ids():
        of_grids = [diffusers.BriaFiboPipeline._prepare_latent_image_ids(1, h, w, "cpu", torch.float32).reshape(-1, 3)
                    for _, h, w in grids]
        for i, of_grid in enumerate(of_grids):
            of_grid[..., 0] = i  # BriaFiboEditPipeline: of references
        return torch.cat([torch.zeros(text, 3), *of_grids])

    def run(model, dtype):
        tokens = sum(h * w for _, h, w in grids)
        model(hidden_states=zeros(1, tokens, 4, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              text_encoder_layers=[zeros(1, text, 8, dtype=dtype)], timestep=torch.ones(1), img_ids=ids()[text:],
              txt_ids=ids()[:text])

    small = {**FLUX_LIKE, "text_encoder_dim": 8}
    return Case(name, "BriaFiboTransformer2DModel", (16, 56, 56), run, {"grids": grids, "text": text}, config or {},
                small, ids)


def longcat_image(name, grids, text):
    make = pipeline_longcat_image.prepare_pos_ids

    def text_ids():
        return make(modality_id=0, type="text", start=(0, 0), num_token=text)

    def image_ids():  # the second as LongCatImageEditPipeline.prepare_latents
        return torch.cat([make(modality_id=1 + i, type="image", start=(text, text), height=h, width=w)
                          for i, (_, h, w) in enumerate(grids)])

    def run(model, dtype):
        tokens = sum(h * w for _, h, w in grids)
        model(hidden_states=zeros(1, tokens, 4, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              timestep=torch.ones(1), img_ids=image_ids(), txt_ids=text_ids())

    return Case(name, "LongCatImageTransformer2DModel", (16, 56, 56), run, {"grids": grids, "text": text}, {},
                {**FLUX_LIKE, "pooled_projection_dim": 8}, lambda: torch.cat([text_ids(), image_ids()]))


def glm_image(name, grid, text, config=None):
    _, h, w = grid
    config = config or {}
    half = config.get("attention_head_dim", 40) // 2

    def run(model, dtype):
        two, prior = torch.ones(1, 2), torch.zeros(1, h * w, dtype=torch.long)
        model(hidden_states=zeros(1, 16, 2 * h, 2 * w, dtype=dtype), encoder_hidden_states=zeros(1, text, 8, dtype=dtype),
              prior_token_id=prior, prior_token_drop=prior.bool(), timestep=torch.ones(1), target_size=two, crop_coords=two)

    small = {"num_layers": 1, "num_attention_heads": 1, "text_embed_dim": 8, "prior_vq_quantizer_codebook_size": 8}
    return Case(name, "GlmImageTransformer2DModel", (half, half), run, {"grids": [grid], "text": text}, config, small,
                pairs=halves)


def easyanimate(name, grid, text, config=None):
    t, h, w = grid
    config = {"patch_size": 2, **(config or {})}

    def run(model, dtype):
        patch = config["patch_size"]
        model(hidden_states=zeros(1, 4, t, patch * h, patch * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype))

    small = {"num_layers": 1, "num_attention_heads": 1, "in_channels": 4, "out_channels": 4, "text_embed_dim": 8}
    return Case(name, "EasyAnimateTransformer3DModel", (16, 24, 24), run, {"grids": [grid], "text": text}, config, small)


def prx(name, grid, config=None):
    _, h, w = grid
    config = config or {}

    def run(model, dtype):
        model(hidden_states=zeros(1, 16, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, 3, 8, dtype=dtype))

    dims = tuple(config.get("axes_dim", (32, 32)))
    small = {"hidden_size": sum(dims), "num_heads": 1, "depth": 1, "context_in_dim": 8}
    return Case(name, "PRXTransformer2DModel", dims, run, {"grids": [grid], "text": 0}, config, small, side="query")


def motif_video(name, grid, text, config=None):
    t, h, w = grid

    def run(model, dtype):
        model(hidden_states=zeros(1, 4, t, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype))

    small = {"in_channels": 4, "num_layers": 1, "num_single_layers": 0, "num_attention_heads": 1, "text_embed_dim": 8}
    return Case(name, "MotifVideoTransformer3DModel", (16, 56, 56), run, {"grids": [grid], "text": text}, config or {},
                small)


def joy_image(name, grid, text, config=None):
    t, h, w = grid
    config = config or {}

    def run(model, dtype):
        model(hidden_states=zeros(1, 16, t, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype))

    dims = tuple(config.get("rope_dim_list", (16, 56, 56)))
    small = {"hidden_size": sum(dims), "num_attention_heads": 1, "num_layers": 1, "text_dim": 8}
    return Case(name, "JoyImageEditTransformer3DModel", dims, run, {"grids": [grid], "text": text}, config, small)


def anyflow(name, grid):
    t, h, w = grid

    def run(model, dtype):
        model(hidden_states=zeros(1, t, 16, 2 * h, 2 * w, dtype=dtype), timestep=torch.ones(1, t),
              r_timestep=torch.ones(1, t), encoder_hidden_states=zeros(1, 3, 8, dtype=dtype))

    small = {"num_layers": 1, "num_attention_heads": 1, "text_dim": 8, "ffn_dim": 16}
    return Case(name, "AnyFlowTransformer3DModel", (44, 42, 42), run, {"grids": [grid], "text": 0}, {}, small)


def nucleus(name, grid, text, config=None):
    _, h, w = grid

    def run(model, dtype):
        model(hidden_states=zeros(1, h * w, 4, dtype=dtype), img_shapes=[(1, h, w)], timestep=torch.ones(1),
              encoder_hidden_states=zeros(1, text, 8, dtype=dtype))

    dims = tuple((config or {}).get("axes_dims_rope", (16, 56, 56)))
    small = {"num_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 8, "in_channels": 4, "moe_enabled": False}
    return Case(name, "NucleusMoEImageTransformer2DModel", dims, run, {"grids": [grid], "text": text}, config or {},
                small, side="key")


# What a class cannot do without, or has no RoPE without.
NEEDED = {
    "CogVideoXTransformer3DModel": {"use_rotary_positional_embeddings": True},
    "ConsisIDTransformer3DModel": {"use_rotary_positional_embeddings": True},
    "EasyAnimateTransformer3DModel": {"patch_size": 2},
    "HiDreamImageTransformer2DModel": {"patch_size": 2, "axes_dims_rope": [64, 32, 32]},
}


def defaults():
    """For each class that has a case: what is needed, and what save_pretrained writes then."""
    for name in sorted({case.class_name for case in cases()}):
        given = inspect.signature(getattr(diffusers, name).__init__).parameters
        rest = {k: p.default for k, p in given.items() if p.default is not p.empty}
        needed = {"_class_name": name, **NEEDED.get(name, {})}
        yield {"needed": needed, "saved": {"_diffusers_version": diffusers.__version__, **rest, **needed}}


def cases():
    yield flux("flux", [[1, 5, 3]], 4)
    yield flux("flux-one-token", [[1, 1, 1]], 1)
    yield flux("flux-kontext", [[1, 3, 4], [1, 2, 5]], 3)
    yield flux("flux-wide", [[1, 2, 255]], 2, {"guidance_embeds": False})
    yield flux("flux-dims", [[1, 3, 3]], 2, {"axes_dims_rope": [4, 30, 30], "attention_head_dim": 64})
    yield qwen_image("qwen-image", [[1, 5, 4]], 6)
    yield qwen_image("qwen-image-odd", [[1, 3, 7]], 2)
    yield qwen_image("qwen-image-edit", [[1, 4, 6], [1, 5, 3], [1, 1, 2]], 5)
    yield qwen_image("qwen-image-frames", [[3, 2, 2], [2, 1, 3]], 3)
    yield qwen_image("qwen-image-wide", [[1, 1, 129]], 3)
    yield qwen_image("qwen-image-layered", [[1, 3, 4], [1, 3, 4], [1, 3, 4]], 4, {"use_layer3d_rope": True})
    yield qwen_image("qwen-image-layered-many", [[1, 1, 2]] * 6, 2, {"use_layer3d_rope": True})
    yield wan("wan", [3, 4, 5])
    yield wan("wan-one-frame", [1, 3, 2])
    yield wan("wan-long", [130, 1, 1])
    yield wan("wan-head-64", [2, 3, 3], dims=(24, 20, 20), config={"attention_head_dim": 64})
    yield wan("wan-vace", [2, 2, 3], "WanVACETransformer3DModel", config={"vace_layers": [0]},
              extra={"control_hidden_states": lambda dtype: zeros(1, 96, 2, 4, 6, dtype=dtype),
                     "control_hidden_states_scale": lambda dtype: torch.ones(1)})
    yield flux2("flux2", [[1, 4, 5]], 3)
    yield flux2("flux2-references", [[1, 3, 2], [1, 2, 2], [1, 1, 3]], 2, {"rope_theta": 5000})
    yield flux_like("chroma", "ChromaTransformer2DModel", [1, 3, 5], 3, "ChromaPipeline", lambda n: torch.zeros(n, 3),
                    small={"approximator_num_channels": 64, "approximator_hidden_dim": 8, "approximator_layers": 1})
    yield flux_like("bria", "BriaTransformer2DModel", [1, 4, 3], 2, "BriaPipeline", lambda n: torch.zeros(n, 3),
                    {"rope_theta": 5000}, {"pooled_projection_dim": 8}, batch=True,
                    pooled_projections=lambda dtype: zeros(1, 8, dtype=dtype))
    yield flux_like("ovis-image", "OvisImageTransformer2DModel", [1, 3, 4], 5, "OvisImagePipeline", ovis_text)
    yield hunyuan_video("hunyuan-video", [3, 2, 3], 4)
    yield hunyuan_video("hunyuan-video-one-frame", [1, 5, 2], 1, {"rope_theta": 1000.0, "rope_axes_dim": [32, 48, 48]})
    yield hunyuan_video15("hunyuan-video-1.5", [2, 3, 4], 5)
    yield hunyuan_image("hunyuan-image", [1, 3, 5], 4)
    yield hunyuan_image("hunyuan-image-wide", [1, 2, 130], 1, {"rope_theta": 1000.0, "rope_axes_dim": [48, 80]})
    yield hunyuan_image("hunyuan-image-frames", [2, 3, 2], 3, {"patch_size": [1, 2, 2], "rope_axes_dim": [16, 56, 56]})
    yield cogvideo("cogvideox", [3, 30, 45], 2)
    yield cogvideo("cogvideox-wide", [2, 3, 9], 3)
    yield cogvideo("cogvideox-high", [1, 17, 4], 1)
    yield cogvideo("cogvideox-one-token", [1, 1, 1], 1)
    yield cogvideo("cogvideox-1.5", [2, 5, 4], 3, config={"patch_size_t": 2, "sample_height": 300, "sample_width": 300})
    yield cogvideo("consisid", [2, 30, 45], 2, pipeline=ConsisIDPipeline)
    yield cogvideo("consisid-wide", [2, 4, 11], 3, pipeline=ConsisIDPipeline, config={"sample_height": 48, "sample_width": 84})
    yield cogview4("cogview4", [1, 5, 7], 3)
    yield cogview4("cogview4-large", [1, 3, 128], 2, {"rope_axes_dim": [64, 300]})
    yield cosmos("cosmos", [3, 4, 5])
    yield cosmos("cosmos-30-fps", [4, 2, 3], fps=30)
    yield cosmos("cosmos-scale", [5, 3, 2], fps=16, config={"rope_scale": [1.0, 3.0, 2.5]})
    yield lumina2("lumina2", [1, 3, 5], 7)
    yield lumina2("lumina2-one-token", [1, 1, 1], 1)
    yield z_image("z-image", [1, 5, 3], 7)
    yield z_image("z-image-padded", [1, 4, 8], 33)
    yield hidream("hidream", [1, 4, 4], 5)
    yield hidream("hidream-half-head", [1, 3, 3], 4, (32, 16, 16))
    yield hidream("hidream-padded", [1, 3, 4], 5, config={"max_resolution": [8, 8]})
    yield hidream("hidream-half-head-padded", [1, 2, 5], 4, (32, 16, 16), config={"max_resolution": [6, 10]})
    yield kandinsky5("kandinsky5", [3, 4, 5], 6, "visual")
    yield kandinsky5("kandinsky5-scaled", [2, 3, 5], 2, "visual", [1.0, 2.0, 2.0])
    yield kandinsky5("kandinsky5-fractions", [2, 5, 3], 2, "visual", [1.0, 3.16, 3.0], (32, 48, 48),
                     {"axes_dims": [32, 48, 48]})
    yield kandinsky5("kandinsky5-text", [1, 2, 2], 70, "text")
    yield allegro("allegro", [3, 2, 5])
    yield allegro("allegro-other-scales", [2, 5, 3], {"interpolation_scale_t": 1.0, "interpolation_scale_h": 1.5})
    yield wan("skyreels-v2", [2, 3, 2], "SkyReelsV2Transformer3DModel")
    yield ltx("ltx", [3, 2, 4], 25, {"num_attention_heads": 4, "attention_head_dim": 16})
    yield ltx("ltx-defaults", [1, 1, 2], 25)
    yield ltx("ltx-patches", [2, 3, 2], 30, {"num_attention_heads": 3, "attention_head_dim": 10, "patch_size": 2, "patch_size_t": 2})
    yield ltx("ltx-other-vae", [9, 3, 2], 23.976, {"num_attention_heads": 4, "attention_head_dim": 8}, [4, 16, 24])
    for rope_type in ("interleaved", "split"):
        config = {"rope_type": rope_type}
        for kind in ("video", "audio", "cross_video", "cross_audio"):
            yield ltx2(f"ltx2-{rope_type}-{kind}", kind, [3, 2, 3], 7, 24.0, config)
    other = {"rope_type": "split", "rope_double_precision": False, "rope_theta": 5000.0, "causal_offset": 0, "base_height": 1000,
             "base_width": 900, "pos_embed_max_pos": 15, "audio_pos_embed_max_pos": 30, "vae_scale_factors": [4, 16, 8],
             "patch_size": 2, "patch_size_t": 2, "audio_patch_size_t": 3, "audio_scale_factor": 5,
             "audio_sampling_rate": 22050, "audio_hop_length": 147}
    for kind in ("video", "audio", "cross_video", "cross_audio"):
        yield ltx2(f"ltx2-other-{kind}", kind, [2, 3, 2], 5, 29.97, other)
    yield krea2("krea2", [1, 3, 5], 4)
    yield krea2("krea2-theta", [1, 2, 2], 1, {"rope_theta": 256.0, "axes_dims_rope": [64, 32, 32]})
    yield bria_fibo("bria-fibo", [[1, 3, 4]], 5)
    yield bria_fibo("bria-fibo-edit", [[1, 3, 2], [1, 2, 4], [1, 1, 3]], 2, {"rope_theta": 5000})
    yield longcat_image("longcat-image", [[1, 4, 3]], 6)
    yield longcat_image("longcat-image-edit", [[1, 2, 3], [1, 2, 3]], 4)
    yield glm_image("glm-image", [1, 3, 5], 4)
    yield glm_image("glm-image-wide", [1, 2, 70], 1, {"attention_head_dim": 128})
    yield easyanimate("easyanimate", [3, 30, 45], 2)
    yield easyanimate("easyanimate-wide", [2, 3, 9], 3)
    yield wan("chronoedit", [3, 2, 4], "ChronoEditTransformer3DModel")
    yield wan("chronoedit-two-frames", [2, 3, 2], "ChronoEditTransformer3DModel")
    yield wan("chronoedit-skip", [2, 2, 2], "ChronoEditTransformer3DModel", config={"rope_temporal_skip_len": 5})
    yield sana_video("sana-video", [3, 2, 4], (40, 36, 36))
    yield sana_video("sana-video-head-64", [2, 3, 2], (24, 20, 20), {"attention_head_dim": 64})
    yield prx("prx", [1, 4, 3])
    yield prx("prx-theta", [1, 2, 5], {"theta": 500, "axes_dim": [40, 24]})
    yield anyflow("anyflow", [3, 2, 4])
    yield nucleus("nucleus-image", [1, 4, 3], 5)
    yield nucleus("nucleus-image-odd", [1, 3, 7], 2, {"axes_dims_rope": [32, 48, 48]})
    yield joy_image("joy-image", [2, 3, 4], 5)
    yield joy_image("joy-image-mrope", [2, 5, 3], 4, {"rope_type": "mrope", "theta": 1000, "rope_dim_list": [32, 48, 48]})
    yield motif_video("motif-video", [3, 2, 3], 4)
    yield motif_video("motif-video-theta", [1, 4, 2], 1, {"rope_theta": 1000.0})
