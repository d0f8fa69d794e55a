"""librope check: grades a tensor that somebody rotated against the config.

Rotates the original in all the ways people get wrong, and tells which comes nearest.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import Rope
from . import files, rope_of

_THETAS = (10000.0, 50000.0, 100000.0, 500000.0, 1000000.0, 5000000.0, 10000000.0)
_STEP = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def candidates(rope: Rope) -> Iterator[tuple[list[str], dict[str, Any], dict[str, Any]]]:
    """(what is wrong, fields, call options), the config itself first."""
    config = rope.config
    own = config.get("pairing", "halves")
    pairings = [own] + [p for p in ("halves", "interleaved", "interleaved_to_halves") if p != own]
    shifts = (0, 1, -1)
    operations = ("forward", "inverse")
    frequencies: list[tuple[str, dict[str, Any]]] = [("", {})]
    plain = {k: v for k, v in config.items() if k in _PLAIN}
    if "scaling" in config and "theta" in config:
        frequencies.append(("without the scaling", {"replace": plain}))
    if "attention_factor" in config or rope.attention_factor != 1:
        frequencies.append(("without the attention factor", {"attention_factor": 1.0}))
    for theta in _THETAS:
        if theta != config.get("theta") and "inv_freq" not in config:
            frequencies.append((f"theta {theta:g}", {"theta": theta}))
    if rope.rotary_dim != rope.head_dim:
        frequencies.append(("all channels turned", {"rotary_dim": rope.head_dim, "rotary_offset": 0}))
    for (words, fields), pairing, shift, operation in itertools.product(
        frequencies, pairings, shifts, operations
    ):
        wrong = [words] if words else []
        if pairing != own:
            wrong.append(f"pairing {pairing}")
        if shift:
            wrong.append(f"positions {shift:+d}")
        if operation != "forward":
            wrong.append("the inverse rotation")
        if len(wrong) > 2:
            continue
        if "replace" in fields:
            yield wrong, {**fields["replace"], "pairing": pairing}, {"shift": shift, "operation": operation}
        else:
            yield wrong, {**config, **fields, "pairing": pairing}, {"shift": shift, "operation": operation}


_PLAIN = ("head_dim", "theta", "pairing", "rotary_dim", "rotary_offset", "axes", "mrope_section",
          "mrope_interleaved", "pair_axis")  # fmt: skip


def grade(rope: Rope, before: Any, after: Any, positions: Any, layout: str | None) -> list[dict[str, Any]]:
    """Candidates with their errors relative to the size of the tensor, best first."""
    dtype = after.dtype.name
    scale = float(np.sqrt(np.mean(np.square(before.astype(np.float64))))) or 1.0
    want = after.astype(np.float64)
    found: list[dict[str, Any]] = []
    for wrong, fields, options in candidates(rope):
        try:
            candidate = Rope.from_fields(fields)
            at = positions + options["shift"]
            out = candidate.apply(before, at, layout=layout, operation=options["operation"])
        except (ValueError, NotImplementedError):
            continue
        difference = np.abs(out.astype(np.float64) - want)
        found.append({
            "wrong": wrong, "max": float(difference.max(initial=0)) / scale,
            "rms": float(np.sqrt(np.mean(difference**2))) / scale, "fields": fields,
        })  # fmt: skip
    found.append({
        "wrong": ["it was not rotated at all"], "fields": {},
        "max": float(np.abs(before.astype(np.float64) - want).max(initial=0)) / scale,
        "rms": float(np.sqrt(np.mean((before.astype(np.float64) - want) ** 2))) / scale,
    })  # fmt: skip
    # Of equal fits the one with the fewest differences from the config.
    found.sort(key=lambda f: (round(f["rms"] / _STEP[dtype], 1), len(f["wrong"])))
    return found


def policies(rope: Rope, before: Any, after: Any, positions: Any, layout: str | None) -> list[str]:
    """The rounding and angle policies that give the tensor bit for bit."""
    exact = []
    for rounding, angle in itertools.product(("float32", "eager", "cos_sin"), ("float32", "exact")):
        out = rope.replace(rounding=rounding, angle=angle).apply(before, positions, layout=layout)
        if np.array_equal(out, after):
            exact.append(f"rounding {rounding}, angle {angle}")
    return exact


def run(arguments: Any) -> int:
    before_all, _ = files.load(arguments.before)
    after_all, _ = files.load(arguments.after)
    name = files.UNNAMED if arguments.before.endswith(".npy") else arguments.name
    other = files.UNNAMED if arguments.after.endswith(".npy") else arguments.name
    for path, tensors, n in ((arguments.before, before_all, name), (arguments.after, after_all, other)):
        if n not in tensors:
            raise ValueError(f"{path} has no tensor named {n}: {', '.join(tensors)}")
    before, after = before_all[name], after_all[other]
    if before.shape != after.shape or before.dtype != after.dtype:
        raise ValueError(
            f"{before.dtype} {before.shape} and {after.dtype} {after.shape} are not one tensor"
        )
    rope = rope_of(arguments)
    positions = files.positions_of(arguments.positions, before_all)
    found = grade(rope, before, after, positions, arguments.layout)
    own = next(f for f in found if not f["wrong"])
    # Six roundings of the dtype, and at long positions angles that differ in the last bit.
    limit = 6 * _STEP[after.dtype.name] + 1e-5
    matches = own["max"] <= limit
    exact = policies(rope, before, after, positions, arguments.layout) if matches else []
    best = own if matches else found[0]
    explained = best["rms"] <= limit
    if arguments.json:
        print(json.dumps({"matches": matches, "error": own["max"], "limit": limit, "exact": exact,
                          "explained": explained, "best": best, "next": found[:5]}, indent=1))  # fmt: skip
        return 0 if matches else 1
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if matches:
        console.print(f"[green]matches[/]: error {own['max']:.2g} of the tensor's size, "
                      f"{limit:.2g} allowed")  # fmt: skip
        console.print("bit for bit with: " + ("; ".join(exact) or "no rounding policy of librope"))
        return 0
    console.print(f"[red]does not match[/]: error {own['max']:.2g} of the tensor's size, "
                  f"{limit:.2g} allowed")  # fmt: skip
    if explained:
        console.print("it fits: " + " and ".join(best["wrong"]))
    else:
        console.print("nothing tried fits; the nearest:")
    table = Table("instead of the config", "rms error", "max error")
    for f in found[:5]:
        table.add_row(" and ".join(f["wrong"]) or "(the config)", f"{f['rms']:.2g}", f"{f['max']:.2g}")
    console.print(table)
    return 1
