"""Norms of q and k in the call that rotates: patch(model, norms=True).

A layer such as Qwen3's calls its q_norm and k_norm, then the function that patch() has replaced. Its
class gets another forward, which runs a twin of the code: the norms pass their argument on, and the
rotation norms as well. As with the functions, no list of models says which layers these are: a norm is
one that librope has, rounding included, if it gives the same on random numbers; and the twin of each
layer must give what the layer gives.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as _module

from .._norm import Norm, Normed, Norms, read_once
from .._watch import PLAIN
from ._devices import takes_device
from ._probe import NotRecognised, table

NAMES = ("q_norm", "k_norm")
_ROWS = "position_embeddings"  # the argument with cos and sin
_EPS = ("variance_epsilon", "eps")  # where a norm has its eps; the first that there is
_PASSING_ON = {name: f"_librope_{name}" for name in NAMES}  # their names in a twin's code


class _NotBefore(RuntimeError):
    pass


# --- Which norm is it? ---


def _rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _layer(x: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms(x - x.mean(-1, keepdim=True), eps)


# Kind and rounding of librope.Norm: what PyTorch code computes, in f32 until it is rounded.
_FORMS: dict[tuple[str, str], Callable[..., torch.Tensor]] = {
    ("rms", "rounded"): lambda x, w, b, eps: _rms(x, eps) * w,
    ("rms", "eager"): lambda x, w, b, eps: _rms(x, eps).to(w.dtype) * w,
    ("rms_one_plus", "rounded"): lambda x, w, b, eps: _rms(x, eps) * (1 + w.float()),
    ("layer", "rounded"): lambda x, w, b, eps: _layer(x, eps) * w,
    ("layer_bias", "rounded"): lambda x, w, b, eps: _layer(x, eps) * w + b,
}


def _is_alike(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal, but for the order of a sum and what follows from it: the last bit, now and then."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if got.dtype == torch.float32:
        return torch.allclose(got, expected, 1e-5, 2e-6)
    alike = torch.allclose(got.float(), expected.float(), 2.0**-7, 2e-6)
    return alike and bool((got == expected).double().mean() > 0.99)


def _eps_of(norm: Any) -> float:
    """Of a norm that may be one of librope's, or NotRecognised."""
    eps = next((getattr(norm, name) for name in _EPS if hasattr(norm, name)), None)
    weight: Any = getattr(norm, "weight", None)
    if not isinstance(eps, float) or eps <= 0 or type(weight) not in PLAIN:
        raise NotRecognised("its norm has no weight or no eps")
    if not takes_device(weight.device):
        raise NotRecognised(f"its norm is on {weight.device.type}, where this librope does not run")
    if "weight" not in norm._parameters:
        raise NotRecognised("its norm has a weight that is no parameter")
    if not _is_bare(norm):
        raise NotRecognised("its norm has hooks, or a forward of its own")
    return eps


def recognise(norm: Any) -> tuple[str, str, float]:
    """Kind, rounding and eps of a module, or NotRecognised."""
    eps, weight, bias = _eps_of(norm), norm.weight, getattr(norm, "bias", None)
    random: dict[str, Any] = {"generator": torch.Generator().manual_seed(11), "dtype": torch.float32}
    # Tokens of several sizes, so that eps counts in some, with a mean that is not 0.
    sizes = torch.logspace(math.log10(eps) / 2 - 1, 2, 64, dtype=torch.float32).reshape(-1, *[1] * weight.dim())
    found = set(_FORMS)
    for dtype in (torch.float32, torch.bfloat16):
        x, w, b = (torch.randn(*s, *weight.shape, **random) for s in ((64,), (), ()))
        x, w, b = (sizes * (x + 0.25)).to(dtype), w.to(dtype), b.to(dtype)
        trial = copy.deepcopy(norm).to("cpu", dtype)
        with torch.no_grad():
            trial.weight.copy_(w)
            if bias is not None:
                trial.bias.copy_(b)
            try:
                got = trial(x)
            except Exception as error:  # noqa: BLE001
                raise NotRecognised(f"its norm does not run on {list(x.shape)}: {error}") from error
            found = {
                f for f in found
                if (f[0] == "layer_bias") == (bias is not None)
                and _is_alike(got, _FORMS[f](x.float(), w, b, eps).to(dtype))
            }  # fmt: skip
    if len(found) != 1:
        raise NotRecognised(f"its norm is ambiguous: {found}" if found else "its norm is none that librope has")
    return *found.pop(), eps


