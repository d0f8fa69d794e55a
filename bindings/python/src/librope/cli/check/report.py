"""A verdict as text and as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from ... import Rope
from .judge import MATCHES, UNDECIDED, Explanation, Verdict
from .sample import Sample, in_words, place

_SHOWN = 8


def _finite(value: Any) -> Any:
    """Plain values for JSON, which has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _where(marks: Any, words: str, total: int) -> str:
    at = [int(i) for i in marks.nonzero()[0]]
    if len(at) == total:
        return f"all {total} {words}s"
    if len(at) == 1:
        return f"{words} {at[0]}"
    if at[-1] - at[0] + 1 == len(at):
        return f"{words}s {at[0]} .. {at[-1]}"
    more = ", ..." if len(at) > 6 else ""
    return f"{len(at)} of {total} {words}s ({', '.join(map(str, at[:6]))}{more})"


def broken(verdict: Verdict, sample: Sample) -> str:
    """Which tokens, heads and channels break the bound."""
    own = verdict.own
    b, t, n, d = sample.before.shape
    parts = [_where(own.tokens.any(0), "token", t), _where(own.heads, "head", n),
             _where(own.channels, "channel", d)]  # fmt: skip
    return ", ".join(parts)


def _explained(e: Explanation) -> dict[str, Any]:
    return {"words": e.words, "exact": e.exact, "differing_places": e.differing,
            "decided_at_position": e.decides,
            "fields": e.hypothesis.rope.config}  # fmt: skip


def as_json(verdict: Verdict, sample: Sample, rope: Rope) -> str:
    own = verdict.own
    worst = {**place(own.index, sample), "expected": own.expected, "found": own.found,
             "allowed": own.allowed, "error_by_allowed": own.worst}  # fmt: skip
    said = {
        "verdict": verdict.answer, "matches": verdict.answer == MATCHES, "worst": worst,
        "elements": int(sample.after.size), "elements_over": own.over,
        "over": broken(verdict, sample) if own.over else None,
        "nan": verdict.nan, "exact": verdict.exact,
        "not_told_apart_from": [_explained(r) for r in verdict.rivals],
        "explained": bool(verdict.explanations), "only_heads": verdict.only_heads,
        "explanations": [_explained(e) for e in verdict.explanations],
        "measured": verdict.measured,
    }  # fmt: skip
    return json.dumps(_finite(said), indent=1, allow_nan=False)


def _policies(exact: list[str]) -> str:
    return "; ".join(exact)


def _rules(console: Any, found: list[Explanation]) -> None:
    from rich.markup import escape

    for e in found[:_SHOWN]:
        bits = f" [dim](bit for bit: {e.exact[0]})[/]" if e.exact else ""
        console.print(f"  - {escape(', '.join(e.words))}{bits}", highlight=False)
    if len(found) > _SHOWN:
        console.print(f"  and {len(found) - _SHOWN} more (--json has them)", highlight=False)


def show(verdict: Verdict, sample: Sample, rope: Rope) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True)
    say = lambda text: console.print(text, highlight=False)  # noqa: E731
    own, b = verdict.own, sample.before.shape[0]
    at = in_words(place(own.index, sample), b)
    said = place(own.index, sample)["position"]
    if verdict.answer == MATCHES:
        say("[green]matches[/]: all "
            f"{sample.after.size:,} values are within the bound of {sample.dtype}, and no other rule "
            "explains them")  # fmt: skip
    elif verdict.answer == UNDECIDED:
        say("[yellow]cannot be told apart[/]: the config's rule fits, and so do others")
    elif verdict.nan:
        say(f"[red]does not match[/]: after is NaN at {in_words(verdict.nan, b)} "
            f"({verdict.nan['count']:,} such values)")  # fmt: skip
        return
    elif own.fits:
        say("[red]does not match[/]: the values are near, but their bits are those of another rule")
    else:
        say(f"[red]does not match[/]: {own.over:,} of {sample.after.size:,} values break the bound of "
            f"{sample.dtype}")  # fmt: skip
        say(f"  where: {broken(verdict, sample)}")
    share = "" if own.worst == 0 else f", {own.worst:.3g} of the allowed {own.allowed:.2g}"
    say(f"  worst: {at} (position {said}): {own.found:.6g}, expected {own.expected:.6g}{share}")
    if own.fits and verdict.answer != "does not match":
        rounding = rope.config.get("rounding", "float32")
        exact = _policies(verdict.exact) or "no rounding policy of librope"
        say(f"  bit for bit with: {exact} (the config's own: rounding {rounding})")
    if verdict.answer == UNDECIDED:
        say("these fit as well:")
        _rules(console, verdict.rivals)
        far = [r.decides for r in verdict.rivals]
        known = [d for d in far if d is not None]
        if known and max(known) > 0:
            say(f"tokens up to position {max(known):,} tell the config from "
                + ("all" if len(known) == len(far) else f"{len(known)}") + " of them")  # fmt: skip
        if len(known) < len(far):
            say("others need more than text positions can show: other ids per axis, or float32 tensors")
    if verdict.explanations:
        heads = verdict.only_heads
        whom = "" if heads is None else f" in head{'s' * (len(heads) > 1)} {', '.join(map(str, heads[:8]))}"
        say(f"it fits{whom}: " + ("" if len(verdict.explanations) == 1 else "(these cannot be told apart)"))
        _rules(console, verdict.explanations)
    elif verdict.answer not in (MATCHES, UNDECIDED):
        say("no rule that librope knows explains it")
    measured(verdict, rope, say)


def measured(verdict: Verdict, rope: Rope, say: Any) -> None:
    """What atan2 says about the pairs under the config's pairing."""
    m = verdict.measured
    if m["frequencies"] is None:
        say(f"measured: frequencies are not decidable: {m['why']}")
        return
    bands = m["frequencies"]
    inv = rope.inv_freq
    shown = sorted({0, len(bands) // 4, len(bands) // 2, len(bands) - 1})
    text = "; ".join(f"pair {i}: {bands[i][0]:.6g} .. {bands[i][1]:.6g} (config {inv[i]:.6g})" for i in shown)
    say(f"measured: radians per token, {text}; factor {m['factor']:.6g} "
        f"(config {rope.attention_factor:.6g})")  # fmt: skip
