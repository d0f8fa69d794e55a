"""Keys of a KV file from the rotation that they have to another."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from .. import KVCache, Rope
from ._schema import Info, at_any_length, setting

_KEPT = ("head_dim", "pairing", "rotary_dim", "rotary_offset", "angle")  # by a move

Turn = Callable[[Any, int], None]  # an array of keys and its first token, in place


def turn_of(before: Info, after: Info) -> Turn | None:
    """What turns the keys of one file into those of another; None: they are the same."""
    raw = before.keys == "raw", after.keys == "raw"
    if raw == (True, True):
        return None
    if raw == (True, False):
        return _alone(after.own_rope, after, "forward")
    if raw == (False, True):
        return _alone(_once(before.own_rope), before, "inverse")
    _check_kept(before.own_rope, after.own_rope)
    if before.digest == after.digest:
        if before.first_position == after.first_position:
            return None
        return _moved(_once(before.own_rope), (0, 0), before, after)
    return _moved(_both(before.own_rope, after.own_rope), (0, 1), before, after)


def _check_kept(before: Rope, after: Rope) -> None:
    for name in _KEPT:
        was, now = setting(before, name), setting(after, name)
        if was != now:
            raise ValueError(f"{name} of the rope is {now}, and its keys have {was}: a move changes frequencies and attention "
                             "factor alone")  # fmt: skip


def _once(rope: Rope) -> Rope:
    """Moves round on store, whatever the model does: the keys have been rounded its way already. An Info has its
    positions checked by its own rope; a move is between those of two."""
    return at_any_length(rope).replace(rounding="float32")


@lru_cache(16)
def _both(before: Rope, after: Rope) -> Rope:
    return Rope.sets([_once(before), _once(after)])


def _alone(rope: Rope, info: Info, operation: Any) -> Turn:
    layout = "bshd" if info.layout == "nhd" else "bhsd"

    def turn(keys: Any, token: int) -> None:
        rope.apply_(keys[None], info.first_position + token, layout=layout, operation=operation)

    return turn


def _moved(rope: Rope, sets: tuple[int, int], before: Info, after: Info) -> Turn:
    was, now = (np.array([s], np.int32) for s in sets) if rope.freq_sets > 1 else (None, None)
    axis = 0 if before.layout == "nhd" else 1

    def turn(keys: Any, token: int) -> None:
        tokens = np.arange(token, token + keys.shape[axis])
        rope.move(KVCache(keys[None], layout=before.layout, starts=0),
                  tokens + after.first_position, tokens + before.first_position,
                  freq_sets=now, from_freq_sets=was)  # fmt: skip

    return turn
