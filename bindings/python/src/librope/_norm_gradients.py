"""Gradients of calls that do more than rotate, in PyTorch's autograd: norms, values, heads that are repeated, and q, k
and v as parts of one tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arrays
from ._backward import parts_of, run_backward
from ._call import Call, Caller, layout_of
from ._conventions import takes_norms
from ._core import OPERATIONS
from ._norm import NAMES as NORM_NAMES
from ._norm import norm_arrays, norm_forms, norms_from
from ._operators import (
    CALL_SCHEMA,
    FLOPS,
    NORMS_SCHEMA,
    VALUES_SCHEMA,
    apply_normed_op,
    apply_packed_op,
    call_of,
    define,
    flops_fused,
    parts_of_packed,
    register_operator,
    repeated,
    values_of,
)
from ._operators import apply_normed as _apply_normed
from ._operators import apply_packed as _apply_packed
from ._rotation_gradients import plain
from ._rules import axes_of, both_layouts
from ._watch import is_batched, is_direct

_is_compiling = torch.compiler.is_compiling
_ARRAYS = len(NORM_NAMES)
_TENSORS = 2 + _ARRAYS  # the first arguments of librope::apply_normed
_PACKED = 4  # those of librope::apply_packed before the arrays of norms
_CALL = 10  # of a call, behind the arrays of norms and what else they are
_FORWARD, _BACKWARD = OPERATIONS["forward"], OPERATIONS["backward"]


def _tokens(x: Tensor, layout: str) -> int:
    letters = layout.replace("d", "")
    count = 1
    for letter, size in zip(letters, x.shape, strict=False):
        count *= 1 if letter == "h" else size
    return count


def _like(x: Any, layouts: tuple[str, str], kv_repeat: int, gradients: Any) -> tuple[Any, Any, Any]:
    """New tensors for the gradients of q, k and v, of those that there are. x: these, where norms were given them."""
    made = []
    for i, (one, gradient) in enumerate(zip(x, gradients, strict=True)):
        count = kv_repeat if i else 1
        made.append(repeated(gradient, "qkv"[i], layouts[i > 0], count, True) if one is None else _arrays.empty_like(one, "q"))
    return made[0], made[1], made[2]


def _arguments(q: Any, k: Any, v: Any, rest: tuple[Any, ...]) -> tuple[Caller, Call, tuple[str, str]]:
    """rest: of an operator, from the arrays of norms on."""
    rope, call = call_of((q, k), *rest[_CALL : _CALL + 9])
    call = call._replace(v=v, norms=norms_from(rest[_ARRAYS], rest[:_ARRAYS]))
    return rope, call, both_layouts(layout_of(rope, call))


def _write(rope: Caller, call: Call, out: tuple[Any, Any, Any], x: Any, wanted: list[bool], layouts: tuple[str, str]) -> list[Tensor]:
    """Makes a call "backward" into out. Gives the gradients of the arrays of norms that are wanted. x: q, k and v as
    norms were given them."""
    if call.norms is None:
        rope._run(call, *out)
        return []
    i = int(call.q is None)
    one, arrays = (call.q, call.k)[i], norm_arrays(call.norms)
    count = _tokens(one, layouts[i])
    parts = parts_of(count, one.is_cuda)
    sums = [
        torch.zeros((parts, array.numel()), dtype=torch.float32, device=array.device) if want else None
        for array, want in zip(arrays, wanted, strict=True)
    ]
    if count:
        before = [None if y is None else _arrays.read(y, name) for y, name in zip(x, "qkv", strict=True)]
        memory = [None if y is None else _arrays.read(y, name, True) for y, name in zip(sums, NORM_NAMES, strict=True)]
        ready = rope._run(call, out[0], out[1], out[2], ready=True)
        run_backward(rope, call, ready, tuple(before), memory, parts)
    return [
        part.sum(0).view(array.shape).to(array.dtype) for array, part in zip(arrays, sums, strict=True) if part is not None
    ]


def _new_arrays(arrays: Any, wanted: list[bool]) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, want in zip(arrays, wanted, strict=True) if want]


def norm_gradients(q_grad: Any, k_grad: Any, q: Any, k: Any, wanted: list[bool], *rest: Any) -> list[Tensor]:
    """Gradients of q, k and v, of which there are those of the results, then those of the arrays of norms that are
    wanted. rest: of apply_normed, with the gradient of v, and v behind it. Of q, k and v only those are needed that have a norm."""
    v_grad, v, kv_repeat = _values_of(rest)
    rope, call, layouts = _arguments(q_grad, k_grad, v_grad, rest)
    out = _like((q, k, v), layouts, kv_repeat, (q_grad, k_grad, v_grad))
    arrays = _write(rope, call, out, (q, k, v), wanted, layouts)
    return [x for x in out if x is not None] + arrays


def _values_of(rest: tuple[Any, ...]) -> Any:
    return (rest[_CALL + 9] if len(rest) > _CALL + 9 else None, *values_of((*rest[: _CALL + 9], *rest[_CALL + 10 :])))


def _norm_gradients_fake(q_grad: Any, k_grad: Any, q: Any, k: Any, wanted: list[bool], *rest: Any) -> list[Tensor]:
    v_grad, v, kv_repeat = _values_of(rest)
    _, _, layouts = _arguments(q_grad, k_grad, v_grad, rest)
    made = _like((q, k, v), layouts, kv_repeat, (q_grad, k_grad, v_grad))
    return [x for x in made if x is not None] + _new_arrays(rest[:_ARRAYS], wanted)


_op = define(
    f"norm_gradients(Tensor? q_grad, Tensor? k_grad, Tensor? q, Tensor? k, bool[] wanted, {NORMS_SCHEMA}, "
    f"{CALL_SCHEMA}, Tensor? v_grad=None, {VALUES_SCHEMA}) -> Tensor[]",
    norm_gradients, _norm_gradients_fake,
)  # fmt: skip


def _new_packed(q_grad: Tensor, x: Any, heads: int, layout: str) -> Tensor:
    if x is not None:
        made: Tensor = _arrays.empty_like(x, "qkv")
        return made
    at = axes_of(layout)[2]
    assert at is not None
    shape = list(q_grad.shape)
    shape[at] = heads
    return q_grad.new_empty(shape)


def packed_gradients(
    q_grad: Tensor, k_grad: Tensor, v_grad: Tensor, qkv: Any, heads: int, kv_heads: int, kv_repeat: int,
    wanted: list[bool], *rest: Any,
) -> list[Tensor]:  # fmt: skip
    """The gradient of a tensor that has q, k and v in it, which this call writes as a whole; then those of the arrays
    of norms that are wanted. qkv: needed with norms alone."""
    rope, call, layouts = _arguments(q_grad, k_grad, v_grad, rest)
    made = _new_packed(q_grad, qkv, heads + 2 * kv_heads, layouts[0])
    x = (None,) * 3 if qkv is None else parts_of_packed(qkv, heads, kv_heads, layouts[0])
    out = parts_of_packed(made, heads, kv_heads, layouts[0])
    return [made, *_write(rope, call, out, x, wanted, layouts)]


def _packed_gradients_fake(
    q_grad: Tensor, k_grad: Tensor, v_grad: Tensor, qkv: Any, heads: int, kv_heads: int, kv_repeat: int,
    wanted: list[bool], *rest: Any,
) -> list[Tensor]:  # fmt: skip
    _, _, layouts = _arguments(q_grad, k_grad, v_grad, rest)
    return [_new_packed(q_grad, qkv, heads + 2 * kv_heads, layouts[0]), *_new_arrays(rest[:_ARRAYS], wanted)]


_packed_op = define(
    "packed_gradients(Tensor q_grad, Tensor k_grad, Tensor v_grad, Tensor? qkv, int heads, int kv_heads, int kv_repeat, "
    f"bool[] wanted, {NORMS_SCHEMA}, {CALL_SCHEMA}) -> Tensor[]",
    packed_gradients, _packed_gradients_fake,
)  # fmt: skip


FLOPS[torch.ops.librope.norm_gradients] = FLOPS[torch.ops.librope.packed_gradients] = flops_fused


def _refuse_batches(*_: Any) -> Any:
    raise NotImplementedError(
        "batched gradients (is_grads_batched=, vectorize=, torch.func.vmap) do not go through norms=, apply_qkv and "
        "apply_packed_qkv: take one after the other"
    )


def _plain(gradients: Any) -> Any:
    if not _is_compiling() and any(is_batched(g) for g in gradients):
        _refuse_batches()
    return iter([plain(g) for g in gradients])


def _saved(ctx: Any, x: Any, rest: Any) -> None:
    """x: what norms were given. rest: of an operator, from the arrays of norms on."""
    arrays, (norms, positions, *others), more = rest[:_ARRAYS], rest[_ARRAYS : _CALL + 7], rest[_CALL + 7 :]
    ctx.save_for_backward(*x, *arrays, positions, *more)
    ctx.rest = (norms, *others)


def _again(ctx: Any, operation: int) -> tuple[Any, ...]:
    """The arguments of an operator from the arrays of norms on, and what was saved before them."""
    saved = ctx.saved_tensors
    norms, offset, spec, layout, _, *others = ctx.rest
    *x, positions, cu_seqlens, freq_sets = saved
    x, arrays = x[: len(x) - _ARRAYS], x[len(x) - _ARRAYS :]
    return x, (*arrays, norms, positions, offset, spec, layout, operation, *others, cu_seqlens, freq_sets)


def _needed(ctx: Any, arrays: Any, first: int) -> list[bool]:
    needs = ctx.needs_input_grad[first : first + _ARRAYS]
    return [x is not None and need for x, need in zip(arrays[:_ARRAYS], needs, strict=True)]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    v, ctx.kv_repeat = inputs[_TENSORS + 10 :]
    tensors = (*inputs[:2], v)
    ctx.given = [x is not None for x in tensors]
    normed = (inputs[_TENSORS].split(",") if inputs[_TENSORS] else ("",) * 3)
    kept = [x if form else None for x, form in zip(tensors, normed, strict=True)]
    _saved(ctx, kept, inputs[2 : _TENSORS + 10])


def _backward(ctx: Any, grads: Any) -> Any:
    (q, k, v), arguments = _again(ctx, _BACKWARD)
    given = _plain(grads)
    q_grad, k_grad, v_grad = [next(given) if there else None for there in ctx.given]
    wanted = _needed(ctx, arguments, 2)
    made = iter(_op(q_grad, k_grad, q, k, wanted, *arguments, v_grad, v, ctx.kv_repeat))
    dq, dk, dv = [next(made) if there else None for there in ctx.given]
    result = (dq, dk, *[next(made) if want else None for want in wanted], *(None,) * 10, dv, None)
    return result[: len(ctx.needs_input_grad)]


register_operator("apply_normed", _backward, _setup, _refuse_batches)


def _setup_packed(ctx: Any, inputs: Any, output: Any) -> None:
    qkv, *ctx.sizes = inputs[:_PACKED]
    _saved(ctx, (qkv if inputs[_PACKED + _ARRAYS] else None,), inputs[_PACKED:])


def _backward_packed(ctx: Any, grads: Any) -> Any:
    (qkv,), arguments = _again(ctx, _BACKWARD)
    wanted = _needed(ctx, arguments, _PACKED)
    made = iter(_packed_op(*_plain(grads), qkv, *ctx.sizes, wanted, *arguments))
    result = (next(made), None, None, None, *[next(made) if want else None for want in wanted])
    return (*result, *(None,) * (len(ctx.needs_input_grad) - len(result)))


register_operator("apply_packed", _backward_packed, _setup_packed, _refuse_batches)


def _refuse_second(norms: str) -> None:
    if norms:
        raise NotImplementedError(
            "librope has no second derivative through norms=: apply the norms apart, and rotate what they give"
        )


def _setup_gradients(ctx: Any, inputs: Any, output: Any) -> None:
    """Of a gradient, which without norms is linear."""
    ctx.given = [x is not None for x in (*inputs[:2], inputs[5 + _CALL + 9])]
    ctx.kv_repeat = inputs[-1]
    _saved(ctx, (), inputs[5 : 5 + _CALL + 9])


def _backward_gradients(ctx: Any, grads: Any) -> Any:
    _refuse_second(ctx.rest[0])
    _, arguments = _again(ctx, _FORWARD)
    given = _plain(grads)
    q, k, v = [next(given) if there else None for there in ctx.given]
    made = iter(apply_normed_op(q, k, *arguments, v, ctx.kv_repeat))
    dq, dk, dv = [next(made) if there else None for there in ctx.given]
    result = (dq, dk, *(None,) * (3 + _CALL + 9), dv, None, None)
    return result[: len(ctx.needs_input_grad)]


register_operator("norm_gradients", _backward_gradients, _setup_gradients, _refuse_batches)


def _setup_packed_gradients(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.sizes = inputs[4:7]
    _saved(ctx, (), inputs[8:])


def _backward_packed_gradients(ctx: Any, grads: Any) -> Any:
    _refuse_second(ctx.rest[0])
    _, arguments = _again(ctx, _FORWARD)
    (given,) = _plain(grads)
    made = apply_packed_op(given, *ctx.sizes, *arguments)
    return (*made, *(None,) * (len(ctx.needs_input_grad) - 3))


register_operator("packed_gradients", _backward_packed_gradients, _setup_packed_gradients, _refuse_batches)


class _Normed(torch.autograd.Function):
    """librope::apply_normed past the dispatcher, for eager calls: to an operator's own formula it is a long way."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(_apply_normed(*arguments))

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward(ctx, grads)


