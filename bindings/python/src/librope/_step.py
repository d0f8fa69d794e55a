"""Calls that do more than rotate, and a short way for those with a cache: the step of an engine.

Such a call is made for every layer, with arrays of the same forms. The first one goes the way of all calls
and leaves its templates in Rope._fast, under what an array tells quickly, and where the memory of the cache
is in the KVCache. What differs or is wrong goes that way, too, which says so.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from . import _arrays, _core
from ._call import Call, Caller, checked_layout, library_of
from ._conventions import is_gradient
from ._ffi import ffi, lib
from ._frameworks import load
from ._int32 import copied_of
from ._kv_cache import NAMES, KVCache, Memory, arrays_of, scales_of, written_of
from ._norm import NAMES as NORM_NAMES
from ._norm import norm_arrays
from ._scale import DATA_NAMES, scale_arrays, scale_forms
from ._template import Template
from ._untraced import untraced

_np, _ndarray = _arrays.np, _arrays.ndarray
_HOST = (_ndarray, type(None))
_NO_TENSORS = frozenset((*_HOST, int, list, tuple, range, *(() if _np is None else (_np.int32, _np.int64))))
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_NULL = ffi.NULL
_BESIDE = tuple(name for name in NAMES if name != "out of v")  # of arrays_of()
_step_buffers = lib.step_buffers
_KEPT = 1024
_forms: dict[Any, int] = {}
_numbers = itertools.count()


def _numpy_key(call: Call, memory: Memory, in_place: bool) -> Any:
    """None: not such a call. It has no strides: what lies with gaps is not remembered, and has no buffer."""
    (
        q, k, positions, v, cache, norms, layout, operation, offsets, cu_seqlens, freq_sets,
        positions_layout, cos_sin, cos_sin_format, pool, shard, batch_repeat, rest, scales,
    ) = call  # fmt: skip
    assert cache is not None
    slots, table, starts = cache.slots, cache.page_table, cache.starts
    where = offsets if positions is None else positions
    if (
        not (type(q) is type(k) is type(v) is _ndarray and type(cu_seqlens) in _HOST)
        or not (type(where) is _ndarray or type(where) is int)
        or not (type(slots) in _HOST and type(table) in _HOST and type(starts) in _HOST)
        or not (norms is freq_sets is cos_sin_format is positions_layout is cos_sin is pool is None and shard is None)
        or not (batch_repeat is rest is scales is None)
        or not (positions is None or offsets is None)
    ):
        return None
    return (
        memory.form, in_place, layout, operation, offsets is None,
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype,
        None if type(where) is int else (where.shape, where.dtype),
        None if cu_seqlens is None else (cu_seqlens.shape, cu_seqlens.dtype),
        None if slots is None else (slots.shape, slots.dtype),
        None if table is None else (table.shape, table.dtype),
        None if starts is None else (starts.shape, starts.dtype),
    )  # fmt: skip


def _buffer(x: Any) -> Any:
    return _NULL if x is None else _from_buffer(_BYTES, x)


def numpy_stays(memory: Memory) -> bool:
    """Whether arrays of NumPy are as they were noted, and can be written: all of an array can be assigned to."""
    k, v, strides = memory.k, memory.v, memory.strides
    of_k, of_v = k.flags, v.flags
    if (k.shape, v.shape, k.dtype, v.dtype) != memory.words or not (of_k.writeable and of_v.writeable):
        return False
    compact: bool = of_k.c_contiguous and of_v.c_contiguous
    return compact if strides is None else bool((k.strides, v.strides) == strides)


@untraced
def _numpy_step(rope: Caller, call: Call, memory: Memory, in_place: bool) -> Any:
    q, cache = call.q, call.cache
    assert cache is not None
    where = call.offsets if call.positions is None else call.positions
    by_int = type(where) is int
    try:
        templates, *_ = rope._fast[_numpy_key(call, memory, in_place)]
        if not numpy_stays(memory):
            return None
        q_out = q if in_place else _np.empty(q.shape, q.dtype)
        status = _step_buffers(
            rope._cpu, *templates, where if by_int else 0, _from_buffer(_BYTES, q, in_place),
            _from_buffer(_BYTES, call.k), _NULL if in_place else _from_buffer(_BYTES, q_out),
            _from_buffer(_BYTES, call.v), _NULL if by_int else _from_buffer(_BYTES, where),
            _buffer(call.cu_seqlens), _buffer(cache.slots), _buffer(cache.page_table),
            _buffer(cache.starts), *memory.addresses,
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, BufferError, OverflowError):
        return None
    if status:
        raise _core.error(status, "apply_qk_" if in_place else "apply_qk")
    return q_out


def step(rope: Caller, call: Call, in_place: bool) -> Any:
    """Makes the call if it is like one before, and returns the rotated q; else None."""
    cache = call.cache
    if cache is None or len(cache._memory) == 0:  # Dynamo of torch 2.11 takes an empty one for true
        return None
    memory = cache._memory[0]
    if (
        memory.k is not cache.k
        or memory.v is not cache.v
        or memory.layout != cache.layout
        or memory.scales is not cache._scales
        or cache.page_starts is not None
    ):
        return None
    if memory.is_torch:
        return load("torch").step(rope, call, memory, in_place)
    return _numpy_step(rope, call, memory, in_place) if type(call.k) is _ndarray else None


@untraced
def remember(rope: Caller, call: Call, q_out: Any, template: Template) -> None:
    """Of a call that went the way of all, into an output that it made, or in place."""
    q, k, v, cache = call.q, call.k, call.v, call.cache
    if cache is None or cache.page_starts is not None or template.coordinates is not None:
        return  # contents that are looked at
    where = call.offsets if call.positions is None else call.positions
    read = (q, k, v, where, call.cu_seqlens, cache.slots, cache.page_table, cache.starts)
    if any(getattr(x, "shape", None) == () for x in read):
        return  # an array that is taken for the int in it
    if any(type(x) is _ndarray and not x.flags.c_contiguous for x in read):
        return  # strides, of which the key has none
    if copied_of(call) is not None:
        return  # which has another address in each call
    memory = note_memory(cache)
    if memory is None:
        return
    in_place = q_out is None or q_out is q
    key = (load("torch").step_key if memory.is_torch else _numpy_key)(call, memory, in_place)
    if key is not None:
        if len(rope._fast) >= _KEPT:
            rope._fast.clear()
        form = template.forms[2]
        templates = template.args, template.fused, template.cache
        rope._fast[key] = templates, form and form[1], template.norms, template.scales


@untraced
def note_memory(cache: KVCache) -> Memory | None:
    """Notes in a cache where its memory is now. None: not both of k and v, others than are known, or
    arrays of scales, which are looked at in each call."""
    forms = scale_forms(scales_of(None, cache))
    if any(form is not None and form.has_data for form in forms or ()):
        return None
    arrays = cache.k, cache.v
    kinds = {None if x is None else _arrays.framework(x) for x in arrays}
    if kinds not in ({"numpy"}, {"torch"}):
        return None
    views = [_arrays.read(x, name, True) for x, name in zip(arrays, ("cache.k", "cache.v"), strict=True)]
    if views[0][3] >= 0:  # a device
        return None
    words: Any = (views[0][0], views[1][0])
    described = (*words, cache.layout, forms)
    form = _forms.get(described)
    if form is None:
        if len(_forms) >= _KEPT:
            _forms.clear()
        form = _forms[described] = next(_numbers)
    is_torch, strides = kinds == {"torch"}, None
    if not is_torch:
        shapes, steps, dtypes = zip(*words, strict=True)
        words = (*shapes, *dtypes)
        if not all(x.flags.c_contiguous for x in arrays):
            strides = steps
    memory = Memory(
        *arrays, cache.layout, form, (views[0][2], views[1][2]), is_torch, words, strides, cache._scales,
        None if is_torch else [weakref.ref(x) for x in arrays],
    )  # fmt: skip
    cache._memory[:] = [memory]
    return memory


def refuse_gradients(call: Call) -> None:
    """Of a call whose q and k are no tensors, so that autograd does not see it: refuses tensors beside them that
    would get a gradient."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    cache, scales = call.cache, None
    given = [call.positions, call.v, call.rest]
    if call.cos_sin is not None:
        given += call.rows()
    if call.norms is not None:
        given += norm_arrays(call.norms)
    if cache is not None:
        given += arrays_of(None, cache)
    if call.scales is not None or (cache is not None and cache._scales is not None):
        scales = scales_of(call.scales, cache)
        given += scale_arrays(scales)
    if _NO_TENSORS.issuperset(map(type, given)):
        return
    if not any([isinstance(x, torch.Tensor) for x in given if type(x) not in _NO_TENSORS]):
        return
    groups = (
        (call.positions, call.rest), () if call.cos_sin is None else call.rows(), arrays_of(call.v, cache),
        norm_arrays(call.norms), scale_arrays(scales),
    )  # fmt: skip
    names = ("positions", "rest"), ("cos", "sin"), _BESIDE, NORM_NAMES, DATA_NAMES
    for group, of in zip(groups, names, strict=True):
        refuse_named(of, group, "a call whose q and k are no torch tensors")


