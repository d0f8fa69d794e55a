"""Records q and k of a running engine, before and after it rotates them, for `librope check`.

In a few lines::

    from librope import record

    with record.watch(model) as recording:           # transformers, diffusers, any torch module
        model(**inputs)
    recording = record.run_onnx("model.onnx", feed)  # the RotaryEmbedding nodes of a graph
    recording = record.Recording()                   # anything else, by hand
    recording.add("layers.0.q", before, after, positions, layout="bhsd")

    recording.save("run.safetensors")                # librope check config.json run.safetensors

A file holds NAME.before and NAME.after of each tensor, [batch, tokens, heads, channels], and the
positions of its tokens as NAME.positions, or as positions where all tensors have the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .._extra import missing
from .._rules import axes_of

try:
    import numpy as np
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(missing("librope.record", e), name=e.name) from None

__all__ = ["Recording", "Tensor", "run_onnx", "watch"]

BEFORE, AFTER, POSITIONS = ".before", ".after", "positions"


@dataclass(frozen=True)
class Tensor:
    """One tensor before and after its rotation: [batch, tokens, heads, channels]."""

    before: Any
    after: Any
    positions: Any  # [tokens], [batch, tokens] or [axes, batch, tokens]; None: not recorded


def to_numpy(x: Any) -> Any:
    """A copy of an array as NumPy's, bfloat16 as that of ml_dtypes."""
    detach = getattr(x, "detach", None)
    if detach is not None:  # torch
        import torch

        x = detach().to("cpu", copy=True).contiguous()
        if x.dtype == torch.bfloat16:
            import ml_dtypes

            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()
    return np.array(x)


def ordered(x: Any, layout: str, name: str = "the tensor") -> Any:
    """x as [batch, tokens, heads, channels]: a view. layout: what its axes are."""
    b, t, h = axes_of(layout)
    if len(layout) != x.ndim:
        raise ValueError(f"layout is {layout!r}, and {name} has {x.ndim} axes: {x.shape}")
    moved = np.transpose(x, [i for i in (b, t, h) if i is not None] + [x.ndim - 1])
    if b is None:
        moved = moved[None]
    return moved if h is not None else moved[:, :, None]


def _check_positions(name: str, at: Any, batch: int, tokens: int) -> None:
    if at.ndim not in (1, 2, 3) or at.dtype.kind not in "iuf":
        raise ValueError(f"{name}: positions are {at.dtype} of shape {at.shape}, and must be integers "
                         "or float32: [tokens], [batch, tokens] or [axes, batch, tokens]")  # fmt: skip
    rows = at.shape[-2] if at.ndim > 1 else 1
    # Of one batch row, two dimensions may be axes and tokens: how many axes there are the config tells.
    if at.shape[-1] != tokens or not (rows in (1, batch) or (at.ndim == 2 and batch == 1)):
        raise ValueError(f"{name}: positions have shape {at.shape}, and the tensor {batch} x {tokens} tokens: "
                         "[tokens], [batch, tokens] or [axes, batch, tokens] is expected")  # fmt: skip
    if at.dtype.kind == "f" and not np.isfinite(at).all():
        raise ValueError(f"{name}: positions are not all finite")


class Recording(Mapping[str, Tensor]):
    """Tensors by name. A name with "layers.3." in it is of layer 3 of the language model."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        #: What was seen and could not be recorded.
        self.left_out: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def add(self, name: str, before: Any, after: Any, positions: Any = None, *, layout: str) -> None:
        """Adds a copy of a tensor.

        Args:
            name: such as "layers.0.q".
            before, after: arrays of NumPy or torch, or whatever NumPy takes, of one shape.
            positions: of its tokens: [tokens], [batch, tokens] or [axes, batch, tokens].
            layout: what the axes of before and after are: "bshd", "bhsd", "thd", ...

        Raises:
            ValueError: the name is empty, taken or "positions"; shapes differ or are not the layout;
                positions are not those of its tokens, or not finite.
        """
        if not name or name in self._tensors or name == POSITIONS:
            taken = "is there already" if name in self._tensors else "is no name for a tensor"
            raise ValueError(f"name is {name!r}, which {taken}")
        x, y = to_numpy(before), to_numpy(after)
        if x.shape != y.shape:
            raise ValueError(f"{name}: before has shape {x.shape} and after {y.shape}")
        at = None if positions is None else to_numpy(positions)
        x, y = (ordered(a, layout, name) for a in (x, y))
        if at is not None:
            _check_positions(name, at, *x.shape[:2])
        self._tensors[name] = Tensor(x, y, at)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a .safetensors or .npz file. ValueError: there is nothing to write; bfloat16 in .npz.
        ModuleNotFoundError: safetensors is not there; a .npz file needs NumPy alone."""
        from ..cli import files

        if not self._tensors:
            why = "".join(f"\n  {line}" for line in self.left_out)
            raise ValueError(f"the recording is empty: no rotation was seen{why}")
        kept: dict[str, Any] = {}
        given = [t.positions for t in self._tensors.values()]
        shared = given[0] is not None and all(
            p is not None and p.dtype == given[0].dtype and np.array_equal(p, given[0]) for p in given
        )
        if shared:
            kept[POSITIONS] = given[0]
        for name, t in self._tensors.items():
            kept[name + BEFORE], kept[name + AFTER] = t.before, t.after
            if t.positions is not None and not shared:
                kept[f"{name}.{POSITIONS}"] = t.positions
        try:
            files.save(os.fspath(path), kept, {"layout": "bshd"})
        except ModuleNotFoundError as e:
            raise ModuleNotFoundError(missing(f"{os.fspath(path)}: a recording", e), name=e.name) from None


def watch(model: Any, *, layout: str | None = None, calls: int | None = None) -> AbstractContextManager[Recording]:
    """Records what the attention layers of a torch module rotate, in a with block.

    Functions named apply_..rotary.. or apply_..rope.. in the modules of the model's classes are
    wrapped, and put back at the end. Tensors are named by the module that calls: the first is q,
    the second k, further ones x2, x3; from its second call on with @1, @2, ... Position ids are those
    of the module that made the cosines.

    Args:
        model: a torch.nn.Module, of transformers, diffusers or your own.
        layout: of q and k, where their shapes do not tell tokens from heads.
        calls: how many calls of each module are recorded; None: all of them.

    Raises:
        TypeError: model is no torch.nn.Module. ValueError: it has no such function.
    """
    from ._torch import watching

    return watching(model, layout, calls)


def run_onnx(
    model: Any, inputs: Mapping[str, Any], *, providers: tuple[str, ...] = ("CPUExecutionProvider",)
) -> Recording:
    """Runs a graph in onnxruntime and records its RotaryEmbedding nodes, by their names.

    Args:
        model: path of an .onnx file, or an onnx.ModelProto.
        inputs: arrays by name.
        providers: of onnxruntime.

    Raises:
        ValueError: the graph has no RotaryEmbedding node whose values can be read.
    """
    from ._onnx import run

    return run(model, inputs, providers)
