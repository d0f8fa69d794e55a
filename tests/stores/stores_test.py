#!/usr/bin/env python3
"""Whether calls store each byte once, and only where it belongs.

    tests/stores/stores_test.py PROGRAM                       all works, on every instruction set below
    tests/stores/stores_test.py PROGRAM --group G --target T  some of them

PROGRAM is store_works. It runs under valgrind's lackey, which prints the address and the size of each
store; among them stand what the program says: the bytes that a call has to store and how often, and
where the call begins and ends. Between these two

- each such byte must be stored exactly once, or as often as the work says, which then has a reason;
- no other byte may be stored, whoever's it is, but for those of the stack of the call.

Of a vector that is stored under a mask (vmaskmov) lackey prints the lanes that are. What is copied or
cleared by the C library's memcpy, memmove and memset is stored by functions of the program, which store
no byte twice: the C library's store the ends of most pieces twice, by vectors that overlap.

valgrind knows no instruction of AVX-512, so that the kernels of these instruction sets cannot run here.
They are the templates of AVX2, with vectors of another size, but for what stands in an #if of src/cpu and
in f16_arithmetic.cc. That they write nothing beside their outputs is what guarded_fused_test and others
say, which run on every instruction set; how often they store a byte nobody says.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

TARGETS = ("AVX2", "SSE4")
MORE_TARGETS = ("SSSE3", "SCALAR")  # minutes: with LIBROPE_TEST_LONG
SKIPPED = 77
STACK = 64 << 10  # bytes; include/librope/rope.h says how many of them a call needs
SHOWN = 3  # wrong bytes of a work
BLOCK = 1 << 20  # bytes of the trace, read at once
PAUSE = 0.005  # seconds: lackey writes line by line, and does not have to wake this script for each
SAID = re.compile(rb"\*\*\d+\*\* (.*)")
STORE = re.compile(rb"\n [SM] ([0-9a-f]+),(\d+)")
ONE_MORE = bytes([*range(1, 256), 255])  # for bytes.translate


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


class Piece(NamedTuple):
    """Memory of a call: its bytes, and how often each has been stored."""

    first: int
    size: int
    name: str
    counts: bytearray


class Wanted(NamedTuple):
    first: int
    size: int
    least: int
    most: int
    reason: str


class Work:
    """A call: what it has to store, and what it has stored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[Piece] = []
        self.wanted: list[Wanted] = []
        self.stack = range(0)
        self.stores: list[tuple[int, int, str]] = []  # address, bytes, address of the instruction
        self.wrong = 0  # bytes
        self.faults: list[str] = []  # of the first of them
        self.exceptions: collections.Counter[str] = collections.Counter()  # reason: bytes

    def say(self, line: str) -> None:
        """Takes a line of the program."""
        kind, _, rest = line.partition(" ")
        if kind == "piece":
            first, size, name = rest.split(" ", 2)
            self.pieces.append(Piece(int(first, 16), int(size), name, bytearray(int(size))))
        elif kind == "stores":
            first, size, least, most, reason = rest.split(" ", 4)
            self.wanted.append(Wanted(int(first, 16), int(size), int(least), int(most), reason))
        elif kind == "begin":
            frame = int(rest, 16)
            self.stack = range(frame - STACK, frame)
            self.pieces.sort()

    def piece(self, address: int) -> Piece:
        """The one that holds an address, or else lies before it."""
        return self.pieces[bisect.bisect(self.pieces, (address, sys.maxsize)) - 1]

    def take(self, trace: bytes) -> None:
        """Takes a part of the trace that is the call's."""
        for store in STORE.finditer(trace):
            at, size = int(store[1], 16), int(store[2])
            if at in self.stack and at + size <= self.stack.stop:
                continue
            by = trace.rfind(b"I  ", 0, store.start()) + 3
            self.stores.append((at, size, trace[by : trace.find(b",", by)].decode()))
            piece = self.piece(at)
            first = at - piece.first
            if not 0 <= first <= piece.size - size:
                self.fault(at, "is stored, but belongs to nothing")
                continue
            piece.counts[first : first + size] = piece.counts[first : first + size].translate(ONE_MORE)

    def fault(self, address: int, what: str) -> None:
        self.wrong += 1
        if self.wrong > SHOWN:
            return
        piece = self.piece(address)
        at = address - piece.first
        where = f"byte {at} of {piece.name}" if 0 <= at < piece.size else f"the byte at {address:#x}"
        by = [code for first, size, code in self.stores if first <= address < first + size]
        self.faults.append(f"{where} {what}" + (f", by {', '.join(by[:4])}" if by else ""))

    def check(self) -> None:
        """Compares both, when the call has ended."""
        for first, size, least, most, reason in self.wanted:
            piece = self.piece(first)
            at = first - piece.first
            counts = piece.counts[at : at + size]
            piece.counts[at : at + size] = bytes(size)  # it is accounted for
            if len(counts) != size:
                sys.exit(f"{self.name}: {size} bytes from {at} on are not in {piece.name}")
            if counts.count(1) == size:
                continue
            for i, count in enumerate(counts):
                if not least <= count <= most:
                    times = f"{least}" if least == most else f"{least} to {most}"
                    self.fault(first + i, f"is stored {count} times, not {times}")
                elif count != 1:
                    self.exceptions[reason] += 1
        for piece in self.pieces:
            if any(piece.counts):
                for i, count in enumerate(piece.counts):
                    if count != 0:
                        self.fault(piece.first + i, f"is stored {count} times, not at all")


