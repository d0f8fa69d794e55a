"""The names of choices as types. Written by bindings/enums.py from librope/rope.h."""

from typing import Literal

Pairing = Literal["halves", "interleaved", "interleaved_to_halves", "halves_per_axis"]
Scaling = Literal[
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "nope",
    "dynamic_steps",
]
Angle = Literal["float32", "exact", "ggml"]
Rounding = Literal["float32", "eager", "cos_sin"]
DType = Literal["float32", "float16", "bfloat16"]
Operation = Literal["forward", "backward", "inverse", "shift"]
