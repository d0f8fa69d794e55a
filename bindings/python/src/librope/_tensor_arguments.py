"""The arguments of librope's operators from those of a call: positions as tensors, words as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _arrays
from ._call import Call, as_positions, layout_of
from ._conventions import rule_of
from ._core import OPERATIONS, integer, ints, is_integer
from ._int32 import LISTS, rows_of
from ._kv_cache import KVCache
from ._operators import REPEAT, SHARD
from ._rope import Rope
from ._rules import POSITIONS, both_layouts, check_batch_repeat, check_dtype, check_offsets, check_words
from ._watch import wants_gradient

_is_compiling = torch.compiler.is_compiling


def text_of(layout: str | tuple[str, str], q: Any, k: Any, v: Any = None) -> str:
    """As the operators have it: that of q, and after a comma that of k and v, if it is another."""
    of_q, of_k = both_layouts(layout)
    if q is None:
        return f",{of_k}"
    return of_q if (k is None and v is None) or of_q == of_k else f"{of_q},{of_k}"


def all_tensors(q: Any, k: Any) -> list[Tensor]:
    tensors = [x for x in (q, k) if x is not None]
    for name, x in (("q", q), ("k", k)):
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(
                f"{name} is a {type(x).__module__}.{type(x).__qualname__} beside a torch tensor: a "
                "gradient or torch.compile needs both to be tensors"
            )
        if x is not None and (x.layout is not torch.strided or x.is_nested):
            raise _arrays.not_strided(x, name)
    return tensors


def operator_arguments(rope: Rope, call: Call) -> tuple[Any, ...]:
    """The arguments of the operators after tensors; the same values are refused as elsewhere."""
    given, positions, offsets = call.angles(), call.positions, call.offsets
    check_words(call.positions_layout, call.cos_sin_format)
    if rope.ids_per_axis:
        rope._check_ids_per_axis(call)
    positions_layout = call.positions_layout
    if call.shard is not None:
        call.check_shard()
        positions_layout = SHARD + call.shard.text
    text = text_of(layout_of(rope, call), call.q, call.k, call.v)
    x = call.q if call.q is not None else call.k
    letters = text.lstrip(",").partition(",")[0]  # not axes_of(): Dynamo warns of functools' caches
    batch = x.shape[letters.index("b")] if "b" in letters else 1
    if call.batch_repeat is not None:
        batch = check_batch_repeat(call.batch_repeat, batch, given == "cos_sin")
    by_distance, one_for_all = rule_of(call.operation).by_distance, False
    where: Any = offsets
    offset: Any = 0
    if given == "positions":
        if isinstance(positions, Tensor):
            where = positions
            if where.dim() == 0 and not where.is_floating_point():
                check_dtype("positions", _arrays.torch_dtype(where), POSITIONS)
                if where.is_cpu:  # one number may lie on the host, as elsewhere in torch
                    where = where.to(x.device)
                # The same for every sequence, without a look at it.
                one_for_all = True
                count = batch if by_distance or call.cu_seqlens is None else len(call.cu_seqlens) - 1
                offsets = where = where.reshape(1).expand(count).contiguous()
        elif type(positions) in (int, torch.SymInt):
            offset, where = positions, None
            if not _is_compiling():
                offset = as_positions(offset)
        else:
            where = tensor_of(positions, "positions", x)
            if isinstance(where, int):
                offset, where = where, None
    elif not isinstance(offsets, Tensor):
        where = tensor_of(offsets, "offsets", x)
        if isinstance(where, int):
            raise TypeError(f"offsets is {where}, and must be an array with one entry for each sequence")
    if by_distance and (where is None or offsets is not None):
        # A distance for each batch row, one for all of its tokens. An offset would be where a sequence begins.
        if where is None:
            where = torch.full((batch,), offset, dtype=torch.int64, device=x.device)
        elif not one_for_all:
            dtype = _arrays.torch_dtype(where)
            check_offsets(tuple(where.shape), dtype, batch, call.operation, call.cu_seqlens is not None)
        offset, offsets, positions_layout = 0, None, "b"
    if isinstance(where, Tensor) and wants_gradient(where):
        raise NotImplementedError("librope has no gradient with respect to positions: detach them")
    positions_layout = positions_layout or ""
    if call.batch_repeat is not None:
        positions_layout = f"{REPEAT}{call.batch_repeat} {positions_layout}"
    return (
        where, offset, rope.spec, text, OPERATIONS[call.operation], offsets is not None,
        positions_layout,
        None if call.cu_seqlens is None else tensor_of(call.cu_seqlens, "cu_seqlens", x),
        None if call.freq_sets is None else tensor_of(call.freq_sets, "freq_sets", x),
    )  # fmt: skip


def tensor_of(values: Any, name: str, x: Tensor) -> Any:
    """A tensor of what the other calls take, too: lists, ranges, NumPy arrays; or an int.

    x: the tensor that it stands beside, which may have no memory."""
    if isinstance(values, Tensor):
        return values
    device = "meta" if x.is_meta else "cpu"
    if isinstance(values, LISTS):
        lists: Any = values
        rows = name == "page_table" and len(lists) > 0 and isinstance(lists[0], LISTS)
        numbers = rows_of(lists, name) if rows else ints(lists, name)
        return torch.tensor(numbers, dtype=torch.int64, device=device)
    values = as_positions(values, name)
    if isinstance(values, int):
        return values
    # Dynamo takes plain arrays of NumPy for tensors, which have no address.
    if not _is_compiling() or type(values) is not _arrays.ndarray:
        _arrays.read(values, name)  # raises for what is no array, or not one that other calls take
    return _copy_of(values, device)


def cache_arguments(cache: KVCache | None, x: Tensor, sequences: Callable[[], Any]) -> tuple[Any, ...]:
    """A cache as the operators have it: memory, layout, and where tokens go. x: beside which it stands. sequences: how
    many the call has, for an int as starts."""
    if cache is None:
        return None, None, "", None, None, None, None
    starts: Any = cache.starts
    if not (_is_compiling() or isinstance(starts, (Tensor, torch.SymInt))) and is_integer(starts):
        starts = integer(starts, "starts", "int32_t", low=0)  # numpy.int64(7) and the like, too
    elif _is_compiling() and not isinstance(starts, (Tensor, int, list, tuple, range, type(None))):
        starts = torch.as_tensor(starts)  # of NumPy: Dynamo's word for numpy.int64(7) is an array
    if type(starts) in (int, torch.SymInt):
        starts = torch.full((sequences(),), starts, dtype=torch.int32, device=x.device)
    elif isinstance(starts, (list, tuple, range)):
        starts = torch.tensor(ints(starts, "starts", "int32_t"), dtype=torch.int32, device="meta" if x.is_meta else "cpu")
    places = (("slots", cache.slots), ("page_table", cache.page_table),
              ("page_starts", cache.page_starts), ("starts", starts))  # fmt: skip
    return (
        cache.k, cache.v, ",".join(cache.layout) if isinstance(cache.layout, tuple) else cache.layout,
        *[None if y is None else tensor_of(y, name, x) for name, y in places],
    )  # fmt: skip


def row_of(values: Any, name: str, x: Tensor) -> Tensor:
    """cos or sin as a tensor. x: beside which it stands."""
    if isinstance(values, Tensor):
        return values
    if _arrays.framework(values) != "numpy":
        raise TypeError(
            f"{name} is a {type(values).__module__}.{type(values).__qualname__} beside a torch tensor: a gradient or "
            "torch.compile needs a tensor, or an array of NumPy"
        )
    # What torch does not know from ml_dtypes, and Dynamo cannot ask for.
    if not _is_compiling() and _arrays.read(values, name)[0][2].name == "bfloat16":
        return torch.tensor(values.view("int16"), device="meta" if x.is_meta else "cpu").view(torch.bfloat16)
    return _copy_of(values, "meta" if x.is_meta else "cpu")


def _copy_of(values: Any, device: str) -> Tensor:
    """Since backward reads it: what values hold may change until then."""
    if _is_compiling():  # to Dynamo an array is a tensor, which torch.tensor() warns of
        return torch.as_tensor(values, device=device).clone()
    return torch.tensor(values, device=device)


def refuse_dtensors(given: Any) -> None:
    """Of a call that does not take them."""
    if any(is_dtensor(x) for x in given):
        raise NotImplementedError(
            "DTensors are not taken in place, nor beside out=, norms=, v=, cache= and rest=: only apply_qk that makes new "
            "ones takes them, and of others their parts, x.to_local()"
        )


def is_dtensor(x: Any) -> bool:
    """Without an import of what most programs never need."""
    return type(x).__name__ == "DTensor" and type(x).__module__.startswith("torch.distributed.")
