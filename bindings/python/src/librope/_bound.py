"""A prepared call with its addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._core import error
from ._ffi import ffi, lib
from ._prepare import Prepared

_apply = lib.rope_apply_qk
_FIELDS = ("ids_i64", "ids_i32", "ids_f32", "offsets_i64", "offsets_i32")


class Bound:
    """What Rope.bind returns: call it to rotate the bound arrays once more.

    Keeps the arrays alive. Calling it from several threads at once is safe as far as librope goes,
    but they would rotate the same memory.
    """

    __slots__ = ("_args", "_before", "_context", "_owners")

    def __init__(
        self,
        context: Any,
        prepared: Prepared,
        addresses: list[int],
        offset: int,
        stream: int,
        runner: Any,
        owners: object,
        before: Callable[[], None] | None,
    ) -> None:
        """before: who must be told or asked before every write."""
        args = ffi.new("rope_qk_args*", prepared.args[0])
        q, k, q_out, k_out, positions, cu_seqlens, freq_sets = addresses[:7]
        cast = ffi.cast
        args.q.data, args.k.data = cast("void*", q), cast("void*", k)
        args.q_out.data, args.k_out.data = cast("void*", q_out), cast("void*", k_out)
        for name in _FIELDS:
            if getattr(args.positions, name) != ffi.NULL:
                setattr(args.positions, name, cast("void*", positions))
        args.positions.offset = offset
        args.positions.cu_seqlens = cast("int32_t*", cu_seqlens)
        args.positions.freq_sets = cast("int32_t*", freq_sets)
        args.stream = cast("void*", stream)
        args.runner = runner
        self._context, self._args, self._owners = context, args, (owners, prepared)
        self._before = before

    def __call__(self, position: int | None = None) -> None:
        """Rotates. position: the new int, if positions was one.

        Raises TypeError for a position where positions is an array, ValueError beyond the length
        that the frequencies are for (dynamic NTK, LongRoPE), and RuntimeError where a bound torch
        tensor requires a gradient by now.
        """
        if position is not None:
            positions = self._args.positions
            if positions.kind != lib.ROPE_POSITIONS_OFFSET:
                raise TypeError("positions is an array here: change its content instead")
            positions.offset = position
        if self._before is not None:
            self._before()
        status = _apply(self._context, self._args)
        if status:
            raise error(status)
