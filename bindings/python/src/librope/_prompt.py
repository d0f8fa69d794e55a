"""The position ids of prompts with images and video."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _arrays
from ._core import check, integer, range_of
from ._ffi import ffi, lib

_FIELDS = {name: field.type for name, field in ffi.typeof("rope_prompt_part").fields}
_COUNT, _START, _TOKENS = (ffi.typeof(lib.rope_prompt_ids).args[i] for i in (1, 2, 4))


class PromptPart(NamedTuple):
    """Some text, then at most one image or video: PromptPart(text=5, t=1, h=4, w=3).

    Fields are counted as the language model sees them: after merging. A processor's grid of 8 x 6
    patches is h=4, w=3 under a spatial_merge_size of 2.

    Args:
        text: tokens of text.
        t: frames, 1 for an image; 0: neither image nor video follows.
        h: rows of tokens in a frame.
        w: tokens in a row.
        t_interval: ids from one frame to the next; 0: 1. A float where they are not a whole number
            apart (Qwen2.5-VL: tokens_per_second * second_per_grid_t): each frame's id is rounded down.
    """

    text: int = 0
    t: int = 0
    h: int = 0
    w: int = 0
    t_interval: int | float = 0


def prompt_ids(parts: Iterable[PromptPart], start: int = 0) -> tuple[Any, int]:
    """The position ids of a prompt with images and video, as Qwen-VL's get_rope_index makes them.

        image = librope.PromptPart(text=5, t=1, h=4, w=3)       # 5 tokens of text, then 12 of an image
        ids, next_id = librope.prompt_ids([image, librope.PromptPart(text=2)])
        q, k = rope.apply_qk(q, k, ids[:, None])                # layout="bshd": [axes, batch, tokens]

    A text token has one id on all three axes; the token at (frame, row, column) of a grid has the id
    of the grid's start plus (frame * t_interval, row, column). Each part starts above all ids before
    it, as the models were trained; transformers 5 starts the text after a long video at a lower id.

    Args:
        parts: the prompt in order; each a PromptPart, or a tuple of its fields.
        start: the id of the first token.

    Returns:
        (ids, next_id). ids: int64 [3, tokens], the axes being frames, rows and columns: a NumPy
        array, or a memoryview without NumPy. next_id: the id of the token after them, where decoding
        continues.

    Raises:
        ValueError: a number that is negative, too large or no number, or a grid with a side of 0; the
            message names the part.
        TypeError: a part that is none, or a number that is no int.
        MemoryError: there is no memory for the ids.
    """
    prompt = [_part(part, f"parts[{i}]") for i, part in enumerate(parts)]
    count = integer(len(prompt), "the number of parts", _COUNT)
    start = integer(start, "start", _START)
    tokens = sum(p.text + p.t * p.h * p.w for p in prompt)
    if tokens not in range_of(_TOKENS):
        tokens = 0  # the library says which part is at fault
    ids = _new(max(tokens, 0))
    memory = ffi.from_buffer("int64_t[]", ids, require_writable=True)
    next_id = ffi.new("int64_t*")
    apart = [p.t_interval if isinstance(p.t_interval, float) else 0.0 for p in prompt]
    whole = [p._replace(t_interval=0) if isinstance(p.t_interval, float) else p for p in prompt]
    struct = ffi.new("rope_prompt_part[]", [tuple(p) for p in whole])
    if any(apart):
        t_intervals = ffi.new("double[]", apart)
        check(lib.rope_prompt_ids_timed(struct, t_intervals, count, start, memory, tokens, next_id))
    else:
        check(lib.rope_prompt_ids(struct, count, start, memory, tokens, next_id))
    return ids, int(next_id[0])


def _part(part: Any, name: str) -> PromptPart:
    if not isinstance(part, tuple) or len(part) > len(_FIELDS):
        raise TypeError(f"{name} is {part!r}, and must be a PromptPart")
    given = PromptPart(*part)
    for field, value in zip(_FIELDS, given, strict=True):
        if field == "t_interval" and isinstance(value, float):
            continue
        integer(value, f"{name}.{field}", _FIELDS[field])
    return given


def _new(tokens: int) -> Any:
    """int64 [3, tokens]."""
    try:
        if _arrays.np is not None:
            return _arrays.np.empty((3, tokens), "int64")
        if tokens == 0:  # a shape that cast() does not make
            return memoryview((ctypes.c_int64 * 0 * 3)())
        return memoryview(bytearray(3 * tokens * ffi.sizeof("int64_t"))).cast("q", (3, tokens))
    except (ValueError, OverflowError, MemoryError):  # more than an address can have, or than there is
        raise MemoryError(f"prompt_ids: no memory for 3 ids of {tokens} tokens") from None
