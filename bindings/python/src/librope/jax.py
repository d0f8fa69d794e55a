"""librope in JAX: a custom call that works under jit, vmap and grad, on the CPU.

Rope.apply_qk calls this when it is given JAX arrays. The operands of a custom call are dense, so XLA
may copy a transposed operand first; results are always new arrays. Inputs that are sharded are
gathered around the call: wrap it in jax.shard_map over batch or heads.
"""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._core import _TABLES, OPERATIONS, number, to_struct
from ._ffi import ffi, lib
from ._prepare import axes_of, default_layout, guess_positions
from ._rope import Layout, Rope, as_positions

_NAME = "librope_apply"
_DTYPES = ("float32", "float16", "bfloat16")


@functools.cache
def _register() -> None:
    address = lib.xla_handler()
    if not address:
        raise RuntimeError("librope was built without jaxlib's header, so it has no handler for JAX")
    pointer = ctypes.c_void_p(address)
    jax.ffi.register_ffi_target(_NAME, jax.ffi.pycapsule(pointer), platform="cpu")


class _Call(NamedTuple):
    """What a custom call carries besides arrays: values, since executables are cached."""

    spec: str
    layouts: tuple[str, ...]
    positions_layout: str
    attention_factor: float


@functools.lru_cache(maxsize=256)
def _attributes(spec: str) -> dict[str, Any]:
    config = json.loads(spec)
    struct, keep = to_struct(config)
    tables, which = [], 0
    for bit, name in enumerate(n for n in _TABLES if n != "pair_axis"):
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rotate(call: _Call, operation: str, tensors: tuple[Any, ...], positions: Any) -> Any:
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tensors)
    return tuple(
        jax.ffi.ffi_call(_NAME, results, vmap_method="broadcast_all")(
            *tensors,
            positions,
            layout=call.layouts[0],
            layout_k=call.layouts[-1],
            positions_layout=call.positions_layout,
            operation=np.int32(OPERATIONS[operation]),
            **_attributes(call.spec),
        )
    )


def _forward(call: _Call, operation: str, tensors: Any, positions: Any) -> Any:
    return _rotate(call, operation, tensors, positions), positions


def _backward(call: _Call, operation: str, positions: Any, gradients: Any) -> Any:
    if operation == "shift":
        raise NotImplementedError("the gradient of shift is not available")
    transposed = "backward" if operation == "forward" else "forward"
    result = _rotate(call, transposed, tuple(gradients), positions)
    if operation == "inverse" and call.attention_factor != 1:  # 1/a R(p), and forward is a R(p)
        result = tuple((g * call.attention_factor**-2).astype(g.dtype) for g in result)
    if jnp.issubdtype(positions.dtype, jnp.floating):
        return result, jnp.zeros_like(positions)
    return result, np.zeros(positions.shape, jax.dtypes.float0)


_rotate.defvjp(_forward, _backward)


def apply_qk(
    rope: Rope,
    q: Any,
    k: Any = None,
    positions: Any = None,
    *,
    layout: Layout = None,
    operation: str = "forward",
    offsets: Any = None,
    positions_layout: str | None = None,
) -> tuple[Any, Any]:
    """Rope.apply_qk of JAX arrays: new arrays, under jit, vmap and grad as well.

    positions: an int, or int32, int64 or float32 arrays, traced or not. Gradients flow to q and k.
    """
    _register()
    if not rope.spec:
        raise NotImplementedError("JAX arrays need a Rope with one frequency set")
    number(OPERATIONS, operation, "operation")
    layout = layout if layout is not None else rope.layout
    named = [(n, x) for n, x in (("q", q), ("k", k)) if x is not None]
    if not named:
        raise ValueError("q and k are both None")
    layouts: list[str] = []
    sizes: dict[str, int] = {}
    for name, x in named:
        given = layout[name == "k"] if isinstance(layout, tuple) else layout
        text = given or default_layout(x.ndim, name)
        b, s, h = axes_of(text)
        if x.ndim != len(text):
            raise ValueError(f"{name} has shape {x.shape}, which is not {text!r}")
        if x.dtype.name not in _DTYPES:
            raise TypeError(f"{name} has dtype {x.dtype.name}, and must be {', '.join(_DTYPES)}")
        if x.shape[-1] not in (rope.head_dim, rope.rotary_dim):
            raise ValueError(f"{name} has {x.shape[-1]} channels per head, not {rope.head_dim}")
        here = {"b": 1 if b is None else x.shape[b], "t": x.shape[s]}
        if sizes and here != sizes:
            raise ValueError(f"q and k differ in batch rows or tokens: {sizes}, {here}")
        sizes = here
        layouts.append(text)
    if offsets is not None:
        if positions is not None:
            raise ValueError("positions and offsets: exactly one of them says where tokens are")
        where, order = jnp.asarray(offsets), "o"
        if where.shape != (sizes["b"],):
            raise ValueError(f"offsets has shape {where.shape}, and must be ({sizes['b']},)")
    else:
        if not hasattr(positions, "dtype"):
            positions = as_positions(positions)
        if isinstance(positions, int):
            wide = jax.config.jax_enable_x64
            where = jnp.full((sizes["b"],), positions, jnp.int64 if wide else jnp.int32)
            order = "o"
        else:
            where = jnp.asarray(positions)
            if where.dtype.name not in ("int32", "int64", "float32"):
                raise TypeError(f"positions has dtype {where.dtype.name}: int32, int64 or float32")
            batched = "b" in layouts[0]
            order = positions_layout or guess_positions(where.ndim, batched, rope.axes)
            want = {"a": rope.axes, **sizes}
            if len(order) != where.ndim or set(order) - set(want) or any(
                n != want[c] and not (c == "b" and n == 1) for c, n in zip(order, where.shape)
            ):  # fmt: skip
                raise ValueError(f"positions has shape {where.shape}, and the call {want}")
            if "t" not in order and sizes["t"] != 1:
                raise ValueError(f"positions has shape {where.shape}: which token is at which?")
    call = _Call(rope.spec, tuple(layouts), order, rope.attention_factor)
    out = _rotate(call, operation, tuple(x for _, x in named), where)
    return (None if q is None else out[0], None if k is None else out[-1])
