"""librope bench: how long a call takes, beside the formula in NumPy and in eager torch."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import Rope
from .files import load  # noqa: F401  (bfloat16)


def _median(calls: list[Callable[[], Any]], budget: float = 0.02, rounds: int = 15) -> list[float]:
    counts = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        counts.append(max(1, int(budget / max(time.perf_counter() - start, 1e-7))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):  # interleaved, so that a slow moment hits all of them
        for t, call, n in zip(times, calls, counts, strict=True):
            start = time.perf_counter()
            for _ in range(n):
                call()
            t.append((time.perf_counter() - start) / n)
    return [statistics.median(t) for t in times]


def _formula(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    return q * cos + np.concatenate([-q[..., half:], q[..., :half]], -1) * sin


def measure(head_dim: int, heads: tuple[int, int], tokens: int, dtype: str) -> dict[str, float]:
    """Microseconds of a call that rotates q and k, each way."""
    rope = Rope(head_dim=head_dim, theta=500000.0, pairing="halves", layout="thd")
    if dtype == "bfloat16":
        import ml_dtypes

        kind: Any = ml_dtypes.bfloat16
    else:
        kind = np.dtype(dtype)
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((tokens, h, head_dim), np.float32).astype(kind) for h in heads)
    positions = np.arange(tokens)
    cos, sin = (t.astype(kind)[:, None] for t in rope.cos_sin(positions))
    out = (np.empty_like(q), np.empty_like(k))
    step = rope.bind(q, k, positions)
    ways: dict[str, Callable[[], Any]] = {
        "bind": step,
        "apply_qk_": lambda: rope.apply_qk_(q, k, positions),
        "apply_qk, out=": lambda: rope.apply_qk(q, k, positions, out=out),
        "NumPy formula": lambda: (_formula(q, cos, sin), _formula(k, cos, sin)),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        tq, tk = (torch.randn(1, tokens, h, head_dim).to(getattr(torch, dtype)).transpose(1, 2)
                  for h in heads)  # fmt: skip
        tc, ts = (torch.from_numpy(t).to(tq.dtype) for t in rope.cos_sin(positions))

        def eager() -> Any:
            half = head_dim // 2
            return [
                x * tc + torch.cat([-x[..., half:], x[..., :half]], -1) * ts for x in (tq, tk)
            ]

        ways["torch formula, 1 thread"] = eager
    times = _median(list(ways.values()))
    if "torch formula, 1 thread" in ways:
        torch.set_num_threads(threads)
    return {name: 1e6 * t for name, t in zip(ways, times, strict=True)}


def run(arguments: Any) -> int:
    rows = []
    for dtype in arguments.dtype:
        for tokens in arguments.tokens:
            times = measure(arguments.head_dim, tuple(arguments.heads), tokens, dtype)
            rows.append({"dtype": dtype, "tokens": tokens, "microseconds": times})
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    q, k = arguments.heads
    backend = Rope(head_dim=2, theta=1.0, pairing="halves").backend
    table = Table(title=f"{backend}, {q} + {k} heads x {arguments.head_dim}, median microseconds")
    table.add_column("tokens", justify="right")
    table.add_column("dtype")
    for name in rows[0]["microseconds"]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(f"{row['tokens']:,}", row["dtype"],
                      *[f"{t:,.2f}" for t in row["microseconds"].values()])  # fmt: skip
    Console().print(table)
    return 0
