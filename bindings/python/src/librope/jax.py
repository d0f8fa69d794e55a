"""librope in JAX: custom calls on the CPU that work under jit, vmap, jvp, grad and linear_transpose.

Rope.apply_qk calls this when it is given JAX arrays. The operands of a custom call are dense, so XLA
may copy a transposed operand first; results are always new arrays. Inputs that are sharded are
gathered around the call: wrap it in jax.shard_map over batch or heads, or over tokens with shard_ids.

The rotation is a primitive of its own, because it is linear in the tensors: forward-mode derivatives
are the same call, and its transpose is another one. custom_vjp would give only half of that.
"""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._arrays import not_finite
from ._call import Call, as_positions, layout_of
from ._conventions import rule_of
from ._core import _TABLES, COS_SIN_FORMATS, OPERATIONS, arrays_of, number, to_struct
from ._ffi import ffi, lib
from ._rope import Rope
from ._rows import shape_of_rows
from ._rules import (
    INTEGERS,
    POSITIONS,
    Sizes,
    axes_of,
    both_layouts,
    check_dtype,
    check_offsets,
    check_tensor,
    check_words,
    order_of_positions,
)
from ._shard import Shard

_INT32 = np.iinfo(np.int32)


@functools.cache
def register() -> None:
    """Makes the custom calls known to JAX: calls do it, loaded exports need it."""
    for name, address in (
        ("librope_apply", lib.xla_apply()),
        ("librope_cos_sin", lib.xla_cos_sin()),
    ):
        capsule = jax.ffi.pycapsule(ctypes.c_void_p(address))
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")


class _Rotation(NamedTuple):
    """What a custom call carries besides arrays: values, since executables are cached."""

    spec: str
    layouts: tuple[str, ...]
    positions_layout: str
    operation: str


class _Rows(NamedTuple):
    """The same for rows of cos and sin."""

    spec: str
    layout: str  # of a result: "bsd" or "sd"
    shape: tuple[int, ...]
    positions_layout: str
    format: str
    dtype: str


@functools.lru_cache(maxsize=256)
def _rope_of(spec: str) -> Rope:
    return Rope.from_fields(json.loads(spec))


@functools.lru_cache(maxsize=256)
def _attributes(spec: str) -> dict[str, Any]:
    config = json.loads(spec)
    struct, keep = to_struct(config)
    tables, which = [], 0
    for bit, name in enumerate(n for n, kind in _TABLES.items() if kind == "double[]"):
        if name in config:
            which |= 1 << bit
            tables += [float(v) for v in config[name]]
        setattr(struct, name, ffi.NULL)
    struct.pair_axis = ffi.NULL
    del keep
    return {
        "config": np.frombuffer(bytes(ffi.buffer(struct)), np.uint8).copy(),
        "tables": np.array(tables, np.float64),
        "pair_axis": np.array(config.get("pair_axis", []), np.uint8),
        "which": np.int32(which),
    }


# -- primitives -------------------------------------------------------------------------------------

_apply = Primitive("librope_apply")  # (*tensors, positions), rotation -> tensors
_cos_sin = Primitive("librope_cos_sin")  # (positions), rows -> arrays
_apply.multiple_results = _cos_sin.multiple_results = True


def _evaluate(primitive: Primitive, name: str) -> None:
    """Calls outside of jit are compiled once per shape, as those of other primitives are."""

    @functools.partial(jax.jit, static_argnames=name)
    def jitted(*operands: Any, **attributes: Any) -> Any:
        return primitive.bind(*operands, **attributes)

    primitive.def_impl(jitted)


_evaluate(_apply, "rotation")
_evaluate(_cos_sin, "rows")


@_apply.def_abstract_eval
def _shapes(*avals: Any, rotation: _Rotation) -> Any:
    return [a.update(weak_type=False) for a in avals[:-1]]


@_cos_sin.def_abstract_eval
def _shapes_of_rows(positions: Any, *, rows: _Rows) -> Any:
    lead = positions.shape[: len(positions.shape) - len(rows.positions_layout)]
    out = positions.update(
        shape=(*lead, *rows.shape), dtype=np.dtype(jnp.dtype(rows.dtype)), weak_type=False
    )
    return [out] * arrays_of(rows.format)


def _lower_apply(ctx: Any, *operands: Any, rotation: _Rotation) -> Any:
    return jax.ffi.ffi_lowering("librope_apply")(
        ctx,
        *operands,
        layout=rotation.layouts[0],
        layout_k=rotation.layouts[-1],
        positions_layout=rotation.positions_layout,
        operation=np.int32(OPERATIONS[rotation.operation]),
        **_attributes(rotation.spec),
    )


