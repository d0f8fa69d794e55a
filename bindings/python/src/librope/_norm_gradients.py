"""Norms in PyTorch's autograd: a call with norms, differentiable in q, k and the norms' weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arrays
from ._backward import parts_of, run_backward
from ._call import Call, layout_of
from ._conventions import takes_norms
from ._core import OPERATIONS
from ._norm import NAMES as NORM_NAMES
from ._norm import norm_arrays, norm_forms, norms_from
from ._operators import CALL_SCHEMA, NORMS_SCHEMA, apply_fused_op, call_of, define, new, refuse_gradient
from ._rotation_gradients import plain
from ._rules import both_layouts
from ._watch import is_batched

_is_compiling = torch.compiler.is_compiling
_OPERATION = 3  # in the arguments of the operators from offset on
_NO_CACHE = (None, None, "", None, None, None, None)


def _tokens(x: Tensor, layout: str) -> int:
    letters = layout.replace("d", "")
    count = 1
    for letter, size in zip(letters, x.shape, strict=False):
        count *= 1 if letter == "h" else size
    return count


def norm_gradients(
    q_grad: Any, k_grad: Any, q: Any, k: Any, wanted: list[bool], *rest: Any
) -> list[Tensor]:
    """Gradients of q and k, as far as there are any, then those of the arrays of norms that are wanted."""
    arrays, forms = rest[:9], rest[9]
    rope, call = call_of((q_grad, k_grad), *rest[10:])
    call = call._replace(norms=norms_from(forms, arrays))
    out = [None if x is None else _arrays.empty_like(x, "q") for x in (q, k)]
    i = int(q is None)
    count = _tokens((q, k)[i], both_layouts(layout_of(rope, call))[i])
    parts = parts_of(count, (q, k)[i].is_cuda)
    sums = [
        torch.zeros((parts, x.numel()), dtype=torch.float32, device=x.device) if want else None
        for x, want in zip(arrays, wanted, strict=True)
    ]
    if count:
        before = [None if x is None else _arrays.read(x, name) for x, name in zip((q, k), "qk", strict=True)]
        memory = [None if x is None else _arrays.read(x, name, True) for x, name in zip(sums, NORM_NAMES, strict=True)]
        ready = rope._run(call, out[0], out[1], ready=True)
        run_backward(rope, call, ready, (*before, None), memory, parts)
    gradients = [
        part.sum(0).view(x.shape).to(x.dtype) for x, part in zip(arrays, sums, strict=True) if part is not None
    ]
    return [x for x in out if x is not None] + gradients


def _norm_gradients_fake(
    q_grad: Any, k_grad: Any, q: Any, k: Any, wanted: list[bool], *rest: Any
) -> list[Tensor]:
    arrays = [x for x, want in zip(rest[:9], wanted, strict=True) if want]
    return new([x for x in (q, k) if x is not None]) + [x.new_empty(x.shape) for x in arrays]


_op = define(
    f"norm_gradients(Tensor? q_grad, Tensor? k_grad, Tensor? q, Tensor? k, bool[] wanted, {NORMS_SCHEMA}, "
    f"{CALL_SCHEMA}) -> Tensor[]",
    norm_gradients, _norm_gradients_fake,
)  # fmt: skip


def _refuse_batches(*_: Any) -> Any:
    raise NotImplementedError(
        "batched gradients (is_grads_batched=, vectorize=, torch.func.vmap) do not go through norms=: take one after "
        "the other"
    )


torch.library.register_vmap("librope::norm_gradients", _refuse_batches)
refuse_gradient(
    "norm_gradients", "librope has no second derivative through norms=: apply the norms apart, and rotate what they give"
)


class _ApplyNormed(torch.autograd.Function):
    """apply(positions, cu_seqlens, freq_sets, *_REST, norms, q, k, *arrays), new tensors.

    _REST: offset, spec, layout, operation, offsets, positions_layout."""

    @staticmethod
    def forward(
        positions: Any, cu_seqlens: Any, freq_sets: Any, offset: int, spec: str, layout: str, operation: int,
        offsets: bool, positions_layout: str, norms: str, q: Any, k: Any, *arrays: Any,
    ) -> Any:  # fmt: skip
        out = [None if x is None else _arrays.empty_like(x, "q") for x in (q, k)]
        apply_fused_op(
            q, k, None, *out, None, *_NO_CACHE, *arrays, norms, positions, offset, spec, layout, operation,
            offsets, positions_layout, cu_seqlens, freq_sets,
        )  # fmt: skip
        return tuple(x for x in out if x is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:3], *inputs[10:])
        ctx.rest = inputs[3:10]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        positions, cu_seqlens, freq_sets, q, k, *arrays = ctx.saved_tensors
        *rest, norms = ctx.rest
        rest = [*rest[:_OPERATION], OPERATIONS["backward"], *rest[_OPERATION + 1 :]]  # a tuple for Dynamo of torch 2.11
        if not _is_compiling() and any(is_batched(g) for g in grads):
            _refuse_batches()
        given = [plain(g) for g in grads]
        q_grad, k_grad = None if q is None else given[0], None if k is None else given[-1]
        wanted = [x is not None and need for x, need in zip(arrays, ctx.needs_input_grad[12:], strict=True)]
        made = _op(q_grad, k_grad, q, k, wanted, *arrays, norms, positions, *rest, cu_seqlens, freq_sets)
        result: list[Any] = [None] * 10
        at = 0
        for want in (q is not None, k is not None, *wanted):
            result.append(made[at] if want else None)
            at += want
        return tuple(result)


def apply_normed(call: Call, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Rope.apply_qk with norms and a gradient. arguments: of the operators, after tensors."""
    for name in "qkv":
        norm = getattr(call.norms, name)
        if norm is not None and (norm.span == "given" or norm.order == "after"):
            what = f"order {norm.order!r}" if norm.order == "after" else f"span {norm.span!r}"
            raise NotImplementedError(
                f"norms.{name} has {what}, which has no gradient: use torch.no_grad(), or detach the tensors"
            )
    if not takes_norms(call.operation):
        raise NotImplementedError(f"norms= has a gradient with operation 'forward', and not with {call.operation!r}")
    where, *rest, cu, sets = arguments
    out = _ApplyNormed.apply(where, cu, sets, *rest, norm_forms(call.norms), call.q, call.k, *norm_arrays(call.norms))
    return (None if call.q is None else out[0], None if call.k is None else out[-1])
