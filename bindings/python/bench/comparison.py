"""Ways to do the same thing in PyTorch, timed side by side in one process.

Each program beside this one has a function that times its ways for a number of tokens and a dtype; compare()
is its command line, and prints a table or JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import transformers
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import librope


def medians(calls, rounds=61, budget=0.002, limit=20.0):
    """Interleaved; samples short enough that a busy machine disturbs few of them; limit in seconds. CPU time of
    the process, so that waiting for a CPU does not count; of several threads, real time."""
    now = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    counts = []
    for call in calls:
        for _ in range(3):
            call()
        start = now()
        call()
        counts.append(max(1, int(budget / max(now() - start, 1e-7))))
    times = [[] for _ in calls]
    end = time.perf_counter() + limit
    for r in range(rounds):
        if r >= 7 and time.perf_counter() > end:
            break
        for i in [(r + j) % len(calls) for j in range(len(calls))]:
            start = now()
            for _ in range(counts[i]):
                calls[i]()
            times[i].append((now() - start) / counts[i])
    return [1e6 * statistics.median(t) for t in times]


def compare(measure, ratios, tokens):
    """measure(tokens, dtype, pool): microseconds by name. ratios: the columns behind them, header: a function
    of the microseconds of a row and of all by name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pool = librope.Pool(arguments.threads) if arguments.threads > 1 else None
    rows = []
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for count in arguments.tokens:
                rows.append((str(dtype)[6:], count, measure(count, dtype, pool)))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    title = f"torch {torch.__version__}, transformers {transformers.__version__}, {arguments.threads} thread(s)"
    table = Table("", title=title, box=SIMPLE_HEAD)
    for header in ("us", *ratios):
        table.add_column(header, justify="right")
    for dtype, count, times in rows:
        table.add_row(f"[bold]{dtype}, {count:,} tokens")
        for name, t in times.items():
            table.add_row(name, f"{t:,.1f}", *[f"{ratio(t, times):.2f}" for ratio in ratios.values()])
        table.add_section()
    Console().print(table)
