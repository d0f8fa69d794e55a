"""JAX: the custom call under jit, vmap and grad."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import librope  # noqa: E402

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves")
YARN = librope.Rope(head_dim=16, theta=1e4, pairing="interleaved", scaling="yarn", factor=8.0,
                    original_max_position_embeddings=64, rotary_dim=8)  # fmt: skip


@pytest.fixture
def qk(rng):
    return (rng.standard_normal((2, 5, h, 16), np.float32) for h in (4, 2))


@pytest.mark.parametrize("rope", [ROPE, YARN])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values(qk, rope, dtype):
    q, k = (jnp.asarray(x).astype(dtype) for x in qk)
    for positions in (7, jnp.arange(7, 12), np.arange(7, 12), jnp.arange(7, 12)[None]):
        got = rope.apply_qk(q, k, positions)
        want = rope.apply_qk(np.asarray(q), np.asarray(k), np.arange(7, 12))
        for g, w in zip(got, want, strict=True):
            assert isinstance(g, jax.Array) and g.dtype == dtype
            np.testing.assert_array_equal(np.asarray(g), w)
    offsets = jnp.array([3, 9])
    np.testing.assert_array_equal(
        rope.apply(q, offsets=offsets), rope.apply(np.asarray(q), offsets=np.array([3, 9]))
    )


def test_jit_with_traced_positions(qk):
    q, k = (jnp.asarray(x) for x in qk)
    step = jax.jit(lambda q, k, p: ROPE.apply_qk(q, k, p + jnp.arange(5)))
    for p in (0, 11):
        for g, w in zip(step(q, k, p), ROPE.apply_qk(q, k, p), strict=True):
            np.testing.assert_array_equal(g, w)


def test_vmap(rng):
    q = jnp.asarray(rng.standard_normal((3, 2, 5, 4, 16), np.float32))
    positions = jnp.arange(15).reshape(3, 5)
    got = jax.jit(jax.vmap(lambda q, p: ROPE.apply(q, p)))(q, positions)
    for i in range(3):
        np.testing.assert_array_equal(got[i], ROPE.apply(q[i], positions[i]))
    shared = jax.vmap(lambda q: ROPE.apply(q, jnp.arange(5)))(q)
    np.testing.assert_array_equal(shared[1], ROPE.apply(q[1], jnp.arange(5)))


@pytest.mark.parametrize("rope", [ROPE, YARN])
def test_gradients(qk, rope):
    from jax.test_util import check_grads

    q, k = (jnp.asarray(x) for x in qk)
    check_grads(lambda q, k: rope.apply_qk(q, k, jnp.arange(5)), (q, k), 1, ["rev"], rtol=1e-2)
    g = jax.grad(lambda q: (rope.apply(q, 3) ** 2).sum())(q)
    np.testing.assert_allclose(
        g, rope.apply(2 * rope.apply(q, 3), 3, operation="backward"), atol=1e-5
    )
    per_sample = jax.vmap(jax.grad(lambda q: rope.apply(q, 3).sum()))(q[:, None])
    assert per_sample.shape == (2, 1, 5, 4, 16)


def test_layouts_and_axes(rng):
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", axes=3, pair_axis=[0, 1, 2] * 2 + [0, 0])
    q = jnp.asarray(rng.standard_normal((2, 4, 5, 16), np.float32))
    ids = jnp.asarray(rng.integers(0, 40, (3, 2, 5)))
    got = jax.jit(lambda q: rope.apply(q, ids, layout="bhsd"))(q)
    np.testing.assert_array_equal(got, rope.apply(np.asarray(q), np.asarray(ids), layout="bhsd"))
    long = librope.Rope(head_dim=8, pairing="halves", inv_freq=[1.0, 0.5, 0.1, 0.0])
    np.testing.assert_array_equal(long.apply(q[..., :8], 3), long.apply(np.asarray(q[..., :8]), 3))


def test_errors(qk):
    q, k = (jnp.asarray(x) for x in qk)
    with pytest.raises(TypeError, match="immutable"):
        ROPE.apply_qk_(q, k, 0)
    with pytest.raises(ValueError, match="positions"):
        ROPE.apply(q, jnp.arange(4))
    with pytest.raises(ValueError, match="channels"):
        ROPE.apply(q[..., :5], 0)
    with pytest.raises(TypeError, match="int8"):
        ROPE.apply(q.astype("int8"), 0)
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        ROPE.apply(q, 0, cu_seqlens=np.zeros(2, np.int32))
