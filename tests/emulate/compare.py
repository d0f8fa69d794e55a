"""What the emulated machines said (init has its lines), judged.

usage: compare.py SAID EXPECTED TITLE

Prints a line for each target and each test, then the verdict. Exit status: 0 if AVX-512 and AVX2
have the same bits, those of EXPECTED, and every test passed.
"""

import collections
import pathlib
import re
import sys

MACHINES = 3

said, expected, title = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
lines = said.read_text(errors="replace").splitlines()
hashes = collections.defaultdict(dict)  # target -> part -> hash
tests, details, problems = {}, [], []
for line in lines:
    if match := re.fullmatch(r"hash (\w+) (\S+) (\w{16})", line):
        hashes[match[1]][match[2]] = match[3]
    elif match := re.fullmatch(r"test (\S+) (OK|FAILED)", line):
        tests[match[1]] = match[2]
    elif match := re.fullmatch(r"said (.*)", line):
        details.append(match[1])
    elif match := re.fullmatch(r"exit (\w+) (\d+)(?: (\d+))?", line):
        if match[2] != "0":
            problems.append(f"{match[1]} ended with {match[2]}")
        if match[3] == "0":
            problems.append(f"{match[1]} ran no test")
if lines.count("end") != MACHINES:
    problems.append("a machine did not come to its end")
if not tests:
    problems.append("no test ran")
fused = {name: value for name, value, _ in map(str.split, expected.read_text().splitlines())}


def different(a, b):
    return sorted(part for part in a.keys() | b.keys() if a.get(part) != b.get(part))


def judge(what, a, b):
    parts = different(a, b)
    print(f"{what}: {len(a)} hashes, " + (f"NOT EQUAL: {', '.join(parts)}" if parts else "equal"))
    if parts or not a:
        problems.append(f"{what}: bits differ, or there are none")


print(title)
wide = sorted(target for target in hashes if target.startswith("AVX3"))
for target in wide:
    judge(f"{target} and AVX2", hashes[target], hashes["AVX2"])
if not wide:
    problems.append("no bits of AVX-512")
known = {part: value for part, value in hashes["AVX2"].items() if part in fused}
judge("AVX2 and bits/expected.txt", known, {part: fused[part] for part in known})
for name, result in sorted(tests.items()):
    print(f"{result:6} {name}")
    if result != "OK":
        problems.append(f"{name} failed")
for line in details:
    print("    " + line)
print("\n".join(problems) if problems else "the same bits, and every test passed")
sys.exit(1 if problems else 0)
