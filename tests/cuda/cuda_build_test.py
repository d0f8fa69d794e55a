"""Checks of a library built with CUDA that need no GPU.

The resources of every kernel (from ptxas), its machine code (from cuobjdump and nvdisasm, if they
are beside nvcc or in PATH), and the symbols, dependencies and size of librope.so against the same
library without CUDA.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import unittest

MAX_REGISTERS = 64  # two blocks of 512 threads on a multiprocessor
MAX_GROWTH = 6 << 20
FORMS = ("halves", "adjacent", "to-halves", "to-interleaved", "halves/2", "adjacent/2", "single")
WIDE_FORMS = FORMS[:4]
COMMON = 3 * len(FORMS) * 2  # of every dtype
FAMILY = COMMON + len(FORMS)  # and of NATIVE, which is for f16 alone
# Of calls that pass through shared memory, of each dtype: wide vectors, elements; the same for
# outputs that differ from their input; and heads that threads hold, of 2, 4 and 8 vectors.
STAGED = 3 * 7
HELD = 3 * 4  # the first of these
GRADIENTS = 3 * 2  # of each dtype: in steps, and of heads that are cut into columns
PLAIN = 3 * 2  # of each dtype, halves and adjacent
KERNELS = 2 * (FAMILY + PLAIN) + STAGED + GRADIENTS  # without and with `fused`

options = None


def run(*command, env=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


def kernel_name(symbol):
    """A readable name, and the form of an apply kernel, else None."""
    if match := re.search(r"ApplyStagedILi(\d+)E", symbol):
        index = int(match[1])
        if index >= HELD:
            dtype, vectors = ("f32", "f16", "bf16")[index % 3], 2 << (index - HELD) // 3
            return f"staged {dtype} held {vectors}", None
        dtype = ("f32", "f16", "bf16")[index // 2 % 3]
        return f"staged {dtype}{' single' * (index % 2)}{' converting' * (index // 6)}", None
    if match := re.search(r"ApplyGradientsILi(\d+)E", symbol):
        return f"gradients {('f32', 'f16', 'bf16')[int(match[1]) - 1]}", None
    if match := re.search(r"ApplyGradientColumnsILi(\d+)E", symbol):
        return f"gradients {('f32', 'f16', 'bf16')[int(match[1]) - 1]} in columns", None
    match = re.search(r"Apply(Plain)?(Fused)?ILi(\d+)E", symbol)
    if match is None:
        return ("fill angles" if "FillRowsILb1" in symbol else "fill"), None
    fused = "fused " * bool(match[2]) + "plain " * bool(match[1])
    index = int(match[3])
    if index >= COMMON:
        return f"{fused}f16 {FORMS[index - COMMON]} native", FORMS[index - COMMON]
    form = FORMS[index // 2 % len(FORMS)]
    dtype = ("f32", "f16", "bf16")[index // (2 * len(FORMS))]
    return f"{fused}{dtype} {form}{' eager' if index % 2 else ''}", form


class Resources(unittest.TestCase):
    def test_registers_and_spills(self):
        with open(options.report, encoding="utf-8") as file:
            text = file.read()
        entry = re.compile(
            r"Compiling entry function '(\S+)' for '(\S+)'.*?"
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
            r"Used (\d+) registers",
            re.S,
        )
        most = {}
        count = {}
        for symbol, target, stack, stores, loads, registers in entry.findall(text):
            name = f"{kernel_name(symbol)[0]} on {target}"
            self.assertEqual((stack, stores, loads), ("0", "0", "0"), f"{name}: stack or spills")
            limit = MAX_REGISTERS
            if name.startswith("fused") and target == "sm_120":
                limit = 2 * MAX_REGISTERS  # one block
            elif "held" in name or "columns" in name:
                limit = 128  # two blocks of 256 threads
            self.assertLessEqual(int(registers), limit, name)
            most[target] = max(most.get(target, 0), int(registers))
            count[target] = count.get(target, 0) + 1
        self.assertTrue(count)
        for target, number in sorted(count.items()):
            self.assertEqual(number, KERNELS + 2, target)
            print(f"{target}: {number} kernels, at most {most[target]} registers, no spills")


class MachineCode(unittest.TestCase):
    def test_instructions(self):
        path = os.path.dirname(os.path.realpath(options.nvcc)) + os.pathsep + os.environ["PATH"]
        cuobjdump = shutil.which("cuobjdump", path=path)
        if cuobjdump is None or shutil.which("nvdisasm", path=path) is None:
            self.skipTest("cuobjdump and nvdisasm are not there: scripts/setup-cuda --tools")
        sass = run(cuobjdump, "-sass", options.object, env={**os.environ, "PATH": path})
        forbidden = re.compile(r"(MUFU|DMUL|DFMA|DADD|F2F|LDL|STL)\b|FTZ|\b(LD|ST)(\.E|\s)")
        target, body, checked = None, {}, 0
        symbol = None
        for line in sass.splitlines():
            if match := re.search(r"arch = (sm_\d+)", line):
                target = match[1]
            elif match := re.search(r"Function : (\S+)", line):
                symbol = match[1]
                body[target, symbol] = []
            elif symbol and (match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line)):
                body[target, symbol].append(match[1])
        for (target, symbol), code in body.items():
            name, form = kernel_name(symbol)
            if name == "fill angles":
                continue  # angles under EXACT are computed in f64
            text = "\n".join(code)
            if "held" in name or "columns" in name:  # arithmetic.h begins with these, and rounds
                text = re.sub(r"\bMUFU\.(RCP|RSQ)\b", "", text)
            if name.startswith("staged"):  # REROTATE multiplies rows of f32 angles in f64
                text = re.sub(r"\b(DMUL|DADD|DFMA|F2F\.F(32\.F64|64\.F32))\b", "", text)
            found = forbidden.search(text)
            if found and found[0] == "F2F" and target == "sm_75":
                found = None  # its only conversion between f16 and f32
            self.assertIsNone(found, f"{name} on {target}: {found and found[0]}")
            checked += 1
            if form not in WIDE_FORMS:
                continue
            self.assert_wide(text, f"{name} on {target}")
        self.assertGreaterEqual(checked, KERNELS + 1)
        print(f"{checked} kernels: no MUFU, f64, local memory, FTZ or generic access")

    def assert_wide(self, text, name):
        """Four 16-byte loads, all before the first store; 16-byte stores and rows."""
        loads = [m.start() for m in re.finditer(r"LDG\.E\.128", text)]
        stores = [m.start() for m in re.finditer(r"STG\.E", text)]
        self.assertGreaterEqual(len(loads), 4, name)
        self.assertTrue(re.search(r"LDS(\.U)?\.128", text), f"{name}: rows in 16 bytes")
        self.assertTrue(stores and not re.search(r"STG\.E(?!\.128)", text), f"{name}: stores")
        barrier = text.index("BAR.SYNC")
        self.assertLess(max(loads), barrier, name)
        self.assertGreater(min(stores), barrier, name)


class Library(unittest.TestCase):
    def symbols(self, library):
        lines = run("nm", "-D", "--defined-only", library).splitlines()
        return sorted(line.split()[-1] for line in lines)

    def test_same_symbols(self):
        self.assertEqual(self.symbols(options.library), self.symbols(options.without))

    def test_needs_no_cuda_library(self):
        needed = run("readelf", "-d", options.library)
        self.assertNotRegex(needed, r"NEEDED.*libcuda")
        undefined = run("nm", "-D", "--undefined-only", options.library)
        self.assertNotRegex(undefined, r"\bcu[A-Z]|\bcuda")

    def test_size(self):
        sizes = [os.path.getsize(os.path.realpath(p)) for p in (options.library, options.without)]
        print(f"librope.so: {sizes[0]} bytes, without CUDA {sizes[1]}: + {sizes[0] - sizes[1]}")
        self.assertLess(sizes[0] - sizes[1], MAX_GROWTH)


def main():
    global options
    parser = argparse.ArgumentParser()
    for name in ("library", "without", "object", "report", "nvcc"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    unittest.main(argv=[sys.argv[0], "-v"])


if __name__ == "__main__":
    main()
