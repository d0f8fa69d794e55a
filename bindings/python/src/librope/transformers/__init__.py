"""librope inside Hugging Face transformers: patch(model).

Every attention layer of transformers rotates q and k by a function of its own module, which looks
like apply_rotary_pos_emb(q, k, cos, sin). patch() calls each on random numbers, and replaces those
that turn out to be a rotation librope knows by one call of the library that gives the same results,
rounding included. Other functions are left alone, and the report says why. With norms=True the call
does the norms of q and k as well (_norms.py).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from .._core import LibropeWarning
from ._devices import takes_device
from ._norms import NAMES, Layers, Plan
from ._probe import Kind, NotRecognised, classify, is_candidate, why_no_candidate
from ._wrap import make_wrapper, original_of

__all__ = ["Entry", "Kind", "NormEntry", "Report", "patch", "patched", "unpatch"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One function of one module."""

    module: str
    name: str
    kind: Kind | None
    reason: str  # why it was left alone, or ""

    def __str__(self) -> str:
        what = f"patched: {self.kind}" if self.kind else f"left alone: {self.reason}"
        return f"{self.module.removeprefix('transformers.models.')}.{self.name}: {what}"


@dataclasses.dataclass(frozen=True)
class NormEntry:
    """Attention layers of one class, and what became of their norms."""

    module: str
    name: str
    layers: int
    norms: str  # in words, or ""
    reason: str  # why they were left alone, or ""

    def __str__(self) -> str:
        what = f"normed in the same call: {self.norms}" if self.norms else f"left alone: {self.reason}"
        return f"{self.module.removeprefix('transformers.models.')}.{self.name} x {self.layers}: {what}"


@dataclasses.dataclass(frozen=True)
class Report:
    """What patch did. Its text is one line per function, and one per device that is left out; with
    norms=True one per class of layers as well."""

    entries: tuple[Entry, ...]
    left_devices: tuple[str, ...] = ()  # of the model's parameters, where librope does not work
    norms: tuple[NormEntry, ...] | None = None  # with norms=True

    @property
    def patched(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.kind)

    def __bool__(self) -> bool:
        return bool(self.patched)

    def __str__(self) -> str:
        lines = [*map(str, self.entries)] or ["no function of q, k, cos and sin found"]
        if self.norms is not None:
            lines += map(str, self.norms or ["no layer with q_norm and k_norm found"])
        for device in self.left_devices:
            lines.append(f"tensors on {device} go to the functions as they were: librope is not there")
        return "\n".join(lines)


@dataclasses.dataclass
class _Patch:
    """A function that is replaced."""

    original: Any
    wrapper: Any
    in_place: bool


class _Call:
    """A patch() that has not been taken back, and what it asked for."""

    def __init__(self, model_or_class: Any) -> None:
        self.of = weakref.ref(model_or_class)
        self.functions: set[tuple[str, str]] = set()
        self.plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()  # of layers

    def drop(self, function: tuple[str, str]) -> None:
        """No longer asks for a function, nor for the norms of layers that rotate by it."""
        self.functions.discard(function)
        for layer, plan in list(self.plans.items()):
            if plan.rotation is _patches[function].wrapper:
                del self.plans[layer]


_calls: list[_Call] = []  # in their order
_patches: dict[tuple[str, str], _Patch] = {}  # by module and name; each is in one of _calls
_layers: dict[type, Layers] = {}  # by the class; as long as the function that they rotate by is patched
_lock = threading.RLock()


def _modules(model_or_class: Any) -> list[ModuleType]:
    """The modules in which the classes of a model were written."""
    if isinstance(model_or_class, torch.nn.Module):
        classes = {c for m in model_or_class.modules() for c in type(m).__mro__}
    elif isinstance(model_or_class, type) and issubclass(model_or_class, torch.nn.Module):
        classes = set(model_or_class.__mro__)
    else:
        raise TypeError(f"patch takes a model or its class, not a {type(model_or_class).__name__}")
    names = {c.__module__ for c in classes} - {"builtins"}
    names = {n for n in names if n.partition(".")[0] not in ("torch", "librope")}
    return [sys.modules[n] for n in sorted(names) if n in sys.modules]


