"""QK norm, RoPE, and keys and values into a paged cache: one call beside what engines do in PyTorch, on the CPU.

    python bench/norms_into_cache.py [--threads N] [--tokens N ..] [--json]

A layer of a Qwen3 8B between its projections and its attention: heads of one packed projection
[tokens, 32 + 8 + 8, 128]; q and k are normed and turned, and k and v go to slots of pages [pages, 16, 8, 128]
that do not lie in a row. librope does that in one call, q in place; prepared: one layer of a call that is prepared
once for all layers. "a table" are the formulas of vLLM's and
SGLang's code in PyTorch, eager and by Inductor: an RMS norm in float32, rounded to the dtype and multiplied by
the weight; rows of a table of cosines and sines in the dtype, by position; index_copy_ by slot. Its q is a new
tensor, so that nothing is copied back. "copy" is neither norm nor rotation: k and v by index_copy_, and q onto
itself by copy_. Medians of interleaved rounds, in microseconds; before they are timed, all ways have written
the same q, keys and values within BOUND.
"""

from __future__ import annotations

import torch
from comparison import compare, medians
from paged_layer import DIM, PagedLayer, rotate, rows, store

import librope

EPS = 1e-6

# Of a difference, in lengths of its pair. A unit is the error of one rounding. bf16: the normed value is on the
# edge between two for one sum of squares and not for the other (2), so is its product (2 more); a cosine, a
# product and a sum in the dtype (3), and librope's one rounding; 0.5 for what comes of two errors together.
# f32: each sum of 128 squares is off by up to 128, half of it in the root (64, twice); six steps around it and
# two of the rotation (8, twice); 6 for what comes of two together.
BOUND = {torch.float32: (64 * 2 + 8 * 2 + 6) * 2.0**-24, torch.bfloat16: (2 + 2 + 3 + 1 + 0.5) * 2.0**-8}


class Layer(PagedLayer):
    def __init__(self, tokens, dtype, pool):
        super().__init__(tokens, dtype, pool, 1000000.0)
        self.weights = [(1 + torch.randn(DIM) / 4).to(dtype) for _ in "qk"]
        self.norms = librope.Norms(*[librope.Norm(w, kind="rms", eps=EPS, rounding="eager") for w in self.weights])
        self.call = self.rope.prepare_qk(
            self.q, self.k, self.positions, v=self.v, cache=self.cache, norms=self.norms, out=(self.q, None), pool=pool
        )
        self.memory = librope.KVCache(self.k_cache, self.v_cache, layout="nhd")
        torch._dynamo.reset()  # one shape at a time, none dynamic
        self.step_compiled = torch.compile(_norm_rotate_store, dynamic=False, fullgraph=True)

    def fused(self):
        self.rope.apply_qk_(
            self.q, self.k, self.positions, v=self.v, cache=self.cache, norms=self.norms, pool=self.pool
        )
        return self.q

    def prepared(self):
        self.call.apply_qk_(self.q, self.k, v=self.v, cache=self.memory, norms=self.norms)
        return self.q

    def eager(self):
        return _norm_rotate_store(*self.arguments())

    def compiled(self):
        return self.step_compiled(*self.arguments())

    def arguments(self):
        return (self.q, self.k, self.v, *self.weights, self.positions, self.table,
                self.k_cache, self.v_cache, self.slots)  # fmt: skip

    def pairs(self, way):
        """What a way has written: q and keys in float32 as pairs [.., 2, DIM / 2], and values."""
        q, k, v = self.result(way)
        return *(x.float().unflatten(-1, (2, DIM // 2)) for x in (q, k)), v


def _norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def _norm_rotate_store(q, k, v, q_weight, k_weight, positions, table, k_cache, v_cache, slots):
    cos, sin = rows(table, positions)
    store(rotate(_norm(k, k_weight), cos, sin), v, k_cache, v_cache, slots)
    return rotate(_norm(q, q_weight), cos, sin)


def _check(name, ours, theirs, bound):
    for what, x, y in zip(("q", "keys"), ours, theirs):
        excess = (x - y).abs() - bound * x.norm(dim=-2, keepdim=True)
        if not (excess <= 0).all():  # nor NaN
            raise AssertionError(f"{name}: other {what} than librope's")
    if not torch.equal(ours[2], theirs[2]):
        raise AssertionError(f"{name}: other values in the cache than librope's")


def measure(tokens, dtype, pool):
    layer = Layer(tokens, dtype, pool)
    ways = {
        "librope, one call": layer.fused,
        "librope, prepared": layer.prepared,
        "a table, eager": layer.eager,
        "a table, torch.compile": layer.compiled,
        "copy": layer.copy,
    }
    ours = layer.pairs(layer.fused)
    if torch.count_nonzero(ours[2].flatten(2).any(-1)) != tokens:
        raise AssertionError("librope has not stored as many tokens as there are")
    for name, way in ways.items():
        if name != "copy":
            _check(name, ours, layer.pairs(way), BOUND[dtype])
    return dict(zip(ways, medians(list(ways.values())), strict=True))


RATIOS = {"x of one call": lambda t, times: t / times["librope, one call"]}

if __name__ == "__main__":
    compare(measure, RATIOS, tokens=[1, 16, 512, 2048])
