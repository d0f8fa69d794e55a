"""The gradients of a rotation in PyTorch: its autograd.Functions, and those of the operators of _operators.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._conventions import OPERATION_NAMES, rule_of
from ._core import OPERATIONS
from ._operators import apply as _apply
from ._operators import apply_op, apply_rows_op, pair, register_operator, rope_of
from ._operators import apply_rows as _apply_rows

_is_compiling = torch.compiler.is_compiling


def _channels_adjacent(gradient: Any) -> Any:
    """Autograd hands over what it likes, such as an expanded scalar; values are the same."""
    return gradient if gradient is None or gradient.stride(-1) == 1 else gradient.contiguous()


def _given(tensors: Any) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _vmap(function: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    """One call per sample: samples may differ in positions, and calls are cheap."""
    samples = []
    for i in range(info.batch_size):
        *rest, q, k = [x if d is None else x.select(d, i) for x, d in zip(arguments, in_dims, strict=True)]
        rest = [x.contiguous() if isinstance(x, Tensor) else x for x in rest]
        samples.append(function.apply(*rest, _channels_adjacent(q), _channels_adjacent(k)))
    out = [None if x[0] is None else torch.stack(x) for x in zip(*samples, strict=True)]
    return tuple(out), tuple(None if x is None else 0 for x in out)


def _no_position_gradient(*tangents: Any) -> None:
    if any(t is not None for t in tangents):
        raise NotImplementedError("librope has no derivatives with respect to positions: detach them")


class _Apply(torch.autograd.Function):
    """operator(positions, cu_seqlens, freq_sets, *_REST, q, k), a pair; q or k may be None.

    Not *tensors, which Dynamo of torch 2.11 takes for one when it compares arguments with parameters of forward.

    _REST: offset, spec, layout, operation, offsets, positions_layout, direct. Saves positions only.
    direct: past the dispatcher, for eager calls.
    """

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_Apply, info, in_dims, *arguments)

    @staticmethod
    def forward(
        positions: Any, cu_seqlens: Any, freq_sets: Any, offset: int, spec: str, layout: str,
        operation: int, offsets: bool, positions_layout: str, direct: bool, q: Any, k: Any,
    ) -> Any:  # fmt: skip
        run = _apply if direct else apply_op
        out = run(
            _given((q, k)), positions, offset, spec, layout, operation, offsets, positions_layout, cu_seqlens, freq_sets
        )
        return (None if q is None else out[0], None if k is None else out[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.rest = inputs[3:10]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors  # once: checkpointing lets a tensor be unpacked only once
        return (None,) * 10 + _transpose_of_apply(saved, ctx.rest, *grads)


class _ApplyForward(_Apply):
    """With forward-mode derivatives, too. Dynamo takes no Function that has them."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_ApplyForward, info, in_dims, *arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _no_position_gradient(*tangents[:3])
        saved = ctx.saved_tensors
        rest = [_channels_adjacent(t) for t in tangents[10:]]
        return _ApplyForward.apply(*saved, *ctx.rest, *rest)


def rotation() -> Any:
    return _Apply if _is_compiling() else _ApplyForward


def _negative(positions: Tensor) -> Tensor:
    """That of -2**31 is int64. -2**63 stays, which turns by the same angles as 2**63 where they are "exact"."""
    return -(positions.long() if positions.dtype is torch.int32 else positions)


def _transpose_of_apply(saved: Any, rest: Any, q: Any, k: Any) -> tuple[Any, ...]:
    offset, spec, layout, operation, offsets, positions_layout, direct = rest
    positions, *more = saved
    spec, name, negated = rope_of(spec).transposed(OPERATION_NAMES[operation])
    if negated:
        positions, offset = None if positions is None else _negative(positions), -offset
    result: tuple[Any, ...] = rotation().apply(
        positions, *more, offset, spec, layout, OPERATIONS[name], offsets, positions_layout, direct,
        _channels_adjacent(q), _channels_adjacent(k),
    )  # fmt: skip
    return result


