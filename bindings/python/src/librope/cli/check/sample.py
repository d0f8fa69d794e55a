"""What is compared: the same tensor before and after the rotation, and the positions of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..._call import shape_of_positions
from ..._config_text import depends_on_length
from ..._core import DTYPES
from ..._rules import check_ids_per_axis, default_layout, is_ambiguous
from ...record import ordered

AXES = ("batch row", "token", "head", "channel")


@dataclass(frozen=True)
class Sample:
    """before, after: [batch, tokens, heads, channels]; positions: [axes, batch, tokens]."""

    before: Any
    after: Any
    positions: Any
    tokens: Any  # number of each token in the caller's tensor
    heads: Any  # number of each head in it

    @property
    def dtype(self) -> str:
        return str(self.after.dtype.name)

    def part(self, tokens: Any = None, heads: Any = None) -> Sample:
        """Some of the tokens and heads, as indices of this sample."""
        s = self
        if tokens is not None:
            s = replace(s, before=s.before[:, tokens], after=s.after[:, tokens],
                        positions=s.positions[:, :, tokens], tokens=s.tokens[tokens])  # fmt: skip
        if heads is not None:
            s = replace(s, before=s.before[:, :, heads], after=s.after[:, :, heads],
                        heads=s.heads[heads])  # fmt: skip
        return s

    def small(self, tokens: int = 96, heads: int = 8) -> Sample:
        """At most so many tokens and heads: the first ones, then sparser, and the last."""
        t, h = self.before.shape[1:3]
        first = np.arange(min(t, tokens // 2))
        rest = np.geomspace(max(len(first), 1), max(t, 1), tokens - len(first)).astype(int) - 1
        far = int(np.abs(self.positions[:, 0].astype(np.float64)).max(0).argmax()) if t else 0
        chosen = np.unique(np.concatenate([first, rest, [far]]))[: max(t, 1)]
        return self.part(chosen if t > tokens else None,
                         np.arange(heads) if h > heads else None)  # fmt: skip


def place(index: Any, sample: Sample) -> dict[str, Any]:
    """Batch row, token, head and channel of an index, numbered as in the caller's tensor."""
    b, t, h, d = (int(i) for i in index)
    where = {"batch": b, "token": int(sample.tokens[t]), "head": int(sample.heads[h]), "channel": d}
    ids = sample.positions[:, b, t].tolist()
    return {**where, "position": ids[0] if len(ids) == 1 else ids}


def in_words(where: dict[str, Any], batches: int = 1) -> str:
    row = f"batch row {where['batch']}, " if batches > 1 else ""
    return f"{row}token {where['token']}, head {where['head']}, channel {where['channel']}"


def ids(positions: Any, axes: int, batch: int, tokens: int) -> Any:
    """Positions as [axes, batch, tokens] of int64, or float32 for coordinates."""
    if isinstance(positions, int):
        return np.broadcast_to(positions + np.arange(tokens), (axes, batch, tokens)).copy()
    p = np.asarray(positions)
    if p.dtype.kind not in "iuf":
        raise ValueError(f"positions are {p.dtype}, and must be integers or float32")
    if p.dtype.kind == "f" and not np.isfinite(p).all():
        raise ValueError("positions are not all finite")
    if p.dtype.kind == "u" and p.size and p.max() > np.iinfo(np.int64).max:
        raise ValueError(f"positions has {p.max()}, which does not fit into 64 bits with a sign")
    if is_ambiguous(p.shape, axes, batch):
        raise ValueError(f"positions have shape {p.shape}, and there are as many axes as batch rows: "
                         "[axes, batch, tokens] is expected")  # fmt: skip
    known = {(tokens,), (batch, tokens), (1, tokens), (axes, batch, tokens)}
    if axes > 1 and batch == 1 and p.shape == (axes, tokens):
        p = p[:, None]
    if p.shape not in known and p.shape != (axes, 1, tokens):
        raise ValueError(
            f"positions have shape {p.shape}, and the tensor {batch} x {tokens} tokens with "
            f"{axes} ids each: [tokens], [batch, tokens] or [axes, batch, tokens] is expected"
        )
    kind = np.float32 if p.dtype.kind == "f" else np.int64
    return np.broadcast_to(p, (axes, batch, tokens)).astype(kind)


def make(before: Any, after: Any, positions: Any, layout: str | None, rope: Any) -> Sample:
    """A Sample of two tensors, or a ValueError that says what does not fit together."""
    if before.shape != after.shape:
        raise ValueError(f"before has shape {before.shape} and after {after.shape}")
    if before.dtype != after.dtype:
        raise ValueError(f"before is {before.dtype} and after {after.dtype}: one dtype is expected")
    if before.dtype.name not in DTYPES:
        more = ": bfloat16 needs a .safetensors file" if before.dtype == np.uint16 else ""
        raise ValueError(f"before is {before.dtype}, and must be one of {', '.join(DTYPES)}{more}")
    if layout is None and before.ndim == 4:
        raise ValueError("before has 4 axes: say --layout bshd or --layout bhsd")
    layout = layout or default_layout(before.ndim, "before")
    x, y = ordered(before, layout), ordered(after, layout)
    if x.shape[3] not in (rope.head_dim, rope.rotary_dim):
        span = f" or of the rotated {rope.rotary_dim}" if rope.rotary_dim != rope.head_dim else ""
        raise ValueError(
            f"before has {x.shape[3]} channels in its last axis, and the config has heads of "
            f"{rope.head_dim}{span}"
        )
    if x.size == 0:
        raise ValueError(f"before has shape {before.shape}: there is nothing to measure")
    if rope.ids_per_axis:
        check_ids_per_axis(shape_of_positions(positions), None, x.shape[0] > 1, rope.axes)
    positions = ids(positions, rope.axes, *x.shape[:2])
    length = rope.config.get("seq_len")
    if length and depends_on_length(rope.config):
        end = rope.next_change(length)
        if end is not None and positions.max() >= end:
            raise ValueError(f"the tensor has position {positions.max()}, and --seq-len {length} has "
                             f"other frequencies than a sequence as long")  # fmt: skip
    sample = Sample(x, y, positions, np.arange(x.shape[1]), np.arange(x.shape[2]))
    bad = np.argwhere(~np.isfinite(x.astype(np.float32)))
    if len(bad):
        where = place(bad[0], sample)
        raise ValueError(
            f"before is {float(x[tuple(bad[0])])} at {in_words(where, x.shape[0])} "
            f"({len(bad)} such values): a rotation of it tells nothing"
        )
    if not x.any():
        raise ValueError("before is 0 everywhere: a rotation of it tells nothing")
    return sample
