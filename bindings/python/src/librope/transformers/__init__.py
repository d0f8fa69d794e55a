"""librope inside Hugging Face transformers: patch(model).

Every attention layer of transformers rotates q and k by a function of its own module, which looks
like apply_rotary_pos_emb(q, k, cos, sin). patch() calls each on random numbers, and replaces those
that turn out to be a rotation librope knows by one call of the library that gives the same results,
rounding included. Other functions are left alone, and the report says why.
"""

from __future__ import annotations

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
from ._probe import Kind, NotRecognised, classify, is_candidate
from ._wrap import make_wrapper, takes_device

__all__ = ["Entry", "Kind", "Report", "patch", "patched", "unpatch"]


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
class Report:
    """What patch did. Its text is one line per function, and one per device that is left out."""

    entries: tuple[Entry, ...]
    left_devices: tuple[str, ...] = ()  # of the model's parameters, where librope does not work

    @property
    def patched(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.kind)

    def __bool__(self) -> bool:
        return bool(self.patched)

    def __str__(self) -> str:
        lines = [*map(str, self.entries)] or ["no function of q, k, cos and sin found"]
        for device in self.left_devices:
            lines.append(f"tensors on {device} go to the functions as they were: librope is not there")
        return "\n".join(lines)


@dataclasses.dataclass
class _Patch:
    original: Any
    wrapper: Any
    count: int


_patches: dict[tuple[str, str], _Patch] = {}
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


def patch(model_or_class: Any, *, in_place: bool = False) -> Report:
    """Lets the attention layers of a model use librope.

    Replaces functions of the modules in which the model's classes are defined: every model of these
    families in the process is affected, also those made later. Patching twice needs unpatching
    twice.

    Args:
        model_or_class: a model, or its class before it is made.
        in_place: rotate q and k where they are while gradients are off. Faster for long prompts.
            Wrong for code that keeps q or k from before the rotation.

    Returns:
        A Report of every function that was looked at. Tensors that librope cannot take (their
        device, dtype or subclass) go to the original function; nothing is raised for them.

    Raises:
        TypeError: model_or_class is something else.
    """
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
    if changed:
        _forget_compiled(model_or_class)
    return Report(tuple(entries), _left_devices(model_or_class))


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


@contextlib.contextmanager
def patched(model_or_class: Any, *, in_place: bool = False) -> Iterator[Report]:
    """with patched(model) as report: ..."""
    report = patch(model_or_class, in_place=in_place)
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
