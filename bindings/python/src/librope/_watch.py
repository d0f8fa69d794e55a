"""What PyTorch has to see: which calls may go past it, and what it is told of writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad

from . import _arrays, _call, _untraced

_functorch_active = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_dispatch_stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack
# Those of make_fx(pre_dispatch=True) are on a stack of their own, and bring a function mode, which costs less to ask for.
_function_modes = torch._C._len_torch_function_stack
_early_modes = torch._ops._len_torch_dispatch_stack_pre_dispatch
_is_profiling = torch._C._autograd._profiler_enabled
PLAIN = (torch.Tensor, torch.nn.Parameter)
#: Whether torch._vmap_internals, which gradients use (is_grads_batched=), has batched a tensor.
is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
_LEVELS = 64  # as many as PyTorch's kVmapNumLevels

_untraced.keep_out()
# Eager calls do not pass the dispatcher, so that a profiler would not see them.
_call.recorder = lambda: torch.profiler.record_function("librope::apply") if _is_profiling() else None


def batch_level(x: Tensor) -> int:
    """The innermost level at which is_batched() tensors are, 0 for others. Of the tensor, since the engine's other
    threads do not know how deep the one that batched it is."""
    for level in range(_LEVELS, 0, -1) if is_batched(x) else ():
        # A tensor without samples at this level is given as many as are said.
        if len(torch._remove_batch_dim(x, level, 1, 0)) == len(torch._remove_batch_dim(x, level, 2, 0)):
            return level
    return 0


def is_direct(tensors: Any) -> bool:
    """Whether a call can go past the dispatcher: nobody records it, and tensors have memory."""
    return not (
        _is_compiling()
        or _functorch_active()
        or _dispatch_modes()
        or (_function_modes() and _early_modes())
        or _is_tracing()
        or any(type(x) not in PLAIN or x.is_meta for x in tensors if isinstance(x, Tensor))
    )


def needs_dispatcher(*tensors: Any) -> bool:
    """Whether a call must be visible to PyTorch: a gradient, a trace, a transform, a subclass."""
    if not is_direct(tensors) or _forward_ad._current_level >= 0:
        return True
    return _is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def _has_form(x: Any, form: Any, grad: bool) -> bool:
    if x is None or form is None:
        return x is form
    shape, strides, dtype = form
    return (
        type(x) in PLAIN
        and x.dtype is dtype
        and x.layout is torch.strided
        and x.shape == shape
        and x.stride() == strides
        and x.is_cpu
        and not x.is_neg()
        and not (grad and x.requires_grad)
    )


def may_pass() -> bool:
    """Whether a call without a gradient can be made past PyTorch, if its tensors allow it."""
    return not (
        _is_compiling()
        or _functorch_active()
        or _dispatch_modes()
        or (_function_modes() and _early_modes())
        or _is_tracing()
        or _is_profiling()
        or _forward_ad._current_level >= 0
    )


def fits(q: Any, k: Any, q_form: Any, k_form: Any) -> bool:
    """Whether two tensors have the shapes, strides and dtypes of a prepared call, and it can be made
    past PyTorch. A no has no words: the way of all arrays finds them."""
    if not may_pass():
        return False
    grad = _is_grad_enabled()
    return _has_form(q, q_form, grad) and _has_form(k, k_form, grad)


def new_like(x: Any, strides: tuple[int, ...]) -> Any:
    """_arrays.empty_like() of a tensor of which it is known which strides that has."""
    new = torch.empty_like(x)
    return new if new.stride() == strides else _arrays.empty_like(x, "")


def announce(*tensors: Any) -> None:
    """Tells autograd of writes into tensors, after they were made: a call that was refused has written nothing."""
    announce_all([x for x in tensors if not (x is None or x.is_inference())])


def refuse_prepared(*tensors: Any) -> None:
    """Refuses what a prepared call cannot take, because PyTorch does not see it."""
    if not is_direct(tensors):
        raise NotImplementedError(
            "prepared calls are not available in compiled or traced code, under torch.func or a "
            "dispatch mode, or for subclasses of tensors: use apply_qk of the Rope"
        )
    if needs_dispatcher(*tensors):
        raise NotImplementedError(
            "prepared calls have no gradient: use apply_qk of the Rope, or torch.no_grad()"
        )


def refuse_move(tensors: Any) -> None:
    """Refuses a move that would need a derivative."""
    if _forward_ad._current_level >= 0 or (
        _is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)
    ):
        raise NotImplementedError(
            "move has no gradient, and one of its tensors requires a gradient, or a dual level is entered: use "
            "torch.no_grad(), or detach the tensors, outside of dual_level()"
        )


def refuse_unseen_write() -> None:
    """Refuses an eager write of a call that goes past PyTorch where PyTorch would have to see it. Tensors without memory
    of their own are refused where they are read."""
    if not is_direct(()):
        raise NotImplementedError(
            "a call whose q and k are no torch tensors, cos_sin(out=) and a bound call cannot write into a tensor in "
            "traced code, under torch.func or a dispatch mode: rotate tensors by apply_qk, or make the call outside"
        )


def refuse_saved_mutation(
    what: str = "out=, v=, cache= and norms= in place are", way: str = "use apply_qk without them, or apply_qk_"
) -> None:
    """Of an operator that has more outputs than are given: torch.autograd.graph.allow_mutation_on_saved_tensors() asks
    all for their memory."""
    if _is_compiling() or not _dispatch_modes():
        return
    mode = getattr(torch.autograd.graph, "_CloneArgBeforeMutateMode", None)
    if mode is not None and any(isinstance(x, mode) for x in _dispatch_stack()):
        raise NotImplementedError(f"{what} not available under allow_mutation_on_saved_tensors(): {way}")


def refuse_gradient(*tensors: Any) -> None:
    """Refuses what has no gradient where it would get one: positions, and rows of cos and sin."""
    for x in tensors:
        if isinstance(x, Tensor) and wants_gradient(x):
            raise NotImplementedError("librope has no gradient with respect to positions, cos and sin: detach them")


def rows_want_gradient(rows: Any) -> bool:
    """Whether cos_sin= of a call would get one. Those of forward mode needs_dispatcher() sees."""
    if _is_grad_enabled():
        for x in rows if type(rows) in (tuple, list) else (rows,):
            if getattr(x, "requires_grad", False):
                return True
    return False


def wants_gradient(x: Tensor) -> bool:
    if x.requires_grad and _is_grad_enabled():
        return True
    return _forward_ad._current_level >= 0 and _forward_ad.unpack_dual(x).tangent is not None


def writable(*tensors: Any, positions: Any = None) -> list[Tensor]:
    """Refuses eager writes that autograd would not see, and gives those that announce_all() is to tell it of.
    positions: which have no gradient."""
    if isinstance(positions, Tensor) and (positions.requires_grad or _forward_ad._current_level >= 0):
        refuse_gradient(positions)
    written = []
    for x in tensors:
        if isinstance(x, Tensor):
            _refuse_write(x)
            if not x.is_inference():
                written.append(x)
    return written


def _announce_each(tensors: list[Tensor]) -> None:
    for x in tensors:
        torch.autograd.graph.increment_version(x)


#: announce() of tensors of which autograd wants to know.
announce_all: Callable[[list[Tensor]], None] = _announce_each
try:  # what graph.increment_version calls after an isinstance() that costs more than this does
    torch._C._increment_version([])
    announce_all = torch._C._increment_version
except (AttributeError, TypeError, RuntimeError):  # a torch that takes one at a time
    pass


def guard(
    named: list[tuple[str, Tensor]], written: list[Tensor]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """What a bound call does before each step: refuses memory that is no longer the tensor's, tensors that
    require a gradient, which it has not, and writes that autograd would not see; and after it: announces them.

    A tensor can be given another storage, and a storage other memory of another size, even at the
    address that it had. What is bound is there if the storage of bind(), which is kept, has its address
    and its size, and the tensor points where it did.
    """
    if written:
        refuse_unseen_write()
    announced = writable(*written)
    memory = []
    for name, x in named:
        storage = x.untyped_storage()
        last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        if x.numel() and (last + 1) * x.element_size() > len(storage):
            raise ValueError(f"{name} is larger than its storage, which was resized")
        start, address = storage.data_ptr, x.data_ptr
        memory.append((name, start, start(), storage, len(storage), address, address()))
    names = {id(x): n for n, x in named}  # of those that stay, in `memory`
    watched = [*written, *[x for _, x in named if x.is_floating_point() and not any(x is y for y in written)]]

    def refuse(x: Tensor) -> None:
        if any(x is y for y in written):
            _refuse_write(x)
        elif wants_gradient(x):
            raise NotImplementedError(
                f"{names[id(x)]} requires a gradient, and a bound call has none: use apply_qk, or call it under "
                "torch.no_grad()"
            )

    def before() -> None:
        if written and (
            _dispatch_modes() or _functorch_active() or _is_tracing() or (_function_modes() and _early_modes())
        ):  # is_direct() without the tensors, which it was asked of in bind()
            refuse_unseen_write()
        for name, start, begin, storage, size, address, at in memory:
            if start() != begin or len(storage) != size or address() != at:
                raise ValueError(f"{name} has other memory than it had in bind(): bind again")
        if _forward_ad._current_level >= 0:
            for x in watched:
                refuse(x)
        elif _is_grad_enabled():
            for x in watched:
                if x.requires_grad:
                    refuse(x)

    return before, functools.partial(announce_all, announced)


def refuse_writes(*tensors: Tensor) -> None:
    """Only the refusals of writable()."""
    for x in tensors:
        _refuse_write(x)


def _refuse_write(x: Tensor) -> None:
    if x.requires_grad and _is_grad_enabled():
        raise RuntimeError(
            "a tensor that requires a gradient cannot be rotated in place or be the output: use "
            "apply_qk without out="
        )
    if _forward_ad._current_level >= 0 and _forward_ad.unpack_dual(x).tangent is not None:
        raise RuntimeError("a tensor with a forward-mode tangent cannot be rotated in place")
