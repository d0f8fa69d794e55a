"""Hooks on torch modules: who rotates what, at which positions.

Nothing is known of single models. The function that rotates is found by its name, the tensors by
being returned in their own shape, the module by being the innermost that runs, the positions by being
what the module was given that has made the cosines.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..transformers._probe import is_candidate
from . import Recording

_ROTATES = re.compile(r"^_?apply_\w*(rot|rope)")
_IDS = ("position_ids", "pos_ids", "positions", "ids", "img_ids", "coords")


class _Frame:
    """A module that runs."""

    def __init__(self, name: str, ids: Any) -> None:
        self.name, self.ids = name, ids
        self.rotated = 0  # tensors, since the module was called


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of arguments or results, with those in tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


class _Watch:
    """What is seen while the block runs."""

    def __init__(self, recording: Recording, layout: str | None, calls: int | None) -> None:
        self.recording, self.layout, self.calls = recording, layout, calls
        self.frames: list[_Frame] = []
        self.outside = _Frame("", None)  # for calls while no module runs
        self.passes: Counter[str] = Counter()  # finished calls of each module
        self.ids_of: dict[int, tuple[Any, Any]] = {}  # by id of a tensor: it, and the ids behind it
        self.inside = False

    def enter(self, name: str, parameters: Any, args: Any, kwargs: Any) -> None:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        ids = next((given[n] for n in _IDS if isinstance(given.get(n), torch.Tensor)), None)
        self.frames.append(_Frame(name, ids))

    def leave(self, name: str, tables: bool, output: Any) -> None:
        """tables: the module has no weights, so what it returns may be cosines and sines."""
        if not self.frames or self.frames[-1].name != name:
            return  # entered before the block began
        frame = self.frames.pop()
        if frame.ids is not None and tables:
            for x in _tensors(output):  # kept, so that no other tensor gets its id
                self.ids_of[id(x)] = x, frame.ids
        if frame.rotated:
            self.passes[name] += 1

    def behind(self, args: Any, tokens: int) -> Any:
        """The position ids behind the cosines among the arguments; else those that the innermost
        module was given; None if there are none."""
        for x in _tensors(args):
            if id(x) in self.ids_of:
                return _arranged(self.ids_of[id(x)][1], tokens)
        for frame in reversed(self.frames):
            if frame.ids is not None:
                return _arranged(frame.ids, tokens)
        return None

    def rotated(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls the function and records what it has rotated."""
        if self.inside or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        named = _bound(function, args, kwargs)
        given = [(n, v) for n, v in named if isinstance(v, torch.Tensor)]
        kept = [(n, v.detach().clone()) for n, v in given]
        self.inside = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.inside = False
        out = [result] if isinstance(result, torch.Tensor) else list(_tensors(result))
        frame = self.frames[-1] if self.frames else self.outside
        for (_, x), y in zip(kept, out, strict=False):
            if x.shape != y.shape:
                break
            self.add(frame, x, y, dict(named), [v for _, v in named])
        return result

    def add(self, frame: _Frame, x: Any, y: Any, named: dict[str, Any], args: Any) -> None:
        number = self.passes[frame.name]
        i = frame.rotated
        frame.rotated += 1
        if self.calls is not None and number >= self.calls:
            return
        again = f"@{number}" if number else ""
        role = ("q", "k")[i] if i < 2 else f"x{i}"
        name = ".".join(part for part in (frame.name + again, role) if part)
        layout = self.layout or _layout(x, named)
        if layout is None:
            self.recording.left_out.append(
                f"{name}: shape {tuple(x.shape)} does not tell tokens from heads: say layout="
            )
            return
        tokens = x.shape[layout.replace("t", "s").index("s")]
        try:
            self.recording.add(name, x, y, self.behind(args, tokens), layout=layout)
        except ValueError as e:  # such as ids of other tokens: the model runs on
            self.recording.left_out.append(str(e))


