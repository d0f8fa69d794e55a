"""JAX: the custom call under jit, vmap and grad."""

import os

import numpy as np
import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import librope  # noqa: E402

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
YARN = librope.Rope(head_dim=16, theta=1e4, pairing="interleaved", scaling="yarn", factor=8.0,
                    original_max_position_embeddings=64, rotary_dim=8, layout="bshd")  # fmt: skip


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
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", axes=3, pair_axis=[0, 1, 2] * 2 + [0, 0],
                        layout="bshd")  # fmt: skip
    q = jnp.asarray(rng.standard_normal((2, 4, 5, 16), np.float32))
    ids = jnp.asarray(rng.integers(0, 40, (3, 2, 5)))
    got = jax.jit(lambda q: rope.apply(q, ids, layout="bhsd"))(q)
    np.testing.assert_array_equal(got, rope.apply(np.asarray(q), np.asarray(ids), layout="bhsd"))
    # As many rows as axes: [axes, tokens] and [batch, tokens] are not told apart.
    three, two = jnp.asarray(rng.standard_normal((3, 5, 4, 16), np.float32)), jnp.arange(15).reshape(3, 5)
    for function in (rope.apply, jax.jit(rope.apply)):
        with pytest.raises(ValueError, match="positions_layout must say which they are, 'bt' or 'at'"):
            function(three, two)
    for order in ("bt", "at"):
        want = rope.apply(np.asarray(three), np.asarray(two), positions_layout=order)
        np.testing.assert_array_equal(rope.apply(three, two, positions_layout=order), want)
    image = rope.replace(ids_per_axis=True)
    for positions in (0, jnp.arange(5), np.arange(5), two):
        with pytest.raises(ValueError, match="positions gives each token one id"):
            image.apply(three, positions)
    with pytest.raises(ValueError, match="positions gives each token one id"):
        image.cos_sin(jnp.arange(5))
    whole = jnp.broadcast_to(two[:, None], (3, 3, 5))
    np.testing.assert_array_equal(image.apply(three, whole), rope.apply(three, two, positions_layout="at"))
    for function in (lambda p: image.apply(three, p), image.cos_sin):
        with pytest.raises(ValueError, match="positions has inf, and must be finite"):
            function(jnp.where(whole == 7, jnp.inf, whole.astype(jnp.float32)))
    long = librope.Rope(head_dim=8, pairing="halves", inv_freq=[1.0, 0.5, 0.1, 0.0], layout="bshd")
    np.testing.assert_array_equal(long.apply(q[..., :8], 3), long.apply(np.asarray(q[..., :8]), 3))


def test_prepared_calls_say_the_way_out(qk):
    q, k = qk = tuple(qk)
    prepared = ROPE.prepare_qk(q, k, jnp.arange(5))
    for x, y in zip(prepared.apply_qk(q, k), ROPE.apply_qk(q, k, jnp.arange(5)), strict=True):
        np.testing.assert_array_equal(x, y)
    for arrays in ((jnp.asarray(q), k), (q, jnp.asarray(k))):
        for call in (prepared.apply_qk, prepared.apply_qk_, lambda q, k: ROPE.prepare_qk(q, k, 0)):
            with pytest.raises(TypeError, match="is a JAX array.*: use apply_qk of the Rope, under jax.jit"):
                call(*arrays)
            with pytest.raises(TypeError, match="use apply_qk of the Rope, under jax.jit"):
                jax.jit(call)(*map(jnp.asarray, qk))
    with pytest.raises(TypeError, match="out of q is a JAX array, which is immutable"):
        prepared.apply_qk(q, k, out=(jnp.asarray(q), None))


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


def test_positions_beyond_32_bits(qk):
    """Without jax_enable_x64, where JAX's own integers would wrap."""
    q, k = (jnp.asarray(x) for x in qk)
    plain = np.asarray(q)
    for positions in (2**31, 2**62, -(2**40)):
        np.testing.assert_array_equal(ROPE.apply(q, positions), ROPE.apply(plain, positions))
    ids = np.arange(5) + 2**40
    np.testing.assert_array_equal(ROPE.apply(q, ids), ROPE.apply(plain, ids))
    offsets = np.array([1, 2**33])
    np.testing.assert_array_equal(
        ROPE.apply(q, offsets=offsets), ROPE.apply(plain, offsets=offsets)
    )
    mapped = jax.vmap(lambda x: ROPE.apply(x[None], 2**31))(q)
    np.testing.assert_array_equal(mapped[:, 0], ROPE.apply(plain, 2**31))
    with pytest.raises(TypeError, match="float64"):
        ROPE.apply(q, np.zeros(5))


