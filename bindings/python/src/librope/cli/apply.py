"""librope apply: rotates the tensors of a file."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import Pool
from .._conventions import rule_of
from .._rules import axes_of, default_layout
from . import files, rope_of

_CHUNK = 64 << 20  # bytes between two steps of the progress bar


def run(arguments: Any) -> int:
    from rich.console import Console
    from rich.progress import Progress

    tensors, metadata = files.load(arguments.input)
    rope = rope_of(arguments)
    positions = files.positions_of(arguments.positions, tensors)
    names = arguments.name or [n for n in ("q", "k") if n in tensors]
    if arguments.name and arguments.input.endswith(".npy"):
        raise ValueError("--name is for .safetensors files: a .npy file holds one tensor")
    missing = [n for n in names if n not in tensors]
    if missing or not names:
        raise ValueError(f"{arguments.input} has no tensor named {missing[0] if missing else 'q or k'}: "
                         f"{', '.join(tensors)} (see --name)")  # fmt: skip
    files.check_suffix(arguments.output, arguments.input)
    for name in names:
        if tensors[name].ndim == 4 and not arguments.layout:
            raise ValueError(f"{name} has 4 axes: say --layout bshd or --layout bhsd")
    pool, by_distance = Pool(arguments.threads), rule_of(arguments.operation).by_distance
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for name in names:
            x = tensors[name]
            layout = arguments.layout or default_layout(x.ndim, name)
            if x.dtype == np.uint16:
                raise ValueError(f"{name} is uint16: bfloat16 needs a .safetensors file")
            axis = axes_of(layout)[1]
            out = np.empty(x.shape, x.dtype)
            tokens = x.shape[axis]
            step = max(1, int(_CHUNK * tokens / max(x.nbytes, 1)))
            task = progress.add_task(name, total=tokens)
            for start in range(0, tokens, step):
                part = (slice(None),) * axis + (slice(start, start + step),)
                if isinstance(positions, int):
                    at: Any = positions if by_distance else positions + start
                else:
                    at = positions[..., start : start + step]
                rope.apply(x[part], at, layout=layout, out=out[part],
                           operation=arguments.operation, pool=pool)  # fmt: skip
                progress.advance(task, min(step, tokens - start))
            tensors[name] = out
    files.save(arguments.output, tensors, metadata)
    console.print(f"{arguments.output}: {', '.join(names)} rotated ({rope.backend})")
    return 0
