"""DTensors of PyTorch: which tokens a process has follows from their mesh and placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as OfDimension

from ._call import Call, Caller, layout_of, shape_of_positions
from ._conventions import rule_of
from ._rules import axes_of, both_layouts, default_order
from ._shard import Shard


def shard_of(x: DTensor, name: str, layout: str) -> Shard | None:
    """That of the tokens of x, which are contiguous in each dimension of the mesh; None: all are here."""
    batch, tokens, heads = axes_of(layout)
    levels = []
    for dimension, placement in enumerate(x.placements):
        if type(placement) is Replicate:
            continue
        if type(placement) is not OfDimension or placement.dim % x.ndim not in (batch, tokens, heads):
            raise NotImplementedError(
                f"{name} is placed as {placement} in dimension {dimension} of its mesh, and must be replicated, "
                "or sharded by batch rows, tokens or heads"
            )
        size = x.device_mesh.size(dimension)
        if x.shape[placement.dim] % size:
            raise ValueError(
                f"{name} has {x.shape[placement.dim]} entries in axis {placement.dim}, which must be a multiple of "
                f"the {size} processes that share it"
            )
        if placement.dim % x.ndim == tokens and size > 1:
            levels.append((x.device_mesh.get_local_rank(dimension), size))
    if not levels:
        return None
    rank, world = 0, 1
    for inner_rank, inner_world in levels:  # each divides what the ones before it have left
        rank, world = rank * inner_world + inner_rank, world * inner_world
    if x.shape[tokens] % world:
        raise ValueError(f"{name} has {x.shape[tokens]} tokens, which must be a multiple of {world} processes")
    return Shard("contiguous", rank, world)


def _check_positions(call: Call, layouts: dict[str, str], parts: list[Any], axes: int) -> None:
    """Positions with an axis of batch rows are those of the rows that are here."""
    name, x, part = ("k", call.k, parts[1]) if call.q is None else ("q", call.q, parts[0])
    batch, shape = axes_of(layouts[name])[0], shape_of_positions(call.positions)
    order = call.positions_layout or default_order(len(shape), batch is not None, axes)
    if batch is None or "b" not in order or len(order) != len(shape):
        return
    given, here = shape[order.index("b")], part.shape[batch]
    if given not in (1, here) and here != x.shape[batch]:
        raise ValueError(
            f"positions has shape {shape}, and {name} is sharded by batch rows: it must have the {here} rows that this "
            f"process has of {x.shape[batch]}"
        )


def _dense(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape whose axes lie in the order of those strides: those of x may be
    ones of gaps, or 0, which its new parts have not."""
    strides, step = [0] * len(shape), 1
    # Of equal strides, which axes of one entry have, the last comes first, as in a contiguous tensor.
    for i in sorted(range(len(shape)), key=lambda i: (like[i], -i)):
        strides[i] = step
        step *= max(shape[i], 1)
    return tuple(strides)


def apply_qk(rope: Caller, call: Call, local: Any) -> tuple[Any, Any]:
    """Rope.apply_qk of DTensors, by local(rope, call) of their parts. Without communication."""
    given = [(n, x) for n, x in (("q", call.q), ("k", call.k)) if x is not None]
    for name, x in given:
        if not isinstance(x, DTensor):
            raise TypeError(f"{name} is a {type(x).__qualname__}, and beside a DTensor must be one, too")
    if call.shard is not None:
        raise ValueError("shard= is for tensors that hold a part: the placements of a DTensor say which")
    if rope.freq_heads > 1:
        raise NotImplementedError("DTensors need a Rope whose frequencies all heads share")
    call.refuse("DTensors", "cu_seqlens", "freq_sets", "cos_sin", "pool", "batch_repeat")
    layouts = dict(zip("qk", both_layouts(layout_of(rope, call)), strict=True))
    shards = {shard_of(x, name, layouts[name]) for name, x in given}
    if len(shards) > 1:
        raise ValueError("q and k are DTensors whose tokens are placed differently: redistribute one of them")
    if call.offsets is not None:
        raise NotImplementedError("offsets= is not available with DTensors: give positions as an int")
    shard = shards.pop()
    if shard is not None and rule_of(call.operation).by_distance:
        if shape_of_positions(call.positions) != ():
            raise NotImplementedError(
                f"positions as an array are not available for operation {call.operation!r} with DTensors whose tokens "
                "are sharded: give one distance for all as an int"
            )
        shard = None  # which is the same wherever a token is
    parts = [None if x is None else x.to_local() for x in (call.q, call.k)]
    _check_positions(call, layouts, parts, rope.axes)
    out = local(rope, call._replace(q=parts[0], k=parts[1], shard=shard))
    wrapped = [
        None if x is None else DTensor.from_local(
            y, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=_dense(x.shape, y.stride())
        )
        for x, y in zip((call.q, call.k), out, strict=True)
    ]  # fmt: skip
    return wrapped[0], wrapped[1]