def test_traced_scalar_positions(qk):
    q, _ = (jnp.asarray(x) for x in qk)
    want = ROPE.apply(q, 7)
    np.testing.assert_array_equal(jax.jit(ROPE.apply)(q, 7), want)
    np.testing.assert_array_equal(ROPE.apply(q, jnp.int32(7)), want)
    loop = jax.lax.fori_loop(7, 8, lambda i, x: ROPE.apply(x, i), q)
    np.testing.assert_array_equal(loop, want)
    mapped = jax.vmap(lambda p: ROPE.apply(q, p))(jnp.array([7, 9]))
    np.testing.assert_array_equal(mapped[1], ROPE.apply(q, 9))


def test_no_silent_zero_for_float_positions(qk):
    q, _ = (jnp.asarray(x) for x in qk)
    with pytest.raises(NotImplementedError, match="stop_gradient"):
        jax.grad(lambda p: ROPE.apply(q, p).sum())(jnp.arange(5.0))
    g = jax.grad(lambda x: ROPE.apply(x, jnp.arange(5.0)).sum())(q)
    np.testing.assert_array_equal(g, ROPE.apply(jnp.ones_like(q), 0, operation="backward"))


@pytest.mark.parametrize("operation", ["forward", "backward", "inverse", "shift"])
@pytest.mark.parametrize("pairing", ["halves", "interleaved", "interleaved_to_halves"])
def test_linear_map(operation, pairing):
    rope = YARN.replace(pairing=pairing)
    x = jnp.ones((1, 2, 1, 16))

    def f(x):
        return rope.apply(x, jnp.array([3, 50]), operation=operation)

    forward, reverse = jax.jacfwd(f)(x), jax.jacrev(f)(x)
    columns = jnp.stack([f(e.reshape(x.shape)).ravel() for e in jnp.eye(32)], -1)
    np.testing.assert_array_equal(forward.reshape(32, 32), columns)
    np.testing.assert_allclose(reverse.reshape(32, 32), columns, atol=1e-6)
    (back,) = jax.linear_transpose(f, x)(x)
    np.testing.assert_allclose(back.ravel(), columns.T @ x.ravel(), atol=1e-5)
    hessian = jax.hessian(lambda x: (f(x) ** 2).sum())(x).reshape(32, 32)
    np.testing.assert_allclose(hessian, 2 * columns.T @ columns, atol=1e-4)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no jax.shard_map")
def test_shard_map(qk):
    from jax.sharding import Mesh, PartitionSpec

    q, _ = (jnp.asarray(x) for x in qk)
    mesh = Mesh(np.array(jax.devices()[:2]), ("b",))
    cut, whole = PartitionSpec("b"), PartitionSpec()
    f = jax.shard_map(lambda x: ROPE.apply(x, 3), mesh=mesh, in_specs=cut, out_specs=cut)
    np.testing.assert_array_equal(jax.jit(f)(q), ROPE.apply(q, 3))
    g = jax.grad(lambda x: (f(x) ** 2).sum())(q)
    np.testing.assert_allclose(g, 2 * q, atol=1e-5)
    if len(jax.devices()) < 2:
        pytest.skip("one device")
    # One tensor for all devices, at positions that differ: the gradient adds up.
    ids = jnp.arange(10).reshape(2, 5)
    h = jax.shard_map(lambda x, p: ROPE.apply(x, p), mesh=mesh, in_specs=(whole, cut), out_specs=cut)
    one = q[:1]
    want = sum(ROPE.apply(jnp.ones_like(one), i, operation="backward") for i in ids)
    np.testing.assert_allclose(jax.grad(lambda x: h(x, ids).sum())(one), want, atol=1e-5)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no jax.shard_map")
