"""Threads for long calls."""

from __future__ import annotations

from typing import Any

from ._core import check, integer
from ._ffi import ffi, lib


class Pool:
    """Threads that share long calls: rope.apply_qk(..., pool=pool).

    Args:
        threads: how many work, the caller's included; 0: one per CPU of this process.

    Short calls stay on the calling thread. Concurrent calls take turns. Not for a forked child.
    """

    def __init__(self, threads: int = 0) -> None:
        out = ffi.new("rope_pool**")
        kind = ffi.typeof(lib.rope_pool_create).args[0]
        check(lib.rope_pool_create(integer(threads, "threads", kind), out))
        self._pool = ffi.gc(out[0], lib.rope_pool_destroy)
        self._runner = lib.rope_pool_runner(self._pool)

    def __reduce__(self) -> Any:
        raise TypeError("a librope.Pool cannot be pickled: make one in each process")
