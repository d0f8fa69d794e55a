"""Keys and values that a cache holds already, moved to other positions, frequencies and slots."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from . import _arrays, _core, _untraced
from ._arrays import Meta
from ._ffi import ffi, lib
from ._frameworks import load
from ._fused import FusedKey, place
from ._int32 import read_int32
from ._kv_cache import NAMES, KVCache, check_page_starts, checked, read_beside
from ._pool import Pool
from ._rules import (
    both_layouts,
    cache_axes,
    check_cache,
    check_channels,
    check_dtype,
    check_strides,
    check_words,
    contiguous,
)
from ._scale import STORED, Scale, check_code, fill_scale, form_of, in_channels, scale_arrays, written_scales
from ._template import Key, Template, read_positions
from ._untraced import untraced

_ARRAYS = ("slots_i32", "slots_i64", "page_table", "page_starts", "starts")


class Mover:
    """The part of Rope that moves what a cache holds; Rope itself makes the attributes."""

    axes: int
    ids_per_axis: bool
    _cpu: Any
    _dims: tuple[int, int]

    def _context(self, device: int) -> Any:
        raise NotImplementedError

    def move(
        self,
        cache: KVCache,
        positions: Any,
        from_positions: Any,
        *,
        source: KVCache | None = None,
        cu_seqlens: Any = None,
        freq_sets: Any = None,
        from_freq_sets: Any = None,
        positions_layout: str | None = None,
        pool: Pool | None = None,
    ) -> None:
        """Moves keys that are rotated already from positions to others, in the slots of a cache::

            rope.move(cache.at(slots=kept), new_positions, old_positions)

        They are then those that the operation "forward" puts at the new positions, but for one more
        rounding to their dtype. Caches in 8 bits have their scales: computed ones are read, and computed anew
        for keys that turn; values keep theirs. Blocks of Q8_0 have theirs inside. Source and cache may have
        different dtypes.

        On CUDA all arrays are on the device of cache.k, and the move is queued on the current stream of its
        library. What slots hold is not seen there: that none is read after it was written is up to the caller.
        Compiled code may have made a copy of the source, and then reads what was there before.

        Args:
            cache: where the tokens go. Its k is required.
            positions, from_positions: where they are then, and where they are now: ids of one form,
                [tokens] or [batch, tokens], int32, int64 or float32, or with an axis of Rope.axes as
                positions_layout says; in main memory also a list or a range, which is [tokens]. Slots are as
                many as positions.
            source: where keys and values are read, another KVCache or other slots of this one; None:
                where they go, so that keys turn in their slots, and values stay. A negative slot is
                skipped. What slots hold is read by a move to arrays that are a cache of one page.
            cu_seqlens: int32: packed sequences, with positions [tokens].
            freq_sets, from_freq_sets: int32 [sequences]: the frequency set of each, then and now; None
                as from_freq_sets: the same. For a Rope of several.
            positions_layout: the order of the axes of positions: letters of "abt".
            pool: threads.

        Raises:
            ValueError: also where source and cache are one memory, and a slot is written that another
                token is read in: tokens cannot move up one by one, or in a circle. Nothing has been
                written then.
            NotImplementedError: torch tensors that require a gradient, or are under torch.func or
                torch.jit.trace; pool= in compiled code.
        """
        written, read = checked(cache), checked(source)
        if written is None or written.k is None:
            raise ValueError("cache is required, and so is its k")
        check_words(positions_layout)
        given = (
            written, read, positions, from_positions, cu_seqlens, freq_sets, from_freq_sets, positions_layout, pool
        )  # fmt: skip
        arrays = (*memory_of(written), *memory_of(read), positions, from_positions)
        if any(_arrays.framework(x) == "torch" for x in arrays):
            torch = load("torch")
            if not torch.is_direct(arrays):
                torch.move(self, *given)
                return
            torch.refuse_move(arrays)
        if _untraced.waiting:
            _untraced.keep_out()
        announce = self._move(*given)
        if announce is not None:
            announce()

    @untraced
    def _move(
        self, written: KVCache, read: KVCache | None, positions: Any, from_positions: Any, cu_seqlens: Any,
        freq_sets: Any, from_freq_sets: Any, positions_layout: str | None, pool: Any,
    ) -> Callable[[], None] | None:  # fmt: skip
        """Gives what tells autograd of the writes; None where nobody wants to know."""
        args = ffi.new("rope_qk_args*", {"struct_size": ffi.sizeof("rope_qk_args")})
        fused = ffi.new("rope_fused*", {"struct_size": ffi.sizeof("rope_fused")})
        before = ffi.new("rope_positions*")
        args.operation = lib.ROPE_OPERATION_REROTATE
        args.fused, fused.from_positions = fused, before
        kept: list[Any] = []  # arrays that the structs point to
        to = _arrays.read(written.k, "cache.k", True)
        device = to[3]

        positions, from_positions = _ids(positions, "positions"), _ids(from_positions, "from_positions")
        shape = _read(positions, "positions", device)[1][0]
        order = self._order_of_ids(shape, positions_layout)
        sizes = dict(zip(order, shape, strict=True))
        args.batch, args.tokens = sizes.get("b", 1), sizes["t"]
        sequences = args.batch
        if cu_seqlens is not None:
            sequences = _vector(args.positions, "cu_seqlens", cu_seqlens, device, kept) - 1
            before.cu_seqlens = args.positions.cu_seqlens
            args.positions.sequences = before.sequences = sequences
        where = (args.batch, args.tokens, self.axes, sequences)
        if from_freq_sets is None:
            from_freq_sets = freq_sets
        for struct, name, ids, sets in (
            (args.positions, "positions", positions, freq_sets),
            (before, "from_positions", from_positions, from_freq_sets),
        ):
            _positions(struct, name, ids, order, where, device, kept)
            if sets is not None:
                _vector(struct, "freq_sets", sets, device, kept, sequences)
        if pool is not None:
            if not isinstance(pool, Pool):
                raise TypeError(f"pool is a {type(pool).__qualname__}, and must be a librope.Pool")
            args.runner = pool._runner
        template = Template(args, ffi.NULL, args.batch, args.tokens, (), None)
        fused.cache = _cache("cache", written, to, template, sequences, self._dims, kept)
        fused.source = _cache("source", read or written, to, template, sequences, self._dims, kept)
        announce = _arrays.announcer(written.k, written.v, *written_scales(written._scales))
        context = self._cpu
        if device >= 0:
            context = self._context(device)
            args.stream = ffi.cast("void*", _arrays.current_stream(written.k))
        status = lib.rope_apply_qk(context, args)
        if status:
            raise _core.error(status, "move")
        return announce

    def _order_of_ids(self, shape: tuple[int, ...], positions_layout: str | None) -> str:
        """What the axes of positions are."""
        order = positions_layout or {1: "t", 2: "bt"}.get(len(shape), "")
        if len(order) != len(shape) or "t" not in order:
            raise ValueError(
                f"positions has shape {shape}, and must be [tokens] or [batch, tokens]: else "
                "positions_layout= says which axes are a, b and t"
            )
        if self.ids_per_axis and positions_layout is None:
            raise ValueError(
                f"positions gives each token one id, and this model has {self.axes}, which are not alike (rows and "
                "columns of an image): positions_layout= must say which axes positions and from_positions have, such "
                "as 'at', or 't' where the axes of a token do share one"
            )
        return order


def memory_of(cache: KVCache | None) -> tuple[Any, ...]:
    """Keys, values and the arrays of their scales."""
    return () if cache is None else (cache.k, cache.v, *scale_arrays(cache._scales))


def _ids(ids: Any, name: str) -> Any:
    """positions as an array."""
    if isinstance(ids, int):
        raise TypeError(f"{name} is {ids}, and must be an array, list or range, with the position of each token")
    return array("q", _core.ints(ids, name)) if isinstance(ids, (list, tuple, range)) else ids


def _read(x: Any, name: str, device: int, write: bool = False) -> tuple[_arrays.View, _arrays.Meta]:
    return _there(_arrays.read(x, name, write), name, device)


def _there(view: _arrays.View, name: str, device: int) -> tuple[_arrays.View, _arrays.Meta]:
    """An array on the device of cache.k."""
    if view[3] != device:
        raise ValueError(f"{name} is on {_arrays.place(view[3])}, and cache.k on {_arrays.place(device)}")
    return view, view[1](view[0], name)


def _vector(struct: Any, name: str, x: Any, device: int, kept: list[Any], length: int | None = None) -> int:
    """An int32 vector as a field of a rope_positions, and its length."""
    view, meta = _there(read_int32(x, name), name, device)
    count: int = meta[0][0] if len(meta[0]) == 1 else -1
    if count < 0 or meta[2] != "int32" or length not in (None, count):
        raise ValueError(f"{name} is {meta[2]} {meta[0]}, and must be int32 [{length or 'sequences + 1'}]")
    contiguous(name, meta)
    setattr(struct, name, ffi.cast("int32_t*", view[2]))
    kept.append(view)
    return count


def _positions(
    struct: Any, name: str, ids: Any, order: str, where: tuple[int, int, int, int], device: int,
    kept: list[Any],
) -> None:  # fmt: skip
    view, meta = _read(ids, name, device)
    batch, tokens, axes, sequences = where
    key = Key(None, None, None, None, "bthd", 0, meta, order)
    try:
        read_positions(struct, key, batch, tokens, axes, sequences, "b" in order)
    except (ValueError, TypeError) as e:
        raise type(e)(str(e).replace("positions", name, 1)) from None
    for field, kind in (("ids_i32", "int32_t*"), ("ids_i64", "int64_t*"), ("ids_f32", "float*")):
        if getattr(struct, field) != ffi.NULL:
            setattr(struct, field, ffi.cast(kind, view[2]))
    if meta[2] == "float32" and device < 0:
        _arrays.check_finite(meta, view[2], name)
    kept.append(view)


def parts_of(cache: KVCache) -> tuple[tuple[str, str, Scale | None], ...]:
    """Letter, layout and Scale of keys and of values."""
    k_layout, v_layout = both_layouts(cache.layout)
    k_scale, v_scale = cache._scales or (None, None)
    return ("k", k_layout, k_scale), ("v", v_layout, v_scale)


def check_memory(role: str, part: tuple[str, str, Scale | None], meta: Meta | None, dims: tuple[int, int]) -> Meta | None:
    """What can be wrong with keys or values by themselves. Gives their Meta in channels."""
    letter, layout, scale = part
    name = f"{role}.{letter}"
    if meta is None:
        if scale is not None:
            raise ValueError(f"{letter}_scale of the {role} is a Scale, and {name} is None")
        return None
    check_dtype(name, meta[2], STORED)
    meta = in_channels(name, meta)
    check_cache(name, meta[0], layout)
    check_strides(name, meta[0], meta[1])
    if letter == "k":
        check_channels(name, meta[0][-1], dims)
    check_code(f"{letter}_scale of the {role}", f"{letter} of the {role}", meta[2], scale)
    return meta


def describe_cache(
    role: str, cache: KVCache, metas: Sequence[Meta | None], scales: Sequence[Meta | None], template: Template,
    sequences: int, dims: tuple[int, int],
) -> tuple[Any, list[Any]]:  # fmt: skip
    """A rope_kv_cache* without addresses, and the rope_scale* of keys and of values, or None. metas: in the order of
    _kv_cache.NAMES; scales: of their arrays."""
    slots = () if metas[4] is None else metas[4][0]
    tokens = template.tokens * (template.batch if len(slots) == 1 else 1)
    if slots and slots[-1] != tokens:
        raise ValueError(
            f"slots of the {role} are {slots[-1]}, and positions those of {tokens} tokens: a move needs a slot for "
            "each token; a negative one skips it"
        )
    struct = ffi.new("rope_kv_cache*", {"struct_size": ffi.sizeof("rope_kv_cache")})
    made: list[Any] = [None, None]
    for i, part in enumerate(parts_of(cache)):
        meta = check_memory(role, part, metas[2 + i], dims)
        if meta is None:
            continue
        (shape, strides, dtype), (letter, layout, scale) = meta, part
        n, h = cache_axes(layout)
        if struct.pages not in (0, shape[0]) or struct.page_size not in (0, shape[n]):
            raise ValueError(
                f"{role}.k has {struct.pages} pages of {struct.page_size} slots, and {role}.v {shape[0]} of "
                f"{shape[n]}"
            )
        struct.pages, struct.page_size = shape[0], shape[n]
        tensor = struct.v if i else struct.k
        tensor.dtype = STORED[dtype]
        tensor.layout = lib.ROPE_LAYOUT_STRIDED
        tensor.heads = 1 if h is None else shape[h]
        tensor.head_dim = shape[-1]
        tensor.stride_batch, tensor.stride_token = strides[0], strides[n]
        tensor.stride_head = 0 if h is None else strides[h]
        if scale is not None:
            made[i] = tensor.scale = ffi.new("rope_scale*")
            fill_scale(made[i], form_of(scale), scales[i], f"{letter}_scale", shape, (0, n, h))
    place(struct, FusedKey.of(metas, cache.layout), template, sequences)
    return struct, made


def _cache(
    role: str, cache: KVCache, to: _arrays.View, template: Template, sequences: int, dims: tuple[int, int],
    kept: list[Any],
) -> Any:  # fmt: skip
    """A rope_kv_cache*. to: the k that is written."""
    device, views = to[3], read_beside(None, None, cache, sequences, to, role == "cache")
    names = [n.replace("cache", role) if "cache" in n else f"{n} of the {role}" for n in NAMES]
    metas = [None if v is None else _there(v, n, device)[1] for v, n in zip(views, names, strict=True)]
    data: list[Any] = [(None, None)] * 2  # a View and a Meta each
    for i, scale in enumerate(cache._scales or ()):
        if scale is not None and scale.data is not None:
            write = role == "cache" and scale.computed
            data[i] = _read(scale.data, f"data of {'kv'[i]}_scale of the {role}", device, write)
    struct, made = describe_cache(role, cache, metas, (data[0][1], data[1][1]), template, sequences, dims)
    kept += [struct, *views]
    for x, view in ((struct.k, views[2]), (struct.v, views[3])):
        if view is not None:
            x.data = ffi.cast("void*", view[2])
    if cache._scales is not None:
        kept += [*made, *data]
        for x, (view, _) in zip(made, data, strict=True):
            if view is not None:
                x.data = ffi.cast("void*", view[2])
    if views[6] is not None and device < 0:
        check_page_starts(views)
    addresses = {"slots": views[4], "page_table": views[5], "page_starts": views[6], "starts": views[7]}
    for field in _ARRAYS:
        pointer, view = getattr(struct, field), addresses[field.partition("_i")[0]]
        if view is not None and (pointer != ffi.NULL or not field.startswith("slots")):
            setattr(struct, field, ffi.cast(ffi.typeof(pointer), view[2]))
    return struct
