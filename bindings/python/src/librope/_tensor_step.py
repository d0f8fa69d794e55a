"""The short way of _step.py for tensors, past PyTorch where PyTorch has nothing to see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arrays import LEAST_ADDRESS
from ._call import Call, Caller
from ._core import error
from ._ffi import ffi, lib
from ._kv_cache import Memory
from ._norm import Norms, norm_arrays
from ._watch import PLAIN, announce, may_pass, new_like

_is_grad_enabled = torch.is_grad_enabled
_call_fused = lib.call_fused
_call_all = lib.call_all
_NULL = ffi.NULL


def _is_plain(x: Tensor, grad: bool) -> bool:
    return (
        type(x) in PLAIN
        and x.is_cpu
        and x.layout is torch.strided
        and not x.is_neg()
        and not (grad and x.requires_grad)
    )


def _describe(x: Any, grad: bool, key: list[Any]) -> bool:
    """Adds what an array of a call is to a key. False: no plain tensor."""
    if x is None:
        key.append(x)
        return True
    if not _is_plain(x, grad):
        return False
    key += (x.shape, x.stride(), x.dtype)
    return True


def _describe_norms(norms: Norms, grad: bool, key: list[Any]) -> bool:
    for norm in (norms.q, norms.k, norms.v):
        if norm is None:
            key.append(None)
            continue
        key.append(norm.settings)
        if not all(_describe(x, grad, key) for x in (norm.weight, norm.bias, norm.rstd)):
            return False
    return True


def step_key(call: Call, memory: Memory, in_place: bool) -> Any:
    """What decides the templates of a call of _step.py; None: not such a call."""
    (
        q, k, positions, v, cache, norms, layout, operation, offsets, cu_seqlens, freq_sets,
        positions_layout, cos_sin, cos_sin_format, pool, shard, batch_repeat, rest, scales,
    ) = call  # fmt: skip
    assert cache is not None
    where = offsets if positions is None else positions
    if (
        not (freq_sets is cos_sin_format is positions_layout is cos_sin is pool is None and shard is None)
        or not (batch_repeat is rest is scales is None)
        or not (positions is None or offsets is None)
        or not may_pass()
    ):
        return None
    grad = _is_grad_enabled()
    key: list[Any] = [memory.form, in_place, layout, operation, offsets is None]
    by_int = type(where) is int
    for x in (q, k, v):
        if not _is_plain(x, grad):
            return None
        key += (x.shape, x.stride(), x.dtype)
    for x in (None if by_int else where, cu_seqlens, cache.slots, cache.page_table, cache.starts):
        if not _describe(x, False, key):
            return None
    if norms is not None and not _describe_norms(norms, grad, key):
        return None
    return tuple(key)


def step(rope: Caller, call: Call, memory: Memory, in_place: bool) -> Any:
    """_step.step() of tensors."""
    q, k, v, cache = call.q, call.k, call.v, call.cache
    assert cache is not None
    try:
        templates, strides, norms, _ = rope._fast[step_key(call, memory, in_place)]
    except (KeyError, AttributeError, TypeError, RuntimeError):  # RuntimeError: strides of a sparse one
        return None
    grad = _is_grad_enabled()
    for x, address, words in zip((cache.k, cache.v), memory.addresses, memory.words):
        if (
            x.data_ptr() != address
            or (x.shape, x.stride(), x.dtype) != words
            or x.is_neg()
            or (grad and x.requires_grad)
        ):
            return None
    q_out = q if in_place else new_like(q, strides)
    where = call.offsets if call.positions is None else call.positions
    by_int = type(where) is int
    args, fused, pages = templates
    offset = where if by_int else 0
    ids, cu = 0 if by_int else where.data_ptr(), _address(call.cu_seqlens)
    slots, table, starts = _address(cache.slots), _address(cache.page_table), _address(cache.starts)
    q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if (
        q_at < LEAST_ADDRESS or k_at < LEAST_ADDRESS or v_at < LEAST_ADDRESS or 0 < ids < LEAST_ADDRESS
        or 0 < cu < LEAST_ADDRESS or 0 < slots < LEAST_ADDRESS or 0 < table < LEAST_ADDRESS or 0 < starts < LEAST_ADDRESS
    ):  # fmt: skip
        return None  # of a view of a freed storage
    addresses = (
        q_at, k_at, 0 if in_place else q_out.data_ptr(), 0, ids, cu, 0, 0, 0, v_at, 0, *memory.addresses, slots,
        table, 0, starts,
    )  # fmt: skip
    try:
        if call.norms is None:
            status = _call_fused(rope._cpu, args, _NULL, fused, pages, offset, 0, _NULL, *addresses)
        else:
            weights = [*map(_address, norm_arrays(call.norms))]
            if min(filter(None, weights), default=LEAST_ADDRESS) < LEAST_ADDRESS:
                return None  # as above
            arrays = ffi.new("uintptr_t[]", [*addresses, 0, 0, *weights])
            status = _call_all(rope._cpu, args, _NULL, fused, pages, norms, _NULL, offset, 0, _NULL, arrays)
    except OverflowError:  # an int beyond 64 bits
        return None
    if status:
        given = (
            None if by_int else where, call.cu_seqlens, cache.slots, cache.page_table, cache.starts,
            *norm_arrays(call.norms),
        )  # fmt: skip
        if any(x is not None and not x.data_ptr() for x in given):  # a freed storage, which C does not know
            return None
        raise error(status, "apply_qk_" if in_place else "apply_qk")
    announce(q_out, cache.k, cache.v)
    return q_out


def prepared_fits(v: Tensor, form: Any, memory: Memory) -> bool:
    """Whether v has the form of a prepared call, and the memory of a cache is where it was noted, for a call
    whose q and k fit."""
    grad = _is_grad_enabled()
    for x, address, words in zip((memory.k, memory.v), memory.addresses, memory.words):
        if (
            x.data_ptr() != address
            or (x.shape, x.stride(), x.dtype) != words
            or not _is_plain(x, grad)
        ):
            return False
    return _is_plain(v, grad) and (v.shape, v.stride(), v.dtype) == form


def form_of(x: Any) -> Any:
    """The form of a tensor, in the words of a prepared call; False: no plain one."""
    return _is_plain(x, _is_grad_enabled()) and (x.shape, x.stride(), x.dtype)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
