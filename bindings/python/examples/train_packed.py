"""One training step of an attention layer, with q, k and v in one projection, norms of q and k, and grouped queries.

    python train_packed.py [float32|bfloat16]

What stands between the projection and the attention is one call forward and one backward, which writes the gradient
of the packed projection as a whole. All gradients, and the parameters after a step of the optimiser, are compared with
those of plain PyTorch; then both are timed without the attention, beside a copy of the bytes that they have to move.
"""

import copy
import sys
import time

import torch
import torch.nn.functional as F

import librope
import librope.torch

HEADS, KV_HEADS, DIM, WIDTH = 8, 2, 64, 256
ROPE = librope.Rope(head_dim=DIM, theta=500000.0, pairing="halves", layout="bsd")


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = torch.nn.Linear(HEADS * DIM, WIDTH, bias=False)
        self.q_norm, self.k_norm = (torch.nn.Parameter(1 + torch.randn(DIM) / 4) for _ in "qk")

    def turned(self, packed):
        """q, k and v, each [batch, tokens, heads, channels]."""
        norms = librope.Norms(*[librope.Norm(w, kind="rms", eps=1e-6) for w in (self.q_norm, self.k_norm)])
        return librope.torch.apply_packed_qkv(ROPE, packed, 0, heads=HEADS, kv_heads=KV_HEADS, norms=norms)

    def forward(self, x):
        q, k, v = (y.transpose(1, 2) for y in self.turned(self.qkv(x)))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(attended.transpose(1, 2).flatten(-2))


class Plain(Attention):
    """The same in plain PyTorch."""

    def turned(self, packed):
        q, k, v = packed.unflatten(-1, (-1, DIM)).split((HEADS, KV_HEADS, KV_HEADS), -2)
        cos, sin = ROPE.cos_sin(torch.arange(packed.shape[1]), dtype=packed.dtype)
        cos, sin = cos[:, None], sin[:, None]
        made = []
        for x, weight in ((q, self.q_norm), (k, self.k_norm)):
            wide = x.float()
            x = weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
            made.append(x * cos + torch.cat((-x[..., DIM // 2 :], x[..., : DIM // 2]), -1) * sin)
        return *made, v


def step(layer, x, target):
    """Gradients of one step, and the parameters behind it."""
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    F.mse_loss(layer(x), target).backward()
    gradients = {name: p.grad.clone() for name, p in layer.named_parameters()}
    optimiser.step()
    return gradients, {name: p.detach().clone() for name, p in layer.named_parameters()}


def best(function, rounds=7):
    """Seconds of the fastest round."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def main():
    dtype = getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "float32")
    torch.manual_seed(0)
    ours = Attention().to(dtype)
    plain = Plain().to(dtype)
    plain.load_state_dict(copy.deepcopy(ours.state_dict()))
    x, target = (torch.randn(2, 128, WIDTH).to(dtype) for _ in range(2))
    off = 0.0
    (gradients, after), (theirs, expected) = step(ours, x, target), step(plain, x, target)
    for name, gradient in gradients.items():
        error = (gradient - theirs[name]).float().abs().max() / theirs[name].float().abs().max()
        off = max(off, float(error))
    assert off < (1e-5 if dtype == torch.float32 else 0.05), off
    assert all((after[name] - p).abs().max() <= 0.021 for name, p in expected.items())  # of a first step of AdamW
    print(f"{dtype}: {len(gradients)} gradients within {off:.1e} of those of plain PyTorch")

    packed = torch.randn(1, 2048, (HEADS + 2 * KV_HEADS) * DIM).to(dtype).requires_grad_()
    outer = [torch.randn_like(y) for y in ours.turned(packed)]

    def both_ways(layer):
        torch.autograd.grad(layer.turned(packed), (packed, layer.q_norm, layer.k_norm), outer)

    # Forward reads and writes them once; backward reads gradients and what the norms were given, and writes a gradient.
    other = torch.empty_like(packed)
    copies = 2.5 * best(lambda: other.detach().copy_(packed.detach()))
    size = 5 * packed.numel() * packed.element_size()
    for name, seconds in (
        ("librope", best(lambda: both_ways(ours))), ("plain PyTorch", best(lambda: both_ways(plain))), ("copies", copies),
    ):  # fmt: skip
        print(f"{name}: {seconds * 1e3:.2f} ms for {size / 2**20:.0f} MiB, {size / seconds / 2**30:.1f} GiB/s")


if __name__ == "__main__":
    main()
