#!/usr/bin/env python3
"""What the ports of a CPU allow: the least cycles that a rotation's innermost loop takes.

    bench/ports.py CPU TARGET [OBJECT]      such as: znver2 AVX2, icelake-server AVX3

CPU is a name of llvm-mca's (Debian: llvm; LLVM_MCA=llvm-mca-19 knows newer CPUs), TARGET one of
LIBROPE_CPU_TARGET, OBJECT a folder of object files (default: those of build/bench). A line is a dtype and
a pairing: of the innermost loops of that kernel that write the most in a step, the one that takes the
fewest cycles, as llvm-mca's model of the CPU counts them. Memory, latency and everything beside the loop
come on top, so this is a limit, not a time. `sweep` is the loop that only multiplies.
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
    "f32 halves": (r"Natural<\S*F32, \(rope::ChannelOrder\)0, \(rope::Arithmetic\)0>", 4),
    "f32 interleaved": (r"PerChannel<\S*F32, \(rope::Arithmetic\)0>", 4),
    "bf16 halves": (r"EvenOdd<\S*RoundFromHalf>, \(rope::Arithmetic\)0>", 2),
    "bf16 interleaved": (r"PairWords<\S*RoundFromHalf>, \(rope::Arithmetic\)0>", 2),
    "with ties": (r"EvenOdd<\S*RoundByIntegers>, \(rope::Arithmetic\)0>", 2),
    "by AVX512-BF16": (r"EvenOdd<\S*RoundByInstruction>, \(rope::Arithmetic\)0>", 2),
    "also interleaved": (r"PairWords<\S*RoundByInstruction>, \(rope::Arithmetic\)0>", 2),
    "f16 halves": (r"Natural<\S*::F16, \(rope::ChannelOrder\)0, \(rope::Arithmetic\)0>", 2),
    "f16 interleaved": (r"PerChannel<\S*::F16, \(rope::Arithmetic\)0>", 2),
}
ONLY_AVX3 = ("by AVX512-BF16", "also interleaved")
WIDTHS = {"xmm": 16, "ymm": 32, "zmm": 64}
Instruction = collections.namedtuple("Instruction", "address text")


def functions(object_file: str) -> dict[str, list[Instruction]]:
    text = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", object_file],
                          check=True, capture_output=True, text=True).stdout  # fmt: skip
    found: dict[str, list[Instruction]] = {}
    body: list[Instruction] = []
    for line in text.splitlines():
        if name := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            body = found.setdefault(name[1], [])
        elif code := re.match(r"\s*([0-9a-f]+):\s+(.*?)\s*(?:#.*)?$", line):
            body.append(Instruction(int(code[1], 16), code[2]))
    return found


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
    code = {k: v for object in sorted(folder.glob("rotations_*.cc.o")) for k, v in functions(str(object)).items()}
    register = {"SSE4": "xmm", "SSSE3": "xmm"}.get(target, "zmm" if target.startswith("AVX3") else "ymm")
    v, width = "" if register == "xmm" else "v", WIDTHS[register]
    print(f"{NUMBERS} numbers, least cycles of {target} on {cpu} by llvm-mca\n")
    print("kernel             cycles   of the f32 sweep   bytes of a step   instructions")
    twice = "" if register == "xmm" else f", %{register}0"
    sweep = [f"{v}movups (%rdi), %{register}0", f"{v}mulps %{register}1, %{register}0{twice}",
             f"{v}movups %{register}0, (%rdi)"]  # fmt: skip
    steps = NUMBERS * 4 // width
    limit = cycles(cpu, sweep) * steps
    print(f"{'f32 sweep':18} {limit:6.0f}   {1:16.2f}   {width:15}   {len(sweep):12}")
    for name, (shape, size) in KERNELS.items():
        if name in ONLY_AVX3 and register != "zmm":
            continue
        best = None
        for symbol, body in code.items():
            if not re.search(rf"::N_{target}::RotateBlock<\S*::N_{target}::{shape}, false>", symbol):
                continue
            for loop in innermost_loops(body):
                written = bytes_written(loop)
                if written < width or any(text.startswith("call") for _, text in loop):
                    continue
                least = cycles(cpu, source(loop)) * NUMBERS * size / written
                if best is None or (-written, least) < (-best[1], best[0]):
                    best = (least, written, len(loop))
        if best is None:
            print(f"{name:18} no loop found: has shapes-inl.h changed?")
            return 1
        print(f"{name:18} {best[0]:6.0f}   {best[0] / limit:16.2f}   {best[1]:15}   {best[2]:12}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
