"""KVCache: the keys and values of past tokens, and where in it those of a call go."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from . import _arrays, _core
from ._arrays import View
from ._ffi import lib
from ._int32 import read_int32
from ._rules import cache_axes
from ._scale import AllScales, Scale, Scales, all_scales, checked_scale, written_scales
from ._types import CacheLayout

_largest = lib.largest


class Memory(NamedTuple):
    """Where a cache is: of _step.py, which knows it from an earlier call."""

    k: Any  # whose memory it is
    v: Any
    layout: CacheLayout
    form: int  # a number for shapes, strides, dtypes, layout and scales
    addresses: tuple[int, int]
    is_torch: bool
    # Of k and of v, what may have changed since: shape, strides and dtype of tensors, whose address may
    # have, too; of NumPy arrays both shapes and both dtypes.
    words: Any
    strides: Any  # of NumPy arrays; None: both have no gaps, which costs less to ask
    scales: Any  # of the KVCache
    pins: Any  # of NumPy arrays: weak references, for the sake of which resize() leaves their memory alone


class _Noted(list[Memory]):
    """What caches of one memory know of it: nothing in a copy (copy.deepcopy, pickle), whose arrays are others."""

    def __reduce_ex__(self, protocol: object) -> Any:
        return _Noted, ()


class KVCache:
    """The KV cache of one layer, and the slots in it that the tokens of a call get::

        cache = librope.KVCache(k_cache, v_cache, layout="nhd", slots=slot_mapping)
        q, _ = rope.apply_qk(q, k, positions, v=v, cache=cache)

    A cache is pages of slots, and a slot holds the heads of one token: slot page * page_size + n is
    slot n of a page. Nothing else of it is written. It keeps the arrays and copies nothing.

    Args:
        k, v: the memory of keys and of values, as layout says, of the heads of the k and v of the
            calls, and of any dtype: float32, float16, bfloat16, to which results are rounded once,
            float8_e4m3fn, float8_e5m2 and int8 (of ml_dtypes or torch), or uint8: the bytes of ggml's Q8_0,
            34 in place of 32 channels. Any strides, but channels adjacent: parts of one array of both, as
            well. Either may be None. k has whole heads, or the rotated span alone.
        layout: "nhd": [pages, page_size, heads, channels]; "hnd": [pages, heads, page_size,
            channels]; "nd": [pages, page_size, channels], one head (MLA). Or one for k and one for v.
        k_scale, v_scale: Scale: what the codes of k and v in 8 bits stand for. Required by their dtypes,
            and by no others.
        slots: the slot of each token, int32 or int64: [batch, tokens], or [tokens]; a negative one:
            nowhere, such as padding. More entries than tokens are left, and fewer are an error.
        page_table: [sequences, pages of each]: token i of sequence s goes to slot n % page_size
            of page page_table[s, n // page_size], n = starts[s] + i; a negative page: nowhere.
        page_starts: [sequences + 1]: page_table is one list [entries], and row s of it begins at
            entry page_starts[s] and ends where the next begins.
        starts: [sequences], or an int for all: the tokens that each sequence has in the cache. Without
            page_table, sequence s owns page s.

    page_table, page_starts and starts are int32, or in main memory int64 and lists, which each call copies.

    Exactly one of slots, page_table with starts, and starts alone says where tokens go. Sequences are
    the batch rows, or those of cu_seqlens. A cache without any of them is memory alone, for at(). On
    a device all of these are arrays there, and what they hold is not checked: a token whose slot or
    page does not exist is not stored.

    Raises:
        ValueError: an unknown layout; k and v both None; two places, or half of one.
        TypeError: a k_scale or v_scale that is no Scale.
    """

    __slots__ = ("_memory", "_scales", "k", "layout", "page_starts", "page_table", "slots", "starts", "v")

    def __init__(
        self,
        k: Any = None,
        v: Any = None,
        *,
        layout: CacheLayout,
        k_scale: Scale | None = None,
        v_scale: Scale | None = None,
        slots: Any = None,
        page_table: Any = None,
        page_starts: Any = None,
        starts: Any = None,
    ) -> None:
        if k is None and v is None:
            raise ValueError("k and v of a KVCache are both None")
        if isinstance(layout, (tuple, list)):
            layout = tuple(layout)  # type: ignore[assignment]
            if len(layout) != 2:
                raise ValueError(f"layout of a cache has {len(layout)} layouts: one for k and one for v")
        for name in layout if isinstance(layout, tuple) else (layout,):
            cache_axes(name)
        _check_place(slots, page_table, page_starts, starts)
        self._memory = _Noted()  # one or none, shared with the caches that at() makes
        # None: there are none, as in most caches.
        self._scales: tuple[Scale | None, Scale | None] | None = None
        if k_scale is not None or v_scale is not None:
            self._scales = checked_scale(k_scale, "k_scale"), checked_scale(v_scale, "v_scale")
        self.k = k
        self.v = v
        self.layout = layout
        self.slots = slots
        self.page_table = page_table
        self.page_starts = page_starts
        self.starts = starts

    def at(
        self, *, slots: Any = None, page_table: Any = None, page_starts: Any = None, starts: Any = None
    ) -> KVCache:
        """The same memory, and other slots.

        An engine makes one cache per layer, and in each step::

            rope.apply_qk(q, k, positions, v=v, cache=caches[layer].at(slots=slot_mapping))
        """
        other = KVCache(
            self.k, self.v, layout=self.layout, slots=slots, page_table=page_table,
            page_starts=page_starts, starts=starts,
        )  # fmt: skip
        other._memory, other._scales = self._memory, self._scales
        return other

    @property
    def k_scale(self) -> Scale | None:
        """What the codes of k stand for."""
        return None if self._scales is None else self._scales[0]

    @property
    def v_scale(self) -> Scale | None:
        """What the codes of v stand for."""
        return None if self._scales is None else self._scales[1]

    def __repr__(self) -> str:
        names = ("k", "v", "slots", "page_table", "page_starts", "starts")
        given = [(name, getattr(self, name)) for name in names]
        shown = [f"{n}={x if isinstance(x, int) else _form(x)}" for n, x in given if x is not None]
        return f"KVCache({', '.join(shown)}, layout={self.layout!r})"


def _check_place(slots: Any, page_table: Any, page_starts: Any, starts: Any) -> None:
    """Refuses two places, or half of one."""
    if slots is not None:
        for name, given in (("page_table", page_table), ("page_starts", page_starts), ("starts", starts)):
            if given is not None:
                raise ValueError(f"slots and {name}: slots alone say where tokens go")
    elif page_table is not None:
        if starts is None:
            raise ValueError("page_table needs starts: the tokens that each sequence has in the cache")
    elif page_starts is not None:
        raise ValueError("page_starts needs page_table, whose rows it divides")


def _form(x: Any) -> str:
    return f"{getattr(x, 'dtype', type(x).__name__)}{list(getattr(x, 'shape', ()))}"


def checked(cache: Any) -> KVCache | None:
    """The argument cache of a call."""
    if cache is None or type(cache) is KVCache:
        return cache
    if not isinstance(cache, KVCache):
        raise TypeError(
            f"cache is a {type(cache).__module__}.{type(cache).__qualname__}, and must be a librope.KVCache"
        )
    return cache


#: Of what read_beside() gives, in its order.
NAMES = ("v", "out of v", "cache.k", "cache.v", "slots", "page_table", "page_starts", "starts")


def arrays_of(v: Any, cache: KVCache | None) -> tuple[Any, ...]:
    """The arrays of a call beside q and k, for whoever has to see them."""
    if cache is None:
        return (v,)
    return (v, cache.k, cache.v, cache.slots, cache.page_table, cache.page_starts, cache.starts)


def scales_of(scales: Scales | None, cache: KVCache | None) -> AllScales | None:
    """Those of the outputs of a call, and of its cache."""
    return all_scales(scales, None if cache is None else cache._scales)


def written_of(scales: Scales | None, cache: KVCache | None) -> tuple[Any, ...]:
    """What a call writes beside its outputs."""
    written = written_scales(scales_of(scales, cache))
    return written if cache is None else (cache.k, cache.v, *written)


def read_beside(
    v: Any, v_out: Any, cache: KVCache | None, sequences: int, like: View | None, stores: bool = True
) -> list[View | None]:
    """sequences: of the call, for an int as starts; like: of q or k, on whose device it is needed. stores:
    whether the call writes to the cache."""
    given: tuple[Any, ...] = (None,) * 6
    if cache is not None:
        starts = cache.starts
        if _core.is_integer(starts):
            start = _core.integer(starts, "starts", "int32_t", low=0)
            if like is None or like[3] < 0:
                starts = array("i", [start]) * sequences
            else:
                starts = _arrays.repeated(start, sequences, like[4], "int32", "starts")
        slots = cache.slots
        if isinstance(slots, (list, tuple, range)):
            slots = array("q", _core.ints(slots, "slots"))
        given = (cache.k, cache.v, slots, cache.page_table, cache.page_starts, starts)
        _check_place(*given[2:])  # attributes can be set
        if slots is starts is None:
            raise ValueError(
                "cache says nowhere to go: slots=, page_table= with starts=, or starts= is required"
            )
    read = _arrays.read
    views: list[View | None] = []
    for i, (name, x) in enumerate(zip(NAMES, (v, v_out, *given), strict=True)):
        if x is None:
            views.append(None)
        elif i < 5:
            views.append(read(x, name, i == 1 or (stores and 1 < i < 4)))
        else:
            views.append(read_int32(x, name))
    return views


def check_page_starts(views: Any) -> None:
    """Refuses rows of a page_table that end behind it, which the library cannot see. views: what
    read_beside() gave, in main memory, of arrays that place() has checked."""
    page_table, page_starts = views[5:7]
    end, entries = _largest(page_starts[2], page_starts[0][0][0]), page_table[0][0][0]
    if end > entries:
        raise ValueError(f"page_starts has {end}, and page_table has {entries} entries")