@pytest.mark.parametrize("scheme", ["contiguous", "zigzag", "striped", "heads"])
def test_shard_map_of_tokens(scheme):
    import librope
    from jax.sharding import Mesh, PartitionSpec
    from librope.jax import shard_ids

    world = len(jax.devices())
    mesh = Mesh(np.array(jax.devices()).reshape(world, 1), ("cp", "one"))
    block = 2 if scheme == "striped" else 0
    shards = [librope.Shard(scheme, r, world, block) for r in range(world)]
    order = np.concatenate([s.numbers(8) for s in shards])
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, len(order), 3, 16)), jnp.float32)
    cut = PartitionSpec(None, ("cp", "one"))

    def rotate(x):
        ids = shard_ids(scheme, "cp", x.shape[1], 7, block=block, inner=("contiguous", "one"))
        return ROPE.apply(x, ids)

    f = jax.jit(jax.shard_map(rotate, mesh=mesh, in_specs=cut, out_specs=cut))
    np.testing.assert_array_equal(f(x), ROPE.apply(x, jnp.asarray(order + 7)))
    with pytest.raises(ValueError, match="multiple of 2"):
        g = jax.shard_map(lambda x: shard_ids("zigzag", "cp", 3) + 0 * x[0, 0, 0, 0].astype(int), mesh=mesh,
                          in_specs=cut, out_specs=PartitionSpec(("cp", "one")))  # fmt: skip
        g(x)


def test_rows():
    ids = jnp.arange(5)
    for format in ("packed", "split", "full_interleaved", "angles"):
        got = jax.jit(lambda p, f=format: YARN.cos_sin(p, format=f))(ids)
        want = YARN.cos_sin(np.arange(5), format=format)
        for g, w in zip(jax.tree.leaves(got), want if isinstance(want, tuple) else (want,)):
            np.testing.assert_array_equal(g, w)
    batch = jax.vmap(lambda p: ROPE.cos_sin(p, format="packed", dtype="bfloat16"))(
        jnp.arange(10).reshape(2, 5)
    )
    assert batch.shape == (2, 5, 16) and batch.dtype == jnp.bfloat16
    np.testing.assert_array_equal(batch[1], ROPE.cos_sin(jnp.arange(5, 10), format="packed",
                                                         dtype="bfloat16"))  # fmt: skip


def test_arrays_are_never_written(qk):
    """XLA may share their memory, and compiled code has their values."""
    q = next(iter(qk))
    x, rows = jnp.asarray(q), jnp.zeros((3, 16))
    for call, name in (
        (lambda: ROPE.apply(x, 1, out=x), "out of q"),
        (lambda: ROPE.apply(q, 1, out=x), "out of q"),
        (lambda: ROPE.bind(x, None, 1), "q"),
        (lambda: ROPE.bind(q, None, 1, out=(x, None)), "out of q"),
        (lambda: ROPE.cos_sin(0, tokens=3, format="packed", out=rows), "out"),
    ):
        with pytest.raises(TypeError, match=f"{name} is a JAX array, which is immutable"):
            call()
    np.testing.assert_array_equal(x, q)
    assert not rows.any()


def test_what_cannot_be_mixed_says_so(qk):
    q = next(iter(qk))
    with pytest.raises(TypeError, match="positions is traced by JAX"):
        jax.jit(lambda p: ROPE.apply(q, p))(jnp.arange(5))
    with pytest.raises(TypeError, match="q is traced by JAX"):
        jax.jit(lambda x: ROPE.apply(x, 0, out=np.empty_like(q)))(q)


def test_jax_and_torch_do_not_mix():
    """run-tests runs it in the environment with torch, too, where it is not skipped."""
    torch = pytest.importorskip("torch")
    x = np.ones((1, 1, 1, ROPE.head_dim), np.float32)
    with pytest.raises(TypeError, match="both must be of one library"):
        ROPE.apply_qk(jnp.asarray(x), torch.from_numpy(x), 0)


def test_shift_by_an_int_moves_every_token_by_it(qk):
    q = next(iter(qk))
    x, want = jnp.asarray(q), ROPE.apply(q, np.full(5, 9), operation="shift")
    offsets = ROPE.apply(x, offsets=jnp.array([9, 9]), operation="shift")
    compiled = jax.jit(lambda x, p: ROPE.apply(x, p, operation="shift"))(x, 9)
    for got in (ROPE.apply(x, 9, operation="shift"), offsets, compiled):
        np.testing.assert_array_equal(got, want)
    for far in (2**40, -(2**40)):
        g = jax.grad(lambda x: ROPE.apply(x, far, operation="shift").sum())(x)  # noqa: B023
        np.testing.assert_array_equal(
            g, ROPE.apply(np.ones_like(q), np.full(5, -far), operation="shift")
        )


