"""The function put in the place of a recognised one.

With _plan, q and k are first in its arguments, and are to be normed before they turn (_norms.py).
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad as _forward_ad

from .. import torch as _torch
from .._conventions import channel_order
from .._core import DTYPES, width_of
from .._tensor_arguments import is_dtensor
from .._watch import needs_dispatcher, wants_gradient
from ._devices import cuda_works
from ._norms import Plan
from ._probe import Kind, signature_of

_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_DTYPES = tuple(getattr(torch, name) for name in DTYPES)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WIDEST = 1024  # head_dim of a Rope
_UNSQUEEZED = {(3, 1): "bhsd", (3, 2): "bshd", (2, 1): "shd", (2, 0): "hsd", (3, -2): "bshd",
               (2, -2): "shd", (3, -3): "bhsd", (2, -3): "hsd"}  # fmt: skip
# Of torch.func, whose outer levels may give it a tangent that the innermost does not tell.
_is_transformed: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
_originals: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # by the wrapper


def original_of(function: Any) -> Any:
    """What a wrapper stands for, such as one that a module has imported; others stand for themselves."""
    return _originals.get(function, function) if inspect.isfunction(function) else function


def make_wrapper(original: Any, kind: Kind, in_place: bool) -> Any:
    """original with librope inside: same arguments, same results. Falls back to original."""
    parameters = signature_of(original).parameters
    names = list(parameters)
    index = {name: i for i, name in enumerate(names)}
    first, second = kind.tensors[0], kind.tensors[1] if len(kind.tensors) > 1 else None
    layouts = dict(kind.layouts)
    adjacent = channel_order(kind.pairing).writes == "interleaved"
    format = "split" if adjacent and kind.table == "full_halves" else kind.table
    halve = format != kind.table  # adjacent pairs with c c rows read the first half of them
    per_pair = width_of(kind.table, 1)
    operation = "backward" if kind.negated else "forward"
    known = {*kind.tensors, "cos", "sin", "unsqueeze_dim"}
    cuda = cuda_works()  # asked here, because compiled code cannot
    extra = [n for n in names if n not in known and parameters[n].kind is not _VAR_KEYWORD]

    def argument(args: Any, kwargs: Any, name: str) -> Any:
        i = index[name]
        return args[i] if i < len(args) else kwargs.get(name)

    @functools.wraps(original if not isinstance(original, torch.nn.Module) else original.forward)
    def wrapper(*args: Any, _plan: Plan | None = None, **kwargs: Any) -> Any:
        q, cos, sin = (argument(args, kwargs, n) for n in (first, "cos", "sin"))
        k = None if second is None else argument(args, kwargs, second)
        if kind.unsqueeze_dim is None:
            layout = layouts.get(cos.dim())
        else:
            dim = argument(args, kwargs, "unsqueeze_dim")
            layout = _UNSQUEEZED.get((cos.dim(), kind.unsqueeze_dim if dim is None else dim))
        if (
            layout is None
            or not fits(q, k, cos, sin, layout)
            or any(argument(args, kwargs, n) is not None for n in extra)
            or (kwargs and not kwargs.keys() <= index.keys())
        ):
            if _plan is not None:
                args = (*_plan.apart(q, k), *args[2:])
            return original(*args, **kwargs)

        normed = None
        if _plan is not None:
            narrow = cos.dtype == q.dtype or (cos.dtype == torch.float32 and not kind.promotes)
            if layout == "bhsd" and narrow and not needs_dispatcher(q, k, cos):
                normed = _plan.norms_for(q, k)
            if normed is None:
                return wrapper(*_plan.apart(q, k), *args[2:], **kwargs)
        result = q.dtype
        if cos.dtype != q.dtype and normed is None:
            # As PyTorch promotes: under autocast cosines are f32 and so is the result. Code that rounds once has
            # two products of 32 bits here, which are not exact, and rounds each of them.
            wide = torch.promote_types(q.dtype, cos.dtype)
            result = wide if kind.promotes else result
            q, cos, sin = q.to(wide), cos.to(wide), sin.to(wide)
            k = None if k is None else k.to(wide)
        pairs = cos.shape[-1] // per_pair
        if halve:
            cos, sin = cos[..., :pairs], sin[..., :pairs]
        # f32 arithmetic of two products and a sum is eager rounding to f32, but of 16-bit tensors and cosines,
        # whose products are exact, the rotation that rounds once. Of 16-bit tensors that are normed in the same
        # call it is that also with f32 cosines, as of OLMo 2: it is near to the model's, and not its bits.
        eager = q.dtype == torch.float32 or (kind.eager and cos.dtype == q.dtype)
        given = (
            q, k, cos, sin, kind.pairing, 2 * pairs, "eager" if eager else "float32", layout, operation, format,
        )  # fmt: skip
        out = None
        if in_place and not torch.compiler.is_compiling() and not needs_dispatcher(q, k, cos):
            try:
                out = _torch.rotate_by_rows(*given, True, normed)
            except ValueError:  # q and k, or one and its rows, share memory: nothing has been written
                pass
        if out is None:
            out = _torch.rotate_by_rows(*given, False, normed)
        if out[0].dtype != result:
            out = (out[0].to(result), None if out[1] is None else out[1].to(result))
        return out[0] if second is None else out

    def fits(q: Any, k: Any, cos: Any, sin: Any, layout: str) -> bool:
        """Whether the tensors are what librope takes; the cheap checks, made on every call."""
        compiling, device = torch.compiler.is_compiling(), None
        forward_mode = _forward_ad._current_level >= 0
        if compiling and forward_mode:  # whose tangents Dynamo cannot ask for
            return False
        for x in (q, cos, sin) if k is None else (q, k, cos, sin):
            if not isinstance(x, torch.Tensor):
                return False
            if is_dtensor(x) or (not compiling and (type(x) not in _PLAIN or x.is_neg())):  # whose memory is not its values
                return False
            if x.dtype not in _DTYPES or x.requires_grad and x is not q and x is not k:
                return False
            if forward_mode and x is not q and x is not k and (_is_transformed(x) or wants_gradient(x)):
                return False
            if not (x.is_cpu or (cuda and x.is_cuda)):
                return False
            if device is None:
                device = x.device
            elif x.device != device:
                return False
        of_q, of_rows = q.shape, cos.shape
        width = per_pair * (of_rows[-1] // per_pair)
        head_dim, rotary_dim = of_q[-1], 2 * (width // per_pair)
        s, h, b = layout.index("s"), layout.index("h"), layout.find("b")
        if (
            len(of_q) != len(layout)
            or of_rows != sin.shape
            or cos.dtype != sin.dtype
            or of_rows[-1] != width
            or not 0 < rotary_dim <= head_dim <= _WIDEST
            or not of_q[h]
            or (rotary_dim < head_dim and not kind.partial)
            or head_dim % 2
            or of_rows[-2] != of_q[s]
            or (b >= 0 and of_rows[0] not in (1, of_q[b]))
            or q.stride(-1) != 1
            or torch.jit.is_tracing()
        ):
            return False
        if k is None:
            return True
        of_k = k.shape
        return (
            len(of_k) == len(of_q)
            and of_k[h] > 0
            and k.dtype == q.dtype
            and of_k[-1] == head_dim
            and of_k[s] == of_q[s]
            and (b < 0 or of_k[b] == of_q[b])
            and k.stride(-1) == 1
        )

    wrapper._librope_kind = kind  # type: ignore[attr-defined]
    wrapper.__signature__ = signature_of(original)  # type: ignore[attr-defined]
    _originals[wrapper] = original
    return wrapper
