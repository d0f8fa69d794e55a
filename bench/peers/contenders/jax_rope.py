"""JAX: the usual function through jax.jit. In place by donating q and k, whose memory the results
then take; those are JAX's own buffers, as it never writes into a caller's."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy

from ..protocol import Contender, Returning, Prepared

DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}


def halves(x, cos, sin):
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1).astype(x.dtype)


def interleaved(x, cos, sin):
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return jnp.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape).astype(x.dtype)


def as_numpy(value):
    array = numpy.asarray(value)
    return array.view(numpy.uint16) if array.dtype == ml_dtypes.bfloat16 else array


class Donating(Prepared):
    def __init__(self, tensors, rotate, q, k, rows):
        self.tensors, self.rotate, self.q, self.k, self.rows = tensors, rotate, q, k, rows

    def run(self):
        self.q, self.k = jax.block_until_ready(self.rotate(self.q, self.k, *self.rows))

    def export(self):
        for name, value in (("q", self.q), ("k", self.k)):
            self.tensors.array(name)[...] = as_numpy(value)

    def release(self):
        self.rotate = self.q = self.k = self.rows = None


class Jax(Contender):
    name = "jax"
    version = f"jax {jax.__version__}"
    note = "the usual function through jax.jit, f32 inside; in place: q and k donated"

    def __init__(self):
        self.one, self.same = jnp.ones(1), jax.jit(lambda x: x + 1)
        jax.block_until_ready(self.same(self.one))

    def noop(self):
        return jax.block_until_ready(self.same(self.one))

    def prepare(self, case, tensors):
        pair = halves if case.pairing == "halves" else interleaved

        def rotate(q, k, cos, sin):
            return pair(q, cos, sin), pair(k, cos, sin)

        def own(name, dtype):
            array = tensors.array(name)
            if array.dtype == numpy.uint16:
                array = array.view(ml_dtypes.bfloat16)
            return jnp.array(array, dtype=dtype, copy=True)

        q, k = (own(name, DTYPES[case.dtype]) for name in "qk")
        rows = [own(name, jnp.float32)[:, None, :] for name in ("cos", "sin")]
        if case.in_place:
            return Donating(tensors, jax.jit(rotate, donate_argnums=(0, 1)), q, k, rows)
        compiled = jax.jit(rotate)
        return Returning(tensors, lambda: jax.block_until_ready(compiled(q, k, *rows)), as_numpy)


def contenders(_threads, _argument):
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # the caller works, as it waits anyway
    return [Jax()]
