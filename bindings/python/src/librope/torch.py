"""librope in PyTorch: gradients, torch.compile, and a module.

Rope.apply_qk calls this when it is given torch tensors that need it. Two ways lead to the library:
eager calls go straight to it, with an autograd.Function around where a gradient is wanted; compiled,
exported and transformed code goes through the operators librope::apply and librope::apply_rows,
which PyTorch can see, fake and cache. The operators name the configuration by its text, not by a
handle, so that an exported or cached graph means the same in another process.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from . import _arrays
from ._core import COS_SIN_FORMATS, OPERATIONS, error
from ._ffi import lib
from ._rope import Layout, Rope

_functorch_active = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_call_rows = lib.call_rows
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def needs_dispatcher(*tensors: Any) -> bool:
    """Whether a call must be visible to PyTorch: a gradient, a trace, a transform, a subclass."""
    if _is_compiling() or _functorch_active() or torch._C._len_torch_dispatch_stack():
        return True
    grad = _is_grad_enabled()
    for x in tensors:
        if isinstance(x, Tensor) and (type(x) not in _PLAIN or (grad and x.requires_grad)):
            return True
    return False


def before_write(*tensors: Any) -> None:
    """Refuses writes that autograd would not see, and announces the others to it."""
    if _is_compiling() or _functorch_active():
        raise NotImplementedError("in place under torch.compile or torch.func: use apply_qk")
    for x in tensors:
        if isinstance(x, Tensor):
            if x.requires_grad and _is_grad_enabled():
                raise RuntimeError(
                    "a tensor that requires a gradient cannot be rotated in place: use apply_qk"
                )
            if not x.is_inference():
                torch.autograd.graph.increment_version(x)


# -- operators --------------------------------------------------------------------------------------

_library = torch.library.Library("librope", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_library.define(
    "apply(Tensor[] tensors, Tensor? positions, int offset, str spec, str layout, int operation, "
    "bool offsets, str positions_layout) -> Tensor[]",
    tags=_TAGS,
)
_library.define(
    "apply_rows(Tensor[] tensors, Tensor cos, Tensor? sin, str spec, str layout, int operation, "
    "str format) -> Tensor[]",
    tags=_TAGS,
)

_OPERATION_NAMES = {number: name for name, number in OPERATIONS.items()}
_ropes: dict[str, Rope] = {}


def rope_of(spec: str) -> Rope:
    """The Rope of a text made by Rope.spec."""
    rope = _ropes.get(spec)
    if rope is None:
        rope = _ropes[spec] = Rope.from_fields(json.loads(spec))
    return rope


def _pair(tensors: list[Tensor]) -> tuple[Any, Any]:
    return (tensors[0], tensors[1] if len(tensors) > 1 else None)


def _new(tensors: Any) -> list[Tensor]:
    return [_arrays.empty_like(x, "q") for x in tensors]


def _layout_of(text: str) -> Any:
    parts = text.split(",")
    return (parts[0], parts[1]) if len(parts) > 1 else parts[0] or None


def _apply(
    tensors: list[Tensor], positions: Tensor | None, offset: int, spec: str, layout: str,
    operation: int, offsets: bool, positions_layout: str,
) -> list[Tensor]:  # fmt: skip
    out = _new(tensors)
    rope_of(spec)._run(
        *_pair(tensors), *_pair(out),
        None if offsets else offset if positions is None else positions, _layout_of(layout),
        _OPERATION_NAMES[operation], positions if offsets else None, None, None,
        positions_layout or None, None, None, None,
    )  # fmt: skip
    return out


def _apply_fake(
    tensors: list[Tensor], positions: Tensor | None, offset: int, spec: str, layout: str,
    operation: int, offsets: bool, positions_layout: str,
) -> list[Tensor]:  # fmt: skip
    return _new(tensors)


def _apply_rows(
    tensors: list[Tensor], cos: Tensor, sin: Tensor | None, spec: str, layout: str, operation: int,
    format: str,
) -> list[Tensor]:  # fmt: skip
    out = _new(tensors)
    rope_of(spec)._run(
        *_pair(tensors), *_pair(out), None, _layout_of(layout), _OPERATION_NAMES[operation],
        None, None, None, None, (cos, sin), format, None,
    )  # fmt: skip
    return out


def _apply_rows_fake(
    tensors: list[Tensor], cos: Tensor, sin: Tensor | None, spec: str, layout: str, operation: int,
    format: str,
) -> list[Tensor]:  # fmt: skip
    return _new(tensors)


for _device in ("CPU", "CUDA"):
    _library.impl("apply", _apply, _device)
    _library.impl("apply_rows", _apply_rows, _device)
torch.library.register_fake("librope::apply", _apply_fake, lib=_library)
torch.library.register_fake("librope::apply_rows", _apply_rows_fake, lib=_library)

_op = torch.ops.librope.apply.default
_rows_op = torch.ops.librope.apply_rows.default


# -- gradients --------------------------------------------------------------------------------------


def _vmap(function: Any, info: Any, in_dims: Any, fixed: tuple[Any, ...], tensors: Any) -> Any:
    """One call per sample: samples may differ in positions, and calls are cheap."""
    dims = in_dims[-len(tensors) :]
    samples = []
    for i in range(info.batch_size):
        one = [
            x if d is None else _channels_adjacent(x.select(d, i))
            for x, d in zip(tensors, dims, strict=True)
        ]
        rest = [
            x if d is None else x.select(d, i).contiguous()
            for x, d in zip(fixed, in_dims, strict=False)
        ]
        samples.append(function.apply(*rest, *one))
    return tuple(torch.stack(s) for s in zip(*samples, strict=True)), (0,) * len(tensors)


class _Apply(torch.autograd.Function):
    """operator(positions, offset, spec, layout, operation, offsets, positions_layout, *tensors).

    Saves positions only. direct: past the dispatcher, for eager calls.
    """

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_Apply, info, in_dims, arguments[:8], arguments[8:])

    @staticmethod
    def forward(
        positions: Any, offset: int, spec: str, layout: str, operation: int, offsets: bool,
        positions_layout: str, direct: bool, *tensors: Tensor,
    ) -> Any:  # fmt: skip
        run = _apply if direct else _op
        return tuple(
            run(list(tensors), positions, offset, spec, layout, operation, offsets, positions_layout)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*([] if inputs[0] is None else [inputs[0]]))
        ctx.rest = inputs[1:8]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        offset, spec, layout, operation, offsets, positions_layout, direct = ctx.rest
        positions = ctx.saved_tensors[0] if ctx.saved_tensors else None
        if operation == OPERATIONS["forward"]:
            transposed = OPERATIONS["backward"]
        elif operation == OPERATIONS["backward"] or operation == OPERATIONS["inverse"]:
            transposed = OPERATIONS["forward"]
        else:
            raise NotImplementedError("the gradient of shift is not available")
        result = _Apply.apply(
            positions, offset, spec, layout, transposed, offsets, positions_layout, direct,
            *[_channels_adjacent(g) for g in grads],
        )  # fmt: skip
        if operation == OPERATIONS["inverse"]:  # 1/a R(p), and forward is a R(p)
            factor = rope_of(spec).attention_factor ** -2
            if factor != 1:
                result = tuple(g * factor for g in result)
        return (None,) * 8 + tuple(result)


class _ApplyRows(torch.autograd.Function):
    """apply_rows(cos, sin, spec, layout, operation, format, direct, *tensors); cos is a constant."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _vmap(_ApplyRows, info, in_dims, arguments[:7], arguments[7:])

    @staticmethod
    def forward(
        cos: Tensor, sin: Any, spec: str, layout: str, operation: int, format: str, direct: bool,
        *tensors: Tensor,
    ) -> Any:  # fmt: skip
        run = _apply_rows if direct else _rows_op
        return tuple(run(list(tensors), cos, sin, spec, layout, operation, format))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*(x for x in inputs[:2] if x is not None))
        ctx.rest = inputs[2:7]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        spec, layout, operation, format, direct = ctx.rest
        cos, sin = (*ctx.saved_tensors, None)[:2]
        transposed = OPERATIONS["forward"] + OPERATIONS["backward"] - operation
        result = _ApplyRows.apply(
            cos, sin, spec, layout, transposed, format, direct,
            *[_channels_adjacent(g) for g in grads],
        )  # fmt: skip
        return (None,) * 7 + tuple(result)