def test_gradients_of_a_shift_know_no_length(qk):
    """Positions of int32 and int64, of words, and floats; -2**31 has no negative in int32."""
    q = next(iter(qk))
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", scaling="dynamic", factor=2.0, angle="exact",
                        max_position_embeddings=8, seq_len=10, layout="bshd")  # fmt: skip
    x, tokens = jnp.asarray(q), q.shape[1]
    least, far = jnp.arange(tokens) + jnp.int32(-(2**31)), np.arange(tokens) + 2**33
    for by in (1000, -(2**31), 2**40, least, far, jnp.arange(tokens) + 0.5):
        kind = np.float32 if getattr(by, "dtype", int) == jnp.float32 else np.int64
        back = -np.broadcast_to(np.asarray(by), tokens).astype(kind)
        for grad in (jax.grad, lambda f: jax.jit(jax.grad(f))):
            g = grad(lambda x: rope.apply(x, by, operation="shift").sum())(x)  # noqa: B023
            np.testing.assert_array_equal(g, rope.apply(np.ones_like(q), back, operation="shift"))

        def back_of(c):
            return jax.grad(lambda x: (c * rope.apply(x, by, operation="shift")).sum())(x).sum()  # noqa: B023

        twice = jax.grad(back_of)(x)
        np.testing.assert_array_equal(twice, rope.apply(np.ones_like(q), -back, operation="shift"))


def test_rows_that_are_alike_are_arrays_of_jax():
    for positions, options in (
        (jnp.arange(3), dict(batch=2)), (jnp.arange(3)[None], dict(batch=2)), (jnp.array(5), dict(tokens=4)),
        (jnp.array([5, 7]), dict(tokens=4, positions_layout="b")), (jnp.array(5), dict(tokens=3, batch=2)),
    ):  # fmt: skip
        for got, want in zip(ROPE.cos_sin(positions, **options), ROPE.cos_sin(np.asarray(positions), **options)):
            assert isinstance(got, jax.Array)
            np.testing.assert_array_equal(got, want)
    assert jax.jit(lambda p: ROPE.cos_sin(p, tokens=4))(5)[0].shape == (4, 16)
    with pytest.raises(ValueError, match="^positions are up to 2147483650, which does not fit into int32"):
        ROPE.cos_sin(jnp.array(2**31 - 1), tokens=4)


def test_positions_beyond_the_length_are_errors(qk):
    """Known ones in Python, traced ones where XLA runs the call; both without names of C."""
    q = jnp.asarray(next(iter(qk)))
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", scaling="dynamic", factor=2.0,
                        max_position_embeddings=8, seq_len=10, layout="bshd")  # fmt: skip
    last = rope.valid_below - 2
    rope.apply(q, last - 4)
    for positions in (last - 3, jnp.arange(last - 3, last + 2), np.arange(5) + 1000, 2**62):
        with pytest.raises(ValueError, match="must be below 10, because in a sequence of 11 tokens"):
            rope.apply(q, positions)
    with pytest.raises(ValueError, match="must be below 10"):
        rope.apply(q, offsets=jnp.array([0, last - 3]))
    with pytest.raises(ValueError, match="must be below 10"):
        rope.cos_sin(jnp.array([1000]))
    rope.apply(q, 1000, operation="shift")
    with pytest.raises(jax.errors.JaxRuntimeError, match="librope: positions: position 1000 of") as e:
        jax.block_until_ready(jax.jit(rope.apply)(q, 1000))
    assert "->" not in str(e.value) and "rope_apply" not in str(e.value)