def _left_devices(model_or_class: Any) -> tuple[str, ...]:
    if not isinstance(model_or_class, torch.nn.Module):
        return ()
    devices = {p.device for p in model_or_class.parameters()}
    return tuple(sorted({d.type for d in devices if not takes_device(d)}))


def _refuse_other_place(modules: list[ModuleType], in_place: bool) -> None:
    """A function rotates in place for all models of its module, or for none."""
    for (module, name), known in _patches.items():
        is_there = any(m.__name__ == module and vars(m).get(name) is known.wrapper for m in modules)
        if is_there and known.in_place != in_place:
            raise ValueError(
                f"in_place={in_place}, but {module}.{name} is patched with in_place={known.in_place}, for all "
                "models that rotate by it: pass the same, or unpatch() it before"
            )


def _patch_function(call: _Call, module: ModuleType, name: str, in_place: bool) -> Entry | None:
    """None for what is no such function."""
    key, value = (module.__name__, name), vars(module)[name]
    known = _patches.get(key)
    if known is not None and value is known.wrapper:
        call.functions.add(key)
        return Entry(*key, value._librope_kind, "")
    if not is_candidate(value):
        why = why_no_candidate(name, value)
        return Entry(*key, None, why) if why else None
    value = original_of(value)
    try:
        kind = classify(value)
    except NotRecognised as why_not:
        return Entry(*key, None, str(why_not))
    if known is not None:  # and somebody else has replaced the wrapper since
        for earlier in _calls:
            earlier.drop(key)
    call.functions.add(key)
    _patches[key] = _Patch(value, make_wrapper(value, kind, in_place), in_place)
    setattr(module, name, _patches[key].wrapper)
    return Entry(*key, kind, "")


def _patch_norms(call: _Call, model: torch.nn.Module) -> tuple[NormEntry, ...]:
    """The norms of the model's attention layers; after its functions."""
    count: collections.Counter[tuple[type, str, str]] = collections.Counter()
    for layer in model.modules():
        if all(isinstance(getattr(layer, name, None), torch.nn.Module) for name in NAMES):
            norms, reason = "", ""
            try:
                call.plans[layer] = plan = _layers_of(type(layer)).add(layer)
                norms = str(plan)
            except NotRecognised as why:
                reason = str(why)
            count[type(layer), norms, reason] += 1
    return tuple(NormEntry(c.__module__, c.__name__, n, *what) for (c, *what), n in count.items())


def _layers_of(cls: type) -> Layers:
    owner = next(c for c in cls.__mro__ if vars(c).get("forward"))
    layers = _layers.get(owner)
    if layers is None:
        layers = _layers[owner] = Layers(owner)
    return layers


def patch(model_or_class: Any, *, in_place: bool = False, norms: bool = False) -> Report:
    """Lets the attention layers of a model use librope.

    Replaces functions of the modules in which the model's classes are defined: every model of these
    families in the process is affected, also those made later. Patching twice needs unpatching
    twice, and wants the same in_place.

    Args:
        model_or_class: a model, or its class before it is made.
        in_place: rotate q and k where they are while gradients are off. Faster for long prompts.
            Wrong for code that keeps q or k from before the rotation. Those that overlap, such as a key that is
            expanded over heads, are left as they are, and the results are new.
        norms: where attention layers of this model norm q and k directly before the rotation (Qwen3,
            Gemma 3, OLMo 2 ..), do both in one call while gradients are off and the code is not
            compiled; else the norms are the model's own. Every rounding to 16 bits is the model's,
            but squares are summed in librope's order: see the README.

    Returns:
        A Report of every function, and with norms of every class of layers, that was looked at.
        Tensors that librope cannot take (their device, dtype or subclass) go to the original function;
        nothing is raised for them.

    Raises:
        TypeError: model_or_class is something else, or a class with norms=True.
        ValueError: one of the functions is patched with another in_place.
    """
    return _patch(model_or_class, in_place, norms)[1]


