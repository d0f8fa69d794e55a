"""A template with its addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._core import error, integer
from ._ffi import ffi, lib
from ._template import Template
from ._untraced import untraced

_apply = lib.rope_apply_qk


class Bound:
    """What Rope.bind returns: call it to rotate the bound arrays once more.

    Keeps the arrays alive, and goes by their memory at the time of bind(): a torch tensor that has
    been given other memory (x.data = .., set_, resize_), or whose storage has another address or
    size, is a ValueError. Calling it from several threads at once is safe as far as librope goes,
    but they would rotate the same memory.
    """

    __slots__ = ("_after", "_args", "_before", "_context", "_int", "_owners")

    def __init__(
        self,
        context: Any,
        template: Template,
        addresses: list[int],
        offset: int | None,
        stream: int,
        runner: Any,
        owners: object,
        before: Callable[[], None] | None,
        then: Callable[[], None] | None,
    ) -> None:
        """offset: the int, None if positions is an array. before: who must be asked before every write.
        then: who must be told of it."""
        args, start = ffi.new("rope_qk_args*"), ffi.new("int64_t*")
        start[0] = offset or 0
        lib.keep_call(args, template.args, start, stream, runner, *addresses[:7])
        if template.fused is not None:
            kept = (
                ffi.new("rope_fused*"), ffi.new("rope_kv_cache*"), ffi.new("rope_norm[3]"), ffi.new("rope_scale[6]")
            )  # fmt: skip
            templates = (template.fused, template.cache, template.norms or ffi.NULL, template.scales or ffi.NULL)
            lib.keep_all(args, *kept, *templates, ffi.new("uintptr_t[]", addresses))
            owners = (owners, kept)
        self._int = None  # where the int is
        if offset is not None:
            by_offset = args.positions.kind == lib.ROPE_POSITIONS_OFFSET
            self._int = ffi.addressof(args.positions, "offset") if by_offset else start
        self._context, self._args, self._owners = context, args, (owners, template, start)
        self._before, self._after = before, then

    @untraced
    def __call__(self, position: int | None = None) -> None:
        """Rotates. position: the new int, if positions was one; step() goes by it from then on.

        Raises TypeError for a position where positions is an array, and for one that is no int, ValueError
        beyond the length that the frequencies are for (dynamic NTK, LongRoPE) and where a bound torch
        tensor has other memory by now, and RuntimeError where one requires a gradient by now, or one that
        is only read: NotImplementedError. After an error the int is what it was.
        """
        if self._before is not None:
            self._before()
        if position is None:
            status = _apply(self._context, self._args)
        else:
            at = self._int
            if at is None:
                raise TypeError("positions is an array here: change its content instead")
            old = at[0]
            if type(position) is not int:  # which cffi would round
                position = integer(position, "position")
            try:
                at[0] = position
            except OverflowError:
                at[0] = integer(position, "position")  # says what is wrong
            status = _apply(self._context, self._args)
            if status:
                at[0] = old
        if status:
            raise error(status, "Bound")
        if self._after is not None:
            self._after()

    def __reduce__(self) -> Any:
        raise TypeError("a librope.Bound cannot be pickled: it is addresses of this process")