def test_shapes_are_told_in_words(qk):
    q, k = (jnp.asarray(x) for x in qk)
    for call, says in (
        (lambda: ROPE.apply(q, jnp.arange(4)), r"has shape \(4,\), and must have 5 tokens"),
        (lambda: ROPE.apply_qk(q, k[:, :3], 0), "k has 3 tokens, and q 5"),
        (lambda: ROPE.cos_sin(jnp.ones((1, 2, 3, 4))), "not positions_layout"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    with pytest.raises(TypeError, match="bool, and must be int32, int64 or float32"):
        ROPE.apply(q, jnp.ones(5, bool))


@pytest.mark.parametrize("shape", [(1, 8), (1, 4, 8)])
def test_ropes_of_a_table_that_is_not_carried_are_refused(qk, shape):
    rope = librope.Rope(head_dim=16, pairing="halves", frequency=np.ones(shape), layout="bshd")
    for call in (lambda: rope.apply(jnp.asarray(tuple(qk)[0]), 3), lambda: rope.cos_sin(jnp.arange(4))):
        with pytest.raises(NotImplementedError, match="^JAX arrays need a Rope without frequency="):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ROPE.apply(x(2, 5, 4, 15), 0),
        lambda x: YARN.apply(x(2, 5, 4, 15), 0),
        lambda x: ROPE.apply(x(2, 5, 16), 0),
        lambda x: ROPE.apply(x(2, 5, 4, 16, dtype="int32"), 0),
        lambda x: ROPE.apply(x(2, 5, 4, 16), 0, layout="bhds"),
        lambda x: ROPE.apply_qk(x(2, 5, 4, 16), x(2, 5, 16), 0, layout=("bshd", "bsh")),
        lambda x: ROPE.apply_qk(x(2, 5, 4, 16), x(1, 5, 4, 16), 0),
        lambda x: ROPE.apply(x(2, 5, 4, 16), x(4, dtype="int32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), x(3, 5, dtype="int32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), x(5, 5, dtype="int32"), positions_layout="tt"),
        lambda x: ROPE.apply(x(2, 5, 4, 16), x(5, dtype="float16")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), 0, positions_layout="zzz"),
        lambda x: ROPE.apply(x(2, 5, 4, 16), offsets=x(2, dtype="int32"), positions_layout="zzz"),
        lambda x: ROPE.apply(x(2, 5, 4, 16), 0, cos_sin_format="zzz"),
        lambda x: ROPE.apply_qk(x(2, 5, 4, 16), np.zeros((2, 5, 4, 16)), 0),
        lambda x: ROPE.apply_qk(np.zeros((2, 5, 4, 16)), x(2, 5, 4, 16), 0),
        lambda x: ROPE.apply(x(2, 5, 4, 16), x(2, 5, 5, 5, dtype="int32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), x(dtype="float32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), offsets=x(3, dtype="int32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), offsets=x(2, dtype="float32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), offsets=x(2, 1, dtype="int32")),
        lambda x: ROPE.apply(x(2, 5, 4, 16), 0, operation="undo"),
        lambda x: ROPE.apply(x(2, 5, 4, 16), 0, layout="bshdd"),
        lambda x: ROPE.apply(x(2, 5, 4, 16)),
        lambda x: ROPE.cos_sin(x(5, 5, 5, dtype="int32")),
        lambda x: ROPE.cos_sin(x(5, 5, dtype="int32"), positions_layout="at"),
        lambda x: ROPE.cos_sin(x(5, dtype="int16")),
    ],
)
def test_the_same_rules_as_of_numpy(call):
    """One rule and one message, whose array it may be."""
    said = []
    for zeros in (np.zeros, jnp.zeros):
        with pytest.raises((ValueError, TypeError)) as e:
            call(lambda *shape, dtype="float32", zeros=zeros: zeros(shape, dtype))
        said.append((e.type, str(e.value)))
    assert said[0] == said[1]


def test_export_needs_the_named_permission(qk):
    """As the README says."""
    from jax import export

    q = jnp.asarray(next(iter(qk)))
    allowed = [export.DisabledSafetyCheck.custom_call("librope_apply")]
    exported = export.export(jax.jit(lambda x: ROPE.apply(x, 3)), disabled_checks=allowed)(q)
    np.testing.assert_array_equal(exported.call(q), ROPE.apply(q, 3))


def test_empty_batches(qk):
    q = jnp.asarray(next(iter(qk)))[:0]
    assert ROPE.apply(q, 0).shape == (0, 5, 4, 16)