def blocks(pipe: int) -> Iterator[bytes]:
    """The trace, in whole lines."""
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, BLOCK)
    rest = b""
    while block := os.read(pipe, BLOCK):
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield rest + whole + newline
            rest = tail
        else:
            rest += tail
        time.sleep(PAUSE)
    os.close(pipe)


def works(program: str, group: str | None, target: str) -> Iterator[Work]:
    """Runs the program, and yields one work after the other."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LIBROPE_")}
    # No function is looked up at its first call, which would store its address.
    environment |= {"LIBROPE_CPU_TARGET": target, "LD_BIND_NOW": "1"}
    trace, log = os.pipe()
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-fd={log}", program]
    with subprocess.Popen(
        command + ([group] if group else []), env=environment, pass_fds=[log], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT) as run:  # fmt: skip
        os.close(log)
        work = None
        running = False
        for block in blocks(trace):
            end = 0
            while (at := block.find(b"**", end)) >= 0:
                if running:
                    work.take(b"\n" + block[end:at])
                said = SAID.match(block, at)
                end = said.end()
                line = said[1].decode()
                kind, _, rest = line.partition(" ")
                if kind == "work":
                    work = Work(rest)
                elif kind == "end":
                    running = False
                    work.check()
                    yield work
                elif work is not None:
                    work.say(line)
                    running = kind == "begin"
            if running:
                work.take(b"\n" + block[end:])
        text = run.stdout.read().decode()
    if run.returncode != 0 or running:
        sys.exit(f"{program}, {target}: exit status {run.returncode}\n{text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--group")
    parser.add_argument("--target", choices=TARGETS + MORE_TARGETS)
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        skip("the instruction sets are those of x86-64")
    if shutil.which("valgrind") is None:
        skip("valgrind is not installed")
    targets = TARGETS + (MORE_TARGETS if os.environ.get("LIBROPE_TEST_LONG", "0") != "0" else ())
    wrong = 0
    for target in [options.target] if options.target else targets:
        made = stores = 0
        exceptions: dict[str, list[int]] = {}  # reason: works, bytes
        for work in works(options.program, options.group, target):
            made += 1
            stores += len(work.stores)
            wrong += work.wrong != 0
            for fault in work.faults:
                print(f"{target}, {work.name}: {fault}")
            if work.wrong > SHOWN:
                print(f"{target}, {work.name}: and {work.wrong - SHOWN} bytes more")
            for reason, count in work.exceptions.items():
                of_reason = exceptions.setdefault(reason, [0, 0])
                of_reason[0] += 1
                of_reason[1] += count
        print(f"{target}: {made} works, {stores} stores")
        for reason, (count, size) in sorted(exceptions.items()):
            print(f"    {size} bytes of {count} works not once: {reason}")
        if made == 0:
            sys.exit("no work was made")
    print(f"{wrong} works are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
