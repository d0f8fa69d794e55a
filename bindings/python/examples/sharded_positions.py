"""librope in a trainer that shards the positions itself, as torchtitan does: two processes, the bits of one.

    torchrun --nproc-per-node 2 sharded_positions.py

torchtitan's loader makes the positions of packed documents, and context parallelism shards them in zig-zag order
together with the tokens: each layer calls rope(query, key, positions) with [tokens, heads, channels] of its own.
Rotary has that shape, and takes the positions as they come: there is nothing left to shard, so no Shard. Its earlier
versions shard the table freqs_cis instead, and a layer gets the rows of its tokens: Rotary.by_rows takes these.
"""

import librope
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

Q_HEADS, HEADS, DIM, THETA = 8, 2, 64, 500000.0
DOCUMENTS = (20, 28, 16)
LENGTH = sum(DOCUMENTS)


class Rotary(torch.nn.Module):
    """In the place of a module with a table for every position that may come. It keeps none."""

    def __init__(self, dim, theta):
        super().__init__()
        self.rope = librope.Rope(head_dim=dim, theta=theta, pairing="interleaved", layout="thd")

    def forward(self, query, key, positions):
        return self.rope.apply_qk(query, key, positions)

    def by_rows(self, query, key, freqs_cis):
        rows = torch.view_as_real(freqs_cis).flatten(-2)  # cos, sin, cos, sin, ..
        return self.rope.apply_qk(query, key, cos_sin=rows, cos_sin_format="complex")


def batch():
    """What the loader and the projections give for the whole row."""
    make = lambda heads, seed: torch.randn(  # noqa: E731
        (LENGTH, heads, DIM), generator=torch.Generator().manual_seed(seed)
    ).bfloat16()
    positions = torch.cat([torch.arange(n) for n in DOCUMENTS])
    angles = torch.outer(torch.arange(LENGTH), THETA ** -(torch.arange(0, DIM, 2) / DIM))
    return make(Q_HEADS, 1), make(HEADS, 2), positions, torch.polar(torch.ones_like(angles), angles)


def forward_backward(rotate, query, key, where):
    """The rotated tensors, and the gradients of a sum whose weights are the tensors themselves."""
    leaves = [x.clone().requires_grad_() for x in (query, key)]
    out = rotate(*leaves, where)
    sum((x * y.detach()).sum() for x, y in zip(out, (query, key), strict=True)).backward()
    return [x.detach() for x in out] + [x.grad for x in leaves]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("cp",))
    rotary = Rotary(DIM, THETA)
    query, key, positions, freqs_cis = batch()
    by_positions = forward_backward(rotary, query, key, positions)
    by_rows = forward_backward(rotary.by_rows, query, key, freqs_cis)

    order = torch.arange(LENGTH)  # of the tokens that come here
    buffers = [query, key, positions, freqs_cis, order]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[0] * len(buffers)):
        assert len(positions) == LENGTH // world
        mine = forward_backward(rotary, query, key, positions)
        mine_by_rows = forward_backward(rotary.by_rows, query, key, freqs_cis)
        numbers = order.clone()
        # Where the row is one sequence, a Shard says the same without positions.
        shard = librope.Shard.of_mesh(mesh, "zigzag")
        by_shard = forward_backward(lambda q, k, p: rotary.rope.apply_qk(q, k, p, shard=shard), query, key, 0)
        assert all(map(torch.equal, by_shard, forward_backward(rotary, query, key, numbers)))
    for part, whole in zip(mine + mine_by_rows, by_positions + by_rows, strict=True):
        assert torch.equal(part, whole[numbers])
    print(f"process {rank} of {world}: {len(numbers)} tokens, the bits of one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
