"""What librope diff found, for people and for programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compare import Comparison, Finding, Group, Span, ranges


def verdict(found: Comparison) -> str:
    """One sentence."""
    differ = [g for g in found.groups if not g.same]
    if found.same:
        exact = all(not s.gap.any() for g in found.groups for s in g.spans)
        angles = "every frequency has the same bits" if exact else (
            f"no angle is off by more than {found.bound:g} up to position {found.length - 1:,}, but for rounding")  # fmt: skip
        return f"the same RoPE: {angles}"
    layers = sorted(n for g in differ for n in g.layers)
    if layers:
        total = sum(len(g.layers) for g in found.groups)
        where = "in all layers" if len(layers) == total else f"in layers {ranges(np.array(layers))}"
    else:
        where = ", ".join(dict.fromkeys(g.kinds[0] for g in differ)) or "in what they describe"
    return f"not the same RoPE: {where}"


def title(group: Group) -> str:
    a, b = group.kinds
    kinds = a if a == b else f"{a} / {b}"
    return f"{kinds}, layers {ranges(np.array(group.layers))}" if group.layers else kinds


def show(found: Comparison) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for letter, source in (("A", found.a), ("B", found.b)):
        told = f", {source.told}" if source.told else ""
        console.print(f"[bold]{letter}[/] {escape(str(source.name))} ({source.dialect}{escape(told)})", highlight=False)
    for group in [*found.groups, Group([], ("", ""), findings=found.findings)]:
        if not group.findings:
            continue
        name = title(group) if group.kinds[0] else "the model"
        table = Table(title=escape(name), title_justify="left", box=SIMPLE_HEAD)
        table.add_column("", style="bold")
        for column in ("A", "B", ""):
            table.add_column(column, overflow="fold")
        for f in group.findings:
            style = "red" if f.counts else None
            table.add_row(*(escape(text) for text in (f.what, *f.values, f.said)), style=style)
        console.print(table)
    for note in found.notes:
        console.print(f"Note: {escape(note)}", highlight=False)
    colour = "green" if found.same else "red"
    console.print(f"[bold {colour}]{escape(verdict(found))}[/]", highlight=False)


def plain(found: Comparison) -> dict[str, Any]:
    """As values of JSON."""
    return {
        "same": found.same,
        "verdict": verdict(found),
        "compared": found.what,
        "bound": found.bound,
        "length": found.length,
        "a": _source(found.a),
        "b": _source(found.b),
        "findings": [_finding(f) for f in found.findings],
        "groups": [_group(g) for g in found.groups],
        "notes": found.notes,
    }


def _source(source: Any) -> dict[str, Any]:
    digests: dict[str, str | None] = {}
    for same in ("rotation", "angles", "bits"):
        try:
            digests[same] = source.model.digest(same=same)
        except ValueError:  # something is left to the caller
            digests[same] = None
    return {"name": source.name, "path": str(source.path), "dialect": source.dialect,
            "model_type": source.told, "digests": digests}  # fmt: skip


def _finding(f: Finding) -> dict[str, Any]:
    return {"what": f.what, "a": f.values[0], "b": f.values[1], "counts": f.counts, "said": f.said}


def _group(g: Group) -> dict[str, Any]:
    return {"layers": g.layers, "kind_a": g.kinds[0], "kind_b": g.kinds[1], "same": g.same,
            "findings": [_finding(f) for f in g.findings], "lengths": [_span(s) for s in g.spans]}  # fmt: skip


def _span(s: Span) -> dict[str, Any]:
    beyond = s.exceeds[s.differs]
    return {"from": s.first, "below": s.below, "pairs_that_differ": s.differs.tolist(),
            "pairs_off_by_rounding": s.rounding.tolist(),
            "from_position": int(beyond.min()) if len(beyond) else None,
            "largest_angle_off": s.largest}  # fmt: skip