class _Packed(torch.autograd.Function):
    """The same of librope::apply_packed."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return tuple(_apply_packed(*arguments))

    setup_context = staticmethod(_setup_packed)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _backward_packed(ctx, grads)


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


def _of_norms(call: Call) -> tuple[Any, ...]:
    return (*(norm_arrays(call.norms) or (None,) * _ARRAYS), norm_forms(call.norms))


def apply_normed(call: Call, arguments: tuple[Any, ...], kv_repeat: int = 1) -> tuple[Any, Any, Any]:
    """New q, k and v, differentiable. arguments: of the operators, after tensors."""
    given = (call.q, call.k, *_of_norms(call), *arguments, call.v, kv_repeat)
    out = iter((_Normed.apply if is_direct(given) else apply_normed_op)(*given))
    q, k, v = [None if x is None else next(out) for x in (call.q, call.k, call.v)]
    return q, k, v


def apply_packed(
    qkv: Tensor, heads: int, kv_heads: int, call: Call, arguments: tuple[Any, ...], kv_repeat: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a tensor that has q, k and v in it, whose gradient is one tensor as well."""
    given = (qkv, heads, kv_heads, kv_repeat, *_of_norms(call), *arguments)
    q, k, v = (_Packed.apply if is_direct(given) else apply_packed_op)(*given)
    return q, k, v
