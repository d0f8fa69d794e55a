"""A worker as the runner sees it: a process that answers, dies, or takes too long."""

import json
import os
import pathlib
import select
import subprocess
import threading

HERE = pathlib.Path(__file__).parent


class Died(Exception):
    """The worker is gone; the text says how."""


class Process:
    def __init__(self, worker, memory, libraries, cpus, log):
        self.worker, self.cpus = worker, cpus
        threads = len(cpus)
        environment = {
            **os.environ, **worker.environment, "PYTHONPATH": str(HERE.parent), "PYTHONDONTWRITEBYTECODE": "1",
            # Every library's own way to say how many threads. (NPROC: XLA's.)
            **{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                               "RAYON_NUM_THREADS", "NPROC")},
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log.open("a")
        self.process = subprocess.Popen(
            [worker.python, "-m", "peers.worker", str(memory.fd), *map(str, memory.shape), str(threads),
             str(libraries), *worker.modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1,
            pass_fds=[memory.fd], env=environment, cwd=HERE.parent,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus))

    def ask(self, do, timeout=600, **request):
        """The worker's answer. Raises Died, or RuntimeError with what the contender raised."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Died(self.death()) from None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            self.process.kill()
            self.process.wait()
            raise Died(f"no answer within {timeout} s")
        line = self.process.stdout.readline()
        if not line:
            raise Died(self.death())
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def death(self):
        code = self.process.wait()
        return f"died by signal {-code}" if code < 0 else f"exit status {code}"

    def close(self):
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        timer = threading.Timer(10, self.process.kill)
        timer.start()
        self.process.wait()
        timer.cancel()
        self.log.close()