def _bound(function: Callable[..., Any], args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """Arguments with the names of their parameters, in the order of these, with defaults."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return [(str(i), v) for i, v in enumerate(args)] + list(kwargs.items())
    bound.apply_defaults()
    return list(bound.arguments.items())


def _layout(x: torch.Tensor, named: dict[str, Any]) -> str | None:
    """What the axes of x are, by the axis along which the cosines are as long; None if two are."""
    letters = {4: ("bshd", "bhsd"), 3: ("shd", "hsd")}.get(x.dim())
    if letters is None:
        return {2: "sd"}.get(x.dim())
    first = x.dim() - 3
    given = {n: named.get(n) for n in ("unsqueeze_dim", "sequence_dim")}
    if isinstance(given["sequence_dim"], int):
        return letters[0] if given["sequence_dim"] % x.dim() == first else letters[1]
    lengths = set()
    for n, v in named.items():
        for t in _tensors(v):
            if t is not x and t.shape != x.shape and t.is_floating_point() | t.is_complex():
                lengths.add(tuple(t.shape[:-1]))
    tokens = [any(x.shape[a] in shape for shape in lengths) for a in (first, first + 1)]
    if x.shape[first] != x.shape[first + 1] and tokens[0] != tokens[1]:
        return letters[0] if tokens[0] else letters[1]
    if isinstance(given["unsqueeze_dim"], int):  # where heads go into the cosines: those lack them
        heads = given["unsqueeze_dim"] % x.dim()
        return letters[0] if heads == first + 1 else letters[1]
    return None


def _arranged(ids: torch.Tensor, tokens: int) -> Any:
    """Ids as [.., tokens]: [tokens, axes], as diffusers has them, is turned."""
    ids = ids.detach()
    if ids.dim() == 0 or ids.shape[-1] == tokens:
        return ids if ids.dim() else ids.reshape(1)
    if ids.dim() >= 2 and ids.shape[-2] == tokens:
        moved = ids.movedim(-1, 0)
        moved = moved[:, None] if moved.dim() == 2 else moved
        return moved if moved.dtype in (torch.int64, torch.int32) else moved.to(torch.float32)
    return None


def _places(model: torch.nn.Module) -> dict[tuple[str, str], Callable[..., Any]]:
    """The functions that rotate, by the module and the name where they are called from."""
    names: set[str] = set()
    for m in model.modules():
        for owner in (type(m), type(getattr(m, "processor", m))):
            names |= {c.__module__ for c in owner.__mro__}
    names -= {"builtins"}
    names = {n for n in names if n.partition(".")[0] not in ("torch", "librope")}
    if any(n.startswith("diffusers.") for n in names):
        names.add("diffusers.models.embeddings")
    found = {}
    for name in sorted(names & sys.modules.keys()):
        for attribute, value in vars(sys.modules[name]).items():
            function = inspect.isfunction(value) and bool(_ROTATES.match(attribute))
            if function or is_candidate(value):
                found[name, attribute] = value
    return found


@contextlib.contextmanager
def watching(model: Any, layout: str | None, calls: int | None) -> Iterator[Recording]:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, and must be a torch.nn.Module")
    places = _places(model)
    if not places:
        raise ValueError(
            f"the modules of {type(model).__name__} have no function named apply_..rotary.. or "
            "apply_..rope..: add() what it rotates by hand"
        )
    recording = Recording()
    seen = _Watch(recording, layout, calls)
    handles, put = [], []
    try:
        for name, module in model.named_modules():
            parameters = list(inspect.signature(module.forward).parameters)
            enter = functools.partial(_enter, seen, name, parameters)
            tables = next(module.parameters(), None) is None
            leave = functools.partial(_leave, seen, name, tables)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
        for (module_name, attribute), function in places.items():
            wrapper = _wrapper(seen, function)
            setattr(sys.modules[module_name], attribute, wrapper)
            put.append((sys.modules[module_name], attribute, wrapper, function))
        yield recording
    finally:
        for handle in handles:
            handle.remove()
        for module, attribute, wrapper, function in put:
            if getattr(module, attribute) is wrapper:
                setattr(module, attribute, function)
    if not recording and not recording.left_out:
        names = ", ".join(sorted({attribute for _, attribute in places}))
        recording.left_out.append(f"none of the functions was called: {names}")


def _enter(seen: _Watch, name: str, parameters: Any, _: Any, args: Any, kwargs: Any) -> None:
    seen.enter(name, parameters, args, kwargs)


def _leave(seen: _Watch, name: str, tables: bool, _: Any, __: Any, output: Any) -> None:
    seen.leave(name, tables, output)


def _wrapper(seen: _Watch, function: Any) -> Any:
    if isinstance(function, torch.nn.Module):
        original, target = function, function.forward
    else:
        original = target = function

    @functools.wraps(target)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return seen.rotated(original, args, kwargs)

    return wrapper
