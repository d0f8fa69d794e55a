"""librope inspect: what a config.json or a GGUF file says about RoPE.

Exit status 0 well, 2 wrong use or input, and where the config leaves something open: what it tells is
shown, and no other command could go on with it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from . import UNTOLD, kinds
from .kinds import Kind
from .source import open_model

TWO_PI = 2 * math.pi


def describe(kind: Kind) -> dict[str, Any]:
    """Everything about one kind of layer, as plain values."""
    found: dict[str, Any] = {"layer_type": kind.name, "layers": kind.layers, "rule": kind.rule,
                             "config": kind.fields}  # fmt: skip
    found |= {
        "head_dim": kind.fields.get("head_dim"),
        "pairing": kind.fields.get("pairing"),
        "rounding": kind.fields.get("rounding", "float32"),
        "angle": kind.fields.get("angle", "float32"),
        "axes": kind.fields.get("axes", 1),
        "pairs_of_axes": pairs_of_axes(kind.fields),
        "mrope_interleaved": bool(kind.fields.get("mrope_interleaved")),
        "theta": kind.fields.get("theta"),
        "factor": kind.fields.get("factor"),
        "longest_sequence": kind.longest[1] if kind.longest else None,
        "longest_sequence_key": kind.longest[0] if kind.longest else None,
        "length_before_scaling": kind.original,
    }
    if kind.missing:
        found["missing"] = kind.missing
    rope = kind.rope
    if rope is None:
        return found
    turning = [abs(f) for f in rope.inv_freq_of(0) if f]
    seq_len = kind.fields.get("seq_len")
    return {
        **found,
        "rotary_dim": rope.rotary_dim,
        "rotary_offset": rope.rotary_offset,
        "turning_channels": kinds.turning(rope),
        "pairs": rope.pairs,
        "axes": rope.axes,
        "shortest_wavelength": TWO_PI / max(turning) if turning else None,
        "longest_wavelength": TWO_PI / min(turning) if turning else None,
        "pairs_that_stand_still": rope.pairs - int(kinds.moving(rope).sum()),
        "attention_factor": rope.attention_factor,
        "softmax_factor": rope.softmax_factor,
        "seq_len": seq_len,
        "changes_at": rope.next_change(seq_len) if seq_len else None,
    }


def pairs_of_axes(fields: dict[str, Any]) -> list[int] | None:
    """How many pairs each id turns; None: one id, or ids that turn the same pairs."""
    sections, axis = fields.get("mrope_section"), fields.get("pair_axis")
    if sections is not None:
        return list(sections)
    return None if axis is None else [axis.count(a) for a in range(fields["axes"])]


def _sections(told: dict[str, Any]) -> str:
    pairs = told["pairs_of_axes"]
    spread = ", by turns" if told["mrope_interleaved"] else ""
    return "-" if pairs is None else ", ".join(map(str, pairs)) + spread


def _factors(factors: list[float] | None) -> str:
    if factors is None:
        return "-"
    return f"{len(factors)} numbers, {min(factors):.4g} .. {max(factors):.4g}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _layers(kind: Kind, total: int) -> str:
    if total == 0:
        return "their number is not in the config"
    if len(kind.layers) == total:
        return f"all {total}"
    if len(kind.layers) > 8:
        return f"{len(kind.layers)} of {total}: {', '.join(map(str, kind.layers[:6]))}, ..."
    return ", ".join(map(str, kind.layers)) or "none (a tower or an indexer)"


def run(arguments: Any) -> int:
    found = kinds.read(arguments.config, arguments.seq_len, arguments.accept,
                       pairing=arguments.pairing, head_dim=arguments.head_dim)  # fmt: skip
    told = [describe(k) for k in found]
    notes = open_model(arguments.config, arguments.accept).notes
    if arguments.json:
        print(json.dumps({"kinds": told, "notes": notes}, indent=1, allow_nan=False))
    else:
        _show(arguments, found, told, notes)
    missing = sorted({name for k in found for name in k.missing})
    for name in missing:
        what, option = UNTOLD[name]
        print(f"librope inspect: the config does not tell {what}: say {option}", file=sys.stderr)
    return 2 if missing else 0


def _show(arguments: Any, found: list[Kind], told: list[dict[str, Any]], notes: Sequence[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(str(arguments.config)), title_justify="left")
    table.add_column("", style="bold", no_wrap=True)
    for kind in told:
        table.add_column(escape(kind["layer_type"]))

    def row(name: str, value: Any) -> None:
        table.add_row(name, *[escape(str(value(k))) for k in told])

    total = sum(len(k.layers) for k in found)
    table.add_row("layers", *[_layers(k, total) for k in found])
    row("rule", lambda k: "without RoPE" if k["rule"] == "nope" else k["rule"]
        + (" (not told: " + ", ".join(k["missing"]) + ")" if "missing" in k else ""))  # fmt: skip
    row("theta", lambda k: _number(k.get("theta")))
    if any(k["factor"] for k in told):
        row("factor of the scaling", lambda k: _number(k["factor"]))
    if any("freq_factors" in k["config"] for k in told):
        row("frequency factors", lambda k: _factors(k["config"].get("freq_factors")))
    row("head_dim", lambda k: _number(k.get("head_dim")))
    row("channels that turn", lambda k: ", ".join(
        f"{a} .. {b}" for a, b in k.get("turning_channels", ())) or "-")  # fmt: skip
    row("pairing", lambda k: k["pairing"] or "-")
    row("rounding", lambda k: k["rounding"])
    if any(k["angle"] != "float32" for k in told):
        row("angles", lambda k: k["angle"])
    row("ids per token", lambda k: _number(k.get("axes")))
    if any(k["pairs_of_axes"] for k in told):
        row("pairs of each id", _sections)
    row("wavelengths, tokens", lambda k: "-" if not k.get("longest_wavelength") else
        f"{_number(k['shortest_wavelength'])} .. {_number(k['longest_wavelength'])}")  # fmt: skip
    for key in dict.fromkeys(k["longest_sequence_key"] for k in told if k.get("longest_sequence_key")):
        row(key, lambda k, key=key: _number(
            k.get("longest_sequence") if k.get("longest_sequence_key") == key else None))  # fmt: skip
    row("length before scaling", lambda k: _number(k.get("length_before_scaling")))
    row("factor on cos and sin", lambda k: _number(k.get("attention_factor")))
    row("factor on the softmax scale", lambda k: _number(k.get("softmax_factor")))
    if any(k.get("seq_len") for k in told):
        row("shown for a length of", lambda k: _number(k.get("seq_len")))
        row("other frequencies from", lambda k: _number(k.get("changes_at")))
    Console().print(table)
    for note in notes:
        print(f"Note: {note}.")
