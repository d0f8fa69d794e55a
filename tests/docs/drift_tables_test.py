#!/usr/bin/env python3
"""The tables of docs/serving.md on keys that move again and again are what the tests of it measure.

    drift_tables_test.py docs/serving.md [EMULATOR ..] REROTATE_TEST DRIFT_TEST

A figure of a table has two digits. What is measured may differ from it by a seventh, because
instruction sets without fused multiply-add round in other places.
"""

import re
import subprocess
import sys

ROWS = {1: "f32", 2: "f16", 3: "bf16", 4: "e4m3", 5: "e5m2", 6: "int8", 8: "Q8_0"}
TOLERANCE = 1 / 7


def read_tables(path: str) -> dict[str, dict[int, float]]:
    """For each dtype, the drift after so many moves."""
    tables: dict[str, dict[int, float]] = {}
    moves: list[int] = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
            if name == "moves":
                moves = [int(cell) for cell in cells]
            elif moves and name in ROWS.values() and len(cells) == len(moves):
                if name in tables:
                    raise ValueError(f"{path} has two rows of {name}")
                tables[name] = dict(zip(moves, map(float, cells), strict=True))
            elif not line.strip():
                moves = []
    return tables


def measure(command: list[str], test: str) -> dict[str, dict[int, float]]:
    """The same, as a test prints it."""
    done = subprocess.run([*command, f"--gtest_filter={test}"], capture_output=True, text=True)
    if done.returncode != 0 or "[  PASSED  ] 1 test" not in done.stdout:
        raise ValueError(f"{test}: {done.stdout}{done.stderr}")
    return {
        ROWS[int(dtype)]: {int(n): float(x) for x, n in re.findall(r"(\S+) after (\d+)", drifts)}
        for dtype, drifts in re.findall(r"^dtype (\d+):(.*)$", done.stdout, re.MULTILINE)
    }


def main() -> int:
    path, *command, rerotate, drift = sys.argv[1:]
    tables = read_tables(path)
    if set(tables) != set(ROWS.values()):
        print(f"{path} has rows of {sorted(tables)}, not of {sorted(ROWS.values())}")
        return 1
    walk = measure([*command, rerotate], "Rerotate.ManyMovesAddUpTheirRoundings")
    codes = measure([*command, drift], "Drift.OfKeysInEightBits")
    measured = {**walk, **codes}
    failed = 0
    for name, row in tables.items():
        if set(measured.get(name, {})) != set(row):
            print(f"{name}: measured is {measured.get(name)}, {path} says {row}")
            failed += 1
            continue
        for moves, figure in row.items():
            got = measured[name][moves]
            if abs(got - figure) > TOLERANCE * figure:
                print(f"{name} after {moves} moves: {got:g}, where {path} says {figure:g}")
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
