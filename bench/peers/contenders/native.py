"""Contenders in C, C++ and Rust: the libraries that export native/peer.h."""

import pathlib

from ..protocol import Contender, Native

NOTES = {
    "librope": "positions given, no table",
    "librope_rows": "cos and sin of the tokens given, as most peers want them",
    "librope_prepared": "one layer of a prepared call: checks and rows were done before",
    "c": "bench/baseline.c, a table, -O3",
    "c_native": "the same, -O3 -march=native",
    "highway": "the plain loop over a table with Highway's vectors",
    "highway_sincos": "Highway's Sin and Cos for each head, as in gemma.cpp",
    "ggml": "ggml_rope_ext, a planned graph of two nodes, built with -march=native",
    "candle": "candle_nn's rope_thd and rope_i; the latter in [batch, head, token, dim]",
    "xnnpack": "xnn_*_rope_nthc; cos and sin in the dtype",
}
ARITHMETIC = {"candle": "steps", "xnnpack": "steps", "highway": "truncated"}
OWN_ANGLES = {"librope", "librope_prepared", "highway_sincos", "ggml"}


class NativeContender(Contender):
    def __init__(self, library, name, version):
        self.library, self.name, self.version = library, name, version
        self.note = NOTES.get(name, "")
        self.limit = name not in NOTES
        self.arithmetic = ARITHMETIC.get(name, "once")
        self.angles = "own" if name in OWN_ANGLES else "rows"

    def prepare(self, case, tensors):
        return self.library.prepare(self.name, case, tensors)


def contenders(_threads, argument):
    """argument: the library's path, and after a | what the table calls its version."""
    path, _, version = argument.partition("|")
    library = Native(pathlib.Path(path))
    return [NativeContender(library, name, version) for name in library.names()]
