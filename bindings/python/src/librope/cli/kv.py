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

    found: dict[str, Info] = {}
    refused: dict[str, str] = {}
    for file in map(str, _store.files(_store.place(arguments.path))):
        try:
            found[file] = kv.inspect(file)
        except (ValueError, OSError) as e:
            refused[file] = str(e)
    if arguments.json:
        told = {path: found[path].told() if path in found else {"why": refused[path]} for path in sorted({**found, **refused})}
        print(json.dumps(told, indent=1))
        return 2 if refused else 0
    if found:
        _show(arguments.path, found)
    for why in refused.values():
        print(f"librope kv inspect: {why}", file=sys.stderr)
    return 2 if refused else 0


def _show(where: str, found: dict[str, Info]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(where), title_justify="left", box=None)
    for name in ("file", "layer", "positions", "heads", "channels", "dtype", "keys", "RoPE"):
        table.add_column(name, overflow="fold", no_wrap=name != "file")
    common = len(os.path.commonprefix(list(found)).rpartition("/")[0]) + 1
    for path, info in found.items():
        heads = f"{info.heads} {info.layout}"
        dims = f"{info.head_dim}" + ("" if info.v_head_dim is None else f", v {info.v_head_dim}")
        table.add_row(escape(path[common:].removesuffix(".safetensors")), "-" if info.layer is None else str(info.layer), _positions(info), heads,
                      dims, info.dtype, info.keys, _short(info))  # fmt: skip
    console = Console()
    console.print(table)
    for short, rope in {_short(i): i.own_rope for i in found.values()}.items():
        fields = (f"{n} {'..' if isinstance(x, (list, tuple)) else x}" for n, x in rope.config.items())
        console.print(f"RoPE {short}: {escape(', '.join(fields))}", highlight=False, soft_wrap=True)


def _short(info: Info) -> str:
    """The beginning of the digest."""
    return info.digest.partition(":")[2][:8]


def _positions(info: Info) -> str:
    return f"{info.first_position} .. {info.first_position + info.tokens - 1}"


def _move(arguments: Any) -> int:
    if arguments.config is None and all(getattr(arguments, n) is None for n in ("to", "by", "keys", "frequency_set")):
        raise ValueError("move needs one of --to, --by, --config, --frequency-set and --keys")
    changes = {n: getattr(arguments, n) for n in ("to", "by", "job", "keys", "frequency_set", "block", "trust")}

    def job(**options: Any) -> list[Outcome]:
        return kv.move(arguments.path, arguments.target, rope=_rope(arguments), **changes, **options)

    outcomes, refused = _watched(arguments, job)
    if arguments.json:
        print(json.dumps([_told(o) for o in outcomes], indent=1))
        return 2 if refused else 0
    for o in refused:
        print(f"librope kv move: {o.why}", file=sys.stderr)
    counts = {what: [o for o in outcomes if o.what == what] for what in ("moved", "already", "refused")}
    bytes = sum(o.bytes for o in counts["moved"])
    print(f"{len(counts['moved'])} moved ({bytes:,} bytes), {len(counts['already'])} moved before, "
          f"{len(refused)} refused")  # fmt: skip
    return 2 if refused else 0


def _told(o: Outcome) -> dict[str, Any]:
    """An outcome, with what a move changes."""
    changed = ("first_position", "digest", "frequency_set", "keys")
    sides = {n: None if i is None else {c: getattr(i, c) for c in changed} for n, i in (("before", o.before), ("after", o.after))}
    return {"path": o.path, "what": o.what, "bytes": o.bytes, **sides, "why": o.why}


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
    for name in ("workers", "address"):
        if arguments.on is None and getattr(arguments, name) is not None:
            raise ValueError(f"--{name} needs --on dask or --on ray")
    if arguments.workers is not None and arguments.address is not None:
        raise ValueError("--workers and --address: a cluster that runs already has its own")
    workers = 2 if arguments.workers is None else arguments.workers
    if arguments.on == "dask":
        client = None
        if arguments.address is not None:
            from distributed import Client

            client = Client(arguments.address)
        engine = kv.on_dask(client, workers=workers)
    elif arguments.on == "ray":
        engine = kv.on_ray(arguments.address, workers=workers)
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