def _is_bare(norm: Any) -> bool:
    """Whether a call of the module is its class's forward by a weight that it has, and nothing else but hooks
    of all modules."""
    return "weight" in norm._parameters and not (
        vars(norm).get("forward") or norm._forward_hooks or norm._forward_pre_hooks
    )


# --- The norms of a layer ---


class Plan:
    """The norms of one layer, as librope's."""

    def __init__(self, layer: Any, rotation: Any) -> None:
        self.rotation = rotation  # the function that it turns by
        self.modules = tuple(getattr(layer, name) for name in NAMES)
        self.code = tuple((type(module), type(module).forward) for module in self.modules)
        self.forms = tuple(recognise(module) for module in self.modules)
        # Where each has its eps, which may be set to another.
        self.eps_names = tuple(next(n for n in _EPS if hasattr(module, n)) for module in self.modules)
        self.shapes: list[tuple[int, ...]] = []  # of the weights: for all heads, or for each
        self.whole: list[bool] = []  # over all heads, or each head on its own
        # As the modules have them: of the weight, and of the bias, if there is one.
        self.tensors = [
            (shape, shape if form[0] == "layer_bias" else None)
            for shape, form in zip((tuple(m.weight.shape) for m in self.modules), self.forms, strict=True)
        ]
        # Of one set of weights, and by which they are known again: in one field, since threads read it as others
        # write it.
        self.known: tuple[Any, Normed] | None = None

    def see(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """How the layer gives q and k to the rotation, [batch, heads, tokens, head_dim]."""
        for name, module, x in zip(NAMES, self.modules, (q, k), strict=True):
            heads, head_dim = x.shape[1], x.shape[3]
            shape = tuple(module.weight.shape)
            if shape not in ((head_dim,), (heads, head_dim), (heads * head_dim,)):
                raise NotRecognised(f"{name} has weights {list(shape)}, beside {heads} heads of {head_dim}")
            self.whole.append(shape == (heads * head_dim,) and heads > 1)
            self.shapes.append((heads, head_dim) if self.whole[-1] else shape)

    def holds(self, layer: Any) -> bool:
        """Whether the layer has these norms still, and nobody else has to see them called."""
        return not (_module._global_forward_hooks or _module._global_forward_pre_hooks) and all(
            getattr(layer, name) is module
            and type(module) is kind
            and kind.forward is forward
            and _is_bare(module)
            and getattr(module, eps, None) == form[2]
            for name, module, (kind, forward), eps, form in zip(
                NAMES, self.modules, self.code, self.eps_names, self.forms, strict=True
            )
        )

    def norms_for(self, q: torch.Tensor, k: torch.Tensor) -> Normed | None:
        """None where the weights, as they are now, do not lie beside q and k in their dtype, or have other
        shapes than they had."""
        given = [(m.weight, getattr(m, "bias", None)) for m in self.modules]
        key, known = self._key(q, k, given), self.known
        if key is None:
            return None
        if known is not None and known[0] == key:
            return known[1]
        # Of tensors that stay where they are, whatever memory the weights are given meanwhile; and as long as
        # they are kept, no others have their addresses.
        given = [(w.detach(), None if b is None else b.detach()) for w, b in given]
        key = self._key(q, k, given)
        if key is None:
            return None
        normed = read_once(Norms(*[self._norm(i, *pair) for i, pair in enumerate(given)]))
        self.known = key, normed
        return normed

    def _key(self, q: torch.Tensor, k: torch.Tensor, given: list[tuple[Any, Any]]) -> Any:
        """Of the weights and biases beside q and k, or None."""
        for x, (w, b), shapes in zip((q, k), given, self.tensors, strict=True):
            if type(w) not in PLAIN or x.device != w.device or x.dtype != w.dtype:
                return None
            if (w.shape, None if b is None else b.shape) != shapes:
                return None
        tensors = [x for pair in given for x in pair if x is not None]
        if any(x.is_neg() for x in tensors):  # whose memory is not its values
            return None
        return q.dtype, q.device, [(x.data_ptr(), x.stride(), x.dtype) for x in tensors]

    def _norm(self, i: int, weight: torch.Tensor, bias: torch.Tensor | None) -> Norm:
        kind, rounding, eps = self.forms[i]
        return Norm(
            weight.view(self.shapes[i]), kind=kind, eps=eps, rounding=rounding,  # type: ignore[arg-type]
            bias=None if bias is None else bias.view(self.shapes[i]),
            span="all_heads" if self.whole[i] else "head",
        )  # fmt: skip

    def apart(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer's own norms make of q and k."""
        out = []
        for module, whole, x in zip(self.modules, self.whole, (q, k), strict=True):
            x = x.transpose(1, 2)
            out.append((module(x.flatten(2)).view(x.shape) if whole else module(x)).transpose(1, 2))
        return out[0], out[1]

    def __str__(self) -> str:
        return ", ".join(sorted({f"{kind}, {rounding} rounding" for kind, rounding, _ in self.forms}))


# --- The twin of a forward ---


class _Pass(threading.local):
    """A forward that runs: the norms of its layer, and which have passed their argument on to the rotation;
    None once that has been."""

    plan: Plan | None = None
    passed: list[str] | None = None


_pass = _Pass()


def _passing_on(name: str) -> Any:
    """In place of the norm `name` in a twin."""

    def norm(layer: Any, x: torch.Tensor) -> torch.Tensor:
        if _pass.passed is None:
            return getattr(layer, name)(x)  # after the rotation
        _pass.passed.append(name)
        return x

    return norm


class _Picks(torch.nn.Module):
    """Stands for a projection in a trial: channels of its argument, without weights to copy."""

    def __init__(self, linear: torch.nn.Linear, generator: torch.Generator) -> None:
        super().__init__()
        self.picked = torch.randint(linear.in_features, (linear.out_features,), generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., self.picked]


def _trial(layer: Any) -> Any:
    """The layer on the CPU in f32, with norms of random weights, eager attention and no projections."""
    random = torch.Generator().manual_seed(12)
    trial = copy.copy(layer)
    trial.config = copy.deepcopy(layer.config)
    trial.config._attn_implementation = "eager"  # others may run on the model's device and dtype alone
    trial._modules = dict(layer._modules)
    for name, module in layer._modules.items():
        if isinstance(module, torch.nn.Linear):
            trial._modules[name] = _Picks(module, random)
        elif module is not None:
            trial._modules[name] = copy.deepcopy(module).to("cpu", torch.float32)
    trial._parameters = {
        n: p if p is None else torch.nn.Parameter(p.float().cpu()) for n, p in layer._parameters.items()
    }
    trial._buffers = {n: b if b is None else b.cpu() for n, b in layer._buffers.items()}
    for name in NAMES:
        weight = getattr(trial, name).weight
        weight.data = torch.randn(weight.shape, generator=random, dtype=torch.float32)
    trial.training = False
    return trial


def _inner(function: Any) -> Any:
    """What decorators such as transformers' `deprecate_kwarg` stand around."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _content(cell: types.CellType) -> Any:
    """None for one that holds nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _rewrapped(function: Any, inner: Any, other: Any) -> Any:
    """`function` with another function in place of `inner`: the same decorators around it. NotRecognised
    where one does not hold what it calls in a cell of its own."""
    if function is inner:
        return other
    wrapped = function.__wrapped__
    cells = getattr(function, "__closure__", None) or ()
    holds = [_content(cell) is wrapped for cell in cells]
    if not isinstance(function, types.FunctionType) or not any(holds):
        raise NotRecognised("its forward has a decorator that is not known")
    cell = types.CellType(_rewrapped(wrapped, inner, other))
    again = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        tuple(cell if holding else c for c, holding in zip(cells, holds, strict=True)),
    )  # fmt: skip
    again.__kwdefaults__ = function.__kwdefaults__
    return again


class Layers:
    """The attention layers whose forward is that of one class: another forward, for those that are
    known."""

    def __init__(self, owner: type) -> None:
        self.owner, self.original = owner, owner.__dict__["forward"]
        inner = _inner(self.original)
        code = getattr(inner, "__code__", None)
        names = getattr(code, "co_names", ())
        self.globals = getattr(inner, "__globals__", {})
        # What the twin is made with, of which one is the function that patch() has replaced.
        self.used = {name: self.globals[name] for name in names if name in self.globals}
        rotations = [
            name for name, value in self.used.items()
            if hasattr(value, "_librope_kind") and len(value._librope_kind.tensors) == 2
        ]  # fmt: skip
        if code is None or len(rotations) != 1 or not set(names).issuperset(NAMES):
            raise NotRecognised("its forward does not call norms and one rotation of q and k that is patched")
        self.rotation = self.used[rotations[0]]
        parameters = [*inspect.signature(inner).parameters]
        #: Where the rows are among the arguments; None: they are no argument.
        self.rows_at = parameters.index(_ROWS) if _ROWS in parameters else None
        self.plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
        twin: Any = types.FunctionType(
            code.replace(co_names=tuple(_PASSING_ON.get(name, name) for name in names)),
            {**self.globals, rotations[0]: self.rotate},
            "forward", inner.__defaults__, inner.__closure__,
        )  # fmt: skip
        twin.__kwdefaults__ = inner.__kwdefaults__
        self.twin = _rewrapped(self.original, inner, twin)
        self._install()

    def add(self, layer: Any) -> Plan:
        """The norms of a layer, which from now on are done with the rotation. NotRecognised unless the twin
        gives what the layer gives."""
        for name in NAMES:
            _eps_of(getattr(layer, name))
        try:
            trial = _trial(layer)
            plan = Plan(trial, self.rotation)
            random: dict[str, Any] = {"generator": torch.Generator().manual_seed(13), "dtype": torch.float32}
            angles = torch.randn(2, 5, trial.head_dim // 2, **random)
            rows = tuple(table(t, self.rotation._librope_kind.table) for t in (angles.cos(), angles.sin()))
            hidden = torch.randn(2, 5, trial.config.hidden_size, **random)
            # Of several sizes: what else happens to q and k would have to be the same for all.
            for size in (1.0, 1e-2, 1e4):
                with torch.no_grad():
                    expected, got = (
                        forward(
                            trial, hidden_states=size * hidden, position_embeddings=rows, attention_mask=None
                        )[0]
                        for forward in (self.original, functools.partial(self._run, plan))
                    )
                if not torch.allclose(got, expected, 1e-4, 1e-5 * size):
                    raise _NotBefore
        except NotRecognised:
            raise
        except _NotBefore:
            raise NotRecognised("its norms do not come directly before the rotation") from None
        except Exception as error:  # noqa: BLE001  (a layer of other arguments may raise anything)
            raise NotRecognised(f"its forward does not run alone: {type(error).__name__}: {error}") from error
        if plan.known is None:
            raise NotRecognised("its rotation is not one of [batch, heads, tokens, head_dim]")
        plan.modules, plan.known = tuple(getattr(layer, name) for name in NAMES), None
        self.plans[layer] = plan
        return plan

    def _run(self, plan: Plan, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """The twin, for one layer; of one that is given no rows, and does not turn, its own forward."""
        at = self.rows_at
        if at is not None and kwargs.get(_ROWS) is None and (len(args) < at or args[at - 1] is None):
            return self.original(layer, *args, **kwargs)
        before = _pass.plan, _pass.passed
        _pass.plan, _pass.passed = plan, []
        try:
            out = self.twin(layer, *args, **kwargs)
            if _pass.passed:
                raise _NotBefore(self._complaint())
            return out
        finally:
            _pass.plan, _pass.passed = before

    def rotate(self, q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What the twin rotates by."""
        plan, passed, _pass.passed = _pass.plan, _pass.passed, None
        if plan is None or passed is None or sorted(passed) != sorted(NAMES):
            raise _NotBefore(self._complaint())
        if not plan.shapes:
            plan.see(q, k)
        return self.rotation(q, k, *args, _plan=plan, **kwargs)

    def _complaint(self) -> str:
        return (
            f"{self.owner.__name__}.forward did not norm q and k directly before the rotation, as it did when "
            "librope.transformers.patch tried it: patch the model without norms=True"
        )

    def _install(self) -> None:
        original, run, plans, module, used = self.original, self._run, self.plans, self.globals, self.used

        @functools.wraps(original)
        def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or torch.is_grad_enabled():
                return original(layer, *args, **kwargs)
            plan = plans.get(layer)
            if plan is None or not plan.holds(layer) or any(module.get(n) is not v for n, v in used.items()):
                return original(layer, *args, **kwargs)
            return run(plan, layer, *args, **kwargs)

        self.wrapper = forward
        self.owner.forward = forward  # type: ignore[attr-defined]
        for name, other in _PASSING_ON.items():
            setattr(self.owner, other, _passing_on(name))

    def keep(self, plans: Any) -> None:
        """Of the layers those in `plans`, with the norms that it says."""
        for layer in list(self.plans):
            if layer in plans:
                self.plans[layer] = plans[layer]
            else:
                del self.plans[layer]

    def remove(self) -> bool:
        """False: somebody else has replaced forward since."""
        current = self.owner.__dict__.get("forward")
        if current is not self.wrapper:
            return False
        self.owner.forward = self.original  # type: ignore[attr-defined]
        for other in _PASSING_ON.values():
            delattr(self.owner, other)
        return True
