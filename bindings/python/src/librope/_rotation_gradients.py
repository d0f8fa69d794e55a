"""The gradients of a rotation in PyTorch: its autograd.Functions, and those of the operators of _operators.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from ._conventions import OPERATION_NAMES, rule_of
from ._core import OPERATIONS
from ._operators import apply as _apply
from ._operators import apply_op, apply_rows_op, pair, register_operator, rope_of
from ._operators import apply_rows as _apply_rows
from ._watch import batch_level, is_batched, is_direct

_is_compiling = torch.compiler.is_compiling
_functorch_active = torch._C._are_functorch_transforms_active


def plain(gradient: Any) -> Any:
    """Autograd hands over what it likes, such as an expanded scalar or a lazily negated view; values are the same."""
    if gradient is None:
        return None
    if not _is_compiling() and gradient._is_zerotensor():  # which has no memory
        return torch.zeros_like(gradient)
    gradient = gradient.resolve_neg()
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def _given(tensors: Any) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _vmap(function: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    """One call per sample: samples may differ in positions, and calls are cheap."""
    if info.batch_size == 0:
        ends = [(x, d) for x, d in zip(arguments[-2:], in_dims[-2:], strict=True) if x is not None]
        shapes = [x.shape if d is None else x.movedim(d, 0).shape[1:] for x, d in ends]
        return tuple(x.new_empty((0, *n)) for (x, _), n in zip(ends, shapes, strict=True)), (0,) * len(ends)
    samples = []
    for i in range(info.batch_size):
        *rest, q, k = [x if d is None else x.select(d, i) for x, d in zip(arguments, in_dims, strict=True)]
        rest = [x.contiguous() if isinstance(x, Tensor) else x for x in rest]
        samples.append(function.apply(*rest, plain(q), plain(k)))
    out = tuple(torch.stack(x) for x in zip(*samples, strict=True))
    return out, (0,) * len(out)


def turned(function: Any, arguments: Any, q: Any, k: Any) -> tuple[Any, Any]:
    """q and k by one of the Functions here, or in compiled and exported code by its operator, which has the same
    gradient: an export in strict mode loses that of a Function, and Dynamo takes no tensor in two arguments of one.
    Under torch.func it takes no operator with a gradient."""
    if _is_compiling() and _forward_ad._current_level >= 0:
        raise NotImplementedError(
            "librope has no forward-mode derivative in compiled code, and this call is in dual_level() or "
            "torch.func.jvp: take the derivative outside of torch.compile"
        )
    by_operator = _is_compiling() and not _functorch_active()
    out = (function.forward if by_operator else function.apply)(*arguments, q, k)
    return (None if q is None else out[0], None if k is None else out[-1])


def _apply_again(function: Any, saved: Any, rest: Any, q: Any, k: Any) -> tuple[Any, Any]:
    """turned() of gradients or tangents, which others may have to see than the forward call, whose rest this is."""
    *rest, direct = rest
    given = _given((q, k))
    if not given:
        return None, None
    if not _is_compiling() and any(is_batched(x) for x in given):
        return _each_sample(function, saved, (*rest, False), q, k)
    direct = direct and is_direct([*saved, *given])
    return turned(function, (*saved, *rest, direct), plain(q), plain(k))


def _each_sample(function: Any, saved: Any, rest: Any, q: Any, k: Any) -> tuple[Any, Any]:
    """_apply_again() of what torch._vmap_internals has batched: is_grads_batched=, jacobian(vectorize=True)."""
    levels = [0 if x is None else batch_level(x) for x in (q, k)]
    level = max(levels)
    if not level:
        raise NotImplementedError("a batched gradient or tangent has no level of torch._vmap_internals")
    count = len(torch._remove_batch_dim((q, k)[levels.index(level)], level, 1, 0))
    # A tensor that has no samples at this level gets as many.
    rows = [None if x is None else torch._remove_batch_dim(x, level, count, 0) for x in (q, k)]
    if count:
        samples = [
            _apply_again(function, saved, rest, *(None if x is None else x[i] for x in rows)) for i in range(count)
        ]
        rows = [None if x[0] is None else torch.stack(x) for x in zip(*samples, strict=True)]
    out = [None if x is None else torch._add_batch_dim(x, 0, level) for x in rows]
    return out[0], out[1]


def _layout_for(q: Any, layout: str) -> str:
    """That of an operator's tensors, if there was a q in the forward call, and q has no gradient or no tangent."""
    of_q, comma, of_k = layout.partition(",")
    return layout if q is not None or not of_q else f",{of_k or of_q}"


def _no_position_gradient(*tangents: Any) -> None:
    if any(t is not None for t in tangents):
        raise NotImplementedError("librope has no derivatives with respect to positions: detach them")


def _setup(ctx: Any, inputs: Any, constants: int) -> None:
    """constants: how many tensors come first, those that are saved."""
    ctx.save_for_backward(*inputs[:constants])
    ctx.save_for_forward(*inputs[:constants])
    ctx.rest = inputs[constants:-2]
    ctx.given = tuple(x is not None for x in inputs[-2:])


def _setup_tangents(ctx: Any, output: Any) -> None:
    """Lets jvp tell a constant from what carries a tangent: autograd would make zeros for both."""
    if _forward_ad._current_level >= 0:
        ctx.set_materialize_grads(False)
        ctx.zeros = [(x.shape, x.dtype, x.device) for x in output]


def _tangents(ctx: Any, pair: Any) -> tuple[Tensor, ...]:
    """Of the outputs. pair: those of q and k, None where there is none."""
    tangents = [x for x, given in zip(pair, ctx.given, strict=True) if given]
    return tuple(
        torch.zeros(shape, dtype=dtype, device=device) if x is None else x
        for x, (shape, dtype, device) in zip(tangents, ctx.zeros, strict=True)
    )


