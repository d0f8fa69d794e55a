"""Keys and values into a paged cache, beside what engines do in PyTorch: one run on the CPU.

    python bench/into_cache.py [--threads N] [--tokens N ..] [--json]

A layer of an 8B llama: heads of one packed projection [tokens, 32 + 8 + 8, 128]; q turns in place, the
turned k and v go to slots of pages [pages, 16, 8, 128] that do not lie in a row. The q of a table and of
transformers is a new tensor, so that nothing is copied back. Medians of interleaved rounds, in microseconds;
before they are timed, all ways have written the same q, keys and values but for rounding. "copy" is no rotation:
k and v to their slots by index_copy_, and q onto itself by copy_.
"""

from __future__ import annotations

import torch
from comparison import compare, medians
from paged_layer import PagedLayer, rotate, rows, store
from transformers.models.llama import modeling_llama


class Layer(PagedLayer):
    def __init__(self, tokens, dtype, pool):
        super().__init__(tokens, dtype, pool, 500000.0)
        self.store_compiled = torch.compile(_rotate_and_store, dynamic=False)

    def fused(self):
        self.rope.apply_qk_(self.q, self.k, self.positions, v=self.v, cache=self.cache, pool=self.pool)
        return self.q

    def separate(self):
        self.rope.apply_qk_(self.q, self.k, self.positions, pool=self.pool)
        self.store(self.k)
        return self.q

    def eager(self):
        return _rotate_and_store(*self.arguments())

    def compiled(self):
        return self.store_compiled(*self.arguments())

    def arguments(self):
        return self.q, self.k, self.v, self.positions, self.table, self.k_cache, self.v_cache, self.slots

    def transformers(self):
        cos, sin = (torch.cat([t, t], -1) for t in self.table[self.positions].chunk(2, -1))
        q, k = modeling_llama.apply_rotary_pos_emb(self.q, self.k, cos, sin, unsqueeze_dim=1)
        self.store(k)
        return q


def _rotate_and_store(q, k, v, positions, table, k_cache, v_cache, slots):
    """As the engines' own fallbacks: rows of the table by position, halves, then slot_mapping."""
    cos, sin = rows(table, positions)
    store(rotate(k, cos, sin), v, k_cache, v_cache, slots)
    return rotate(q, cos, sin)


def measure(tokens, dtype, pool):
    layer = Layer(tokens, dtype, pool)
    ways = {
        "librope, one call": layer.fused,
        "librope, then index_copy_": layer.separate,
        "eager, a table": layer.eager,
        "torch.compile, a table": layer.compiled,
        "transformers, eager": layer.transformers,
        "copy": layer.copy,
    }
    expected = layer.result(layer.fused)
    step = 1e-5 if dtype == torch.float32 else 2.0**-6  # cos, sin, products and sum in the dtype
    for name, way in ways.items():
        if name == "copy":
            continue
        for ours, theirs in zip(expected, layer.result(way), strict=True):
            if not torch.allclose(theirs.float(), ours.float(), rtol=step, atol=4 * step):
                raise AssertionError(f"{name}: another result than librope's")
    return dict(zip(ways, medians(list(ways.values())), strict=True))


RATIOS = {"x of one call": lambda t, times: t / times["librope, one call"]}

if __name__ == "__main__":
    compare(measure, RATIOS, tokens=[1, 64, 2048, 8192])