def _patch(model_or_class: Any, in_place: bool, norms: bool) -> tuple[_Call, Report]:
    if norms and not isinstance(model_or_class, torch.nn.Module):
        raise TypeError("norms=True needs a model: a class does not say which norms its layers have")
    # What is tried is made on the CPU, whatever the default device is.
    with torch.device("cpu"), _lock:
        modules = _modules(model_or_class)
        _refuse_other_place(modules, in_place)
        before = dict(_patches)
        _calls.append(call := _Call(model_or_class))
        try:
            found = [_patch_function(call, m, name, in_place) for m in modules for name in list(vars(m))]
            _settle_norms()  # of functions that somebody else has replaced, and that are patched again
            layers = _patch_norms(call, model_or_class) if norms else None
        except BaseException:  # such as KeyboardInterrupt, and what a foreign function raises that is tried
            _calls.remove(call)
            _settle()
            raise
        changed = _patches != before
    if changed or layers:
        _forget_compiled(model_or_class)
    return call, Report(tuple(e for e in found if e), _left_devices(model_or_class), layers)


def unpatch(model_or_class: Any = None) -> None:
    """Takes back one patch() of a model or class, its last one, with its norms, or every patch of the process.

    A module that has imported a function while it was patched, and was not patched itself, keeps librope's.
    """
    with _lock:
        if model_or_class is None:
            _calls.clear()
        else:
            names = {m.__name__ for m in _modules(model_or_class)}
            for key in [k for k in _patches if k[0] in names]:
                calls = [c for c in _calls if key in c.functions]
                own = [c for c in calls if c.of() is model_or_class]
                if calls:
                    (own or calls)[-1].drop(key)
        changed = _settle()
    if changed:
        _forget_compiled(model_or_class)


def _settle() -> bool:
    """Takes back what none of _calls asks for. Whether that was something."""
    _calls[:] = [c for c in _calls if c.functions]
    wanted = {f for c in _calls for f in c.functions}
    changed = False
    for key in [k for k in _patches if k not in wanted]:
        entry, module = _patches.pop(key), sys.modules.get(key[0])
        if getattr(module, key[1], None) is entry.wrapper:
            setattr(module, key[1], entry.original)
            changed = True
        else:
            _warn_of_somebody_else(".".join(key), 4)
    return _settle_norms() or changed


def _settle_norms() -> bool:
    wanted = {layer: plan for c in _calls for layer, plan in c.plans.items()}  # the last one of each layer
    wrappers = [entry.wrapper for entry in _patches.values()]
    changed = False
    for owner, layers in list(_layers.items()):
        layers.keep(wanted)
        if layers.rotation not in wrappers or not layers.plans:
            changed = True
            if not _layers.pop(owner).remove():
                _warn_of_somebody_else(f"{owner.__module__}.{owner.__name__}.forward", 5)
    return changed


def _warn_of_somebody_else(name: str, stacklevel: int) -> None:
    warnings.warn(f"{name} was replaced by somebody else since: left as it is", LibropeWarning, stacklevel=stacklevel)


@contextlib.contextmanager
def patched(model_or_class: Any, *, in_place: bool = False, norms: bool = False) -> Iterator[Report]:
    """with patched(model) as report: ...

    Afterwards models are as they were before, but for what others have patched or taken back meanwhile.
    """
    call, report = _patch(model_or_class, in_place, norms)
    try:
        yield report
    finally:
        with _lock:
            for function in list(call.functions) if call in _calls else ():
                call.drop(function)
            changed = _settle()
        if changed:
            _forget_compiled(model_or_class)


def _forget_compiled(model: Any) -> None:
    """Code compiled before would go on using the function it was compiled with."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if isinstance(model, torch.nn.Module):
        for module in model.modules():
            module.__dict__.pop("_compiled_call", None)
