"""From arrays to one crossing into the library: templates, remembered by what decides them."""

from __future__ import annotations

import functools
import operator
import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from . import _arrays, _core, _untraced
from ._bound import Bound
from ._conventions import rule_of
from ._core import OPERATIONS, ints
from ._ffi import ffi, lib
from ._frameworks import FRAMEWORKS
from ._fused import FusedKey, add_fused, add_norms
from ._int32 import LISTS, read_int32, refuse_copies
from ._kv_cache import NAMES as _BESIDE
from ._kv_cache import KVCache, check_page_starts, read_beside, scales_of, written_of
from ._move import Mover
from ._norm import NAMES as _NORMED
from ._norm import Norms, norm_forms, read_norms
from ._pool import Pool
from ._rules import (
    POSITIONS,
    axes_of,
    both_layouts,
    check_batch_repeat,
    check_beside_rows,
    check_ids_per_axis,
    check_words,
    missing_layout,
)
from ._scale import DATA_NAMES as _SCALED
from ._scale import Scales, check_codes, read_scales, scale_forms
from ._shard import Shard, checked_shard
from ._template import Key, Template, make_template
from ._types import Layout

_ndarray = _arrays.ndarray
_NULL = ffi.NULL
_call_addresses = lib.call_addresses
_call_fused = lib.call_fused
_call_all = lib.call_all
# In the order of shim.c.
_ROTATED = ("q", "k", "out of q", "out of k", "positions", "cu_seqlens", "freq_sets", "cos", "sin")
_NAMES = (*_ROTATED, *_BESIDE, "rest", "out of rest", *_NORMED, *_SCALED)
_ROTATION = len(_ROTATED)  # arrays of a call that rotates, and nothing else
_STORED = _ROTATION + len(_BESIDE)  # of a call with v or a cache
_NORMS = _STORED + 2
_SCALES = _NORMS + len(_NORMED)
_PAGE_STARTS = _NAMES.index("page_starts")
_LOW, _HIGH = (_core.range_of("int64_t")[i] for i in (0, -1))  # of a position
_CACHE = 512  # templates kept per Rope; decode with growing shapes must not fill memory

#: Set by librope.torch: a context manager around a crossing while a profiler runs, else None.
recorder: Callable[[], AbstractContextManager[Any] | None] | None = None


class Call(NamedTuple):
    """What one call is made of, but its outputs: the arguments of Rope.apply_qk_, in their order, and those
    that need outputs."""

    q: Any
    k: Any = None
    positions: Any = None
    v: Any = None
    cache: KVCache | None = None
    norms: Norms | None = None
    layout: Layout = None
    operation: str = "forward"
    offsets: Any = None
    cu_seqlens: Any = None
    freq_sets: Any = None
    positions_layout: str | None = None
    cos_sin: Any = None
    cos_sin_format: str | None = None
    pool: Pool | None = None
    shard: Shard | None = None
    batch_repeat: int | None = None
    rest: Any = None
    scales: Scales | None = None

    @property
    def rotates(self) -> bool:
        """Whether it rotates q and k, and does nothing else."""
        return self.v is self.cache is self.rest is None and self.norms is None and self.scales is None

    @property
    def stores_k(self) -> bool:
        """Whether k goes to a cache, and is itself left alone."""
        return self.cache is not None and self.cache.k is not None

    def angles(self) -> str:
        """Which argument gives the angles: "positions", "offsets" or "cos_sin"."""
        if self.offsets is self.cos_sin is None:
            return "positions"
        if self.positions is None:
            if self.cos_sin is None:
                return "offsets"
            if self.offsets is None:
                return "cos_sin"
        raise ValueError("positions, offsets and cos_sin: exactly one of them gives the angles")

    def rows(self) -> tuple[Any, Any]:
        """cos_sin as two: where it is one array, the other is None."""
        rows = self.cos_sin
        if not isinstance(rows, (tuple, list)):
            return rows, None
        if len(rows) != 2:
            raise ValueError(f"cos_sin has {len(rows)} arrays, and must be (cos, sin) or one array")
        return rows[0], rows[1]

    def check_shard(self) -> None:
        """A shard goes with the position of the first token of each sequence, and nothing else."""
        checked_shard(self.shard)
        given = self.angles()
        if rule_of(self.operation).by_distance:
            raise ValueError(f"shard= is not for operation {self.operation!r}, whose positions are distances")
        if given == "cos_sin" or (given == "positions" and shape_of_positions(self.positions) != ()):
            raise ValueError(
                f"shard= is not for {given} as an array, which tells of each token where it is: positions must "
                "be an int, or offsets= an array with one entry for each sequence"
            )

    def check_rows(self) -> None:
        """Refuses what does not go with rows of cos and sin."""
        check_words(self.positions_layout, self.cos_sin_format)
        if self.shard is not None:
            self.check_shard()
        if self.batch_repeat is not None:
            check_batch_repeat(self.batch_repeat, 1, True)
        check_beside_rows(self.cu_seqlens, self.freq_sets)

    def refuse(self, where: str, *names: str) -> None:
        """NotImplementedError for those of the arguments that are given."""
        for name in names:
            if getattr(self, name) is not None:
                raise unavailable(name, where)


