"""What the library takes as int32 alone: starts of sequences, page tables. Lists, and int64 in main memory, are copied."""

from __future__ import annotations

import itertools
import operator
from array import array
from typing import Any

from . import _arrays
from ._arrays import Meta, View, read
from ._core import ints
from ._ffi import ffi
from ._untraced import untraced

LISTS = (range, list, tuple)  # of ints
_LEAST, _END = -(2**31), 2**31
_is_int64: dict[Any, bool] = {}  # by dtype, in the words of its library


@untraced
def read_int32(x: Any, name: str) -> View:
    """_arrays.read() of an array or a list. On a device int64 stays what it is, which is refused later."""
    if isinstance(x, LISTS):
        x = _listed(x, name)
    view = read(x, name)
    if not is_copied(view, name):
        return view
    return read(_narrowed(view[1](view[0], name), view[2], name), name)


def is_copied(view: View, name: str) -> bool:
    """Whether it is int64 in main memory."""
    words = view[0]
    known = _is_int64.get(words[2])
    if known is None:
        known = _is_int64[words[2]] = view[1](words, name)[2] == "int64"
    return known and view[3] < 0


def refuse_copies(call: Any) -> None:
    """Of a bound call, which would not see what becomes of the arrays."""
    name = copied_of(call)
    if name is not None:
        raise TypeError(f"{name} has dtype int64, and a bound call would not see what becomes of it: give int32")


def copied_of(call: Any) -> str | None:
    """The first array of a call of which each crossing takes a copy. Lists are not looked at."""
    cache = call.cache
    given = [("cu_seqlens", call.cu_seqlens), ("freq_sets", call.freq_sets)]
    if cache is not None:
        given += [(name, getattr(cache, name)) for name in ("page_table", "page_starts", "starts")]
    for name, x in given:
        if not (x is None or isinstance(x, (int, *LISTS))) and is_copied(read(x, name), name):
            return name
    return None


def _listed(x: Any, name: str) -> Any:
    """A list of ints, or of lists of as many ints each, as memory."""
    if not x or not isinstance(x[0], LISTS):
        return array("i", ints(x, name, "int32_t"))
    rows = rows_of(x, name)
    return _shaped(array("i", itertools.chain.from_iterable(rows)), (len(rows), len(rows[0])))


def rows_of(x: Any, name: str) -> list[list[int]]:
    """Those of a list of lists of as many ints each."""
    width = len(x[0])
    for row in x:
        if not isinstance(row, LISTS) or len(row) != width:
            raise ValueError(f"{name} is a list of rows, and each must be one of {width} ints, as the first is")
    return [ints(row, name, "int32_t") for row in x]


def _shaped(flat: Any, shape: tuple[int, ...]) -> Any:
    if _arrays.np is not None:
        return _arrays.np.array(flat, "int32").reshape(shape)
    if len(shape) == 1 or not flat:
        return flat
    return memoryview(flat).cast("B").cast("i", shape)


def _narrowed(meta: Meta, address: int, name: str) -> Any:
    """A copy of int64 in main memory as int32."""
    shape, strides, _ = meta
    np, values = _arrays.np, ffi.cast("int64_t*", address)
    if np is not None and 0 not in shape and not any(s < 0 for s in strides):
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        memory = np.frombuffer(ffi.buffer(values, 8 * (last + 1)), np.int64)
        every = np.lib.stride_tricks.as_strided(memory, shape, [8 * s for s in strides])
        bad = every[(every < _LEAST) | (every >= _END)]
        if not len(bad):
            return every.astype(np.int32)
        found = [int(bad[0])]
    else:
        places = itertools.product(*map(range, shape))
        found = [values[sum(map(operator.mul, at, strides))] for at in places]
    beyond = [n for n in found if not _LEAST <= n < _END]
    if beyond:
        raise ValueError(f"{name} has {beyond[0]}, and must be within int32")
    return _shaped(array("i", found), shape)