def refuse_named(names: Sequence[str], arrays: Sequence[Any], call: str) -> None:
    """Refuses tensors that would get a gradient from what has none. call: what that is, in words."""
    torch = sys.modules.get("torch")
    for name, x in zip(names, arrays, strict=False):
        if torch is not None and isinstance(x, torch.Tensor) and load("torch").wants_gradient(x):
            raise NotImplementedError(
                f"{name} requires a gradient, and {call} has none: detach it, or use torch.no_grad()"
            )


def run_fused(rope: Caller, call: Call, out: tuple[Any, ...], in_place: bool) -> tuple[Any, Any]:
    """A call that does more than rotate. out: of outputs(). q and k without an output are rotated in place, or into new arrays."""
    if call.norms is not None and is_gradient(call.operation):
        raise NotImplementedError(
            "norms= must be None with operation 'backward': gradients go through norms by backward_qk, and in "
            "PyTorch's autograd"
        )
    if isinstance(call.layout, list):  # which is no part of a key
        call = call._replace(layout=checked_layout(call.layout))
    if out[0] is out[1] is out[2] is None and call.rest is None:
        known = step(rope, call, in_place)
        if known is not None:
            return known, None
    q, k, v, cache = call.q, call.k, call.v, call.cache
    library = library_of(q, k)
    if library == "jax":
        raise TypeError(
            "v=, cache=, norms=, rest= and scales= are for arrays that can be written, and those of JAX are immutable"
        )
    if library == "torch":
        torch = load("torch")
        more = (*norm_arrays(call.norms), call.rest, *scale_arrays(scales_of(call.scales, cache)), *call.rows())
        if torch.needs_dispatcher(q, k, call.positions, *arrays_of(v, cache), *more):
            rotated: tuple[Any, Any] = torch.apply_fused(rope, call, out, in_place)
            return rotated
    else:
        refuse_gradients(call)
    q_out, k_out, v_out, rest_out = out
    if in_place:
        written = (q, None if call.stores_k else k)
    else:
        written = q_out, k_out
    announce = _arrays.announcer(*written, v_out, rest_out, *written_of(call.scales, cache))
    if not in_place:
        if q_out is None and q is not None:
            q_out = _arrays.empty_like(q, "q")
        if k_out is None and k is not None and not call.stores_k:
            k_out = _arrays.empty_like(k, "k")
    template = rope._run(call, q_out, k_out, v_out, rest_out)
    if announce is not None:
        announce()
    if out[0] is k_out is v_out is None and q is not None and call.stores_k and v is not None:
        remember(rope, call, q_out, template)
    return q_out, k_out
