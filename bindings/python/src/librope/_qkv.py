"""New q, k and v in one differentiable call: of three tensors, or of one in which they are packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from . import _arrays
from ._call import Call, layout_of
from ._core import integer
from ._norm import NAMES as NORM_NAMES
from ._norm import Norms, checked_norms, norm_arrays
from ._norm_gradients import apply_normed, apply_packed, without_gradient
from ._operators import parts_of_packed, repeated
from ._rope import Rope
from ._rules import both_layouts, check_dtype, default_order, order_of_positions
from ._tensor_arguments import is_dtensor, operator_arguments, tensor_of
from ._types import BindOptions, check_options
from ._watch import needs_dispatcher

if TYPE_CHECKING:
    from typing_extensions import Unpack

_functorch_active = torch._C._are_functorch_transforms_active
_OPTIONS = BindOptions.__optional_keys__ - {"operation"}


def apply_qkv(
    rope: Rope,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    positions: Any = None,
    *,
    norms: Norms | None = None,
    kv_repeat: int = 1,
    **options: Unpack[BindOptions],
) -> tuple[Any, Any, Any]:
    """q and k rotated, and v beside them, in new tensors, with the norms of all three: differentiable in q, k, v,
    weights and biases, and traceable::

        q, k, v = librope.torch.apply_qkv(rope, q, k, v, positions, norms=norms, kv_repeat=4)

    Args:
        q, k, v: as for Rope.apply_qk; q or k may be None, and v.
        norms: a librope.Norms, whose v may be normed, too. Without a gradient also of order "after" or span "given".
        kv_repeat: each head of k and of v is written so many times in a row, as grouped-query attention has it where
            the attention does not do that itself. The gradient is the sum over them.
        positions, options: those of Rope.apply_qk, but operation; pool= without a gradient, in eager code.

    Returns:
        (q, k, v): None where None was given.

    Raises what Rope.apply_qk raises; NotImplementedError also under torch.func and forward-mode AD, and for DTensors.
    """
    call = Call(q, k, positions, v, norms=checked_norms(norms))
    call, kv_repeat = _checked("apply_qkv", rope, call, kv_repeat, options)
    if not _seen(rope, call, q, k, v):
        layouts = both_layouts(layout_of(rope, call))
        of_v = repeated(v, "v", layouts[1], kv_repeat)
        out = repeated(q, "q", layouts[0], 1), repeated(k, "k", layouts[1], kv_repeat), of_v
        rope._run(call, *out)
        return out
    return apply_normed(call, operator_arguments(rope, call), kv_repeat)


def apply_packed_qkv(
    rope: Rope,
    qkv: Tensor,
    positions: Any = None,
    *,
    heads: int,
    kv_heads: int,
    grouped: bool = False,
    norms: Norms | None = None,
    kv_repeat: int = 1,
    **options: Unpack[BindOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """apply_qkv of one tensor that has q, k and v in it, as one projection leaves them. Its gradient is one tensor,
    which one call writes::

        q, k, v = librope.torch.apply_packed_qkv(rope, qkv_proj(x), positions, heads=32, kv_heads=8, layout="bsd")

    Args:
        qkv: [batch, tokens, (heads + 2 * kv_heads) * head_dim] with layout "bsd", [tokens, batch, ..] with "sbd",
            [tokens, ..] with "td"; or with the heads as an axis of their own, "bshd" and the like. All heads of q, then
            those of k, then those of v.
        heads, kv_heads: of q; of k and of v.
        grouped: for each head of k its heads of q, then itself, then its head of v: Megatron-LM, InternLM2, GPT-NeoX (with
            kv_heads = heads). Where heads are an axis, it may be two, [.., kv_heads, heads / kv_heads + 2, head_dim].
            Norms are then of each head, with one row of weights.
        norms, kv_repeat, positions, options: those of apply_qkv; with grouped no batch_repeat.

    Returns:
        (q, k, v): [.., heads, head_dim] for the last axis of layout "bsd", else as layout says. Where a gradient of
        grouped ones comes in with heads around the tokens, as attention code leaves it, it may be copied first.

    Raises what apply_qkv raises.
    """
    if qkv is None:
        raise TypeError("qkv is None, and must be a torch tensor")
    call = Call(qkv, None, positions, norms=checked_norms(norms))
    call, kv_repeat = _checked("apply_packed_qkv", rope, call, kv_repeat, options)
    heads, kv_heads = (_count(x, name) for name, x in (("heads", heads), ("kv_heads", kv_heads)))
    seen = _seen(rope, call, qkv)
    check_dtype("qkv", _arrays.torch_dtype(qkv))
    form = (_grouped if grouped else _apart)(rope, call, qkv, heads, kv_heads)
    x, call, layout = form.qkv, form.call, form.call.layout
    assert isinstance(layout, str)
    if seen:
        made = apply_packed(x, form.heads, form.kv_heads, call, operator_arguments(rope, call), kv_repeat)
    else:
        parts = parts_of_packed(x, form.heads, form.kv_heads, layout)
        counts = 1, kv_repeat, kv_repeat
        made = tuple(repeated(y, name, layout, n) for y, name, n in zip(parts, "qkv", counts, strict=True))
        rope._run(call._replace(q=parts[0], k=parts[1], v=parts[2]), *made)
    if not grouped:
        return made
    counts = heads, kv_heads * kv_repeat, kv_heads * kv_repeat
    q, k, v = (y.reshape(*form.lead, n, y.shape[-1]) for y, n in zip(made, counts, strict=True))
    return q, k, v


def _count(value: Any, name: str) -> int:
    if type(value) is int and value > 0:  # Dynamo cannot trace all of integer()
        return value
    return integer(value, name, "int32_t", low=1)


def _checked(function: str, rope: Rope, call: Call, kv_repeat: Any, options: Any) -> tuple[Call, int]:
    check_options(function, options, _OPTIONS)
    call = call._replace(**options)
    return call._replace(layout=layout_of(rope, call)), _count(kv_repeat, "kv_repeat")


def _seen(rope: Rope, call: Call, *tensors: Any) -> bool:
    """Whether PyTorch must see the call, which is then one that it can see."""
    if call.q is call.k is None:
        raise ValueError("q and k are both None")
    arrays = norm_arrays(call.norms)
    for name, x in (*zip(("qkv",) if len(tensors) == 1 else "qkv", tensors), *zip(NORM_NAMES, arrays)):
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__module__}.{type(x).__qualname__}, and must be a torch tensor")
        if is_dtensor(x):
            raise NotImplementedError(f"{name} is a DTensor, which Rope.apply_qk alone takes: to_local() first")
        if x is not None and x.layout is not torch.strided:
            raise _arrays.not_strided(x, name)
    if not needs_dispatcher(*tensors, call.positions, *arrays):
        return False
    if _forward_ad._current_level >= 0 or _functorch_active():
        raise NotImplementedError(
            "apply_qkv and apply_packed_qkv have no forward-mode derivative, and are not available under torch.func: "
            "Rope.apply_qk of q and k is"
        )
    call.refuse("a gradient, torch.compile or a dispatch mode", "pool")
    why = "" if call.norms is None else without_gradient(call)
    if call.norms is not None and rope.freq_heads:
        why = "norms= has no gradient where heads have frequencies of their own: use torch.no_grad(), or detach the tensors"
    given = (*tensors, *arrays)
    if why and torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        raise NotImplementedError(why)
    return True


class _Form(NamedTuple):
    """One call of a packed tensor."""

    qkv: Tensor  # with the heads as an axis
    call: Call
    heads: int
    kv_heads: int
    lead: tuple[Any, ...] = ()  # sizes of the axes before the heads, as the caller has them


def _described(rope: Rope, call: Call, shape: tuple[Any, ...], total: int) -> tuple[str, tuple[Any, ...]]:
    """The layout of qkv with its heads as an axis, and its sizes before the heads; () where they are an axis that is
    not the last but one. shape: of qkv; total: all heads."""
    layout = call.layout
    if not isinstance(layout, str):
        raise ValueError(f"layout is {layout}, and must be one text, that of the packed tensor")
    h = layout.find("h")  # not axes_of(): Dynamo warns of functools' caches
    whole = layout if h >= 0 else f"{layout[:-1]}hd"
    last, channels = h in (-1, len(layout) - 2), total * rope.head_dim
    lead = len(whole) - 2
    if len(shape) == len(whole) and h >= 0 and shape[h] == total and shape[-1] == rope.head_dim:
        return whole, tuple(shape[:lead]) if last else ()
    if len(shape) == lead + 1 and last and shape[-1] == channels:
        return whole, tuple(shape[:lead])
    raise ValueError(
        f"qkv has shape {tuple(shape)}, and must have {total} heads of {rope.head_dim} channels as layout {layout!r} "
        f"says: {channels} in the last axis, such as 'bsd', or an axis of heads, such as 'bshd'"
    )


def _apart(rope: Rope, call: Call, qkv: Tensor, heads: int, kv_heads: int) -> _Form:
    """All heads of q, then those of k and of v."""
    total = heads + 2 * kv_heads
    layout, lead = _described(rope, call, tuple(qkv.shape), total)
    if lead and qkv.dim() < len(layout):
        qkv = qkv.unflatten(-1, (total, rope.head_dim))
    return _Form(qkv, call._replace(q=qkv, layout=layout), heads, kv_heads)


def _grouped(rope: Rope, call: Call, qkv: Tensor, heads: int, kv_heads: int) -> _Form:
    """Each group is a batch row, of which those of a sequence share their positions."""
    if heads % kv_heads:
        raise ValueError(f"heads is {heads}, and must be a multiple of kv_heads, {kv_heads}, with grouped=True")
    if call.batch_repeat is not None:
        raise ValueError("batch_repeat= is not for grouped=True, whose groups are the batch rows that share positions")
    if rope.freq_heads:
        raise NotImplementedError("grouped=True is not for a Rope whose heads have frequencies of their own: they are not in a row")
    if rope.ids_per_axis:
        rope._check_ids_per_axis(call)
    _check_norms(call.norms)
    total, group = heads + 2 * kv_heads, heads // kv_heads + 2
    as_two = isinstance(call.layout, str) and "h" in call.layout and qkv.dim() == len(call.layout) + 1
    if as_two and tuple(qkv.shape[-3:-1]) != (kv_heads, group):
        raise ValueError(
            f"qkv has shape {tuple(qkv.shape)}, and must have {kv_heads} groups of {group} heads before its last axis"
        )
    shape = tuple(qkv.shape)
    layout, lead = _described(rope, call, (*shape[:-3], total, shape[-1]) if as_two else shape, total)
    if not lead or layout[:-2].replace("t", "s") not in ("s", "sb", "bs"):
        raise ValueError(
            f"layout is {call.layout!r}, and must be an order of b and s, or s alone, then h and d, with grouped=True: "
            "'sbd', 'bshd', .."
        )
    rows, batched = (*lead[:-1], lead[-1] * kv_heads), len(lead) == 2
    if layout[0] == "b":  # the tokens of all batch rows are those of one, as packed sequences are
        rows = (lead[0] * lead[1], kv_heads)
        call = _in_a_row(rope, call, qkv, lead[0], lead[1])
    elif not batched:
        rows = (lead[0], kv_heads)
        if call.positions_layout is None and len(getattr(call.positions, "shape", ())) == 2:
            call = call._replace(positions_layout=default_order(2, False, rope.axes))
    x = qkv.reshape(*rows, group, rope.head_dim)
    call = call._replace(q=x, layout="sbhd", batch_repeat=kv_heads)
    return _Form(x, call, group - 2, 1, lead)


def _check_norms(norms: Norms | None) -> None:
    for name in "qkv":
        norm = getattr(norms, name, None)
        if norm is None:
            continue
        if norm.span != "head":
            raise NotImplementedError(
                f"norms.{name} has span {norm.span!r}, and must have 'head' with grouped=True, whose heads are not in a row"
            )
        if norm.weight is not None and norm.weight.dim() > 1:
            raise NotImplementedError(
                f"norms.{name}.weight has shape {tuple(norm.weight.shape)}, and must be one row with grouped=True, whose "
                "heads are not in a row"
            )


def _in_a_row(rope: Rope, call: Call, x: Tensor, batch: Any, tokens: Any) -> Call:
    """The call of batch rows of tokens as one of packed sequences. x: beside which new tensors stand."""
    if call.cu_seqlens is not None:
        raise ValueError("cu_seqlens= is for one row of tokens: layout 'td'")
    if call.shard is not None:
        raise NotImplementedError("shard= with grouped=True is for layout 'sbd' or 'td', where tokens come first")
    if batch == 0:  # there is no sequence, where the library wants one
        sets = None if call.freq_sets is None else torch.zeros(1, dtype=torch.int32, device=x.device)
        return call._replace(positions=0, offsets=None, positions_layout=None, freq_sets=sets)
    positions = call.positions
    if call.angles() == "positions" and type(positions) not in (int, torch.SymInt):
        positions = tensor_of(positions, "positions", x)
    ends = None
    if call.freq_sets is not None or not isinstance(positions, Tensor) or positions.dim() == 0:
        ends = torch.arange(batch + 1, dtype=torch.int32, device=x.device) * tokens
    if not isinstance(positions, Tensor) or positions.dim() == 0:
        return call._replace(positions=positions, cu_seqlens=ends)
    sizes = {"a": rope.axes, "b": batch, "t": tokens}
    order = order_of_positions(tuple(positions.shape), _arrays.torch_dtype(positions), call.positions_layout, True, sizes)
    for letter in "bt":
        if letter not in order:
            positions, order = positions.unsqueeze(-1), order + letter
    shared = "a" not in order
    wanted = "bt" if shared else "abt"
    ids = positions.permute(*(order.index(letter) for letter in wanted))
    ids = ids.expand(*(() if shared else (rope.axes,)), batch, tokens).flatten(-2)
    return call._replace(positions=ids, positions_layout=wanted.replace("b", ""), cu_seqlens=ends)