def _gradients(ctx: Any, tensors: Any) -> tuple[Any, ...]:
    """Of an operator's arguments: those that were given, which with torch.jit.trace end before the defaults."""
    return (_given(tensors), *(None,) * (len(ctx.needs_input_grad) - 1))


def _setup_apply_op(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, positions, *rest, cu_seqlens, freq_sets = inputs
    ctx.save_for_backward(positions, cu_seqlens, freq_sets)
    ctx.rest = (*rest, False)


def _backward_apply_op(ctx: Any, grads: Any) -> Any:
    return _gradients(ctx, _transpose_of_apply(ctx.saved_tensors, ctx.rest, *pair(grads)))


def _vmap_apply_op(info: Any, in_dims: Any, tensors: Any, *rest: Any) -> Any:
    full = [*rest, *[None] * (9 - len(rest))]
    dims = (in_dims[1], *in_dims[8:10], *(None,) * 7, *pair(in_dims[0]))
    arguments = (full[0], *full[7:9], *full[1:7], False, *pair(tensors))
    out, out_dims = _Apply.vmap(info, dims, *arguments)
    return _given(out), [d for d in out_dims if d is not None]


register_operator("apply", _backward_apply_op, _setup_apply_op, _vmap_apply_op)


class _ApplyRows(torch.autograd.Function):
    """apply_rows(cos, sin, spec, layout, operation, format, direct, q, k), as _Apply; cos is a constant."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_ApplyRows, info, in_dims, *arguments)

    @staticmethod
    def forward(
        cos: Tensor, sin: Any, spec: str, layout: str, operation: int, format: str, direct: bool, q: Any, k: Any,
    ) -> Any:  # fmt: skip
        run = _apply_rows if direct else apply_rows_op
        out = run(_given((q, k)), cos, sin, spec, layout, operation, format)
        return (None if q is None else out[0], None if k is None else out[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.rest = inputs[2:7]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        return (None,) * 7 + _transpose_of_rows(saved, ctx.rest, *grads)


class _ApplyRowsForward(_ApplyRows):
    """With forward-mode derivatives, too."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_ApplyRowsForward, info, in_dims, *arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        if any(t is not None for t in tangents[:2]):
            raise NotImplementedError("librope has no derivatives with respect to cos and sin")
        saved = ctx.saved_tensors
        rest = [_channels_adjacent(t) for t in tangents[7:]]
        return _ApplyRowsForward.apply(*saved, *ctx.rest, *rest)


def rotation_by_rows() -> Any:
    return _ApplyRows if _is_compiling() else _ApplyRowsForward


def _transpose_of_rows(saved: Any, rest: Any, q: Any, k: Any) -> tuple[Any, ...]:
    spec, layout, operation, format, direct = rest
    # Of the same spec, since rows have the attention factor in them.
    transposed = OPERATIONS[rule_of(OPERATION_NAMES[operation]).transpose]
    result: tuple[Any, ...] = rotation_by_rows().apply(
        *saved, spec, layout, transposed, format, direct, _channels_adjacent(q), _channels_adjacent(k)
    )
    return result


def _setup_rows_op(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.rest = (*inputs[3:], False)


def _backward_rows_op(ctx: Any, grads: Any) -> Any:
    return _gradients(ctx, _transpose_of_rows(ctx.saved_tensors, ctx.rest, *pair(grads)))


def _vmap_rows_op(info: Any, in_dims: Any, tensors: Any, *rest: Any) -> Any:
    dims = (*in_dims[1:3], *(None,) * 5, *pair(in_dims[0]))
    out, out_dims = _ApplyRows.vmap(info, dims, *rest, False, *pair(tensors))
    return _given(out), [d for d in out_dims if d is not None]


register_operator("apply_rows", _backward_rows_op, _setup_rows_op, _vmap_rows_op)
