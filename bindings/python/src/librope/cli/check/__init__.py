"""librope check: measures how tensors were rotated, and compares that with a config."""

from __future__ import annotations

import pathlib
from typing import Any

from .. import model_of
from . import grade, inputs, judge, picture, report


def run(arguments: Any) -> int:
    if arguments.picture is not None:
        picture.check_suffix(arguments.picture)
    items, unchecked = inputs.read(model_of(arguments), arguments)
    grades = grade.grade(items)
    alone = arguments.after is not None and len(items) == 1
    if arguments.picture is not None:
        picture.draw(grades, arguments.picture, pathlib.Path(arguments.before).name)
    if arguments.json:
        print(report.as_json(grades, unchecked, alone))
    else:
        from rich.console import Console

        if len(items) == 1 and not unchecked:
            report.show(grades[0], Console(soft_wrap=True))
        else:
            report.table(grades, unchecked, Console())
    return judge.STATUS[grade.overall(grades, len(unchecked))]
