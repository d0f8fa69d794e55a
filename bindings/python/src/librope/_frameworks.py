"""librope.torch and librope.jax as plug-ins: imported when the first of their arrays comes.

They use Rope, so that nothing that Rope is made of may import them but this file. An import
statement, because torch.compile does not follow importlib.
"""

from __future__ import annotations

from typing import Any

#: Whose arrays may have to be seen by more than librope: in this order, a call is theirs.
FRAMEWORKS = ("torch", "jax")


def load(name: str) -> Any:
    """The module librope.<name>."""
    if name == "torch":
        from . import torch

        return torch
    from . import jax

    return jax
