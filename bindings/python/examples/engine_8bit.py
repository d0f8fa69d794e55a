"""The step of a small engine whose queries and KV cache are in 8 bits.

    python engine_8bit.py

Packed projections of q, k and v of several sequences, long prompts and single tokens, go into one call: it norms
q and k, as Qwen3 does, rotates them, and stores k and v in their pages, and q in a new tensor, as codes of e4m3. A
scale for each token and head is computed from what is stored, and written beside it. Attention multiplies codes
by scales, and is compared with that of the same call without 8 bits. The projections are random.
"""

import torch
import torch.nn.functional as F

import librope

Q_HEADS, KV_HEADS, DIM = 8, 2, 64
PAGES, PAGE_SIZE = 30, 16
CODE = torch.float8_e4m3fn


class Layer:
    """Its norms, and its pages, in 8 bits or as they come."""

    def __init__(self, in_8_bits):
        torch.manual_seed(1)
        weights = [1 + torch.randn(DIM) / 4 for _ in "qk"]
        self.rope = librope.Rope(head_dim=DIM, theta=500000.0, pairing="halves", layout="thd")
        self.norms = librope.Norms(*[librope.Norm(w, kind="rms", eps=1e-6) for w in weights])
        self.k, self.v = torch.zeros(2, PAGES, PAGE_SIZE, KV_HEADS, DIM).to(CODE if in_8_bits else torch.float32)
        self.scales = torch.zeros(2, PAGES, PAGE_SIZE, KV_HEADS) if in_8_bits else None
        k_scale, v_scale = (None, None)
        if in_8_bits:
            k_scale, v_scale = (librope.Scale(data=x, computed=True) for x in self.scales)
        self.cache = librope.KVCache(self.k, self.v, layout="nhd", k_scale=k_scale, v_scale=v_scale)

    def step(self, packed, counts, starts, table):
        """What attention gives for new tokens [tokens, heads, DIM], sequence by sequence."""
        q, k, v = packed.split([Q_HEADS, KV_HEADS, KV_HEADS], 1)
        new = torch.empty(q.shape, dtype=self.k.dtype)
        q_scales = scales = None
        if self.scales is not None:
            q_scales = torch.empty(q.shape[:2])
            scales = librope.Scales(q=librope.Scale(data=q_scales, computed=True))
        self.rope.apply_qk(
            q, k, offsets=starts, cu_seqlens=F.pad(counts.cumsum(0), (1, 0)).int(), v=v,
            cache=self.cache.at(page_table=table, starts=starts), norms=self.norms, out=(new, None), scales=scales,
        )  # fmt: skip
        q = values_of(new, q_scales)
        return torch.cat([
            attention(rows, *self.read(pages, int(start + count)))
            for rows, pages, start, count in zip(q.split(counts.tolist()), table, starts, counts, strict=True)
        ])  # fmt: skip

    def read(self, pages, length):
        """Keys and values of a sequence."""
        pages = pages[: -(-length // PAGE_SIZE)].long()
        scales = (None, None) if self.scales is None else self.scales[:, pages]
        return [
            values_of(memory[pages], scale).flatten(0, 1)[:length]
            for memory, scale in zip((self.k, self.v), scales, strict=True)
        ]


def values_of(codes, scales):
    """Kernels multiply codes and apply scales to the products; the values are these."""
    return codes if scales is None else codes.float() * scales[..., None]


def attention(q, keys, values):
    """q of the last tokens of a sequence, keys and values of all of them."""
    mask = torch.ones(len(q), len(keys), dtype=torch.bool).tril(len(keys) - len(q))
    heads = (x.transpose(0, 1) for x in (q, keys, values))
    return F.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True).transpose(0, 1)


def main():
    layers = [Layer(in_8_bits) for in_8_bits in (True, False)]
    table = torch.randperm(PAGES).int().view(3, -1)  # the pages of three sequences
    starts = torch.zeros(3, dtype=torch.int32)
    # A prompt of each sequence, a chunk of the first one's beside decoded tokens, then decoding.
    for counts in ([40, 7, 100], [30, 1, 1], *[[1, 1, 1]] * 8):
        counts = torch.tensor(counts, dtype=torch.int32)
        packed = torch.randn(int(counts.sum()), Q_HEADS + 2 * KV_HEADS, DIM)
        found, exact = (layer.step(packed, counts, starts, table) for layer in layers)
        error = float((found - exact).norm() / exact.norm())
        starts = starts + counts
        print(f"{len(packed):3} new tokens, {starts.tolist()} in the cache: attention is off by {100 * error:.1f} %")
        assert error < 0.06, error
    sizes = [sum(x.numel() * x.element_size() for x in (m.k, m.v, m.scales) if x is not None) for m in layers]
    print(f"a cache of {sizes[0]} bytes instead of {sizes[1]}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