def _channels_adjacent(gradient: Tensor) -> Tensor:
    """Autograd hands over what it likes, such as an expanded scalar; values are the same."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


# -- what users call --------------------------------------------------------------------------------


def _is_direct(tensors: list[Tensor]) -> bool:
    """Whether an eager call can go past the dispatcher."""
    return not (
        _is_compiling()
        or _functorch_active()
        or torch._C._len_torch_dispatch_stack()
        or any(type(x) not in _PLAIN for x in tensors)
    )


def _text_of(layout: Layout, q: Any, k: Any) -> str:
    if layout is None:
        return ""
    if isinstance(layout, str):
        return layout
    return ",".join(layout) if q is not None and k is not None else layout[q is None]


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
    """Rope.apply_qk of torch tensors, differentiable and traceable: new tensors."""
    tensors = [x for x in (q, k) if x is not None]
    direct = _is_direct(tensors)
    if not rope.spec:
        raise NotImplementedError("gradients and torch.compile need a Rope with one frequency set")
    if positions is not None and offsets is not None:
        raise ValueError("positions and offsets: exactly one of them says where tokens are")
    if positions is None and offsets is None:
        raise ValueError("positions is required: an int, or a tensor")
    where, offset = offsets, 0
    if offsets is None:
        if isinstance(positions, Tensor):
            where = positions
        else:
            offset = int(positions)
    # A q that is absent must not be taken for the first of two layouts.
    text = _text_of(layout if layout is not None else rope.layout, q, k)
    out = _Apply.apply(
        where, offset, rope.spec, text, OPERATIONS[operation], offsets is not None,
        positions_layout or "", direct, *tensors,
    )  # fmt: skip
    return (None if q is None else out[0], None if k is None else out[-1])


def apply_rows(
    rope: Rope,
    q: Any,
    k: Any,
    cos: Tensor,
    sin: Tensor | None,
    *,
    format: str,
    layout: Layout = None,
    operation: str = "forward",
) -> tuple[Any, Any]:
    """Rotates by given rows of cos and sin: differentiable in q and k, traceable."""
    if format not in COS_SIN_FORMATS:
        raise ValueError(f"format is {format!r}, and must be one of {', '.join(COS_SIN_FORMATS)}")
    tensors = [x for x in (q, k) if x is not None]
    text = _text_of(layout if layout is not None else rope.layout, q, k)
    number = OPERATIONS[operation]
    direct = _is_direct([cos, *tensors])
    if direct and not (_is_grad_enabled() and any(x.requires_grad for x in tensors)):
        out = _apply_rows(tensors, cos, sin, rope.spec, text, number, format)
        return (None if q is None else out[0], None if k is None else out[-1])
    out = _ApplyRows.apply(cos, sin, rope.spec, text, number, format, direct, *tensors)
    return (None if q is None else out[0], None if k is None else out[-1])


_rows_cache: dict[Any, Any] = {}


def _spec_of(head_dim: int, rotary_dim: int, pairing: str, rounding: str) -> str:
    """Rope.spec of a Rope that is used with rows only, so that its theta does not matter."""
    return (
        f'{{"head_dim": {head_dim}, "pairing": "{pairing}", "rotary_dim": {rotary_dim}, '
        f'"rounding": "{rounding}", "theta": 10000.0}}'
    )


def rotate_by_rows(
    q: Tensor, k: Any, cos: Tensor, sin: Tensor, pairing: str, rotary_dim: int, rounding: str,
    layout: str, operation: str, format: str, in_place: bool,
) -> tuple[Tensor, Any]:  # fmt: skip
    """apply_rows without a Rope, for callers that have shapes and tables and no configuration."""
    grad = _is_grad_enabled() and (q.requires_grad or (k is not None and k.requires_grad))
    if _is_compiling() or grad or not _is_direct([q, cos]):
        tensors = [q] if k is None else [q, k]
        spec = _spec_of(q.shape[-1], rotary_dim, pairing, rounding)
        direct = not _is_compiling() and _is_direct([cos, *tensors])
        out = _ApplyRows.apply(
            cos.contiguous(), sin.contiguous(), spec, layout, OPERATIONS[operation], format, direct,
            *tensors,
        )  # fmt: skip
        return (out[0], None if k is None else out[1])

    # Without a gradient: shapes and strides find the prepared call, then one crossing.
    key = (
        q.shape, q.stride(), q.dtype, None if k is None else (k.shape, k.stride()), cos.shape,
        cos.stride(), sin.stride(), cos.dtype, pairing, rotary_dim, rounding, layout, operation,
        format, in_place,
    )  # fmt: skip
    known = _rows_cache.get(key)
    if known is None or not q.is_cpu:
        rope = rope_of(_spec_of(q.shape[-1], rotary_dim, pairing, rounding))
        cos, sin = cos.contiguous(), sin.contiguous()
        tensors = [q] if k is None else [q, k]
        outs = [] if in_place else _new(tensors)
        if in_place:
            before_write(q, k)
        made = _pair(outs) if outs else (None, None)
        prepared = rope._run(
            q, k, made[0], made[1], None, layout, operation, None, None, None, None, (cos, sin),
            format, None,
        )  # fmt: skip
        if q.is_cpu and cos.stride() == key[5] and sin.stride() == key[6]:
            if len(_rows_cache) >= 512:
                _rows_cache.clear()
            _rows_cache[key] = (rope._cpu, prepared)
        return made if outs else (q, k)
    q_out: Any = q
    k_out: Any = k
    if in_place:
        before_write(q, k)
    else:
        q_out = _arrays.empty_like(q, "q")
        k_out = None if k is None else _arrays.empty_like(k, "k")
    status = _call_rows(
        known[0], known[1].args, known[1].rows, q.data_ptr(), 0 if k is None else k.data_ptr(),
        0 if in_place else q_out.data_ptr(), 0 if in_place or k is None else k_out.data_ptr(),
        cos.data_ptr(), sin.data_ptr(), 0,
    )  # fmt: skip
    if status:
        raise error(status)
    return q_out, k_out


class RotaryEmbedding(torch.nn.Module):
    """A module that rotates q and k. It has no parameters, buffers or table.

        rotary = librope.torch.RotaryEmbedding.from_config("config.json", layout="bhsd")
        q, k = rotary(q, k, position_ids)
    """

    def __init__(self, rope: Rope, *, layout: Layout = None) -> None:
        super().__init__()
        self.rope = rope
        self.layout = layout if layout is not None else rope.layout

    @classmethod
    def from_config(cls, config: Any, *, layout: Layout = None, **options: Any) -> RotaryEmbedding:
        """Arguments as for Rope.from_config."""
        return cls(Rope.from_config(config, **options), layout=layout)

    def forward(self, q: Any, k: Any = None, positions: Any = None, **options: Any) -> Any:
        """(q, k) rotated; q alone without k. Arguments as for Rope.apply_qk."""
        options.setdefault("layout", self.layout)
        if _is_compiling():
            out = apply_qk(self.rope, q, k, positions, **options)
        else:
            out = self.rope.apply_qk(q, k, positions, **options)
        return out[0] if k is None else out

    def extra_repr(self) -> str:
        return f"{self.rope!r}, layout={self.layout!r}"
