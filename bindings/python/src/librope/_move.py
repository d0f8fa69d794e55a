"""Keys and values that a cache holds already, moved to other positions, frequencies and slots."""

from __future__ import annotations

from array import array
from typing import Any

from . import _arrays, _core
from ._ffi import ffi, lib
from ._frameworks import load
from ._fused import FusedKey, place
from ._kv_cache import NAMES, KVCache, check_page_starts, checked, read_beside
from ._pool import Pool
from ._rules import both_layouts, cache_axes, check_cache, check_channels, check_dtype, check_strides, contiguous
from ._scale import STORED, Scale, check_code, fill_scale, form_of, in_channels
from ._template import Key, Template, read_positions

_ARRAYS = ("slots_i32", "slots_i64", "page_table", "page_starts", "starts")


class Mover:
    """The part of Rope that moves what a cache holds."""

    axes: int
    _cpu: Any
    _dims: tuple[int, int]

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

        Args:
            cache: where the tokens go. Its k is required.
            positions, from_positions: where they are then, and where they are now: ids of one form,
                [tokens] or [batch, tokens], int32, int64 or float32, or with an axis of Rope.axes as
                positions_layout says; a list or a range is [tokens]. Slots are as many as positions.
            source: where keys and values are read, another KVCache or other slots of this one; None:
                where they go, so that keys turn in their slots, and values stay. A negative slot is
                skipped.
            cu_seqlens: int32: packed sequences, with positions [tokens].
            freq_sets, from_freq_sets: int32 [sequences]: the frequency set of each, then and now; None
                as from_freq_sets: the same. For a Rope of several.
            positions_layout: the order of the axes of positions: letters of "abt".
            pool: threads.

        Raises:
            ValueError: also where source and cache are one memory, and a slot is written that another
                token is read in: tokens cannot move up one by one, or in a circle. Nothing has been
                written then.
            NotImplementedError: arrays that are not in main memory; torch tensors in compiled code or
                under a transform.
        """
        written, read = checked(cache), checked(source)
        if written is None or written.k is None:
            raise ValueError("cache is required, and so is its k")
        _refuse_unseen(written, read, positions, from_positions)
        args = ffi.new("rope_qk_args*", {"struct_size": ffi.sizeof("rope_qk_args")})
        fused = ffi.new("rope_fused*", {"struct_size": ffi.sizeof("rope_fused")})
        before = ffi.new("rope_positions*")
        args.operation = lib.ROPE_OPERATION_REROTATE
        args.fused, fused.from_positions = fused, before
        kept: list[Any] = []  # arrays that the structs point to

        positions, from_positions = (
            array("q", _core.ints(ids, name)) if isinstance(ids, (list, tuple, range)) else ids
            for ids, name in ((positions, "positions"), (from_positions, "from_positions"))
        )
        shape = _read(positions, "positions")[1][0]
        order = positions_layout or {1: "t", 2: "bt"}.get(len(shape), "")
        sizes = dict(zip(order, shape, strict=False))
        if len(order) != len(shape) or "t" not in order:
            raise ValueError(
                f"positions has shape {shape}, and must be [tokens] or [batch, tokens]: else "
                "positions_layout= says which axes are a, b and t"
            )
        args.batch, args.tokens = sizes.get("b", 1), sizes["t"]
        sequences = args.batch
        if cu_seqlens is not None:
            sequences = _vector(args.positions, "cu_seqlens", cu_seqlens, kept) - 1
            before.cu_seqlens = args.positions.cu_seqlens
            args.positions.sequences = before.sequences = sequences
        where = (args.batch, args.tokens, self.axes, sequences)
        if from_freq_sets is None:
            from_freq_sets = freq_sets
        for struct, name, ids, sets in (
            (args.positions, "positions", positions, freq_sets),
            (before, "from_positions", from_positions, from_freq_sets),
        ):
            _positions(struct, name, ids, order, where, kept)
            if sets is not None:
                _vector(struct, "freq_sets", sets, kept, sequences)
        if pool is not None:
            if not isinstance(pool, Pool):
                raise TypeError(f"pool is a {type(pool).__qualname__}, and must be a librope.Pool")
            args.runner = pool._runner
        template = Template(args, ffi.NULL, args.batch, args.tokens, (), None)
        fused.cache = _cache("cache", written, template, sequences, self._dims, kept)
        fused.source = _cache("source", read or written, template, sequences, self._dims, kept)
        _core.check(lib.rope_apply_qk(self._cpu, args))


def _refuse_unseen(written: KVCache, read: KVCache | None, *ids: Any) -> None:
    memory = [x for cache in (written, read) if cache is not None for x in (cache.k, cache.v)]
    if any(_arrays.framework(x) == "torch" for x in (*memory, *ids)):
        load("torch").refuse_move(*memory, *ids)


def _read(x: Any, name: str) -> tuple[_arrays.View, _arrays.Meta]:
    return _in_memory(_arrays.read(x, name, False), name)


def _in_memory(view: _arrays.View, name: str) -> tuple[_arrays.View, _arrays.Meta]:
    if view[3] >= 0:
        raise NotImplementedError(f"{name} is on a CUDA device: caches are moved in main memory alone")
    return view, view[1](view[0], name)


def _vector(struct: Any, name: str, x: Any, kept: list[Any], length: int | None = None) -> int:
    """An int32 vector as a field of a rope_positions, and its length."""
    view, meta = _read(x, name)
    count: int = meta[0][0] if len(meta[0]) == 1 else -1
    if count < 0 or meta[2] != "int32" or length not in (None, count):
        raise ValueError(f"{name} is {meta[2]} {meta[0]}, and must be int32 [{length or 'sequences + 1'}]")
    contiguous(name, meta)
    setattr(struct, name, ffi.cast("int32_t*", view[2]))
    kept.append(view)
    return count


def _positions(
    struct: Any, name: str, ids: Any, order: str, where: tuple[int, int, int, int], kept: list[Any]
) -> None:
    view, meta = _read(ids, name)
    batch, tokens, axes, sequences = where
    key = Key(None, None, None, None, "bthd", 0, meta, order)
    try:
        read_positions(struct, key, batch, tokens, axes, sequences, "b" in order)
    except (ValueError, TypeError) as e:
        raise type(e)(str(e).replace("positions", name, 1)) from None
    for field, kind in (("ids_i32", "int32_t*"), ("ids_i64", "int64_t*"), ("ids_f32", "float*")):
        if getattr(struct, field) != ffi.NULL:
            setattr(struct, field, ffi.cast(kind, view[2]))
    kept.append(view)


def _point_to_scale(
    tensor: Any, scale: Scale, role: str, name: str, shape: tuple[int, ...], axes: tuple[int, int, int | None],
    kept: list[Any],
) -> None:  # fmt: skip
    struct, meta = ffi.new("rope_scale*"), None
    if scale.data is not None:
        view = _arrays.read(scale.data, f"data of {name}", role == "cache" and bool(scale.computed))
        view, meta = _in_memory(view, f"data of {name}")
        struct.data = ffi.cast("void*", view[2])
        kept.append(view)
    fill_scale(struct, form_of(scale), meta, name, shape, axes)
    tensor.scale = struct
    kept.append(struct)  # the tensor points to it


def _cache(
    role: str, cache: KVCache, template: Template, sequences: int, dims: tuple[int, int], kept: list[Any]
) -> Any:
    """A rope_kv_cache* of arrays in main memory."""
    views = read_beside(None, None, cache, sequences, None)
    metas = [None if v is None else _in_memory(v, n)[1] for v, n in zip(views, NAMES, strict=True)]
    if views[-2] is not None:
        check_page_starts(views)
    slots = () if metas[4] is None else metas[4][0]
    tokens = template.tokens * (template.batch if len(slots) == 1 else 1)
    if slots and slots[-1] != tokens:
        raise ValueError(
            f"slots of the {role} are {slots[-1]}, and positions those of {tokens} tokens: a move needs a slot for "
            "each token; a negative one skips it"
        )
    struct = ffi.new("rope_kv_cache*", {"struct_size": ffi.sizeof("rope_kv_cache")})
    kept += [struct, *views]
    k_layout, v_layout = both_layouts(cache.layout)
    for name, tensor, view, meta, layout in (
        ("cache.k", struct.k, views[2], metas[2], k_layout),
        ("cache.v", struct.v, views[3], metas[3], v_layout),
    ):
        if view is None or meta is None:
            continue
        check_dtype(name, meta[2], STORED)
        shape, strides, dtype = in_channels(name, meta)
        check_cache(name, shape, layout)
        check_strides(name, shape, strides)
        if tensor == struct.k:
            check_channels(name, shape[-1], dims)
        n, h = cache_axes(layout)
        if struct.pages not in (0, shape[0]) or struct.page_size not in (0, shape[n]):
            raise ValueError(
                f"cache.k has {struct.pages} pages of {struct.page_size} slots, and cache.v {shape[0]} of "
                f"{shape[n]}"
            )
        struct.pages, struct.page_size = shape[0], shape[n]
        tensor.data = ffi.cast("void*", view[2])
        tensor.dtype = STORED[dtype]
        tensor.layout = lib.ROPE_LAYOUT_STRIDED
        tensor.heads = 1 if h is None else shape[h]
        tensor.head_dim = shape[-1]
        tensor.stride_batch, tensor.stride_token = strides[0], strides[n]
        tensor.stride_head = 0 if h is None else strides[h]
        scale = cache.k_scale if tensor == struct.k else cache.v_scale
        check_code(f"{name[-1]}_scale of the {role}", f"{name[-1]} of the {role}", dtype, scale)
        if scale is not None:
            _point_to_scale(tensor, scale, role, f"{name[-1]}_scale", shape, (0, n, h), kept)
    place(struct, FusedKey.of(metas, cache.layout), template, sequences)
    addresses = {"slots": views[4], "page_table": views[5], "page_starts": views[6], "starts": views[7]}
    for field in _ARRAYS:
        pointer, view = getattr(struct, field), addresses[field.partition("_i")[0]]
        if view is not None and (pointer != ffi.NULL or not field.startswith("slots")):
            setattr(struct, field, ffi.cast(ffi.typeof(pointer), view[2]))
    return struct
