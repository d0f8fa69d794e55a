"""librope diff: do two descriptions have the same RoPE?

Exit status 0 the same, 1 not the same, 2 wrong use or input.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from ..._replace import replacing
from . import compare, report, sources


def run(arguments: Any) -> int:
    if arguments.plot is not None and pathlib.Path(arguments.plot).suffix not in (".png", ".svg"):
        raise ValueError(f"--plot is {arguments.plot}, and must be a .png or .svg file")
    if not arguments.bound >= 0:
        raise ValueError(f"--bound is {arguments.bound}, and must be 0 or more radians")
    if arguments.length is not None and arguments.length < 1:
        raise ValueError(f"--length is {arguments.length}, and must be at least 1")
    given = {"pairing": arguments.pairing, "head_dim": arguments.head_dim}
    a, b = (sources.read(text, given, arguments.accept) for text in (arguments.a, arguments.b))
    if arguments.accept and not (a.accepted or b.accepted):
        raise ValueError("--accept: both are read without it")
    for name, value in given.items():
        if value is not None and not (a.leaves_open(name) or b.leaves_open(name)):
            raise ValueError(f"--{name.replace('_', '-')}: both tell it")
    found = compare.compare(a, b, arguments.bound, arguments.length, arguments.same)
    if arguments.plot is not None:
        from . import picture

        made = picture.figure(found)
        with replacing(arguments.plot) as file:
            suffix = pathlib.Path(arguments.plot).suffix[1:]
            made.savefig(file, format=suffix, dpi=110)
    if arguments.json:
        print(json.dumps(report.plain(found), indent=1, allow_nan=False))
    else:
        report.show(found)
    return 0 if found.same else 1
