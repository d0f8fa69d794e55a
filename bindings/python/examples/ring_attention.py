"""Ring attention over two processes, whose logits are those of one.

    torchrun --nproc-per-node 2 ring_attention.py

A small transformer reads a sequence that is shared in zig-zag order. Each process embeds its own tokens and
rotates q and k by a Shard: it makes no position ids. Keys and values go around the ring, with the numbers of
their tokens for the causal mask, and the softmax is kept up with them. At the end the logits are gathered and
compared with those of a process that has read the whole sequence. Without torchrun there is one process.
"""

import os

import librope
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

LAYERS, HEADS, DIM, WORDS, LENGTH = 2, 4, 32, 97, 64
WIDTH = HEADS * DIM
ROPE = librope.Rope(head_dim=DIM, theta=10000.0, pairing="halves", layout="bshd")


def weights():
    generator = torch.Generator().manual_seed(1)
    make = lambda *shape: torch.randn(shape, generator=generator) / shape[0] ** 0.5  # noqa: E731
    layers = [[make(WIDTH, WIDTH) for _ in range(4)] for _ in range(LAYERS)]
    return torch.randn(WORDS, WIDTH, generator=generator), layers


def around(blocks):
    """What the next process has, which gets what this one has."""
    rank, world = dist.get_rank(), dist.get_world_size()
    blocks = [x.contiguous() for x in blocks]
    received = [torch.empty_like(x) for x in blocks]
    work = []
    for mine, theirs in zip(blocks, received, strict=True):
        work += [
            dist.P2POp(dist.isend, mine, (rank - 1) % world),
            dist.P2POp(dist.irecv, theirs, (rank + 1) % world),
        ]
    for request in dist.batch_isend_irecv(work):
        request.wait()
    return received


def attention(q, k, v, numbers, ring):
    """Causal attention to the tokens of all processes. numbers: of the tokens in the sequence."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    most = torch.full(q.shape[:3], -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(most), torch.zeros_like(q)
    theirs = numbers
    for step in range(ring):
        scores = q @ k.transpose(2, 3) / DIM**0.5
        scores = scores.masked_fill(theirs > numbers[:, None], -torch.inf)
        largest = torch.maximum(most, scores.amax(3))
        finite = torch.where(largest == -torch.inf, 0, largest)  # no token of this block is visible
        before, now = torch.exp(most - finite), torch.exp(scores - finite[..., None])
        total = total * before + now.sum(3)
        out = out * before[..., None] + now @ v
        most = largest
        if step + 1 < ring:
            k, v, theirs = around([k, v, theirs])
    return (out / total[..., None]).transpose(1, 2).float()


def read(tokens, numbers, shard, ring):
    """The logits of tokens, which are those of the shard; None: the whole sequence."""
    words, layers = weights()
    x = words[tokens]
    for to_q, to_k, to_v, to_out in layers:
        q, k, v = ((x @ w).reshape(*x.shape[:2], HEADS, DIM) for w in (to_q, to_k, to_v))
        q, k = ROPE.apply_qk(q, k, 0, shard=shard)
        x = x + attention(q, k, v, numbers, ring).reshape(*x.shape) @ to_out
    return x @ words.T


def main():
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
        shard = librope.Shard.of_mesh(init_device_mesh("cpu", (world,), mesh_dim_names=("ring",)), "zigzag")
    else:
        shard = librope.Shard("zigzag", 0, 1)
    tokens = torch.randint(WORDS, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    numbers = torch.from_numpy(shard.numbers(LENGTH // world))
    logits = read(tokens[:, numbers], numbers, shard, world)

    whole = read(tokens, torch.arange(LENGTH), None, 1)
    error = (logits - whole[:, numbers]).abs().max()
    assert error < 1e-4 * whole.abs().max(), error
    assert torch.equal(logits.argmax(2), whole[:, numbers].argmax(2))
    print(f"process {shard.rank} of {world}: {len(numbers)} tokens, the logits of one process", flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
