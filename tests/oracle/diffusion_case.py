"""What a transformer of diffusers is run with, for diffusion_cases.py and diffusion_ltx.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import diffusers
import torch


def interleaved(head_dim):
    return torch.arange(head_dim).reshape(-1, 2)


def halves(head_dim):
    return torch.arange(head_dim).reshape(2, -1).T


def halves_per_axis(head_dim):
    third = head_dim // 3
    return torch.cat([axis * third + halves(third) for axis in range(3)])


@dataclasses.dataclass
class Case:
    name: str
    class_name: str
    dims: tuple[int, ...]  # channels of each axis
    run: Callable[[Any, torch.dtype], Any]
    args: dict[str, Any]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)  # what differs from the class's defaults
    small: dict[str, Any] = dataclasses.field(default_factory=dict)  # sizes of the model that runs, alone
    ids: Callable[[], torch.Tensor] | None = None  # [tokens, axes]
    pairs: Callable[[int], torch.Tensor] = interleaved
    attention: int = 0  # which call of the attention rotates
    type: str = "full_attention"
    table: str | None = None  # the module whose output has cos and sin, where the model rounds what it rotates
    head: int = 0  # channels of a head, if more than turn
    heads: int = 0  # with frequencies of their own; 0: one head is run, and all turn alike
    firsts: tuple[int, ...] = ()  # the first pair of each axis, with heads
    # "query", "key": of an attention where the two differ, counting all attentions. "linear": of linear attention,
    # without its ReLU, which would leave no negative number.
    side: str = ""

    @property
    def axes(self):
        return len(self.firsts or self.dims)

    @property
    def first_pairs(self):
        return list(self.firsts) or [sum(self.dims[:a]) // 2 for a in range(self.axes)]

    @property
    def head_dim(self):
        return self.head or sum(self.dims)

    def make(self):
        return getattr(diffusers, self.class_name)(**{**self.config, **self.small})

    def config_json(self):
        return {"_class_name": self.class_name, "_diffusers_version": diffusers.__version__, **self.config}


def zeros(*shape, dtype):
    return torch.zeros(shape, dtype=dtype)
