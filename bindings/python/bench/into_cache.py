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
from transformers.models.llama import modeling_llama

import librope

Q_HEADS, HEADS, DIM, PAGE_SIZE, THETA = 32, 8, 128, 16, 500000.0


class Layer:
    """The tensors of one call; each way works on the same, and returns its q."""

    def __init__(self, tokens, dtype, pool):
        self.packed = torch.randn(tokens, Q_HEADS + 2 * HEADS, DIM).to(dtype)
        self.before = self.packed.clone()
        self.q, self.k, self.v = self.packed.split([Q_HEADS, HEADS, HEADS], 1)
        self.positions = torch.arange(1000, 1000 + tokens)
        pages = -(-tokens // PAGE_SIZE) + 8
        order = torch.randperm(pages)[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)
        self.slots = order.flatten()[:tokens].clone()
        # Two tensors: Inductor copies two parts of one there and back.
        self.k_cache, self.v_cache = (torch.zeros(pages, PAGE_SIZE, HEADS, DIM, dtype=dtype) for _ in "kv")
        self.pool = pool
        self.rope = librope.Rope(head_dim=DIM, theta=THETA, pairing="halves", layout="thd")
        self.cache = librope.KVCache(self.k_cache, self.v_cache, layout="nhd", slots=self.slots)
        # What vLLM's and SGLang's plain code keep: cosines and sines of all positions, in the dtype.
        inv_freq = 1 / THETA ** (torch.arange(0, DIM, 2).float() / DIM)
        angles = torch.arange(1000 + tokens)[:, None].float() * inv_freq
        self.table = torch.cat([angles.cos(), angles.sin()], -1).to(dtype)
        self.store_compiled = torch.compile(_rotate_and_store, dynamic=False)

    def store(self, k):
        self.k_cache.flatten(0, 1).index_copy_(0, self.slots, k)
        self.v_cache.flatten(0, 1).index_copy_(0, self.slots, self.v)

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

    def copy(self):
        self.q.copy_(self.before[:, :Q_HEADS])
        self.store(self.k)
        return self.q

    def result(self, way):
        """What a way has written, from the same input."""
        self.packed.copy_(self.before)
        self.k_cache.zero_()
        self.v_cache.zero_()
        q = way()
        return [q.float().clone(), self.k_cache.float().clone(), self.v_cache.float().clone()]


def _rotate(x, cos, sin):
    x0, x1 = x.chunk(2, -1)
    return torch.cat([x0 * cos - x1 * sin, x1 * cos + x0 * sin], -1)


def _rotate_and_store(q, k, v, positions, table, k_cache, v_cache, slots):
    """As the engines' own fallbacks: rows of the table by position, halves, then slot_mapping."""
    cos, sin = (t[:, None] for t in table[positions].chunk(2, -1))
    k_cache.flatten(0, 1)[slots] = _rotate(k, cos, sin)
    v_cache.flatten(0, 1)[slots] = v
    return _rotate(q, cos, sin)


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
            if not torch.allclose(theirs, ours, rtol=step, atol=4 * step):
                raise AssertionError(f"{name}: another result than librope's")
    return dict(zip(ways, medians(list(ways.values())), strict=True))


RATIOS = {"x of one call": lambda t, times: t / times["librope, one call"]}

if __name__ == "__main__":
    compare(measure, RATIOS, tokens=[1, 64, 2048, 8192])
