"""What the benches of a paged cache share: the heads of a layer, where its tokens go, and plain code of engines."""

from __future__ import annotations

import torch

import librope

Q_HEADS, HEADS, DIM, PAGE_SIZE, START = 32, 8, 128, 16, 1000


class PagedLayer:
    """The tensors of one call; each way works on the same, and returns its q. Heads lie in one packed projection, and
    slots in pages that do not lie in a row."""

    def __init__(self, tokens, dtype, pool, theta):
        torch.manual_seed(tokens)
        self.packed = torch.randn(tokens, Q_HEADS + 2 * HEADS, DIM).to(dtype)
        self.before = self.packed.clone()
        self.q, self.k, self.v = self.packed.split([Q_HEADS, HEADS, HEADS], 1)
        self.positions = torch.arange(START, START + tokens)
        pages = -(-tokens // PAGE_SIZE) + 8
        order = torch.randperm(pages)[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)
        self.slots = order.flatten()[:tokens].clone()
        # Two tensors: Inductor copies two parts of one there and back.
        self.k_cache, self.v_cache = (torch.zeros(pages, PAGE_SIZE, HEADS, DIM, dtype=dtype) for _ in "kv")
        self.pool = pool
        self.rope = librope.Rope(head_dim=DIM, theta=theta, pairing="halves", layout="thd")
        self.cache = librope.KVCache(self.k_cache, self.v_cache, layout="nhd", slots=self.slots)
        # What vLLM's and SGLang's plain code keep: cosines and sines of all positions, in the dtype.
        self.table = self.rope.cos_sin(torch.arange(START + tokens), format="packed").to(dtype)

    def store(self, k):
        store(k, self.v, self.k_cache, self.v_cache, self.slots)

    def copy(self):
        self.q.copy_(self.before[:, :Q_HEADS])
        self.store(self.k)
        return self.q

    def result(self, way):
        """What a way has written, from the same input: q, and keys and values of the cache."""
        self.packed.copy_(self.before)
        self.k_cache.zero_()
        self.v_cache.zero_()
        return way().clone(), self.k_cache.clone(), self.v_cache.clone()


def rotate(x, cos, sin):
    x0, x1 = x.chunk(2, -1)
    return torch.cat([x0 * cos - x1 * sin, x1 * cos + x0 * sin], -1)


def rows(table, positions):
    """Cosines and sines of tokens, for all of their heads."""
    return (t[:, None] for t in table[positions].chunk(2, -1))


def store(k, v, k_cache, v_cache, slots):
    k_cache.flatten(0, 1).index_copy_(0, slots, k)
    v_cache.flatten(0, 1).index_copy_(0, slots, v)
