"""Measures librope and its peers: every case, all contenders in shuffled rounds.

    python -m peers.run --libraries DIR --out PREFIX [--cache DIR] [--quick] [--match REGEX]
                        [--peers NAME,..] [--threads N,..] [--tokens N,..] [--rounds N]
                        [--fact name=value ..] [--picture] [--resume]

scripts/bench --peers builds librope and calls this. --libraries: the folder of peer_core.so.
--peers: only these, beside what needs no package (ggml, candle, xnnpack, onnxruntime, jax, torch,
vllm, ipex, numpy; none). --match: only cases whose name matches, such as
in_place_bf16_halves_2048. --quick: a few small cases and rounds, to see that all of it works.
--picture: PREFIX.png as well. --resume: keeps the cases that PREFIX.csv has (of the same machine and
commit: the caller sees to it), and measures the rest.
"""

import argparse
import ctypes
import dataclasses
import math
import os
import pathlib
import random
import re
import statistics
import sys
import time

from . import install, table
from .process import Died, Process
from .protocol import (
    DTYPES, HEAD_DIM, K_HEADS, PAIRINGS, PLACES, Q_HEADS, TABLE_ROWS, THETA, Case, Core, Memory, Tensors, size_of,
)

TOKENS = (1, 16, 64, 2048, 8192, 65536)
LIBRARIES = ("librope", "plain_c", "highway", "limits")
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # half of an ulp of 1
# Distance of two results of one pair, in UNITs of the pair's length, that rounding alone explains.
# Each side once: 2, and f32 steps on the way; cut off instead of rounded: 3; cos, sin, two products
# and a sum in the dtype: each up to 1 more, of up to 1.5 lengths.
ROUNDING = {"once": 2.1, "truncated": 3.2, "steps": 8}
STEPS_F32 = 6
# What an angle formed in float steps may be off by, in radians per position (ggml's, which multiplies
# on from pair to pair, is off by 1.6 * 2^-24).
ANGLE = 4 * 2.0**-24


@dataclasses.dataclass
class Settings:
    rounds: int = 11
    min_time: float = 0.02  # seconds of one timing: enough to make clock and pipe negligible
    budget: float = 6  # seconds for all timings of a contender in one case; 3 rounds at least
    timeout: float = 600  # torch.compile takes its time


@dataclasses.dataclass
class Row:
    """One contender in one case."""

    case: Case
    contender: str
    times: list = dataclasses.field(default_factory=list)  # ns per token
    error: float | None = None  # in units of a rounding
    reason: str = ""  # why there are no times
    prepared: bool = False

    @property
    def median(self):
        return statistics.median(self.times) if self.times else None

    @property
    def quartiles(self):
        if len(self.times) < 4:
            return min(self.times), max(self.times)
        lower, _, upper = statistics.quantiles(self.times, n=4)
        return lower, upper


def allowed(contender, case, farthest):
    """The error that a right result may have, in units of a rounding."""
    units = STEPS_F32 if case.dtype == "f32" else ROUNDING[contender["arithmetic"]]
    if contender["angles"] == "own":
        units += ANGLE * farthest / UNIT[case.dtype]
    return units


def machine(libraries):
    """What the head of the table says beside the facts given."""
    library = ctypes.CDLL(str(pathlib.Path(libraries).resolve() / "peer_librope.so"))
    library.librope_backend.restype = ctypes.c_char_p
    caches = {}
    for index in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        kind = (index / "type").read_text().strip()
        if kind != "Instruction":
            caches[f"L{(index / 'level').read_text().strip()} {kind}"] = (index / "size").read_text().strip()
    return {"CPUs": str(len(os.sched_getaffinity(0))), "backend": library.librope_backend().decode(),
            "caches as the system tells": ", ".join(f"{name} {size}" for name, size in sorted(caches.items()))}


def available_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return math.inf


