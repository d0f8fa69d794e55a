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
from ._operators import (
    CALL_SCHEMA,
    NORMS_SCHEMA,
    apply_normed_op,
    call_of,
    define,
    new,
    refuse_gradient,
    register_operator,
)
from ._operators import apply_normed as _apply_normed
from ._rotation_gradients import plain
from ._rules import both_layouts
from ._watch import is_batched, is_direct

_is_compiling = torch.compiler.is_compiling
_TENSORS = 2 + len(NORM_NAMES)  # the first arguments of librope::apply_normed


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


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, (norms, positions, *rest) = inputs[:_TENSORS], inputs[_TENSORS:]
    ctx.save_for_backward(*tensors, positions, *rest[-2:])
    ctx.rest = (norms, *rest[:-2])


def _backward(ctx: Any, grads: Any) -> Any:
    q, k, *arrays, positions, cu_seqlens, freq_sets = ctx.saved_tensors
    norms, offset, spec, layout, _, *rest = ctx.rest
    if not _is_compiling() and any(is_batched(g) for g in grads):
        _refuse_batches()
    given = [plain(g) for g in grads]
    q_grad, k_grad = None if q is None else given[0], None if k is None else given[-1]
    wanted = [x is not None and need for x, need in zip(arrays, ctx.needs_input_grad[2:_TENSORS], strict=True)]
    made = iter(_op(
        q_grad, k_grad, q, k, wanted, *arrays, norms, positions, offset, spec, layout, OPERATIONS["backward"], *rest,
        cu_seqlens, freq_sets,
    ))  # fmt: skip
    result = [next(made) if want else None for want in (q is not None, k is not None, *wanted)]
    return (*result, *(None,) * (len(ctx.needs_input_grad) - _TENSORS))


register_operator("apply_normed", _backward, _setup, _refuse_batches)


class _Normed(torch.autograd.Function):
    """librope::apply_normed past the dispatcher, for eager calls: to an operator's own formula it is a long way."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(_apply_normed(*arguments))

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward(ctx, grads)


def without_gradient(call: Call) -> str:
    """Why a call with norms has none; "": it has one."""
    for name in "qkv":
        norm = getattr(call.norms, name)
        if norm is not None and (norm.span == "given" or norm.order == "after"):
            what = f"order {norm.order!r}" if norm.order == "after" else f"span {norm.span!r}"
            return f"norms.{name} has {what}, which has no gradient: use torch.no_grad(), or detach the tensors"
    if not takes_norms(call.operation):
        return f"norms= has a gradient with operation 'forward', and not with {call.operation!r}"
    return ""


def apply_normed(call: Call, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Rope.apply_qk with norms, differentiable. arguments: of the operators, after tensors."""
    given = (call.q, call.k, *norm_arrays(call.norms), norm_forms(call.norms), *arguments)
    out = (_Normed.apply if is_direct(given) else apply_normed_op)(*given)
    return (None if call.q is None else out[0], None if call.k is None else out[-1])
