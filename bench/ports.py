#!/usr/bin/env python3
"""What the ports of a CPU allow: the least cycles that a rotation's innermost loop takes.

    bench/ports.py CPU TARGET [OBJECT]      such as: znver2 AVX2, icelake-server AVX3

CPU is a name of llvm-mca's (Debian: llvm; LLVM_MCA=llvm-mca-19 knows newer CPUs), TARGET one of
LIBROPE_CPU_TARGET, OBJECT a folder of object files (default: those of build/bench). A line is a dtype and
a pairing: of the innermost loops of that kernel that write the most in a step, the one that takes the
fewest cycles, as llvm-mca's model of the CPU counts them. Memory, latency and everything beside the loop
come on top, so this is a limit, not a time. `sweep` is the loop that only multiplies. `normed`: the norm
and the rotation in one pass; `sums` are its pass before, and that of `norm alone`, which writes what a
rotation then reads.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import subprocess
import sys

NUMBERS = 5120  # of a token of 32 + 8 heads of 128
FOLDER = "build/bench/CMakeFiles/librope_objects.dir/src/cpu"
# dtype and pairing: the kernel's Shape (shapes-inl.h), bytes of an element
KERNELS = {
    "f32 halves": (r"Natural<\S*F32, \(rope::ChannelOrder\)0", 4),
    "f32 interleaved": (r"PerChannel<\S*F32", 4),
    "bf16 halves": (r"EvenOdd<\S*RoundFromHalf>", 2),
    "bf16 interleaved": (r"PairWords<\S*RoundFromHalf>", 2),
    "with ties": (r"EvenOdd<\S*RoundedBy<\S*RoundByIntegers>", 2),
    "by AVX512-BF16": (r"EvenOdd<\S*RoundByInstruction>", 2),
    "also interleaved": (r"PairWords<\S*RoundByInstruction>", 2),
    "f16 halves": (r"Natural<\S*::F16, \(rope::ChannelOrder\)0", 2),
    "f16 interleaved": (r"PerChannel<\S*::F16", 2),
}
ONLY_AVX3 = ("by AVX512-BF16", "also interleaved")
# The passes of norms (norm-inl.h): the function, bytes of an element, and those of a step that only reads.
PASSES = {
    "f32 sums": (r"SumHeads<\S*::F32, \(rope::cpu::NormSum\)1>", 4, 32 * 4),
    "bf16 sums": (r"SumHeads<\S*RoundByIntegers>, \(rope::cpu::NormSum\)1>", 2, 32 * 2),
    "f32 norm alone": (r"NormHeads<\S*::F32, false, false>", 4, 0),
    "bf16 norm alone": (r"NormHeads<\S*RoundByIntegers>, false, false>", 2, 0),
    "by AVX512-BF16": (r"NormHeads<\S*RoundByInstruction>, false, false>", 2, 0),
}
WIDTHS = {"xmm": 16, "ymm": 32, "zmm": 64}
Instruction = collections.namedtuple("Instruction", "address text")


def symbols(object_file: pathlib.Path) -> dict[str, str]:
    """The functions of an object file: their names in C++, and those of the linker."""
    table = subprocess.run(["nm", "--defined-only", "-f", "posix", object_file], check=True, capture_output=True, text=True).stdout
    names = [line.split()[0] for line in table.splitlines() if line.split()[1] in "tTwW"]
    clear = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout
    return dict(zip(clear.splitlines(), names, strict=True))


def code_of(object_file: pathlib.Path, symbol: str) -> list[Instruction]:
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", f"--disassemble={symbol}", object_file],
                          check=True, capture_output=True, text=True).stdout  # fmt: skip
    body: list[Instruction] = []
    for line in text.splitlines():
        if code := re.match(r"\s*([0-9a-f]+):\s+(.*?)\s*(?:#.*)?$", line):
            body.append(Instruction(int(code[1], 16), code[2]))
    return body


def innermost_loops(body: list[Instruction]) -> list[list[Instruction]]:
    places = {instruction.address: i for i, instruction in enumerate(body)}
    loops = []
    for end, instruction in enumerate(body):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", instruction.text)
        start = places.get(int(jump[1], 16)) if jump else None
        if start is not None and start <= end:
            loops.append((start, end))
    return [body[a : b + 1] for a, b in loops
            if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in loops)]  # fmt: skip


def bytes_written(loop: list[Instruction]) -> int:
    total = 0
    for _, text in loop:
        mnemonic, _, operands = text.partition(" ")
        if not re.match(r"v?(mov|extract|cvtps2ph)", mnemonic) or not operands.rstrip().endswith(")"):
            continue
        if "(%rsp" in operands.rsplit(",", 3)[-1] or operands.rstrip().endswith("(%rsp)"):
            continue  # what the compiler keeps in memory
        source = re.search(r"%([xyz]mm)\d+", operands)
        if source:
            width = WIDTHS[source[1]]
            if mnemonic in ("movq", "vmovq", "movlps", "vmovlps", "movhps", "vmovhps"):
                width = 8
            total += width // 2 if "cvtps2ph" in mnemonic or "extract" in mnemonic else width
    return total


def cycles(cpu: str, loop: list[str]) -> float:
    iterations = 1000
    run = subprocess.run([os.environ.get("LLVM_MCA", "llvm-mca"), f"-mcpu={cpu}", f"-iterations={iterations}", "-instruction-info=false",
                          "-resource-pressure=false"], input="\n".join(loop), check=True, capture_output=True,
                         text=True)  # fmt: skip
    return float(re.search(r"Block RThroughput:\s+([\d.]+)", run.stdout)[1])


def source(loop: list[Instruction]) -> list[str]:
    return [re.sub(r"^(j\w+)\s.*", r"\1 0", text) for _, text in loop]


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    cpu, target = sys.argv[1:3]
    folder = pathlib.Path(sys.argv[3] if len(sys.argv) == 4 else FOLDER)
    objects = {o: symbols(o) for o in [*sorted(folder.glob("rotations_*.cc.o")), folder / "kernels.cc.o"]}
    register = {"SSE4": "xmm", "SSSE3": "xmm"}.get(target, "zmm" if target.startswith("AVX3") else "ymm")
    v, width = "" if register == "xmm" else "v", WIDTHS[register]
    print(f"{NUMBERS} numbers, least cycles of {target} on {cpu} by llvm-mca\n")
    print("kernel                   cycles   of the f32 sweep   bytes of a step   instructions")
    twice = "" if register == "xmm" else f", %{register}0"
    sweep = [f"{v}movups (%rdi), %{register}0", f"{v}mulps %{register}1, %{register}0{twice}",
             f"{v}movups %{register}0, (%rdi)"]  # fmt: skip
    steps = NUMBERS * 4 // width
    limit = cycles(cpu, sweep) * steps
    print(f"{'f32 sweep':24} {limit:6.0f}   {1:16.2f}   {width:15}   {len(sweep):12}")
    found = True

    def show(name: str, pattern: str, size: int, read: int) -> None:
        nonlocal found
        best = None
        places = [(o, name) for o, table in objects.items() for clear, name in table.items() if re.search(pattern, clear)]
        for place in places:
            for loop in innermost_loops(code_of(*place)):
                done = read or bytes_written(loop)
                vectors = sum(f"%{register}" in text for _, text in loop)
                if done < width or vectors == 0 or any(text.startswith("call") for _, text in loop):
                    continue
                least = cycles(cpu, source(loop)) * NUMBERS * size / done
                rank = (-vectors if read else -done, least)  # what only reads: the loop of whole steps
                if best is None or rank < best[0]:
                    best = (rank, least, done, len(loop))
        if best is None:
            print(f"{name:24} no loop found: has shapes-inl.h or norm-inl.h changed?")
            found = False
            return
        _, least, done, count = best
        print(f"{name:24} {least:6.0f}   {least / limit:16.2f}   {done:15}   {count:12}")

    for normed in (False, True):
        way = r"\S*::Normed<\S* 0> " if normed else r"\S*::AsTheyAre"
        for name, (shape, size) in KERNELS.items():
            if (name in ONLY_AVX3 and register != "zmm") or (normed and name in ("with ties", "f16 halves", "f16 interleaved")):
                continue
            show(name + (", normed" if normed else ""),
                 rf"::N_{target}::RotateBlock<\S*::N_{target}::{shape}, \(rope::Arithmetic\)0, {way}>, false>", size, 0)  # fmt: skip
    for name, (function, size, read) in PASSES.items():
        if name not in ONLY_AVX3 or register == "zmm":
            show(name, rf"::N_{target}::{function}", size, read)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
