"""For which models llama.cpp's converter permutes q and k, so that halves become neighbours.

By architecture of GGUF, the values of model_type. No key of the file tells it: these pairs of texts were
converted by that converter and compared (tests/data/gguf.json; test_diff.py makes the table anew).
"""

from __future__ import annotations

PERMUTED: dict[str, tuple[str, ...]] = {
    "arcee": ("arcee",),
    "chameleon": ("chameleon",),
    "deci": ("nemotron-nas",),
    "deepseek": ("deepseek",),
    "granite": ("granite",),
    "granite_swa": ("granite_swa", "granitemoe_swa"),
    "granitehybrid": ("granitemoehybrid",),
    "granitemoe": ("granitemoe", "granitemoeshared"),
    "hy_v4": ("hy_v4",),
    "internlm2": ("internlm", "internlm2"),
    "llama": ("iquestcoder", "janus", "llama", "llava", "mistral", "mixtral"),
    "minicpm": ("minicpm",),
    "mistral3": ("ministral3",),
    "muse-glimmer": ("muse_glimmer",),
    "olmo": ("olmo",),
    "pockettts": ("pocket_tts",),
    "smollm3": ("smollm3",),
}


def permuted(model_type: str | None, architecture: str | None) -> bool:
    """Whether a file of this architecture has the q and k of this model in another order."""
    return model_type is not None and model_type in PERMUTED.get(architecture or "", ())


def usual_architecture(model_type: str | None) -> str | None:
    """The one whose files have the q and k of this model in another order; None: there is none."""
    found = [a for a, types in PERMUTED.items() if model_type in types]
    return found[0] if found else None
