"""One process of one environment: prepares and times its contenders when the runner asks.

    python -m peers.worker FD MAX_TOKENS MAX_SIZE THREADS LIBRARIES MODULE[=ARGUMENT] ..

FD is the shared memory, LIBRARIES the folder of peer_core.so; MODULEs are those of contenders/.
Answers each line of JSON on stdin with one on stdout.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback

from . import protocol


class Worker:
    def __init__(self, fd, max_tokens, max_size, threads, libraries, *modules):
        self.memory = protocol.Memory(int(max_tokens), int(max_size), int(fd))
        self.threads = int(threads)
        self.core = protocol.Core(libraries)
        self.contenders, self.failures, self.prepared = {}, {}, {}
        for text in modules:
            name, _, argument = text.partition("=")
            try:
                module = importlib.import_module(f"peers.contenders.{name}")
                for contender in module.contenders(self.threads, argument):
                    self.contenders[contender.name] = contender
            except Exception as error:  # the table says so
                traceback.print_exc()
                self.failures[argument.partition("|")[2] or name] = protocol.one_line(error)

    def hello(self):
        return {"contenders": [self.describe(c) for c in self.contenders.values()],
                "failures": self.failures}

    def describe(self, contender):
        noop, seconds = contender.noop, None
        if noop is not None:
            seconds = min(self.clock(noop, 1000) for _ in range(5)) / 1000
        fields = ("name", "version", "arithmetic", "angles", "limit", "note")
        return {field: getattr(contender, field) for field in fields} | {"noop": seconds}

    def prepare(self, case, name):
        case = protocol.Case(**case)
        try:
            self.prepared[name] = self.contenders[name].prepare(case, protocol.Tensors(case, self.memory))
        except protocol.Unable as reason:
            return {"unable": str(reason)}
        return {"unable": ""}

    def check(self, name):
        """One run, whose results are then in q_out and k_out."""
        self.prepared[name].run()
        self.prepared[name].export()
        self.prepared[name].forget()
        return {}

    def clock(self, run, repeat):
        """Seconds of `repeat` calls from Python."""
        now = time.perf_counter if self.threads > 1 else time.process_time
        start = now()
        for _ in range(repeat):
            run()
        return now() - start

    def time(self, name, repeat):
        prepared = self.prepared[name]
        gc.disable()
        if isinstance(prepared, protocol.NativePrepared):
            seconds = self.core.time(prepared, repeat, self.threads > 1)
        else:
            seconds = self.clock(prepared.run, repeat)
        gc.enable()
        prepared.forget()
        self.rest()
        return {"seconds": seconds / repeat}

    def rest(self):
        """Waits until threads that spin for more work (OpenMP's, a session's) have gone to sleep:
        the next contender needs their CPU."""
        if self.threads == 1:
            return
        for _ in range(200):
            before = time.process_time()
            time.sleep(0.002)
            if time.process_time() - before < 0.0003:
                return

    def release(self):
        for prepared in self.prepared.values():
            prepared.release()
        self.prepared = {}
        gc.collect()
        return {}


def main(arguments):
    # Libraries print; the answers go their own way.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(*arguments)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": protocol.one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