def _lower_cos_sin(ctx: Any, positions: Any, *, rows: _Rows) -> Any:
    return jax.ffi.ffi_lowering("librope_cos_sin")(
        ctx,
        positions,
        layout=rows.layout,
        positions_layout=rows.positions_layout,
        format=np.int32(COS_SIN_FORMATS[rows.format]),
        **_attributes(rows.spec),
    )


mlir.register_lowering(_apply, _lower_apply, platform="cpu")
mlir.register_lowering(_cos_sin, _lower_cos_sin, platform="cpu")


def _batch(primitive: Primitive, operands: Any, dims: Any, **attributes: Any) -> Any:
    """vmap: one more leading dimension, over which the handler makes its calls. None: unmapped."""
    size = next(
        x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None
    )
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, dims, strict=True)
    ]
    out = primitive.bind(*moved, **attributes)
    return out, [0] * len(out)


batching.primitive_batchers[_apply] = functools.partial(_batch, _apply)
batching.primitive_batchers[_cos_sin] = functools.partial(_batch, _cos_sin)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0


def _refuse_tangent(tangent: Any) -> None:
    if not _is_zero(tangent):
        raise NotImplementedError(
            "librope has no derivatives with respect to positions: jax.lax.stop_gradient them"
        )


def _jvp(primals: Any, tangents: Any, *, rotation: _Rotation) -> Any:
    _refuse_tangent(tangents[-1])
    out = _apply.bind(*primals, rotation=rotation)
    if all(_is_zero(t) for t in tangents[:-1]):
        return out, [ad.Zero.from_primal_value(x) for x in out]
    dense = [ad.instantiate_zeros(t) for t in tangents[:-1]]
    return out, _apply.bind(*dense, primals[-1], rotation=rotation)


def _jvp_of_rows(primals: Any, tangents: Any, *, rows: _Rows) -> Any:
    _refuse_tangent(tangents[0])
    out = _cos_sin.bind(*primals, rows=rows)
    return out, [ad.Zero.from_primal_value(x) for x in out]


def _negative(positions: Any, order: str) -> tuple[Any, str]:
    """Negative positions, and what their axes are: those of int32 as words, since -2**31 has none."""
    if order[-1:] != "w":
        if positions.dtype != jnp.int32:
            return -positions, order
        positions, order = jnp.stack([positions, positions >> 31], -1), order + "w"
    low, high = positions[..., 0], positions[..., 1]
    return jnp.stack([-low, ~high + (low == 0)], -1), order


def _transpose(cotangents: Any, *operands: Any, rotation: _Rotation) -> Any:
    positions = operands[-1]
    spec, operation, negated = _rope_of(rotation.spec).transposed(rotation.operation)
    rotation = rotation._replace(spec=spec, operation=operation)
    if negated:
        positions, order = _negative(positions, rotation.positions_layout)
        rotation = rotation._replace(positions_layout=order)
    dense = [ad.instantiate_zeros(c) for c in cotangents]
    out = _apply.bind(*dense, positions, rotation=rotation)
    wanted = [ad.is_undefined_primal(x) for x in operands[:-1]]
    return [x if w else None for x, w in zip(out, wanted, strict=True)] + [None]


ad.primitive_jvps[_apply] = _jvp
ad.primitive_jvps[_cos_sin] = _jvp_of_rows
ad.primitive_transposes[_apply] = _transpose


# -- positions --------------------------------------------------------------------------------------


def _integers(values: Any) -> tuple[Any, str]:
    """An array of a host's integers without loss, and "w" if it is one of pairs of words."""
    values = np.asarray(values)
    check_dtype("positions", values.dtype.name, POSITIONS)  # JAX would narrow float64
    if values.dtype != np.int64 or jax.config.jax_enable_x64:
        return jnp.asarray(values), ""
    if values.size == 0 or (values.min() >= _INT32.min and values.max() <= _INT32.max):
        return jnp.asarray(values.astype(np.int32)), ""
    words = np.ascontiguousarray(values).view(np.int32).reshape(*values.shape, 2)
    return jnp.asarray(words), "w"


def _tensor(name: str, x: Any) -> Any:
    """q or k as an array of JAX, which would narrow float64."""
    if not _on_host(x):
        return x
    x = np.asarray(x)
    check_dtype(name, x.dtype.name)
    return jnp.asarray(x)