def _of_given(ctx: Any, grads: Any) -> tuple[Any, Any]:
    """Gradients of the outputs as a pair."""
    q, k = ctx.given
    return grads[0] if q else None, grads[-1] if k else None


class _Rotation(torch.autograd.Function):
    """operator(positions, cu_seqlens, freq_sets, *_REST, q, k), as many as there are; q or k may be None.

    Not *tensors, which Dynamo of torch 2.11 takes for one when it compares arguments with parameters of forward.

    _REST: offset, spec, layout, operation, offsets, positions_layout, direct. Saves positions only.
    direct: past the dispatcher, for eager calls.
    """

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_Rotation, info, in_dims, *arguments)

    @staticmethod
    def forward(
        positions: Any, cu_seqlens: Any, freq_sets: Any, offset: int, spec: str, layout: str,
        operation: int, offsets: bool, positions_layout: str, direct: bool, q: Any, k: Any,
    ) -> Any:  # fmt: skip
        run = _apply if direct else apply_op
        out: list[Tensor] = run(
            _given((q, k)), positions, offset, spec, _layout_for(q, layout), operation, offsets, positions_layout,
            cu_seqlens, freq_sets,
        )  # fmt: skip
        return tuple(out)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _setup(ctx, inputs, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors  # once: checkpointing lets a tensor be unpacked only once
        return (None,) * 10 + _transpose_of_apply(saved, ctx.rest, *_of_given(ctx, grads))


class _RotationWithTangents(_Rotation):
    """With forward-mode derivatives, too. Dynamo takes no Function that has them."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_RotationWithTangents, info, in_dims, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _Rotation.setup_context(ctx, inputs, output)
        _setup_tangents(ctx, output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _no_position_gradient(*tangents[:3])
        return _tangents(ctx, _apply_again(_RotationWithTangents, ctx.saved_tensors, ctx.rest, *tangents[10:]))


def _negative(positions: Tensor) -> Tensor:
    """That of -2**31 is int64. -2**63 stays, which turns by the same angles as 2**63 where they are "exact"."""
    return -(positions.long() if positions.dtype is torch.int32 else positions)


@torch.compiler.assume_constant_result  # Dynamo would trace how a Rope is made, where it is not kept any more
def _transposed(spec: str, operation: int) -> Any:
    return rope_of(spec).transposed(OPERATION_NAMES[operation])


def _transpose_of_apply(saved: Any, rest: Any, q: Any, k: Any) -> tuple[Any, ...]:
    offset, spec, layout, operation, *others = rest
    positions, *more = saved
    spec, name, negated = _transposed(spec, operation)
    if negated:
        positions, offset = None if positions is None else _negative(positions), -offset
    rest = (offset, spec, layout, OPERATIONS[name], *others)
    return _apply_again(rotation(), (positions, *more), rest, q, k)


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
    out, out_dims = _Rotation.vmap(info, dims, *arguments)
    return list(out), list(out_dims)


register_operator("apply", _backward_apply_op, _setup_apply_op, _vmap_apply_op)


class _RotationByRows(torch.autograd.Function):
    """apply_rows(cos, sin, spec, layout, operation, format, direct, q, k), as _Rotation; cos is a constant."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_RotationByRows, info, in_dims, *arguments)

    @staticmethod
    def forward(
        cos: Tensor, sin: Any, spec: str, layout: str, operation: int, format: str, direct: bool, q: Any, k: Any,
    ) -> Any:  # fmt: skip
        run = _apply_rows if direct else apply_rows_op
        out: list[Tensor] = run(_given((q, k)), cos, sin, spec, _layout_for(q, layout), operation, format)
        return tuple(out)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _setup(ctx, inputs, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        return (None,) * 7 + _transpose_of_rows(saved, ctx.rest, *_of_given(ctx, grads))


class _RotationByRowsWithTangents(_RotationByRows):
    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_RotationByRowsWithTangents, info, in_dims, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _RotationByRows.setup_context(ctx, inputs, output)
        _setup_tangents(ctx, output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        if any(t is not None for t in tangents[:2]):
            raise NotImplementedError("librope has no derivatives with respect to cos and sin: detach them")
        return _tangents(ctx, _apply_again(_RotationByRowsWithTangents, ctx.saved_tensors, ctx.rest, *tangents[7:]))


def _transpose_of_rows(saved: Any, rest: Any, q: Any, k: Any) -> tuple[Any, ...]:
    spec, layout, operation, *others = rest
    # Of the same spec, since rows have the attention factor in them.
    transposed = OPERATIONS[rule_of(OPERATION_NAMES[operation]).transpose]
    return _apply_again(rotation_by_rows(), saved, (spec, layout, transposed, *others), q, k)


def _setup_rows_op(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.rest = (*inputs[3:], False)


def _backward_rows_op(ctx: Any, grads: Any) -> Any:
    return _gradients(ctx, _transpose_of_rows(ctx.saved_tensors, ctx.rest, *pair(grads)))


def _vmap_rows_op(info: Any, in_dims: Any, tensors: Any, *rest: Any) -> Any:
    dims = (*in_dims[1:3], *(None,) * 5, *pair(in_dims[0]))
    out, out_dims = _RotationByRows.vmap(info, dims, *rest, False, *pair(tensors))
    return list(out), list(out_dims)


register_operator("apply_rows", _backward_rows_op, _setup_rows_op, _vmap_rows_op)


def rotation() -> Any:
    return _Rotation if _is_compiling() else _RotationWithTangents


def rotation_by_rows() -> Any:
    return _RotationByRows if _is_compiling() else _RotationByRowsWithTangents
