#!/usr/bin/env python3
"""The figures in the guides are those of their programs.

    figures_test.py FILE PROGRAM ..             compares the program's output with the file
    figures_test.py --write FILE PROGRAM ..     writes the file

Words must be the same. A number may differ by a half, because instruction sets round in different
places and the errors measured here are sums of roundings.
"""

import re
import subprocess
import sys

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def main() -> int:
    write = sys.argv[1] == "--write"
    path, *command = sys.argv[1 + write :]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, f"{command[-1]} failed", sep="\n")
        return 1
    if write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(done.stdout)
        return 0
    with open(path, encoding="utf-8") as file:
        want = file.read()
    if NUMBER.sub("0", want).split() != NUMBER.sub("0", done.stdout).split():
        print(done.stdout, f"has other words than {path}", sep="\n")
        return 1
    numbers = zip(NUMBER.findall(want), NUMBER.findall(done.stdout), strict=True)
    for old, new in ((float(a), float(b)) for a, b in numbers):
        if abs(new - old) > 0.5 * max(abs(new), abs(old)):
            print(done.stdout, f"{new:g}, where {path} says {old:g}", sep="\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
