"""Position ids of multimodal prompts: the models' own get_rope_index, and the runs it was given.

A prompt is a list of runs of text followed by at most one image or video, as in rope_prompt_part of the C
API. Grids are given before merging to the model and recorded after merging. No weights are needed:
the method reads the config alone.
"""

from __future__ import annotations

import functools
import importlib
import types

import torch

MODELS = {  # folder: (class, config class)
    "qwen2_vl": ("Qwen2VLModel", "Qwen2VLConfig"),
    "qwen2_5_vl": ("Qwen2_5_VLModel", "Qwen2_5_VLConfig"),
    "qwen3_vl": ("Qwen3VLModel", "Qwen3VLConfig"),
    "qwen3_5": ("Qwen3_5Model", "Qwen3_5Config"),
    "glm4v": ("Glm4vModel", "Glm4vConfig"),
}
TEXT, IMAGE, VIDEO = 0, 1, 2

# (text tokens, kind, (t, h, w) before merging, seconds per grid) of each run.
PROMPTS = {
    "text": [(9, TEXT, None, None)],
    "image": [(5, IMAGE, (1, 4, 6), None), (3, TEXT, None, None)],
    "image-tall": [(2, IMAGE, (1, 14, 4), None), (4, TEXT, None, None)],
    "image-first": [(0, IMAGE, (1, 8, 8), None), (6, TEXT, None, None)],
    "two-images": [(3, IMAGE, (1, 4, 4), None), (1, IMAGE, (1, 2, 10), None), (2, TEXT, None, None)],
    "video": [(4, VIDEO, (3, 4, 6), 1.0), (5, TEXT, None, None)],
    "video-longer-than-wide": [(2, VIDEO, (9, 4, 4), 1.0), (3, TEXT, None, None)],
    "image-and-video": [(3, IMAGE, (1, 6, 4), None), (2, VIDEO, (2, 4, 8), 1.0), (4, TEXT, None, None)],
    "ends-with-image": [(6, IMAGE, (1, 4, 4), None)],
}
# Only where the model spaces frames by time: Qwen2.5-VL, whose released models say 2 tokens per second.
TIMED = {
    "video-2s": [(4, VIDEO, (3, 4, 6), 2.0), (5, TEXT, None, None)],
    "video-half-second": [(4, VIDEO, (4, 4, 4), 0.5), (5, TEXT, None, None)],
    "video-fractional": [(4, VIDEO, (4, 4, 4), 0.7), (5, TEXT, None, None)],
}


def frames_apart(folder, runs):
    """The prompt as the processor lays it out: Qwen3-VL and GLM-4V put text (a time stamp, here 2
    tokens) before every frame of a video, so that each frame is a run of its own."""
    if folder not in ("qwen3_vl", "qwen3_5", "glm4v"):
        return runs
    apart = []
    for text, kind, grid, seconds in runs:
        if kind != VIDEO:
            apart.append((text, kind, grid, seconds))
            continue
        for frame in range(grid[0]):
            apart.append((text if frame == 0 else 2, VIDEO, (1, *grid[1:]), seconds))
    return apart


def ask(folder, config, model_class, runs):
    """position_ids [3, tokens] of a prompt of one sequence, and what the model adds to
    the number of tokens to go on."""
    merge = config.vision_config.spatial_merge_size
    types_, images, videos, seconds = [], [], [], []
    for text, kind, grid, interval in runs:
        types_ += [TEXT] * text
        if kind != TEXT:
            types_ += [kind] * (grid[0] * (grid[1] // merge) * (grid[2] // merge))
            (images if kind == IMAGE else videos).append(grid)
        if kind == VIDEO:
            seconds.append(interval)
    extra = {"second_per_grid_ts": torch.tensor(seconds)} if folder == "qwen2_5_vl" and seconds else {}
    model = types.SimpleNamespace(config=config)
    model.get_vision_position_ids = functools.partial(model_class.get_vision_position_ids, model)
    return model_class.get_rope_index(
        model, torch.zeros(1, len(types_), dtype=torch.long), mm_token_type_ids=torch.tensor([types_]),
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None, **extra)


def intervals(runs, config, folder):
    """t_interval of each run where it is a whole number, else None: rope_prompt_part cannot say it."""
    rate = getattr(config.vision_config, "tokens_per_second", 1) if folder == "qwen2_5_vl" else 1
    values = [rate * seconds if kind == VIDEO and folder == "qwen2_5_vl" else 1 for _, kind, _, seconds in runs]
    return [int(v) if v == int(v) else None for v in values]


def make(skipped):
    """All prompts of all models; a model that is missing or refuses is added to `skipped`."""
    cases = []
    for folder, (model_name, config_name) in MODELS.items():
        try:
            modeling = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
            configuration = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
            config, model_class = getattr(configuration, config_name)(), getattr(modeling, model_name)
            if folder == "qwen2_5_vl":
                config.vision_config.tokens_per_second = 2
            prompts = PROMPTS | (TIMED if folder == "qwen2_5_vl" else {})
            for name, prompt in prompts.items():
                runs = frames_apart(folder, prompt)
                merge = config.vision_config.spatial_merge_size
                ids, delta = ask(folder, config, model_class, runs)
                cases.append({
                    "name": f"{folder}/{name}", "function": f"{modeling.__name__}.{model_name}.get_rope_index",
                    "spatial_merge_size": merge,
                    "runs": [{"text": text, "kind": ("text", "image", "video")[kind],
                              "grid": [0, 0, 0] if kind == TEXT else [grid[0], grid[1] // merge, grid[2] // merge],
                              "t_interval": interval, "seconds": seconds}
                             for (text, kind, grid, seconds), interval in zip(runs, intervals(runs, config, folder))],
                    "start": 0, "tokens": ids.shape[-1], "ids": ids[:, 0].tolist(),
                    # where decoding continues: the model adds its delta to the number of tokens
                    "next": ids.shape[-1] + int(delta[0, 0]),
                })
        except Exception as error:
            skipped.append({"name": f"get_rope_index of {folder}", "reason": f"{type(error).__name__}: {error}"})
    return {"format": 1, "cases": cases}
