"""A verdict as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

from rich.markup import escape

from ... import Rope
from .bits import PLACES
from .grade import IDENTICAL, RIGHT, WRONG, Grade, overall
from .inputs import Unchecked
from .judge import MATCHES, UNDECIDED, Explanation, Verdict
from .nearest import Near
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


def described(verdict: Verdict, sample: Sample) -> dict[str, Any]:
    """A verdict as plain values."""
    own = verdict.own
    worst, largest = (
        {**place(v.index, sample), "expected": v.expected, "found": v.found, "allowed": v.allowed, "error": v.error}
        for v in (own.at, own.largest)
    )
    worst["error_by_allowed"] = own.worst
    return {
        "verdict": verdict.answer, "matches": verdict.answer == MATCHES, "worst": worst, "largest_error": largest,
        "elements": int(sample.after.size), "elements_over": own.over,
        "over": broken(verdict, sample) if own.over else None,
        "nan": verdict.nan, "exact": verdict.exact,
        "not_told_apart_from": [_explained(r) for r in verdict.rivals],
        "explained": bool(verdict.explanations), "only_heads": verdict.only_heads,
        "only_tokens": verdict.only_tokens,
        "explanations": [_explained(e) for e in verdict.explanations],
        "measured": verdict.measured,
    }  # fmt: skip


def _graded(g: Grade) -> dict[str, Any]:
    found = {"grade": g.word, "written_as": g.written, **described(g.verdict, g.item.sample)}
    found["ulp"] = None if g.ulp is None else dataclasses.asdict(g.ulp)
    found["nearest"] = [
        {"words": n.words, "explained": n.explained, "distance": n.distance} for n in g.near
    ]
    found["not_tried"] = [{"words": list(words), "why": why} for words, why in g.untried.items()]
    return found


def as_json(grades: list[Grade], unchecked: list[Unchecked], alone: bool) -> str:
    """alone: of the one tensor of two files; else a list of tensors with their names."""
    said = _graded(grades[0])
    if not alone:
        answer = overall(grades, len(unchecked))
        tensors = [{"name": g.item.name, "layer_type": g.item.kind, **_graded(g)} for g in grades]
        said = {"verdict": answer, "matches": answer == MATCHES, "tensors": tensors,
                "unchecked": [dataclasses.asdict(u) for u in unchecked]}  # fmt: skip
    return json.dumps(_finite(said), indent=1, allow_nan=False)


def _policies(exact: list[str]) -> str:
    return "; ".join(exact)


def _rules(console: Any, found: list[Explanation]) -> None:
    for e in found[:_SHOWN]:
        bits = f" [dim](bit for bit: {e.exact[0]})[/]" if e.exact else ""
        if not e.exact and e.differing is not None and e.differing < PLACES:
            bits = f" [dim](bit for bit in all but {e.differing} places)[/]"
        console.print(f"  - {escape(', '.join(e.words))}{bits}", highlight=False)
    if len(found) > _SHOWN:
        console.print(f"  and {len(found) - _SHOWN} more (--json has them)", highlight=False)


def show(g: Grade, console: Any) -> None:
    """One tensor, in full."""
    _verdict(g, console)
    _untried([g], console)


def _untried(grades: list[Grade], console: Any) -> None:
    """The rules that could not be computed, those with one reason in one line."""
    reasons: dict[str, dict[str, None]] = {}
    for g in grades:
        for words, why in g.untried.items():
            reasons.setdefault(why, {})[", ".join(words) or "the config's own rule"] = None
    for why, rules in reasons.items():
        more = f" and {len(rules) - 1} more" if len(rules) > 1 else ""
        console.print(f"[yellow]not tried[/]: {escape(next(iter(rules)))}{more}: {escape(why)}", highlight=False)


def _verdict(g: Grade, console: Any) -> None:
    say = lambda text: console.print(text, highlight=False)  # noqa: E731
    verdict, sample, rope = g.verdict, g.item.sample, g.item.rope
    own, b = verdict.own, sample.before.shape[0]
    where = lambda v: f"{in_words(place(v.index, sample), b)} (position {place(v.index, sample)['position']})"  # noqa: E731
    if verdict.answer == MATCHES:
        say(f"[green]matches[/], {g.word}: all "
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
    if g.written is not None:
        say(f"  written as {g.written}, and by the config as {g.item.rope.pairing}: q·k is the same if both are")
    share = "" if own.worst == 0 else f", {_times(own.worst)} of the allowed {own.at.allowed:.2g}"
    say(f"  worst: {where(own.at)}: {own.at.found:.6g}, expected {own.at.expected:.6g}{share}")
    if not own.fits and own.largest.index != own.at.index:
        most = own.largest
        say(f"  largest error: {where(most)}: {most.found:.6g}, expected {most.expected:.6g}")
    if own.fits and verdict.answer != "does not match":
        rounding = rope.config.get("rounding", "float32")
        exact = _policies(verdict.exact) or "no rounding policy of librope"
        say(f"  bit for bit with: {exact} (the config's own: rounding {rounding})")
    if own.fits and g.ulp is not None:
        say(f"  in ulp: {_share(g.ulp.same)} of the values are the config's own bits, "
            f"{_share(g.ulp.within_one)} within 1 ulp, the farthest {g.ulp.largest:,}")  # fmt: skip
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
        parts = [_numbers(word, numbers) for word, numbers in
                 (("head", verdict.only_heads), ("token", verdict.only_tokens)) if numbers is not None]  # fmt: skip
        whom = f" in {', '.join(parts)}, and elsewhere the config" if parts else ""
        say(f"it fits{whom}: " + ("" if len(verdict.explanations) == 1 else "(these cannot be told apart)"))
        _rules(console, verdict.explanations)
    elif verdict.answer not in (MATCHES, UNDECIDED):
        say("no rule that librope knows explains it all")
        _nearest(g.near, say)
    measured(verdict, rope, say)


def measured(verdict: Verdict, rope: Rope, say: Any) -> None:
    """What atan2 says about the pairs under the config's pairing."""
    m = verdict.measured
    if not m:
        return
    if m["frequencies"] is None:
        say(f"measured: frequencies are not decidable: {m['why']}")
        return
    bands = m["frequencies"]
    inv = rope.inv_freq
    shown = sorted({0, len(bands) // 4, len(bands) // 2, len(bands) - 1})
    text = "; ".join(f"pair {i}: {bands[i][0]:.6g} .. {bands[i][1]:.6g} (config {inv[i]:.6g})" for i in shown)
    say(f"measured: radians per token, {text}; factor {m['factor']:.6g} "
        f"(config {rope.attention_factor:.6g})")  # fmt: skip


def _share(x: float) -> str:
    """A share in percent, which is 100 only for all."""
    return "all" if x == 1 else f"{min(100 * x, 99.99):.4g} %"


def _times(x: float) -> str:
    return f"{x:,.0f}" if 100 <= x < 1e9 else f"{x:.3g}"


def _numbers(word: str, numbers: list[int]) -> str:
    """head 2; tokens 16 .. 31."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"{word}s {numbers[0]} .. {numbers[-1]}"
    more = ", ..." if len(numbers) > 8 else ""
    return f"{word}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:8]))}{more}"


def _nearest(near: list[Near], say: Any) -> None:
    """The last is the config's own rule."""
    if not near:
        return
    if len(near) == 1:
        say("and none is nearer than the config's"
            + (": what is left may be noise, or a coarser dtype on the way" if near[0].distance < 0.3 else ""))  # fmt: skip
    for n in near:
        words = ", ".join(n.words) or "the config itself"
        say(f"  - {escape(words)}: explains {_share(n.explained)} of what turns, the error is "
            f"{n.distance:.2g} of the values")  # fmt: skip


def table(grades: list[Grade], unchecked: list[Unchecked], console: Any) -> None:
    """All tensors, those of which the same is said in one line; then one of each mistake in full, and what was
    not checked."""
    from rich import box
    from rich.table import Table

    lines: dict[tuple[str, ...], list[Grade]] = {}
    for g in grades:
        module = _parts(g.item.name)[0]
        lines.setdefault((_DIGITS.sub("*", module), g.item.kind, g.word, _why(g)), []).append(g)
    kinds = len({g.item.kind for g in grades}) > 1
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("tensors", *["layers"] * kinds, "verdict", "same bits", "error by allowed", "because"):
        shown.add_column(column, overflow="fold")
    for (_, kind, word, why), mine in lines.items():
        fits = all(g.verdict.own.fits for g in mine)
        same = [g.ulp.same for g in mine if g.ulp is not None]
        shown.add_row(escape(_merged(mine)), *[escape(kind)] * kinds, f"[{_COLOUR[word]}]{word}[/]",
                      _share(min(same)) if same and fits else "-",
                      _times(max(g.verdict.own.worst for g in mine)), escape(why))  # fmt: skip
    console.print(shown)
    mistakes: dict[str, Grade] = {}
    for g in grades:
        why = _why(g)
        if g.word not in (IDENTICAL, RIGHT) and (
            why not in mistakes or g.verdict.own.worst > mistakes[why].verdict.own.worst
        ):
            mistakes[why] = g
    for g in list(mistakes.values())[:3]:
        console.print(f"[bold]{escape(g.item.name)}[/], {escape(g.item.kind)}:", highlight=False)
        _verdict(g, console)
    if len(mistakes) > 3:
        console.print(f"and {len(mistakes) - 3} more mistakes (--json has them)", highlight=False)
    reasons: dict[str, list[str]] = {}
    for u in unchecked:
        reasons.setdefault(u.why, []).append(u.name)
    for why, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(f"[yellow]not checked[/]: {escape(names[0])}{more}: {escape(why)}", highlight=False)
    _untried(grades, console)


_DIGITS = re.compile(r"\d+")
_COLOUR = {IDENTICAL: "green", RIGHT: "green", WRONG: "red", UNDECIDED: "yellow"}


def _why(g: Grade) -> str:
    """In a few words."""
    v = g.verdict
    if g.written is not None and g.word != WRONG:
        return f"written as {g.written}: q·k is the same"
    if g.word == IDENTICAL:
        return v.exact[0]
    if g.word == UNDECIDED:
        return f"or {', '.join(v.rivals[0].words)}" + (f", and {len(v.rivals) - 1} more" if len(v.rivals) > 1 else "")
    if v.nan:
        return "NaN"
    if v.explanations:
        parts = [_numbers(w, n) for w, n in (("head", v.only_heads), ("token", v.only_tokens)) if n is not None]
        return ", ".join(v.explanations[0].words) + (f" ({', '.join(parts)})" if parts else "")
    if g.word == WRONG:
        best = g.near[0] if g.near and g.near[0].words else None
        return f"in part: {', '.join(best.words)}" if best else "no rule explains it"
    return ""


def _parts(name: str) -> tuple[str, str, str]:
    """Module, number of its call, and role of a name: layers.3.self_attn, 1, q."""
    module, _, role = name.rpartition(".")
    module, _, call = module.partition("@")
    return module, call or "0", role


def _merged(grades: list[Grade]) -> str:
    """The names of tensors as one: layers.{0 .. 31}.self_attn: q, k; 4 calls."""
    modules, calls, roles = (list(dict.fromkeys(x)) for x in zip(*(_parts(g.item.name) for g in grades), strict=True))
    roles.sort(key=lambda r: ("q", "k").index(r) if r in ("q", "k") else 2)
    pieces = zip(*(re.split(r"(\d+)", m) for m in modules), strict=True)
    merged = "".join(_range(list(dict.fromkeys(p))) for p in pieces)
    more = f"; {len(calls)} calls" if len(calls) > 1 else f"; call {calls[0]}" if calls[0] != "0" else ""
    return f"{merged}{': ' if merged else ''}{', '.join(roles)}{more}"


def _range(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    n = sorted(map(int, values))
    if n[-1] - n[0] + 1 == len(n) and len(n) > 2:
        return f"{{{n[0]} .. {n[-1]}}}"
    return "{" + ", ".join(map(str, n[:6])) + (", ..." if len(n) > 6 else "") + "}"