class Bench:
    """The workers of one number of threads, and what they share."""

    def __init__(self, libraries, workers, memory, threads, settings, logs):
        self.libraries, self.workers, self.memory, self.settings = libraries, workers, memory, settings
        self.core = Core(libraries)
        # The last CPUs: the first ones get most interrupts.
        self.cpus = sorted(os.sched_getaffinity(0))[-threads:]
        self.logs = logs
        self.random = random.Random(7)
        self.contenders, self.home, self.failures = {}, {}, {}
        self.processes = {}
        for worker in workers:
            self.start(worker)

    def start(self, worker):
        process = Process(worker, self.memory, self.libraries, self.cpus, self.logs / f"worker-{worker.name}.txt")
        self.processes[worker.name] = process
        try:
            hello = process.ask("hello", self.settings.timeout)
        except (Died, RuntimeError) as reason:
            self.failures[worker.name] = f"its worker {reason}"
            del self.processes[worker.name]
            return
        self.failures.update(hello["failures"])
        for contender in hello["contenders"]:
            self.contenders[contender["name"]] = contender
            self.home[contender["name"]] = worker

    def close(self):
        for process in self.processes.values():
            process.close()

    def ask(self, name, do, **request):
        process = self.processes.get(self.home[name].name)
        if process is None:
            raise Died("its worker is gone")
        return process.ask(do, self.settings.timeout, name=name, **request)

    # --- One case ---

    def measure(self, case):
        """Rows of all contenders."""
        rows = {name: Row(case, name) for name in self.contenders}
        need = 12 * case.tensor_bytes  # q, k, outputs, expected ones, and the frameworks' own
        if need > available_bytes():
            for row in rows.values():
                row.reason = f"needs {need / 2**30:.0f} GiB of memory"
            return list(rows.values())
        self.fill(case)
        self.prepare(case, rows, list(rows))
        self.check(case, rows)
        self.clock(case, rows)
        for process in self.processes.values():
            process.ask("release")
        self.memory.drop_tensors()
        return list(rows.values())

    def fill(self, case):
        core, at = self.core.library, self.memory.address
        core.peers_positions(at("positions"), case.tokens)
        if core.peers_rows(at("positions"), case.tokens, HEAD_DIM, THETA, at("cos"), at("sin")) != 0:
            raise RuntimeError("rope_cos_sin_fill failed")
        self.fill_tensors(case)

    def fill_tensors(self, case):
        for seed, (name, heads) in enumerate((("q", Q_HEADS), ("k", K_HEADS))):
            self.core.library.peers_fill(DTYPES[case.dtype], self.memory.address(name),
                                         case.tokens * heads * HEAD_DIM, seed)

    def prepare(self, case, rows, names):
        for name in names:
            try:
                reason = self.ask(name, "prepare", case=dataclasses.asdict(case))["unable"]
            except (Died, RuntimeError) as error:
                self.lose(case, rows, name, error)
            else:
                rows[name].reason, rows[name].prepared = reason, True

    def lose(self, case, rows, name, reason):
        """A contender has failed. If its worker died of it, a new one takes the others up again."""
        rows[name].reason, rows[name].times = str(reason), []
        if not isinstance(reason, Died):
            return
        worker = self.home[name]
        process = self.processes.pop(worker.name, None)
        if process is None:
            return
        process.close()
        self.start(worker)
        self.fill_tensors(case)
        self.prepare(case, rows, [other for other, row in rows.items()
                                  if self.home[other] is worker and row.prepared and not row.reason])

    def active(self, rows):
        return [name for name, row in rows.items() if not row.reason]

    def check(self, case, rows):
        """Compares what each contender makes of the same q and k with librope's result."""
        core, tensors = self.core.library, Tensors(case, self.memory)
        counts = {"q": case.tokens * Q_HEADS * HEAD_DIM, "k": case.tokens * K_HEADS * HEAD_DIM}
        expected = {}
        farthest = (ctypes.c_int64 * case.tokens).from_address(self.memory.address("positions"))[case.tokens - 1]
        step = max(1, case.tokens // 1024)
        order = sorted(self.active(rows), key=lambda name: name != "librope")
        for name in order:
            contender, row = self.contenders[name], rows[name]
            if contender["limit"] or row.reason:
                continue
            if case.in_place:
                self.fill_tensors(case)
            else:
                for x, count in counts.items():
                    ctypes.memset(self.memory.address(f"{x}_out"), 0, count * size_of(case.dtype))
            try:
                self.ask(name, "check")
            except (Died, RuntimeError) as reason:
                self.lose(case, rows, name, reason)
                continue
            if name == "librope":
                for x, count in counts.items():
                    size = count * size_of(case.dtype)
                    expected[x] = ctypes.create_string_buffer(size)
                    ctypes.memmove(expected[x], tensors.address(f"{x}_out"), size)
            row.error = max(
                core.peers_error(DTYPES[case.dtype], PAIRINGS[case.pairing], tensors.address(f"{x}_out"),
                                 ctypes.addressof(expected[x]), case.tokens, heads, HEAD_DIM, 64, step)
                for x, heads in (("q", Q_HEADS), ("k", K_HEADS))) / UNIT[case.dtype]
            if row.error > allowed(contender, case, farthest):
                row.reason = f"another result: off by {row.error:.3g} roundings of {case.dtype}"
        self.fill_tensors(case)

    def time(self, case, name, repeat):
        """Seconds of a repetition. In place the numbers are new each time: who cuts off digits has made
        zeros and subnormal numbers of them after some thousand rotations, which take others longer."""
        if case.in_place:
            self.fill_tensors(case)
        return self.ask(name, "time", repeat=repeat)["seconds"]

    def clock(self, case, rows):
        settings, repeat, rounds = self.settings, {}, {}
        for name in self.active(rows):
            try:
                seconds = self.time(case, name, 1)
                if seconds < 1:  # else the first one, cold, tells enough
                    seconds = self.time(case, name, 1)
                for _ in range(2):  # a first guess from a short timing is a bad one
                    repeat[name] = max(1, min(10**6, math.ceil(settings.min_time / max(seconds, 1e-9))))
                    if repeat[name] == 1:
                        break
                    seconds = self.time(case, name, max(1, repeat[name] // 4))
            except (Died, RuntimeError) as reason:
                self.lose(case, rows, name, reason)
                continue
            rounds[name] = max(3, min(settings.rounds, int(settings.budget / max(seconds * repeat[name], 1e-9))))
        for i in range(settings.rounds):
            # Those that are too slow for every round are spread over all of them.
            order = [name for name in self.active(rows)
                     if (i + 1) * rounds[name] // settings.rounds > i * rounds[name] // settings.rounds]
            self.random.shuffle(order)
            for name in order:
                if rows[name].reason:
                    continue
                try:
                    seconds = self.time(case, name, repeat[name])
                    rows[name].times.append(seconds * 1e9 / case.tokens)
                except (Died, RuntimeError) as reason:
                    self.lose(case, rows, name, reason)


def progress(case, rows):
    times = {row.contender: row.median for row in rows if row.times}
    text = ", ".join(f"{name} {value:.4g}" for name, value in sorted(times.items(), key=lambda item: item[1])[:6])
    print(f"{case.name}: {text}", file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="librope beside its peers")
    # Absolute: workers start in another folder.
    parser.add_argument("--libraries", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--out", required=True)
    parser.add_argument("--cache", type=pathlib.Path, default=install.default_cache())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--match", default=".")
    parser.add_argument("--peers", default="")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tokens")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--picture", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--module", action="append", default=[], help="for tests: one more module of contenders")
    parser.add_argument("--fact", action="append", default=[])
    return parser.parse_args()


def cases(options):
    tokens = (1, 64) if options.quick else TOKENS
    if options.tokens:
        tokens = [int(n) for n in options.tokens.split(",")]
    for threads in map(int, options.threads.split(",")):
        for place in PLACES:
            for dtype in ("f32", "bf16", "f16"):
                for pairing in PAIRINGS:
                    for n in tokens:
                        case = Case(threads, place, dtype, pairing, n)
                        if re.search(options.match, case.name):
                            yield case


def main():
    options = arguments()
    settings = Settings(rounds=3, min_time=0.002, budget=1) if options.quick else Settings()
    settings.rounds = options.rounds or settings.rounds
    names = set(filter(None, options.peers.split(",")))
    workers, absent = install.install(options.cache, lambda peer: not names or peer in names,
                                      lambda text: print(text, file=sys.stderr, flush=True))
    # librope and all else that is called from C share a process, the first.
    workers[0].modules[:0] = [f"native={options.libraries}/peer_{name}.so" for name in LIBRARIES]
    if options.module:
        workers.append(install.Worker("more", sys.executable, options.module))

    todo = list(cases(options))
    if not todo:
        sys.exit(f"peers: no case matches {options.match}")
    memory = Memory(max(c.tokens for c in todo), max(size_of(c.dtype) for c in todo))
    core = Core(options.libraries)
    if core.library.peers_rows(None, TABLE_ROWS, HEAD_DIM, THETA, memory.address("table_cos"),
                               memory.address("table_sin")) != 0:
        sys.exit("peers: rope_cos_sin_fill failed")
    started, load = time.time(), os.getloadavg()[0]
    facts = dict(fact.split("=", 1) for fact in options.fact) | machine(options.libraries)
    results = table.Results(options.out, facts, absent)
    if options.resume:
        done = results.resume()
        todo = [case for case in todo if tuple(map(str, dataclasses.astuple(case))) not in done]
    # With nothing left to measure the table still asks for who they are.
    for threads in sorted({case.threads for case in todo} or {1}):
        if threads > len(os.sched_getaffinity(0)):
            print(f"peers: {threads} threads need as many CPUs: left out", file=sys.stderr)
            continue
        bench = Bench(options.libraries, workers, memory, threads, settings, options.cache / "log")
        results.add_contenders(bench.contenders, bench.failures)
        for case in todo:
            if case.threads == threads:
                rows = bench.measure(case)
                progress(case, rows)
                results.add(rows)
        bench.close()
    results.finish(f"{load:.2f}, {os.getloadavg()[0]:.2f}", time.time() - started)
    if options.picture:
        install.picture(options.cache, options.out)
    print(f"written: {options.out}.md, {options.out}.csv", file=sys.stderr)


if __name__ == "__main__":
    main()