def _on_host(values: Any) -> bool:
    return not isinstance(values, jax.Array)  # which tracers are, too


def _varying(aval: Any) -> frozenset[Any]:
    kind = getattr(aval, "mat", None)  # since 0.12; before, the set itself
    found: frozenset[Any] = getattr(aval, "vma", frozenset()) if kind is None else kind.varying
    return found


def _same_variation(arrays: list[Any]) -> list[Any]:
    """Inside shard_map all operands must vary over the same axes of the mesh."""
    typeof: Any = getattr(jax, "typeof", None)
    if typeof is None:  # a JAX without this notion
        return arrays
    varying = [_varying(typeof(x)) for x in arrays]
    every = frozenset().union(*varying)
    out = []
    for x, own in zip(arrays, varying, strict=True):
        missing = tuple(sorted(every - own))
        if not missing:
            out.append(x)
        elif hasattr(jax.lax, "pcast"):
            out.append(jax.lax.pcast(x, missing, to="varying"))
        else:
            out.append(jax.lax.pvary(x, missing))
    return out


def _positions_of(
    rope: Rope, call: Call, sizes: Sizes, batched: bool, each: str
) -> tuple[Any, str]:
    """The array of positions, and what its axes are.

    each: what one number per sequence is. "o": the position of its first token. "b": the distance of
    all its tokens.
    """
    positions, offsets, positions_layout = call.positions, call.offsets, call.positions_layout
    if rope.ids_per_axis:
        rope._check_ids_per_axis(call)
    if call.angles() == "offsets":
        where, wide = _integers(offsets) if _on_host(offsets) else (offsets, "")
        shape = where.shape[:-1] if wide else where.shape
        check_offsets(shape, where.dtype.name, sizes.batch, call.operation, False)
        return where, each + wide
    if _on_host(positions):
        positions = as_positions(positions)
        if isinstance(positions, int):
            where, wide = _integers(np.full((sizes.batch,), positions, np.int64))
            return where, each + wide
        where, wide = _integers(positions)
    else:
        where, wide = positions, ""
    shape, dtype = where.shape[:-1] if wide else where.shape, where.dtype.name
    if shape == () and dtype in INTEGERS:  # a traced index: every sequence is there
        return jnp.broadcast_to(where, (sizes.batch,)), each
    _check_finite(where)
    expected = {"a": rope.axes, "b": sizes.batch, "t": sizes.tokens}
    return where, order_of_positions(shape, dtype, positions_layout, batched, expected) + wide


def _check_finite(positions: Any) -> None:
    """Refuses coordinates that are not finite, where they are known."""
    if isinstance(positions, jax.core.Tracer) or not jnp.issubdtype(positions.dtype, jnp.floating):
        return
    known = np.asarray(positions)
    if not np.isfinite(known).all():
        raise not_finite("positions", known[~np.isfinite(known)][0])


def _check_reach(rope: Rope, positions: Any, tokens: int) -> None:
    """Refuses positions beyond valid_below where they are known; traced ones are XLA's error."""
    if rope.valid_below is None or isinstance(positions, jax.core.Tracer):
        return
    values = np.asarray(positions if isinstance(positions, jax.Array) else as_positions(positions))
    last = values.max(initial=-1) + max(tokens, 1) - 1 if values.size else -1
    if last >= rope.valid_below - 1:
        raise ValueError(
            f"positions: position {last} must be below {rope.valid_below - 1}, because in a sequence "
            f"of {rope.valid_below} tokens the scaling has other frequencies than for seq_len"
        )


# -- what users call --------------------------------------------------------------------------------


def _check_rope(rope: Rope) -> None:
    if rope.freq_sets > 1:
        raise NotImplementedError("JAX arrays need a Rope with one frequency set")
    if "frequency" in rope._configs[0]:
        raise NotImplementedError("JAX arrays need a Rope without frequency=, a table that calls of XLA do not carry")


