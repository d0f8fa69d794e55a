"""librope in PyTorch: gradients, torch.compile, and a module.

Rope.apply_qk calls this for tensors that need it. Eager calls go straight to the library, in an autograd.Function where
a gradient is wanted; compiled, exported, traced and transformed code goes through the operators of _operators.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from . import _arrays
from ._arrays import LEAST_ADDRESS
from ._call import Call, layout_of
from ._conventions import rule_of
from ._core import COS_SIN_FORMATS, OPERATIONS, error, number
from ._ffi import ffi, lib
from ._kv_cache import NAMES as _BESIDE
from ._kv_cache import arrays_of, scales_of
from ._move_operator import move  # noqa: F401  (for Rope, which knows this module)
from ._norm import NAMES as NORM_NAMES
from ._norm import Normed, norm_arrays, norm_forms
from ._norm_gradients import apply_normed, without_gradient
from ._operators import (
    FLOPS,
    apply_fused_op,
    apply_in_place_op,
    cos_sin_op,
    new,
    pair,
    rope_of,
)
from ._operators import apply_rows as _apply_rows
from ._qkv import apply_packed_qkv, apply_qkv
from ._rope import Rope
from ._rotation_gradients import rotation, rotation_by_rows, turned
from ._rules import both_layouts
from ._scale import DATA_NAMES, check_codes, given_and_computed, scale_arrays, text_of_scales
from ._scale import NAMES as SCALE_NAMES
from ._tensor_arguments import (
    all_tensors,
    cache_arguments,
    is_dtensor,
    operator_arguments,
    refuse_dtensors,
    row_of,
    text_of,
)
from ._tensor_step import (  # noqa: F401  (for _step.py and _prepared_append.py, which know this module)
    form_of,
    prepared_fits,
    step,
    step_key,
)
from ._types import Layout
from ._watch import (  # noqa: F401  (the others: for Rope and PreparedCall, which know this module)
    announce,
    announce_all,
    fits,
    guard,
    is_direct,
    needs_dispatcher,
    new_like,
    refuse_gradient,
    refuse_move,
    refuse_prepared,
    refuse_saved_mutation,
    refuse_unseen_write,
    refuse_writes,
    rows_want_gradient,
    wants_gradient,
    writable,
)

__all__ = ["FLOPS", "RotaryEmbedding", "apply_packed_qkv", "apply_qkv", "apply_rows"]

_functorch_active = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_is_exporting = torch.compiler.is_exporting
_is_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_is_profiling = torch._C._autograd._profiler_enabled
_call_addresses = lib.call_addresses
_call_all = lib.call_all
_NOTHING_BESIDE = (0,) * (len(_BESIDE) + 2)  # nor a rest
_NULL = ffi.NULL


def apply_qk(rope: Rope, call: Call) -> tuple[Any, Any]:
    """Rope.apply_qk of torch tensors, differentiable and traceable: new tensors."""
    call.refuse("a gradient or torch.compile", "pool")
    q, k = call.q, call.k
    if is_dtensor(q) or is_dtensor(k):
        from . import _dtensor

        return _dtensor.apply_qk(rope, call, apply_qk)
    if call.angles() == "cos_sin":
        call.check_rows()
        cos, sin = call.rows()
        return apply_rows(
            rope, q, k, cos, sin, format=call.cos_sin_format or "", layout=call.layout,
            operation=call.operation,
        )  # fmt: skip
    tensors = all_tensors(q, k)
    where, *rest, cu, sets = operator_arguments(rope, call)
    return turned(rotation(), (where, cu, sets, *rest, is_direct([where, *tensors])), q, k)


def apply_qk_(rope: Rope, call: Call) -> None:
    """Rope.apply_qk_ of torch tensors that only turn: straight to the library, or where PyTorch must see it (compiled
    code, dispatch modes) by an operator."""
    if is_direct((call.q, call.k, call.positions)):
        if call.cos_sin is not None:
            refuse_gradient(*call.rows())
        written = writable(call.q, call.k, positions=call.positions)
        rope._run(call)
        announce_all(written)
        return
    call.refuse("torch.compile or a dispatch mode", "cos_sin", "pool")
    refuse_dtensors((call.q, call.k))
    tensors = all_tensors(call.q, call.k)
    if _functorch_active():
        raise NotImplementedError("in place under torch.func: use apply_qk")
    if not _is_compiling() and _is_tracing():  # Dynamo of torch 2.11 knows no _is_tracing()
        raise NotImplementedError("torch.jit.trace does not record calls in place: use apply_qk")
    refuse_writes(*tensors)
    apply_in_place_op(tensors, *operator_arguments(rope, call))


def apply_fused(rope: Rope, call: Call, out: tuple[Any, ...], in_place: bool) -> tuple[Any, Any]:
    """Rope.apply_qk of a call that does more than rotate, or has outputs, where PyTorch must see it: compiled
    code, dispatch modes. out: of outputs()."""
    q, k, v, cache = call.q, call.k, call.v, call.cache
    beside = arrays_of(v, cache)
    normed = norm_arrays(call.norms) or (None,) * len(NORM_NAMES)
    scales = scales_of(call.scales, cache)
    data = scale_arrays(scales) or (None,) * len(SCALE_NAMES)
    given = (q, k, call.positions, *beside, call.rest, *normed, *data, *out)
    refuse_dtensors(given)
    learns = _is_grad_enabled() and any(x.requires_grad for x in given if isinstance(x, Tensor))
    alone = v is cache is call.rest is None and not in_place and not any(x is not None for x in out)
    if _forward_ad._current_level >= 0:
        raise NotImplementedError(
            "there is no forward-mode derivative through norms=, v=, cache=, rest= and out=: apply norms apart, and "
            "rotate what they give; calls of the others belong outside of dual_level() and jvp"
        )
    if learns and not alone:
        raise NotImplementedError(
            "no gradient goes through v=, cache=, rest= and out=, and norms= in place, which write into tensors: use "
            "librope.torch.apply_qkv, which makes new ones, torch.no_grad(), or detach the tensors"
        )
    where = "a gradient, torch.compile or a dispatch mode"
    call.refuse(where, "cos_sin", "pool")
    if _functorch_active():
        raise NotImplementedError("v=, cache=, norms=, rest= and out= are not available under torch.func")
    tensors = all_tensors(q, k)
    names = ("v", "cache.k", "cache.v"), NORM_NAMES, DATA_NAMES, ("rest", "out of q", "out of k", "out of v", "out of rest")
    for group, arrays in zip(names, (beside, normed, data, (call.rest, *out)), strict=True):
        for name, y in zip(group, arrays, strict=False):
            if y is not None and not isinstance(y, Tensor):
                raise TypeError(f"{name} is a {type(y).__qualname__} beside torch tensors: {where} needs a tensor")
    if alone:  # new arrays, whose dtypes are those of q and k
        check_codes([None if y is None else _arrays.torch_dtype(y) for y in (q, k)] + [None] * 4, scales)
        if call.norms is None:
            return apply_qk(rope, call)
        why = without_gradient(call)
        if learns and why:
            raise NotImplementedError(why)
        # Also what others may run with a gradient later. Compiled code is for what it was given, where this costs more.
        if learns or not (why or (_is_compiling() and not _is_exporting())):
            return apply_normed(call, operator_arguments(rope, call))[:2]
    if not _is_compiling() and _is_tracing():  # Dynamo of torch 2.11 knows no _is_tracing()
        raise NotImplementedError("torch.jit.trace does not record calls that write to a cache or to an output")
    if in_place:
        out = (q, None if call.stores_k else k, None, None)
    else:
        q_out = _new_like(q) if out[0] is None and q is not None else out[0]
        k_out = _new_like(k) if out[1] is None and k is not None and not call.stores_k else out[1]
        out = (q_out, k_out, *out[2:])
    memory = cache_arguments(cache, tensors[0], lambda: _sequences(rope, call))
    refuse_saved_mutation()
    apply_fused_op(
        q, k, v, *out[:3], *memory, *normed, norm_forms(call.norms), *operator_arguments(rope, call), call.rest, out[3],
        text_of_scales(scales), *given_and_computed(scales),
    )  # fmt: skip
    return out[0], out[1]


def _sequences(rope: Rope, call: Call) -> Any:
    if call.cu_seqlens is not None:
        return len(call.cu_seqlens) - 1
    letters = both_layouts(layout_of(rope, call))[int(call.q is None)]
    return (call.k if call.q is None else call.q).shape[letters.index("b")] if "b" in letters else 1


def _new_like(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    if made.stride()[-1] != 1:
        made = torch.empty_like(x, memory_format=torch.contiguous_format)
    return made


def apply_rows(
    rope: Rope,
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    *,
    format: str,
    layout: Layout = None,
    operation: str = "forward",
) -> tuple[Any, Any]:
    """Rotates by given rows of cos and sin, of torch or NumPy: differentiable in q and k, traceable."""
    number(COS_SIN_FORMATS, format, "format")
    if not rule_of(operation).takes_rows:
        raise ValueError(f"operation is {operation!r}: rows of cos and sin go forward and backward")
    tensors = all_tensors(q, k)
    text = text_of(layout_of(rope, Call(q, k, layout=layout)), q, k)
    which = OPERATIONS[operation]
    cos, sin = row_of(cos, "cos", tensors[0]), None if sin is None else row_of(sin, "sin", tensors[0])
    rows = [x for x in (cos, sin) if x is not None]
    if _is_grad_enabled() and any(x.requires_grad for x in rows):
        raise NotImplementedError("librope has no gradient with respect to cos and sin: detach them")
    direct = is_direct([*rows, *tensors])
    if direct and not needs_dispatcher(*tensors):
        out = _apply_rows(tensors, cos, sin, rope.spec, text, which, format)
        return (None if q is None else out[0], None if k is None else out[-1])
    return turned(rotation_by_rows(), (cos, sin, rope.spec, text, which, format, direct), q, k)


def cos_sin(
    rope: Rope, positions: Tensor, format: str, dtype: str, positions_layout: str | None, batch: int | None,
    tokens: int | None,
) -> Any:  # fmt: skip
    """Rope.cos_sin of a tensor of positions: new tensors on its device, in compiled code as well."""
    if _forward_ad._current_level >= 0:  # a derivative that operators do not see
        refuse_gradient(positions)
    if _functorch_active() and torch._C._functorch.is_batchedtensor(positions):
        raise NotImplementedError(
            "cos_sin is not available under torch.vmap for positions that are mapped: they may be [batch, tokens] themselves"
        )
    out = cos_sin_op(positions, rope.spec, format, dtype, positions_layout or "", batch, tokens)
    return tuple(out) if len(out) > 1 else out[0]


def counted(first: Tensor, tokens: int) -> Tensor:
    """The positions of so many tokens from the one of a tensor without dimensions."""
    return first.long() + torch.arange(tokens, device=first.device)


_rows_cache: dict[Any, Any] = {}


def _spec_of(head_dim: int, rotary_dim: int, pairing: str, rounding: str) -> str:
    """Rope.spec of a Rope that is used with rows only, so that its theta does not matter."""
    return (
        f'{{"head_dim": {head_dim}, "pairing": "{pairing}", "rotary_dim": {rotary_dim}, '
        f'"rounding": "{rounding}", "theta": 10000.0}}'
    )


def rotate_by_rows(
    q: Tensor, k: Any, cos: Tensor, sin: Tensor, pairing: str, rotary_dim: int, rounding: str,
    layout: str, operation: str, format: str, in_place: bool, normed: Normed | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    """apply_rows without a Rope, for callers that have shapes and tables and no configuration.
    They have compared q with k and cos with sin, and refused lazily negated views, whose memory is not their
    values. normed: where no dispatcher is needed."""
    if _is_compiling() or needs_dispatcher(q, k, cos):
        tensors = [q] if k is None else [q, k]
        arguments = (
            cos.contiguous(), sin.contiguous(), _spec_of(q.shape[-1], rotary_dim, pairing, rounding),
            layout, OPERATIONS[operation], format, is_direct([cos, *tensors]),
        )  # fmt: skip
        return turned(rotation_by_rows(), arguments, q, k)

    # Without a gradient: shapes and strides find the template, then one crossing.
    key = (
        q.shape, q.stride(), q.dtype, None if k is None else (k.shape, k.stride()), cos.shape,
        cos.stride(), sin.stride(), cos.dtype, sin.dtype, pairing, rotary_dim, rounding, layout, operation,
        format, in_place, None if normed is None else normed.form,
    )  # fmt: skip
    known = _rows_cache.get(key)
    tensors = [q] if k is None else [q, k]
    written = writable(*tensors) if in_place else []
    q_out, k_out = (None, None) if in_place else pair(new(tensors))
    if known is None or not q.is_cpu or _is_profiling():
        rope = rope_of(_spec_of(q.shape[-1], rotary_dim, pairing, rounding))
        cos, sin = cos.contiguous(), sin.contiguous()
        call = Call(
            q, k, layout=layout, operation=operation, cos_sin=(cos, sin), cos_sin_format=format,
            norms=None if normed is None else normed.norms,
        )  # fmt: skip
        if not q.is_cpu or _is_profiling() or cos.stride() != key[5] or sin.stride() != key[6]:
            rope._run(call, q_out, k_out)
            if not in_place:
                return q_out, k_out
            announce_all(written)
            return q, k
        known = rope._cpu, rope._run(call, q_out, k_out, ready=True).template
        if len(_rows_cache) >= 512:
            _rows_cache.clear()
        _rows_cache[key] = known
    addresses = (
        q.data_ptr(), 0 if k is None else k.data_ptr(), 0 if q_out is None else q_out.data_ptr(),
        0 if k_out is None else k_out.data_ptr(), 0, 0, 0, cos.data_ptr(), sin.data_ptr(),
    )  # fmt: skip
    context, template = known
    q_at, k_at, q_to, k_to = addresses[:4]
    if (
        q_at < LEAST_ADDRESS or addresses[7] < LEAST_ADDRESS or addresses[8] < LEAST_ADDRESS or 0 < k_at < LEAST_ADDRESS
        or 0 < q_to < LEAST_ADDRESS or 0 < k_to < LEAST_ADDRESS
    ):  # fmt: skip
        for name, x in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
            if x is not None:
                _arrays.read(x, name)  # says which is a view of a freed storage
    if normed is None:
        status = _call_addresses(context, template.args, template.rows, 0, 0, _NULL, *addresses)
    else:
        arrays = ffi.new("uintptr_t[]", [*addresses, *_NOTHING_BESIDE, *normed.addresses])
        templates = (template.args, template.rows, template.fused, template.cache, template.norms, _NULL)
        status = _call_all(context, *templates, 0, 0, _NULL, arrays)
    if status:
        raise error(status)
    if not in_place:
        return q_out, k_out
    announce_all(written)
    return q, k


class RotaryEmbedding(torch.nn.Module):
    """A module that rotates q and k. It has no parameters, buffers or table.

        rotary = librope.torch.RotaryEmbedding.from_config("config.json", layout="bhsd")
        q, k = rotary(q, k, position_ids)
    """

    def __init__(self, rope: Rope, *, layout: Layout = None) -> None:
        super().__init__()
        self.rope = rope
        self.layout = layout if layout is not None else rope.layout

    @classmethod
    def from_config(cls, config: Any, *, layout: Layout = None, **options: Any) -> RotaryEmbedding:
        """Arguments as for Rope.from_config."""
        return cls(Rope.from_config(config, **options), layout=layout)

    def forward(self, q: Any, k: Any = None, positions: Any = None, **options: Any) -> Any:
        """(q, k) rotated; q alone without k. Arguments as for Rope.apply_qk."""
        options.setdefault("layout", self.layout)
        out = self.rope.apply_qk(q, k, positions, **options)
        return out[0] if k is None else out

    def extra_repr(self) -> str:
        return f"{self.rope!r}, layout={self.layout!r}"
