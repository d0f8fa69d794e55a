"""NumPy: RoPE as six lines, the way notebooks write it. Halves and interleaved, f32 only."""

import numpy

from ..protocol import Contender, Prepared, Unable


class Rotation(Prepared):
    def __init__(self, case, tensors):
        first, second = (
            (slice(0, 64), slice(64, 128)) if case.pairing == "halves" else (slice(0, None, 2), slice(1, None, 2)))
        self.parts = [(tensors.array(x), tensors.array(x + "_out")) for x in "qk"]
        self.first, self.second = first, second
        self.cos, self.sin = (tensors.array(name)[:, None, :] for name in ("cos", "sin"))

    def run(self):
        for x, y in self.parts:
            a, b = x[..., self.first], x[..., self.second]
            # The right-hand sides are complete before anything is written: in place is fine.
            y[..., self.first], y[..., self.second] = (
                a * self.cos - b * self.sin, b * self.cos + a * self.sin)


class Numpy(Contender):
    name = "numpy"
    version = f"numpy {numpy.__version__}"
    note = "six lines with temporaries"

    def noop(self):
        return numpy.negative(1.0)

    def prepare(self, case, tensors):
        if case.dtype != "f32":
            raise Unable("f32 only: its f16 is emulated, and it has no bf16")
        if case.threads > 1:
            raise Unable("one thread only")
        return Rotation(case, tensors)


def contenders(_threads, _argument):
    return [Numpy()]