def apply_qk(rope: Rope, call: Call) -> tuple[Any, Any]:
    """Rope.apply_qk of JAX arrays: new arrays, under jit, vmap, jvp and grad as well.

    positions: an int (with "shift" the distance of every token), or int32, int64 or float32 arrays,
    traced or not. Derivatives are those by q and k; by float32 positions there are none:
    NotImplementedError.
    """
    check_words(call.positions_layout, call.cos_sin_format)
    call.refuse("JAX arrays", "cu_seqlens", "freq_sets", "cos_sin", "pool", "shard", "batch_repeat")
    register()
    _check_rope(rope)
    operation, by_distance = call.operation, rule_of(call.operation).by_distance
    layout = both_layouts(layout_of(rope, call))
    named = [(n, _tensor(n, x)) for n, x in (("q", call.q), ("k", call.k)) if x is not None]
    layouts: list[str] = []
    sizes = Sizes()
    for name, x in named:
        text = layout[name == "k"]
        check_tensor(name, x.shape, x.dtype.name, text, rope._dims, sizes)
        layouts.append(text)
    batched = axes_of(layouts[0])[0] is not None
    where, order = _positions_of(rope, call, sizes, batched, "b" if by_distance else "o")
    if not by_distance:
        known = call.positions if call.offsets is None else call.offsets
        _check_reach(rope, known, sizes.tokens if order[:1] == "o" else 1)
    rotation = _Rotation(rope.spec, tuple(layouts), order, operation)
    out = _apply.bind(*_same_variation([*(x for _, x in named), where]), rotation=rotation)
    return (None if call.q is None else out[0], None if call.k is None else out[-1])


def shard_ids(
    scheme: str, axis: str, tokens: int, positions: Any = 0, *, block: int = 0, inner: tuple[str, str] | None = None
) -> Any:
    """The positions of the tokens that a device has, under jax.shard_map: int32 [tokens].

    They are those of librope.Shard(scheme, rank, world), whose rank is known on the device alone: its place
    along an axis of the mesh. They are for calls as positions: rope.apply_qk(q, k, shard_ids(..)).

    Args:
        scheme: a librope.ShardScheme.
        axis: the name of the axis of the mesh.
        tokens: of this device, of each sequence.
        positions: that of the first token of the whole sequence; may be traced.
        block: of "striped".
        inner: scheme and axis of a second group, which divides the tokens of the first.

    Raises:
        ValueError: an unknown scheme, or tokens that do not divide.
    """
    levels = [(inner[0], inner[1], 0)] if inner is not None else []
    levels.append((scheme, axis, block))
    i, count = jnp.arange(tokens, dtype=jnp.int32), tokens
    for scheme_of_level, name, stripe in levels:
        world = int(jax.lax.psum(1, name))
        Shard(scheme_of_level, 0, world, stripe).ids(count)  # type: ignore[arg-type]  # says what is wrong
        i = _number_of(scheme_of_level, jax.lax.axis_index(name), world, max(1, stripe), i, count)
        count *= 1 if scheme_of_level == "heads" else world
    return i + positions


def _number_of(scheme: str, rank: Any, world: int, block: int, i: Any, count: int) -> Any:
    """Among the tokens of all ranks, that of token i out of `count`: see rope_shard_scheme."""
    if scheme == "contiguous":
        return rank * count + i
    if scheme == "zigzag":
        chunk = count // 2
        return jnp.where(i < chunk, rank, 2 * world - 2 - rank) * chunk + i
    if scheme == "striped":
        return (i // block * world + rank) * block + i % block
    return i


def counted(first: Any, tokens: int) -> Any:
    """The positions of so many tokens from the one of an array without dimensions."""
    if not isinstance(first, jax.core.Tracer) and int(first) + tokens - 1 > jnp.iinfo(first.dtype).max:
        raise ValueError(f"positions are up to {int(first) + tokens - 1}, which does not fit into {first.dtype.name}")
    return first + jnp.arange(tokens, dtype=first.dtype)


def cos_sin(
    rope: Rope, positions: Any, format: str, dtype: str, positions_layout: str | None, batch: int | None,
    tokens: int | None,
) -> Any:  # fmt: skip
    """Rope.cos_sin of a JAX array of positions: new arrays, under jit and vmap as well."""
    register()
    _check_rope(rope)
    if rope.freq_heads > 0:
        raise NotImplementedError("rows of cos and sin for each head are not made of JAX positions")
    number(COS_SIN_FORMATS, format, "format")
    shape, dtype_given = positions.shape, positions.dtype.name
    wanted = shape_of_rows(shape, dtype_given, positions_layout, rope, format, batch, tokens).out
    form = shape_of_rows(shape, dtype_given, positions_layout, rope, format, None, None)
    _check_finite(positions)
    _check_reach(rope, positions, 1)
    rows = _Rows(
        rope.spec, "bsd" if len(form.out) == 3 else "sd", form.out, form.layout, format, dtype
    )
    out = [jnp.broadcast_to(x, wanted) for x in _cos_sin.bind(positions, rows=rows)]  # those that are alike
    return tuple(out) if len(out) > 1 else out[0]