class Ready(NamedTuple):
    """A call of arrays of memory that lacks nothing but its crossing."""

    template: Template
    views: tuple[_arrays.View | None, ...]  # in the order of _NAMES, as far as it rotates, stores or does more
    addresses: list[int]
    device: int
    offset: int
    positions: Any  # as an int or an array
    runner: Any


class Caller(Mover):
    """The part of Rope that makes calls; Rope itself makes the other attributes."""

    head_dim: int
    rotary_dim: int
    rotary_offset: int
    pairs: int
    axes: int
    freq_sets: int
    freq_heads: int
    spec: str
    #: Multiplies cos and sin, so q.k by its square (YaRN, LongRoPE). Of the first frequency set.
    attention_factor: float
    #: That of every frequency set.
    attention_factors: tuple[float, ...]
    #: For the caller to multiply into the softmax scale; 1 except for YaRN of DeepSeek.
    softmax_factor: float
    #: The frequencies are right for sequences of this many tokens or more, up to valid_below; 0: of
    #: any fewer, too. Which sequence a call belongs to only the caller knows: compare its length.
    valid_from: int
    #: The frequencies are right for sequences of fewer tokens than this; None: for all. Dynamic NTK
    #: and LongRoPE have a limit, beyond which calls raise ValueError (on CUDA where positions are an
    #: int). With several frequency sets each sequence has its own: the smallest here.
    valid_below: int | None
    layout: Layout
    _dims: tuple[int, int]
    #: The ids of a token differ from axis to axis, as those of images do: positions must have axes.
    ids_per_axis: bool
    _cpu: Any
    _configs: list[_core.Config]
    _contexts: dict[int, Any]
    _follows: tuple[str, ...]
    _lock: threading.Lock
    _transposed_specs: dict[str, str]  # known before Dynamo, which makes no JSON, comes here
    _templates: dict[Any, Template]
    _fast: dict[Any, Any]

    def _read_info(self, state: dict[str, Any], sets: int) -> None:
        """The attributes that the context tells. state: where they go; sets: of frequencies."""
        info = ffi.new("rope_info*")
        info.struct_size = ffi.sizeof("rope_info")
        factors, reach, begin = [], [], []
        for i in range(sets):
            _core.check(lib.rope_context_info(self._cpu, i, info))
            factors.append(float(info.attention_factor))
            reach.append(int(info.valid_below))
            begin.append(int(info.valid_from))
            if i == 0:
                for name in (
                    "head_dim", "rotary_dim", "rotary_offset", "pairs", "axes", "freq_sets",
                    "freq_heads",
                ):  # fmt: skip
                    state[name] = int(getattr(info, name))
                state["softmax_factor"] = float(info.softmax_factor)
        state["attention_factors"] = tuple(factors)
        state["attention_factor"] = factors[0]
        state["valid_from"] = max(begin)
        state["valid_below"] = _core.length_or_none(min(reach))

    def transposed(self, operation: str) -> tuple[str, str, bool]:
        """The transpose of an operation, which is linear: of which spec, which operation, and whether it goes
        by negative positions."""
        rule = rule_of(operation)
        return self._transposed_specs[operation], rule.transpose, rule.negates

    def _context(self, device: int) -> Any:
        """The context of a device, made when first needed."""
        context = self._contexts.get(device)
        if context is None:
            with self._lock:
                structs = [_core.to_struct(c, device) for c in self._configs]
                out = ffi.new("rope_context**")
                if len(structs) == 1:
                    _core.check(lib.rope_context_create(structs[0][0], out))
                else:
                    pointers = ffi.new("rope_config*[]", [s for s, _ in structs])
                    _core.check(lib.rope_context_create_sets(pointers, len(structs), out))
                context = ffi.gc(out[0], lib.rope_context_destroy)
                self._contexts[device] = context
        return context

    @_untraced.untraced
    def _run(
        self, call: Call, q_out: Any = None, k_out: Any = None, v_out: Any = None, rest_out: Any = None,
        ready: bool = False,
    ) -> Any:  # fmt: skip
        """Makes the call, in place where there is no output. ready: gives a Ready instead.

        For arrays of memory; those of a framework that has to see the call do not come here.
        """
        (
            q, k, positions, v, cache, norms, layout, operation, offsets, cu_seqlens, freq_sets,
            positions_layout, cos_sin, cos_sin_format, pool, shard, batch_repeat, rest,
            scales,
        ) = call  # fmt: skip
        if shard is not None:
            call.check_shard()
        if batch_repeat is not None:  # as a key 2.0 would be the 2 of an earlier call
            batch_repeat = _core.integer(batch_repeat, "batch_repeat", low=1)
        if self.ids_per_axis:
            self._check_ids_per_axis(call)
        read = _arrays.read
        qv = None if q is None else read(q, "q", q_out is None)
        kv = None if k is None else read(k, "k", k_out is None and not call.stores_k)
        qo = None if q_out is None else read(q_out, "out of q", True)
        ko = None if k_out is None else read(k_out, "out of k", True)
        pv = cu = fs = cv = sv = None
        offset = 0
        angles = "positions" if offsets is cos_sin is None else call.angles()
        if angles == "positions":
            positions = as_positions(positions)
            if type(positions) is int:
                offset = positions
                first = qv or kv
                if first is not None and first[3] >= 0 and rule_of(operation).by_distance:
                    positions = _arrays.repeated(offset, self._tokens(call), first[4], "int64", "positions")
            if type(positions) is not int:
                pv = read(positions, "positions")
        elif angles == "offsets":
            pv = read(array("q", ints(offsets, "offsets")) if isinstance(offsets, LISTS) else offsets, "offsets")
        else:
            cos, sin = call.rows()
            cv = read(cos, "cos")
            sv = None if sin is None else read(sin, "sin")
        if cu_seqlens is not None:
            cu = read_int32(cu_seqlens, "cu_seqlens")
        if freq_sets is not None:
            fs = read_int32(freq_sets, "freq_sets")
        if pool is None:
            runner = _NULL
        elif isinstance(pool, Pool):
            runner = pool._runner
        else:
            raise TypeError(f"pool is a {type(pool).__qualname__}, and must be a librope.Pool")

        if layout is None:
            layout = self.layout
        elif type(layout) is not str:
            layout = checked_layout(layout)
        key: tuple[Any, ...] = (
            qv and qv[0], kv and kv[0], qo and qo[0], ko and ko[0], layout, operation, pv and pv[0],
            positions_layout, offsets is None, cu and cu[0], fs and fs[0], cv and cv[0],
            sv and sv[0], cos_sin_format, shard, batch_repeat,
        )  # fmt: skip
        views: tuple[_arrays.View | None, ...] = (qv, kv, qo, ko, pv, cu, fs, cv, sv)
        rotates = call.rotates
        every = None if rotates else scales_of(scales, cache)
        whole = not (rotates or norms is rest is every is None)
        if not rotates:
            sequences = self._sequences(call, qv or kv, cu)
            beside = read_beside(v, v_out, cache, sequences, qv or kv)
            if whole:
                beside.append(None if rest is None else read(rest, "rest"))
                beside.append(None if rest_out is None else read(rest_out, "out of rest", True))
                beside += [None] * len(_NORMED) if norms is None else read_norms(norms)
                beside += [None] * len(_SCALED) if every is None else read_scales(every)
            key = (
                *key, cache and cache.layout, norm_forms(norms), scale_forms(every),
                *[x and x[0] for x in beside],
            )  # fmt: skip
            views = (*views, *beside)
        template = self._templates.get(key)
        if template is None:
            template = self._new_template(key, views, call, layout)
            if pool is None and rotates:
                self._remember(template, call._replace(positions=positions), key, layout)

        device = (qv or kv)[3]  # type: ignore[index]
        addresses = []
        for i, view in enumerate(views):
            if view is None:
                addresses.append(0)
                continue
            if view[3] != device:
                name = angles if _NAMES[i] == "positions" else _NAMES[i]
                raise ValueError(f"{name} is on {_arrays.place(view[3])}, and q or k on {_arrays.place(device)}")
            addresses.append(view[2])
        if template.coordinates is not None and device < 0:
            _arrays.check_finite(template.coordinates, addresses[4], "positions")
        if not rotates and views[_PAGE_STARTS] is not None and device < 0:
            check_page_starts(views[_ROTATION:])
        if ready:
            return Ready(template, views, addresses, device, offset, positions, runner)
        context = self._cpu if device < 0 else self._context(device)
        stream = 0 if device < 0 else _arrays.current_stream(q if q is not None else k)
        in_place = (k_out is None and not call.stores_k) if q is None else q_out is None
        who = "apply_qk_" if in_place else "apply_qk"
        if rotates:
            where = (context, template.args, template.rows, offset, stream, runner)
            cross(_call_addresses, *where, *addresses, who=who)
        else:
            templates = (template.args, template.rows, template.fused, template.cache)
            if whole:
                more = (template.norms or _NULL, template.scales or _NULL)
                arrays = ffi.new("uintptr_t[]", addresses)
                cross(_call_all, context, *templates, *more, offset, stream, runner, arrays, who=who)
            else:
                cross(_call_fused, context, *templates, offset, stream, runner, *addresses, who=who)
        return template

    def _sequences(self, call: Call, first: _arrays.View | None, cu_seqlens: _arrays.View | None) -> int:
        """Of a call whose arrays may be wrong yet: then any number. first: q, or k without q."""
        if cu_seqlens is not None:
            shape = cu_seqlens[0][0]
            return shape[0] - 1 if shape else 0
        layout = both_layouts(layout_of(self, call))[int(call.q is None)]
        batch = axes_of(layout)[0]
        shape = () if first is None else first[0][0]
        return 1 if batch is None or batch >= len(shape) else shape[batch]

    def _check_ids_per_axis(self, call: Call) -> None:
        """For calls of a Rope with ids_per_axis, wherever they go to."""
        if call.angles() == "cos_sin":
            return
        layout = both_layouts(layout_of(self, call))[int(call.q is None)]
        shape = None if call.offsets is not None else shape_of_positions(call.positions)
        check_ids_per_axis(shape, call.positions_layout, "b" in layout, self.axes)

    @_untraced.untraced
    def _bind(self, call: Call, q_out: Any, k_out: Any, v_out: Any, rest_out: Any) -> Bound:
        for name, x in (("positions", call.positions), ("starts", call.cache and call.cache.starts)):
            if getattr(x, "shape", None) == () and not _is_fixed(x):
                raise ValueError(
                    f"{name} is an array without dimensions, whose content a bound call would not see: give an int, or "
                    "an array with one dimension"
                )
        refuse_copies(call)
        template, views, addresses, device, offset, positions, runner = self._run(
            call, q_out, k_out, v_out, rest_out, ready=True
        )
        q, k = call.q, call.k
        context = self._cpu if device < 0 else self._context(device)
        stream = 0 if device < 0 else _arrays.current_stream(q if q is not None else k)
        owners = (self, q, k, q_out, k_out, positions, views, call.pool, call.cache, call.scales)
        written = (q, k) if q_out is k_out is None else (q_out, k_out)
        if call.stores_k:
            written = (q if q_out is None else q_out, k_out)
        written = (*written, v_out, rest_out, *written_of(call.scales, call.cache))
        named = [(n, v[4]) for n, v in zip(_NAMES, views, strict=False) if v is not None]
        if call.offsets is not None:
            named = [("offsets" if n == "positions" else n, x) for n, x in named]
        before, then = _arrays.guard(named, written)
        if len(views) > _ROTATION and views[_PAGE_STARTS] is not None and device < 0:
            before = after(before, functools.partial(check_page_starts, views[_ROTATION:]))
        if template.coordinates is not None and device < 0:  # which are read in each step
            finite = functools.partial(_arrays.check_finite, template.coordinates, addresses[4], "positions")
            before = after(before, finite)
        start = offset if views[4] is None else None
        every = [*addresses, *[0] * (len(_NAMES) - len(addresses))]
        return Bound(context, template, every, start, stream, runner, owners, before, then)

    def _tokens(self, call: Call) -> int:
        text = both_layouts(layout_of(self, call))[int(call.q is None)]
        x = call.k if call.q is None else call.q
        count: int = x.shape[axes_of(text)[1]]
        return count

    def _new_template(
        self, key: Any, views: Sequence[_arrays.View | None], call: Call, layout: Layout
    ) -> Template:
        """layout: that of the call or of the Rope."""
        if views[0] is None and views[1] is None:
            raise ValueError("q and k are both None")
        metas = [
            None if v is None else v[1](v[0], name) for v, name in zip(views, _NAMES, strict=False)
        ]
        q, k, q_out, k_out, positions, cu_seqlens, freq_sets, cos, sin = metas[:_ROTATION]
        if layout is None:
            raise missing_layout("q" if q else "k", (q or k)[0])  # type: ignore[index]
        named = Key(
            q, k, q_out, k_out, layout, _core.number(OPERATIONS, call.operation, "operation"),
            positions, call.positions_layout, call.offsets is not None, cu_seqlens, freq_sets, cos,
            sin, call.cos_sin_format, call.shard, call.batch_repeat,
        )  # fmt: skip
        template = make_template(named, self._dims, self.pairs, self.axes)
        _, v_out, k_memory, v_memory = (*metas[_ROTATION:_STORED], *[None] * 4)[:4]
        outs = (q_out, k_out, k_memory, v_out, v_memory, metas[_NORMS - 1] if len(metas) > _STORED else None)
        check_codes([x and x[2] for x in outs], scales_of(call.scales, call.cache))
        if len(metas) > _ROTATION:
            cache_layout = None if call.cache is None else call.cache.layout
            more = FusedKey.of(metas[_ROTATION:_STORED], cache_layout)
            if len(metas) > _STORED:
                rest, rest_out = metas[_STORED:_NORMS]
                forms = scale_forms(scales_of(call.scales, call.cache))
                more = more._replace(rest=rest, rest_out=rest_out, scales=forms, scale_data=tuple(metas[_SCALES:]))
            template = add_fused(template, named, more, self._dims)
            if call.norms is not None:
                template = add_norms(template, norm_forms(call.norms), metas[_NORMS:_SCALES])
        if len(self._templates) >= _CACHE:
            self._templates.clear()
            self._fast.clear()
        self._templates[key] = template
        return template

    def _remember(self, template: Template, call: Call, key: Any, layout: Layout) -> None:
        """Lets apply_qk_ find this call by attributes of the arrays alone, if they are compact."""
        q, k, positions = call[:3]
        if (
            not (type(q) is type(k) is _ndarray)
            or any(x is not None for x in (*key[2:4], key[7], *key[9:]))  # out, cu_seqlens, ...
            or not key[8]  # offsets
            or template.coordinates is not None  # whose values are looked at
            or not (q.flags.c_contiguous and k.flags.c_contiguous)
        ):
            return
        if type(positions) is int:
            name: tuple[Any, ...] = (q.shape, k.shape, None, q.dtype, k.dtype)
        elif type(positions) is _ndarray and positions.flags.c_contiguous:
            name = (q.shape, k.shape, positions.shape, q.dtype, k.dtype, positions.dtype)
        else:
            return
        for text in {layout, None} if layout == self.layout else {layout}:
            full = (*name, text, call.operation)
            self._fast[full] = template.args


