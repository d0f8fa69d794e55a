"""Gradients of calls with norms, of arrays of memory: the part of Rope that makes them. PyTorch's own go through
_norm_gradients.py, to the same function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import _arrays
from ._arrays import View, place
from ._call import Call, Caller, Ready, cross, layout_of, library_of, outputs
from ._core import integer
from ._ffi import ffi, lib
from ._frameworks import FRAMEWORKS
from ._norm import NAMES, Norms, checked_norms, norm_arrays
from ._rules import Sizes, axes_of, both_layouts
from ._step import refuse_gradients, refuse_named
from ._template import describe
from ._types import BindOptions, check_options
from ._untraced import untraced

if TYPE_CHECKING:
    from typing_extensions import Unpack

_call_all = lib.call_all
_WORDS = {"b": "batch rows", "t": "tokens", "s": "tokens", "h": "heads"}  # axes of a layout


def parts_of(tokens: int, on_cuda: bool) -> int:
    """Of the sums over tokens: what their last bits depend on, whatever the threads are. Each is work for one of
    them, or for one block of a GPU, which has some hundred at once."""
    return min(512 if on_cuda else 64, tokens)


class Gradients(NamedTuple):
    """What Rope.backward_qk returns."""

    #: Of the q and k that apply_qk was given; None for k where there was none.
    q: Any
    k: Any
    #: Of the arrays of norms, float32 of their shapes: {"q.weight": .., "q.bias": .., "k.weight": ..}.
    norms: dict[str, Any]


@untraced
def run_backward(
    rope: Caller, call: Call, ready: Ready, before: tuple[View | None, ...], sums: list[View | None], parts: int
) -> None:
    """Makes a call "backward" with norms. before: q, k and v as "forward" was given them. sums: memory
    [parts, weights] for the gradients of arrays of norms, in the order of their names."""
    template, layouts = ready.template, both_layouts(layout_of(rope, call))
    norms = ffi.new("rope_norm[3]")
    owners, sizes = [], Sizes()
    sizes.agree("b", template.batch, "the gradient")
    sizes.agree("t", template.tokens, "the gradient")
    for i, (name, x) in enumerate(zip("qkv", before, strict=True)):
        norms[i] = template.norms[i]
        if x is None or norms[i].kind == 0:
            continue
        if x[3] != ready.device:
            raise ValueError(f"x of {name} is on {place(x[3])}, and its gradient on {place(ready.device)}")
        struct = ffi.new("rope_tensor*")
        dims = None if name == "v" else rope._dims
        describe(struct, x[1](x[0], name), layouts[i > 0], f"x of {name}", sizes, dims)
        struct.data = ffi.cast("void*", x[2])
        owners.append(struct)
        norms[i].x = struct
        for field, part in (("weight_grad", sums[3 * i]), ("bias_grad", sums[3 * i + 1])):
            if part is not None:
                setattr(norms[i], field, ffi.cast("float*", part[2]))
                norms[i].grad_parts = parts
    context, stream = rope._cpu, 0
    if ready.device >= 0:
        context = rope._context(ready.device)
        stream = _arrays.current_stream(call.k if call.q is None else call.q)
    addresses = ffi.new("uintptr_t[]", ready.addresses)
    cross(
        _call_all, context, template.args, template.rows, template.fused, template.cache, norms, ffi.NULL,
        ready.offset, stream, ready.runner, addresses, who="backward_qk",
    )  # fmt: skip


class Differentiator(Caller):
    """A Caller whose calls with norms can be differentiated."""

    def backward_qk(
        self,
        q_grad: Any,
        k_grad: Any = None,
        positions: Any = None,
        *,
        x: tuple[Any, ...],
        norms: Norms,
        v_grad: Any = None,
        out: tuple[Any, ...] | None = None,
        parts: int | None = None,
        **options: Unpack[BindOptions],
    ) -> Gradients:
        """The gradients of q, k and the weights of norms, from those of the results of a call with norms::

            turned = rope.apply_qk(q, k, positions, norms=norms)
            ...
            grads = rope.backward_qk(q_grad, k_grad, positions, x=(q, k), norms=norms)
            grads.q, grads.k, grads.norms["q.weight"]

        They turn back, and go through the norms, which are computed again from x, in one pass. Without norms
        the gradient is apply_qk(.., operation="backward"). torch tensors have autograd.

        Args:
            q_grad, k_grad, v_grad: gradients of the results, like q, k and v of apply_qk. They may have m
                times the heads of x, which were repeated m times in a row, and are added up then.
            positions, options: those of the call, but operation.
            x: (q, k), or with v_grad (q, k, v), as apply_qk was given them; None where there is no norm.
            norms: those of the call; none of order "after" or of span "given".
            out: (q, k), or with v_grad (q, k, v): where gradients go, which may be the gradients that came
                in, or None: new arrays, like x. v_grad needs one.
            parts: gradients of weights are sums of so many equal runs of tokens, each by itself: their last
                bits depend on this alone. 64, or as many as there are tokens.

        Returns:
            Gradients: those of q and k, and of the arrays of norms.

        Raises what apply_qk raises; ValueError also for an x that is missing or has other heads or another
        dtype than the gradient's output; TypeError for tensors of torch and JAX; NotImplementedError for arrays
        on CUDA devices, and for tensors beside the gradients, but weights, that require a gradient.
        """
        check_options("backward_qk", options, BindOptions.__optional_keys__ - {"operation"})
        if library_of(q_grad, k_grad) in FRAMEWORKS:
            raise TypeError("q_grad or k_grad is a tensor: gradients go through norms in PyTorch's autograd")
        if _arrays.np is None:
            raise TypeError("backward_qk makes arrays of NumPy, which is not here")
        if checked_norms(norms) is None:
            raise ValueError("norms is None: without norms the gradient is apply_qk(.., operation='backward')")
        call = Call(q_grad, k_grad, positions, v_grad, norms=norms, **{**options, "operation": "backward"})  # type: ignore[arg-type]
        return self._backward(call, outputs(out, call), x, norms, parts)

    @untraced
    def _backward(
        self, call: Call, out: tuple[Any, ...], x: tuple[Any, ...], norms: Norms, parts: int | None
    ) -> Gradients:
        q_grad, k_grad, v_grad = call.q, call.k, call.v
        q_out, k_out, v_out, _ = out
        before = _read_x(x, norms)
        refuse_gradients(call._replace(norms=None, v=None))  # those of weights are returned
        refuse_named(("x of q", "x of k", "x of v", "v_grad"), (*x, None)[:3] + (v_grad,), "backward_qk")
        for name, one, gradient, axes in zip("qk", x, (q_grad, k_grad), both_layouts(layout_of(self, call)), strict=False):
            if one is not None and gradient is not None:
                _check_like(name, one, gradient, axes)
        if q_out is None and q_grad is not None:
            q_out = _arrays.empty_like(q_grad if x[0] is None else x[0], "q")
        if k_out is None and k_grad is not None:
            k_out = _arrays.empty_like(k_grad if x[1] is None else x[1], "k")
        announce = _arrays.announcer(q_out, k_out, v_out)
        ready = self._run(call, q_out, k_out, v_out, ready=True)
        if ready.device >= 0:
            raise NotImplementedError(
                f"q_grad or k_grad is on {place(ready.device)}, and backward_qk makes arrays of NumPy: tensors of "
                "torch have autograd"
            )
        tokens = ready.template.batch * ready.template.tokens
        parts = parts_of(tokens, False) if parts is None else integer(parts, "parts", "int32_t", low=1)
        sums: list[Any] = [None] * len(NAMES)
        for i, array in enumerate(norm_arrays(norms)):
            if array is not None and before[i // 3] is not None:
                sums[i] = _arrays.np.zeros((parts, *array.shape), "float32")
        if tokens:
            views = [None if one is None else _arrays.read(one, name, True) for one, name in zip(sums, NAMES, strict=True)]
            run_backward(self, call, ready, before, views, parts)
            if announce is not None:
                announce()
        made = {
            name.removeprefix("norms."): one.sum(0, dtype="float32")
            for one, name in zip(sums, NAMES, strict=True)
            if one is not None
        }
        return Gradients(q_out, k_out, made)


def _check_like(name: str, x: Any, gradient: Any, layout: str) -> None:
    """x has the axes of the gradient of its result, which may have its heads repeated."""
    shapes = []
    for array, of in ((x, f"x of {name}"), (gradient, f"{name}_grad")):
        view = _arrays.read(array, of)
        shapes.append(view[1](view[0], of)[0])
    given, result = shapes
    h = axes_of(layout)[2]
    for i in range(len(layout) - 1):
        if len(given) != len(layout) or len(result) != len(layout):
            return  # which the call says
        if given[i] != result[i] and (i != h or not given[i] or result[i] % given[i]):
            rule = ", which must be as many or a multiple" if i == h else ""
            words = _WORDS[layout[i]]
            raise ValueError(f"x of {name} has {given[i]} {words}, and {name}_grad {result[i]}{rule} (see layout=)")


def _read_x(x: Any, norms: Norms) -> tuple[View | None, ...]:
    """The argument x of q, k and v."""
    if not isinstance(x, (tuple, list)) or len(x) not in (2, 3):
        raise TypeError(f"x is a {type(x).__qualname__}, and must be (q, k) or (q, k, v), as apply_qk was given them")
    arrays = (*x, None)[:3]
    views: list[View | None] = []
    for name, one in zip("qkv", arrays, strict=True):
        if getattr(norms, name) is None:
            views.append(None)
            continue
        if one is None:
            raise ValueError(f"x has no {name}, and norms.{name} needs what it was given")
        views.append(_arrays.read(one, f"x of {name}"))
    return tuple(views)
