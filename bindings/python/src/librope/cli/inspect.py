"""librope inspect: what a config.json says about RoPE."""

from __future__ import annotations

import json
import math
from typing import Any

from .. import Model, Rope

TWO_PI = 2 * math.pi


def describe(model: Model, layer_type: str, seq_len: int | None) -> dict[str, Any]:
    """Everything about one kind of layer, as plain values."""
    config = model.config(layer_type)
    layers = [i for i, t in enumerate(model.layers) if t == layer_type]
    found: dict[str, Any] = {"layer_type": layer_type, "layers": layers}
    if config.get("scaling") == "nope":
        return {**found, "rule": "nope", "config": config}
    needs_length = config.get("scaling") in ("dynamic", "longrope")
    trained = config.get("original_max_position_embeddings") or config.get(
        "max_position_embeddings"
    )
    if needs_length:
        config["seq_len"] = seq_len or trained
    missing = [n for n in ("head_dim", "pairing") if n not in config]
    if missing:
        return {**found, "rule": config.get("scaling", "default"), "missing": missing,
                "config": config}  # fmt: skip
    rope = Rope.from_fields(config)
    turning = [abs(f) for f in rope.inv_freq_of(0) if f]
    return {
        **found,
        "rule": config.get("scaling", "default"),
        "head_dim": rope.head_dim,
        "rotary_dim": rope.rotary_dim,
        "rotary_offset": rope.rotary_offset,
        "pairs": rope.pairs,
        "pairing": config["pairing"],
        "rounding": config.get("rounding", "float32"),
        "axes": rope.axes,
        "theta": config.get("theta"),
        "shortest_wavelength": TWO_PI / max(turning) if turning else None,
        "longest_wavelength": TWO_PI / min(turning) if turning else None,
        "pairs_that_stand_still": rope.pairs - len(turning),
        "attention_factor": rope.attention_factor,
        "softmax_factor": rope.softmax_factor,
        "seq_len": config.get("seq_len"),
        "changes_at": rope.next_change(config.get("seq_len") or 0) if needs_length else None,
        "trained_length": trained,
        "config": config,
    }


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ranges(layers: list[int], total: int) -> str:
    if len(layers) == total and total:
        return f"all {total}"
    if len(layers) > 8:
        return f"{len(layers)} of {total}: {', '.join(map(str, layers[:6]))}, ..."
    return ", ".join(map(str, layers)) or "none (a tower or an indexer)"


def run(arguments: Any) -> int:
    model = Model(arguments.config)
    kinds = [describe(model, t, arguments.seq_len) for t in model.layer_types]
    if arguments.json:
        print(json.dumps({"kinds": kinds}, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(arguments.config), title_justify="left")
    table.add_column("", style="bold")
    for kind in kinds:
        table.add_column(kind["layer_type"])
    total = len(model.layers)

    def row(name: str, value: Any) -> None:
        table.add_row(name, *[str(value(k)) for k in kinds])

    row("layers", lambda k: _ranges(k["layers"], total))
    row("rule", lambda k: k["rule"] + (" (needs " + ", ".join(k["missing"]) + ")"
                                       if "missing" in k else ""))  # fmt: skip
    row("theta", lambda k: _number(k.get("theta")))
    row("head_dim", lambda k: _number(k.get("head_dim")))
    row("channels that turn", lambda k: "-" if "pairs" not in k else
        f"{k['rotary_offset']} .. {k['rotary_offset'] + k['rotary_dim'] - 1}")  # fmt: skip
    row("pairing", lambda k: k.get("pairing", "-"))
    row("rounding", lambda k: k.get("rounding", "-"))
    row("ids per token", lambda k: _number(k.get("axes")))
    row("wavelengths, tokens", lambda k: "-" if not k.get("longest_wavelength") else
        f"{_number(k['shortest_wavelength'])} .. {_number(k['longest_wavelength'])}")  # fmt: skip
    row("trained length", lambda k: _number(k.get("trained_length")))
    row("factor on cos and sin", lambda k: _number(k.get("attention_factor")))
    row("factor on the softmax scale", lambda k: _number(k.get("softmax_factor")))
    if any(k.get("seq_len") for k in kinds):
        row("shown for a length of", lambda k: _number(k.get("seq_len")))
        row("other frequencies from", lambda k: _number(k.get("changes_at")))
    Console().print(table)
    return 0