def after(first: Callable[[], None] | None, then: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        if first is not None:
            first()
        then()

    return both


def cross(function: Callable[..., int], *arguments: Any, who: str = "apply_qk") -> None:
    """Calls a function of the library that rotates, where a profiler may see it. who: of whom an error speaks."""
    recording = None if recorder is None else recorder()
    if recording is None:
        status = function(*arguments)
    else:
        with recording:
            status = function(*arguments)
    if status:
        raise _core.error(status, who)


_HOST = (type(None), _ndarray)


def library_of(q: Any, k: Any) -> str:
    """Whose call it is. torch and JAX come first: a gradient may hang on either array."""
    if type(q) is _ndarray and type(k) in _HOST:
        if _untraced.waiting:
            _untraced.keep_out()
        return "numpy"
    found = [_arrays.framework(x) for x in (q, k) if x is not None]
    if "torch" in found and "jax" in found:
        raise TypeError(
            f"q is an array of {found[0]}, and k one of {found[1]}: both must be of one library"
        )
    for name in FRAMEWORKS:
        if name in found:
            return name
    return found[0] if found else ""


def unavailable(name: str, where: str) -> NotImplementedError:
    return NotImplementedError(f"{name}= is not available with {where}")


def outputs(out: Any, call: Call) -> tuple[Any, Any, Any, Any]:
    """The argument out of a call: for q and k; then for v, where it has one; then for rest, where it has one."""
    if isinstance(out, (tuple, list)):
        if call.rest is not None and len(out) == 4:
            return out[0], out[1], out[2], out[3]
        if call.v is not None and len(out) == 3:
            return out[0], out[1], out[2], None
    return (*pair(out), None, None)


def pair(out: Any) -> tuple[Any, Any]:
    """The argument out of a call of q and k."""
    if out is None:
        return None, None
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"out is a {type(out).__qualname__}, and must be a pair (q_out, k_out)")
    return out[0], out[1]


