"""Ring attention over four devices of JAX, whose rotations have the bits of one.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python ring_attention_jax.py

Under jax.shard_map each device has tokens of one sequence in zig-zag order, and makes their positions from
its place in the mesh. Keys and values go around the ring, and the softmax is kept up with them. Gathered, q
and k, and the gradients that come back through the rotation, have the bits of one device; the attention has
its sums in another order.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax  # noqa: E402  after the flags
import jax.numpy as jnp  # noqa: E402
import librope  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402
from librope.jax import shard_ids  # noqa: E402

HEADS, DIM, LENGTH, PAST = 4, 32, 64, 100_000
ROPE = librope.Rope(head_dim=DIM, theta=500000.0, pairing="halves", layout="bshd")
DEVICES = jax.device_count()
TOKENS = PartitionSpec(None, "ring")  # the second axis of [batch, tokens, heads, channels]


def rotated(q, k):
    """On each device: its tokens at their positions."""
    return ROPE.apply_qk(q, k, shard_ids("zigzag", "ring", q.shape[1], PAST))


def attention(q, k, v):
    """Causal attention to the tokens of all devices."""
    mine = theirs = shard_ids("zigzag", "ring", q.shape[1])
    q, k = rotated(q, k)
    largest = jnp.full((*q.shape[:1], HEADS, q.shape[1]), -jnp.inf)
    total, out = 0.0, 0.0
    for step in range(DEVICES):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
        scores = jnp.where(theirs > mine[:, None], -jnp.inf, scores)
        before, largest = largest, jnp.maximum(largest, scores.max(3))  # a device sees its own tokens first
        weights, before = jnp.exp(scores - largest[..., None]), jnp.exp(before - largest)
        total = total * before + weights.sum(3)
        out = out * before[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weights, v)
        if step + 1 < DEVICES:
            ring = [(i, (i - 1) % DEVICES) for i in range(DEVICES)]
            k, v, theirs = (jax.lax.ppermute(x, "ring", ring) for x in (k, v, theirs))
    return (out / total[..., None]).swapaxes(1, 2)


def one_device(q, k, v):
    q, k = ROPE.apply_qk(q, k, PAST)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def main():
    assert DEVICES > 1, "XLA_FLAGS gives one device"
    mesh = Mesh(np.array(jax.devices()), ("ring",))
    shards = [librope.Shard("zigzag", rank, DEVICES) for rank in range(DEVICES)]
    order = np.concatenate([s.numbers(LENGTH // DEVICES) for s in shards])  # token i of all devices is order[i]
    shared = lambda f: jax.jit(jax.shard_map(f, mesh=mesh, in_specs=TOKENS, out_specs=TOKENS))  # noqa: E731

    random = np.random.default_rng(1)
    q, k, v = (jnp.asarray(random.normal(size=(2, LENGTH, HEADS, DIM)), jnp.float32) for _ in range(3))
    on_devices = [x[:, order] for x in (q, k, v)]

    rotate = shared(rotated)
    whole, pull = jax.vjp(lambda q, k: ROPE.apply_qk(q, k, PAST), q, k)
    parts, pull_parts = jax.vjp(rotate, *on_devices[:2])
    for part, x in zip(parts, whole, strict=True):
        assert len(part.sharding.device_set) == DEVICES
        np.testing.assert_array_equal(part, x[:, order])
    for part, x in zip(pull_parts(tuple(on_devices[1:])), pull((k, v)), strict=True):
        np.testing.assert_array_equal(part, x[:, order])

    out = shared(attention)(*on_devices)
    np.testing.assert_allclose(out, one_device(q, k, v)[:, order], atol=1e-5)
    print(f"{DEVICES} devices: the bits of one, forwards and backwards, and its attention")


if __name__ == "__main__":
    main()
