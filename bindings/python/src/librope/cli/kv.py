"""librope kv: what KV files say of themselves, moves of their keys, and whether they are well."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import Rope, kv
from ..kv import Info, Outcome
from ..kv._layers import joined
from . import fields_of, kind_of, model_of


def run(arguments: Any) -> int:
    return {"inspect": _inspect, "move": _move, "verify": _verify}[arguments.action](arguments)


def _inspect(arguments: Any) -> int:
    from ..kv import _store

    found = {str(file): kv.inspect(str(file)) for file in _store.files(_store.place(arguments.path))}
    if arguments.json:
        print(json.dumps({path: info.told() for path, info in found.items()}, indent=1))
        return 0
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(arguments.path), title_justify="left", box=None)
    for name in ("file", "layer", "positions", "heads", "channels", "dtype", "keys", "RoPE"):
        table.add_column(name, overflow="fold", no_wrap=name != "file")
    common = len(os.path.commonprefix(list(found)).rpartition("/")[0]) + 1
    for path, info in found.items():
        heads = f"{info.heads} {info.layout}"
        dims = f"{info.head_dim}" + ("" if info.v_head_dim is None else f", v {info.v_head_dim}")
        table.add_row(escape(path[common:].removesuffix(".safetensors")), "-" if info.layer is None else str(info.layer), _positions(info), heads,
                      dims, info.dtype, info.keys, info.digest.partition(":")[2][:8])  # fmt: skip
    Console().print(table)
    return 0


def _positions(info: Info) -> str:
    return f"{info.first_position} .. {info.first_position + info.tokens - 1}"


def _move(arguments: Any) -> int:
    changes = {n: getattr(arguments, n) for n in ("to", "by", "job", "keys", "frequency_set", "block", "trust")}

    def job(**options: Any) -> list[Outcome]:
        return kv.move(arguments.path, arguments.target, rope=_rope(arguments), **changes, **options)

    outcomes, refused = _watched(arguments, job)
    for o in refused:
        print(f"librope kv move: {o.why}", file=sys.stderr)
    counts = {what: [o for o in outcomes if o.what == what] for what in ("moved", "already", "refused")}
    bytes = sum(o.bytes for o in counts["moved"])
    print(f"{len(counts['moved'])} moved ({bytes:,} bytes), {len(counts['already'])} moved before, "
          f"{len(refused)} refused")  # fmt: skip
    return 2 if refused else 0


def _verify(arguments: Any) -> int:
    def job(**options: Any) -> list[Outcome]:
        return kv.verify(arguments.path, rope=_rope(arguments), **options)

    outcomes, refused = _watched(arguments, job)
    if arguments.json:
        print(json.dumps([{"path": o.path, "well": o.what == "well", "why": o.why} for o in outcomes], indent=1))
    else:
        for o in refused:
            print(o.why)
        print(f"{len(outcomes) - len(refused)} of {len(outcomes)} files are well")
    return 1 if refused else 0


def _rope(arguments: Any) -> Any:
    """Of all files, or by layers where they differ; of the kind that the options name, for files of its layers and
    those that say none."""
    named = arguments.layer is not None or arguments.layer_type is not None
    if arguments.config is None:
        for name in ("layer", "layer_type", "seq_len", "pairing", "head_dim", "angle"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs --config")
        return None
    model = model_of(arguments)
    layers = model.layers
    wanted = kind_of(model, arguments) if named or not layers else None
    ropes = {kind: _rope_of(model, kind, arguments) for kind in dict.fromkeys(layers) if wanted in (None, kind)}
    if wanted is not None and (wanted not in layers or set(layers) == {wanted}):
        return _rope_of(model, wanted, arguments)
    by_layer: dict[int | None, Rope] = {n: ropes[kind] for n, kind in enumerate(layers) if kind in ropes}
    return joined(by_layer) if wanted is None else {None: ropes[wanted], **by_layer}


def _rope_of(model: Any, kind: str, arguments: Any) -> Rope:
    fields = fields_of(model, kind, arguments)
    return Rope.from_fields(fields if arguments.angle is None else {**fields, "angle": arguments.angle})


def _watched(arguments: Any, job: Callable[..., list[Outcome]]) -> tuple[list[Outcome], list[Outcome]]:
    """The outcomes of a job, and those that were refused; files and bytes per second while it runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    engine: Any = None
    if arguments.on == "dask":
        client = None
        if arguments.address is not None:
            from distributed import Client

            client = Client(arguments.address)
        engine = kv.on_dask(client, workers=arguments.workers)
    elif arguments.on == "ray":
        engine = kv.on_ray(arguments.address, workers=arguments.workers)
    console = Console(stderr=True)
    columns = (TextColumn(arguments.action), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[speed]}"))  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task, done = progress.add_task(arguments.action, total=None, speed=""), 0

        def seen(outcome: Outcome, files: int) -> None:
            nonlocal done
            done += outcome.bytes
            elapsed = progress.tasks[0].elapsed or 0
            speed = f"{done / elapsed / 1e6:,.0f} MB/s" if elapsed else ""
            progress.update(task, total=files, advance=1, speed=speed)

        try:
            outcomes = job(engine=engine, seen=seen)
        except kv.Refused as e:
            outcomes = e.outcomes
    return outcomes, [o for o in outcomes if o.what == "refused"]