def layout_of(rope: Caller, call: Call) -> str | tuple[str, str]:
    """The layout of a call that was given, or that of the Rope."""
    layout = rope.layout if call.layout is None else call.layout
    if not isinstance(layout, str) and call.layout is not None and _is_no_pair(layout):
        layout = checked_layout(layout)
    if layout is None:
        x = call.k if call.q is None else call.q
        raise missing_layout("k" if call.q is None else "q", x.shape)
    return layout


def _is_no_pair(layout: Any) -> bool:
    """Without axes_of(), of whose cache Dynamo warns."""
    return not isinstance(layout, tuple) or len(layout) != 2 or not all(isinstance(name, str) for name in layout)


def checked_layout(layout: Layout) -> Layout:
    """A layout that can be one, as text or as a tuple of two."""
    if layout is None or isinstance(layout, str):
        names = () if layout is None else (layout,)
    else:
        if not isinstance(layout, (tuple, list)):
            raise TypeError(f"layout is {layout!r}, and must be a text, or one for q and one for k")
        names = layout = tuple(layout)  # type: ignore[assignment]
        if _is_no_pair(layout):
            raise ValueError(f"layout is {layout}, and must be one text for q and one for k")
    for name in names:
        axes_of(name)
    return layout


def _is_fixed(x: Any) -> bool:
    """Whether a number that is an array cannot change: numpy.int64(7), and JAX's."""
    return _arrays.framework(x) == "jax" or (_arrays.np is not None and isinstance(x, _arrays.np.generic))


def as_positions(positions: Any, name: str = "positions") -> Any:
    """An int, or an array: ranges and lists of ints are given one."""
    kind = type(positions)
    if kind is int:
        return positions if _LOW <= positions <= _HIGH else _core.integer(positions, name)
    if positions is None:
        *most, last = POSITIONS
        raise ValueError(f"positions is required: an int, or an array of {', '.join(most)} or {last}")
    if isinstance(positions, LISTS):
        return array("q", ints(positions, name))
    if hasattr(positions, "__index__") and not getattr(positions, "shape", None):
        try:
            found = operator.index(positions)  # numpy.int64(7) and the like
        except TypeError:  # an array of one float
            return positions
        if _LOW <= found <= _HIGH and not _core.is_bool(positions):
            return found
        return _core.integer(positions, name)  # says what is wrong
    if isinstance(positions, float):
        raise TypeError(f"{name} is {positions!r}, and must be an int or an array")
    return positions


def shape_of_positions(positions: Any) -> tuple[int, ...]:
    """That of an array, () of an int; lists and ranges have one dimension."""
    if isinstance(positions, (*LISTS, array)):
        return (len(positions),)
    return tuple(getattr(positions, "shape", ()))
