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
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from .._core import LibropeWarning
from ._devices import takes_device
from ._norms import NAMES, Layers
from ._probe import Kind, NotRecognised, classify, is_candidate
from ._wrap import make_wrapper

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
    original: Any
    wrapper: Any
    count: int


_patches: dict[tuple[str, str], _Patch] = {}
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


def _patch_norms(model: torch.nn.Module) -> tuple[NormEntry, ...]:
    """The norms of the model's attention layers; after its functions."""
    count: collections.Counter[tuple[type, str, str]] = collections.Counter()
    for layer in model.modules():
        if all(isinstance(getattr(layer, name, None), torch.nn.Module) for name in NAMES):
            norms, reason = "", ""
            try:
                norms = _layers_of(type(layer)).add(layer)
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
    twice.

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
    """
    if norms and not isinstance(model_or_class, torch.nn.Module):
        raise TypeError("norms=True needs a model: a class does not say which norms its layers have")
    entries: list[Entry] = []
    changed = False
    with _lock:
        for module in _modules(model_or_class):
            for name, value in list(vars(module).items()):
                known = _patches.get((module.__name__, name))
                if known is not None and value is known.wrapper:
                    known.count += 1
                    entries.append(Entry(module.__name__, name, value._librope_kind, ""))
                    continue
                if not is_candidate(value):
                    continue
                try:
                    kind = classify(value)
                except NotRecognised as why:
                    entries.append(Entry(module.__name__, name, None, str(why)))
                    continue
                wrapper = make_wrapper(value, kind, in_place)
                _patches[module.__name__, name] = _Patch(value, wrapper, 1)
                setattr(module, name, wrapper)
                entries.append(Entry(module.__name__, name, kind, ""))
                changed = True
        layers = _patch_norms(model_or_class) if norms else None
    if changed or layers:
        _forget_compiled(model_or_class)
    return Report(tuple(entries), _left_devices(model_or_class), layers)


def unpatch(model_or_class: Any = None) -> None:
    """Takes back one patch() of a model or class, or every patch of the process."""
    changed = False
    with _lock:
        if model_or_class is None:
            keys = list(_patches)
        else:
            names = {m.__name__ for m in _modules(model_or_class)}
            keys = [k for k in _patches if k[0] in names]
        for key in keys:
            entry = _patches[key]
            entry.count -= 1
            if entry.count > 0 and model_or_class is not None:
                continue
            del _patches[key]
            module = sys.modules[key[0]]
            changed |= _unpatch_norms(entry.wrapper)
            if getattr(module, key[1], None) is entry.wrapper:
                setattr(module, key[1], entry.original)
                changed = True
            else:
                warnings.warn(
                    f"{key[0]}.{key[1]} was replaced by somebody else since: left as it is",
                    LibropeWarning,
                    stacklevel=2,
                )
    if changed:
        _forget_compiled(model_or_class)


def _unpatch_norms(wrapper: Any) -> bool:
    """Of the layers that rotate by a function which is no longer patched."""
    owners = [owner for owner, layers in _layers.items() if layers.rotation is wrapper]
    for owner in owners:
        if not _layers.pop(owner).remove():
            warnings.warn(
                f"{owner.__module__}.{owner.__name__}.forward was replaced by somebody else since: left as it is",
                LibropeWarning,
                stacklevel=3,
            )
    return bool(owners)


@contextlib.contextmanager
def patched(model_or_class: Any, *, in_place: bool = False, norms: bool = False) -> Iterator[Report]:
    """with patched(model) as report: ..."""
    report = patch(model_or_class, in_place=in_place, norms=norms)
    try:
        yield report
    finally:
        unpatch(model_or_class)


def _forget_compiled(model: Any) -> None:
    """Code compiled before would go on using the function it was compiled with."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if isinstance(model, torch.nn.Module):
        for module in model.modules():
            module.__dict__.pop("_compiled_call", None)
