"""What a function does with q, k, cos and sin, found by calling it on random numbers.

No list of model names: a function is recognised if it is one of the rotations below on random data,
and left alone if it is not.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

from .._conventions import channel_order, in_one_segment

HEADS, TOKENS, DIM = 3, 5, 16
MANY = 4096  # tokens, where few values tell how something rounds
_PAIRINGS = in_one_segment()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A recognised function."""

    pairing: str  # one of _PAIRINGS
    table: str  # what cos holds: "full_halves" c c, "full_interleaved" c0 c0 c1 c1, "split" c
    negated: bool  # turns backwards
    eager: bool  # rounds after every operation; else f32 arithmetic, rounded once
    promotes: bool  # bf16 q with f32 cos gives f32; else q's dtype
    partial: bool  # cos may be narrower than a head
    layouts: tuple[tuple[int, str], ...]  # by number of dimensions of cos; "" by unsqueeze_dim
    tensors: tuple[str, ...]  # parameters that are rotated
    cos: str
    sin: str
    unsqueeze_dim: int | None  # the default of that parameter, if there is one

    def __str__(self) -> str:
        turn = "backwards, " if self.negated else ""
        rounding = "eager" if self.eager else "float32"
        return f"{self.pairing}, {turn}{self.table} rows, {rounding} rounding"


class NotRecognised(Exception):
    pass


def signature_of(function: Any) -> inspect.Signature:
    return inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)


def _names(function: Any) -> list[str]:
    try:
        return list(signature_of(function).parameters)
    except (TypeError, ValueError):
        return []


def is_candidate(value: Any) -> bool:
    """A function of tensors, cos and sin. (Compiled functions and classes are not looked at.)"""
    if not (inspect.isfunction(value) or isinstance(value, torch.nn.Module)):
        return False
    names = _names(value)
    return "cos" in names and "sin" in names and names.index("cos") * names.index("sin") > 0


def why_no_candidate(name: str, value: Any) -> str:
    """Of a function that says in its name that it rotates, for the report; else ""."""
    if not inspect.isfunction(value) or not ("rotary" in name or "rotate_" in name):
        return ""
    names = _names(value)
    # What rotates has a second argument; rotate_half(x), which swaps channels, has not.
    return f"takes {', '.join(names)}: not tensors, then cos and sin" if len(names) > 1 else ""


def _roles(function: Any) -> tuple[tuple[str, ...], int | None]:
    parameters = list(signature_of(function).parameters.values())
    names = [p.name for p in parameters]
    tensors = tuple(names[: min(names.index("cos"), names.index("sin"))])
    if len(tensors) > 2:
        raise NotRecognised(f"rotates {len(tensors)} tensors: {', '.join(tensors)}")
    unsqueeze_dim = None
    for p in parameters:
        if p.name in (*tensors, "cos", "sin"):
            continue
        if p.name == "unsqueeze_dim" and isinstance(p.default, int):
            unsqueeze_dim = p.default
        elif p.kind is p.VAR_KEYWORD:
            continue
        elif p.default is p.empty:
            raise NotRecognised(f"needs {p.name}")
    return tensors, unsqueeze_dim


def table(values: torch.Tensor, form: str) -> torch.Tensor:
    if form == "full_halves":
        return torch.cat([values, values], -1)
    if form == "full_interleaved":
        return values.repeat_interleave(2, -1)
    return values


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairing: str, eager: bool = False
) -> torch.Tensor:
    """The rotation by cos and sin [.., pairs]; eager rounds to x's dtype after every operation."""
    width = 2 * cos.shape[-1]
    span, rest = x[..., :width], x[..., width:]
    order = channel_order(pairing)
    if order.reads == "halves":
        x0, x1 = span.chunk(2, -1)
    else:
        x0, x1 = span[..., 0::2], span[..., 1::2]
    if not eager and x.dtype != torch.float64:
        x0, x1, cos, sin = x0.float(), x1.float(), cos.float(), sin.float()
    y0, y1 = x0 * cos + -x1 * sin, x1 * cos + x0 * sin
    if order.writes == "halves":
        y = torch.cat([y0, y1], -1)
    else:
        y = torch.stack([y0, y1], -1).flatten(-2)
    return torch.cat([y.to(x.dtype), rest], -1)


_LAYOUTS = {  # by name: shape of q, shape of cos without its last axis, where heads are
    "bhsd": ((2, HEADS, TOKENS, DIM), (2, TOKENS), 1),
    "bshd": ((2, TOKENS, HEADS, DIM), (2, TOKENS), 2),
    "shd": ((TOKENS, HEADS, DIM), (TOKENS,), 1),
    "hsd": ((HEADS, TOKENS, DIM), (TOKENS,), 0),
}


