"""librope check: measures how a tensor was rotated, and compares that with a config."""

from __future__ import annotations

from typing import Any

from .. import files, rope_of
from . import judge, report, rules, sample


def run(arguments: Any) -> int:
    from ... import Model

    before_all, _ = files.load(arguments.before)
    after_all, _ = files.load(arguments.after)
    before = files.pick(before_all, arguments.before, arguments.name)
    after = files.pick(after_all, arguments.after, arguments.name)
    rope = rope_of(arguments)
    positions = files.positions_of(arguments.positions, before_all)
    made = sample.make(before, after, positions, arguments.layout, rope)
    if not rope.inv_freq.any():
        raise ValueError("this kind of layer has no RoPE: there is nothing to check")
    kinds = rules.layer_kinds(Model(arguments.config), rope.config, arguments.seq_len)
    verdict = judge.judge(rope, made, kinds)
    if arguments.json:
        print(report.as_json(verdict, made, rope))
    else:
        report.show(verdict, made, rope)
    return judge.STATUS[verdict.answer]
