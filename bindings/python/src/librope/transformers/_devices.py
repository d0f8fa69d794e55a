"""Which devices librope rotates on: tensors elsewhere are left to the model's own code."""

from __future__ import annotations

import functools

import torch

from .._rope import Rope


@functools.cache
def cuda_works() -> bool:
    """Whether this librope takes CUDA tensors: built with CUDA, and there is a device."""
    if not torch.cuda.is_available():
        return False
    try:
        Rope(head_dim=2, theta=1.0, pairing="halves")._context(0)
    except RuntimeError:
        return False
    return True


def takes_device(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and cuda_works())
