#!/usr/bin/env python3
"""How many instructions each of some fixed calls takes, beside the committed numbers.

    tests/instructions/instructions_test.py PROGRAM             prints the table; exit 1 if a number has moved
    tests/instructions/instructions_test.py PROGRAM --record    and writes counts.csv anew

PROGRAM is instruction_workloads. It runs under callgrind, once for each instruction set, so the numbers
are those of a simulated CPU: the same on every machine, whatever else it does. They are not times: a
change that takes more instructions can be faster. But what became slower by accident (a check done
twice, a copy, a loop that is no longer in vectors) shows here first. They hold for one compiler and
one architecture; with another the exit status is 77, which ctest counts as skipped.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
COUNTS = HERE / "counts.csv"
TARGETS = ("AVX2", "SSE4")  # what callgrind can run: it knows no AVX-512
TOLERANCE = 0.005  # of a number; libc's memcpy, which differs between its versions, has part of it
SKIPPED = 77


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def measure(program: str, target: str) -> tuple[str, dict[str, int]]:
    """The compiler that made the program, and the instructions of one repetition of each work."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LIBROPE_")}
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program],
            env=environment | {"LIBROPE_CPU_TARGET": target}, capture_output=True, text=True)  # fmt: skip
        if run.returncode != 0:
            sys.exit(f"{program}, {target}: exit status {run.returncode}\n{run.stdout}{run.stderr}")
        backend, compiler, repetitions = run.stdout.splitlines()
        if backend != f"cpu {target}":
            sys.exit(f"{program} runs on {backend!r}, not on {target}")
        counts = {}
        for dump in sorted(pathlib.Path(folder).iterdir(), key=lambda p: (len(p.name), p.name)):
            text = dump.read_text()
            trigger = re.search(r"^desc: Trigger: Client Request: (\S+)$", text, re.M)
            total = re.search(r"^(?:totals|summary): (\d+)$", text, re.M)
            if trigger and total:
                counts[trigger[1]] = round(int(total[1]) / int(repetitions))
        return f"g++ {compiler}", counts


def read() -> tuple[str, dict[str, dict[str, int]]]:
    """The compiler and the numbers of counts.csv: workload -> target -> instructions."""
    with COUNTS.open(newline="") as file:
        compiler = next(file).removeprefix("# ").strip()
        return compiler, {row["work"]: {t: int(row[t]) for t in TARGETS} for row in csv.DictReader(file)}


def write(compiler: str, counts: dict[str, dict[str, int]]) -> None:
    with COUNTS.open("w", newline="") as file:
        file.write(f"# {compiler}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["work", *TARGETS])
        writer.writerows([work, *(by[t] for t in TARGETS)] for work, by in counts.items())


def moved(before: int | None, now: int | None) -> bool:
    return before is None or now is None or abs(now - before) > TOLERANCE * before


def table(before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> int:
    """Prints every number, and what it was where it has moved; how many have."""
    count = 0
    print(f"{'work':40}" + "".join(f"{t:>10}{'before':>10}{'change':>9}" for t in TARGETS))
    for work in dict.fromkeys([*before, *now]):
        line = f"{work:40}"
        for target in TARGETS:
            old, new = before.get(work, {}).get(target), now.get(work, {}).get(target)
            line += f"{'-' if new is None else new:>10}"
            if not moved(old, new):
                line += " " * 19
                continue
            count += 1
            change = f"{new / old - 1:+.1%}" if old and new else "new" if new else "gone"
            line += f"{'-' if old is None else old:>10}{change:>9}"
        print(line)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        skip("the numbers are those of x86-64")
    if shutil.which("valgrind") is None:
        skip("valgrind is not installed")
    now: dict[str, dict[str, int]] = {}
    for target in TARGETS:
        compiler, counts = measure(options.program, target)
        for work, count in counts.items():
            now.setdefault(work, {})[target] = count
    known, before = read() if COUNTS.exists() else (compiler, {})
    if known != compiler and not options.record:
        skip(f"the numbers are those of {known}, and this is {compiler}")
    count = table(before, now)
    print(f"\n{len(now)} works on {len(TARGETS)} instruction sets, {count} numbers have moved"
          f" by more than {TOLERANCE:.1%} ({compiler})")
    if options.record:
        write(compiler, now)
        return 0
    if count:
        print("If that is meant, run it with --record, commit counts.csv, and say in the commit why.")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