class _Trial:
    """One call of the function, and what it may be compared with."""

    def __init__(
        self, layout: str, pairs: int, form: str, dtype: Any, table_dtype: Any, tokens: int = TOKENS
    ) -> None:
        generator = torch.Generator().manual_seed(11)
        shape, rows, self.heads = _LAYOUTS[layout]
        shape, rows = (tuple(tokens if n == TOKENS else n for n in sizes) for sizes in (shape, rows))
        random = dict(generator=generator, dtype=torch.float64)
        self.q = torch.randn(shape, **random).to(dtype)
        self.k = torch.randn(shape, **random).to(dtype)
        angles = torch.randn((*rows, pairs), **random)
        # Any two numbers, not a cosine and its sine: only the rotation itself fits them.
        self.cos, self.sin = angles.cos().to(table_dtype), (1.5 * angles).sin().to(table_dtype)
        self.tables = {"cos": table(self.cos, form), "sin": table(self.sin, form)}

    def call(self, function: Callable[..., Any], tensors: tuple[str, ...]) -> list[torch.Tensor]:
        values = dict(zip(tensors, (self.q.clone(), self.k.clone()), strict=False))
        with torch.no_grad():
            out = function(**values, **self.tables)
        results = [out] if isinstance(out, torch.Tensor) else list(out)
        if len(results) != len(tensors):
            raise ValueError("other number of results")
        return results

    def expected(self, pairing: str, negated: bool, eager: bool = False) -> list[torch.Tensor]:
        cos, sin = self.cos.unsqueeze(self.heads), self.sin.unsqueeze(self.heads)
        return [rotate(x, cos, -sin if negated else sin, pairing, eager) for x in (self.q, self.k)]

    def widened(self, pairing: str, negated: bool, dtype: Any) -> list[torch.Tensor]:
        """As PyTorch promotes, and then rounded to dtype."""
        self.q, self.k = self.q.to(self.cos.dtype), self.k.to(self.cos.dtype)
        return [x.to(dtype) for x in self.expected(pairing, negated, True)]


def _fits(results: list[torch.Tensor], expected: list[torch.Tensor], exact: bool = False) -> bool:
    for r, e in zip(results, expected, strict=False):
        if r.shape != e.shape:
            return False
        if not (torch.equal(r, e) if exact else torch.allclose(r.double(), e.double(), 1e-6, 1e-6)):
            return False
    return True


def _try(function: Any, trial: _Trial, tensors: tuple[str, ...]) -> list[torch.Tensor] | None:
    try:
        return trial.call(function, tensors)
    except Exception:  # noqa: BLE001  (a function of other shapes may raise anything)
        return None


def classify(function: Any) -> Kind:
    """The kind of a function, or NotRecognised."""
    tensors, unsqueeze_dim = _roles(function)
    found: dict[tuple[str, str, bool], dict[str, bool]] = {}
    for layout, form in itertools.product(_LAYOUTS, ("full_halves", "full_interleaved", "split")):
        if unsqueeze_dim is not None and _LAYOUTS[layout][2] != unsqueeze_dim:
            continue
        for pairs in (DIM // 2, DIM // 4):
            trial = _Trial(layout, pairs, form, torch.float64, torch.float64)
            results = _try(function, trial, tensors)
            if results is None:
                continue
            for pairing in _PAIRINGS:
                for negated in (False, True):
                    if _fits(results, trial.expected(pairing, negated)):
                        partial = found.setdefault((pairing, form, negated), {})
                        partial[layout] = partial.get(layout, False) or pairs < DIM // 2
    if not found:
        raise NotRecognised("is none of the rotations librope knows")
    if len({(p, n) for p, _, n in found}) > 1:
        raise NotRecognised(f"is ambiguous: {sorted(found)}")
    (pairing, form, negated), layouts = next(iter(found.items()))
    layout = next(iter(layouts))

    trial = _Trial(layout, DIM // 2, form, torch.bfloat16, torch.bfloat16)
    results = _try(function, trial, tensors)
    if results is None:
        raise NotRecognised("does not run in bfloat16")
    eager = _fits(results, trial.expected(pairing, negated, True), exact=True)
    if not eager and not _fits(results, trial.expected(pairing, negated), exact=True):
        raise NotRecognised("rounds bfloat16 in a way librope does not know")
    trial = _Trial(layout, DIM // 2, form, torch.float32, torch.float32)
    results = _try(function, trial, tensors)
    if results is None or not _fits(results, trial.expected(pairing, negated, True), exact=True):
        raise NotRecognised("computes float32 in a way librope does not: it rounds elsewhere, or in float64")
    trial = _Trial(layout, DIM // 2, form, torch.bfloat16, torch.float32, MANY)
    mixed = _try(function, trial, tensors)
    if mixed is None:
        raise NotRecognised("does not run with bfloat16 tensors and float32 cosines")
    if not _fits(mixed, trial.widened(pairing, negated, mixed[0].dtype), exact=True):
        raise NotRecognised("rounds bfloat16 beside float32 cosines in a way librope does not know")

    by_dimensions: dict[int, str] = {}
    for name in layouts:
        by_dimensions.setdefault(len(_LAYOUTS[name][1]) + 1, name)
    return Kind(
        pairing=pairing,
        table=form,
        negated=negated,
        eager=eager,
        promotes=mixed[0].dtype == torch.float32,
        partial=any(layouts.values()),
        layouts=tuple(sorted(by_dimensions.items())),
        tensors=tensors,
        cos="cos",
        sin="sin",
        unsqueeze_dim=unsqueeze_dim,
    )
