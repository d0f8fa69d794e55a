"""Arrays of CuPy and of other owners of memory on a GPU, and what is refused there."""

import numpy as np
import pytest
from gpu_device import DEVICE, DIM, ROPE, SLOTS, cache_of, cuda_only, here, memory, qk, same, there, torch, wait_long
from gpu_device import seed  # noqa: F401  (a fixture)

from librope import KVCache, Norm, Norms, Scale

# -- arrays of others -------------------------------------------------------------------------------


@cuda_only
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cupy(dtype):
    cupy = pytest.importorskip("cupy")
    q, k = (np.ascontiguousarray(x.numpy().astype(dtype)) for x in qk(21))
    ids = np.arange(21) * 7
    want = ROPE.apply_qk(q, k, ids)
    twice = ROPE.apply_qk(*want, ids)

    def work():
        arrays, positions = [cupy.asarray(x) for x in (q, k)], cupy.asarray(ids)
        new = ROPE.apply_qk(*arrays, positions)
        assert all(isinstance(x, cupy.ndarray) for x in new)
        out = [cupy.empty_like(x) for x in arrays]
        assert ROPE.apply_qk(*arrays, positions, out=tuple(out))[0] is out[0]
        ROPE.apply_qk_(*arrays, positions)
        again = [ROPE.apply(x[:, ::2], positions[::2].copy()) for x in arrays]
        return [cupy.asnumpy(x) for x in (*new, *out, *arrays, *again)]

    def compare(got):
        every = (*want, *want, *want, *[x[:, ::2] for x in twice])
        for g, w in zip(got, every, strict=True):
            np.testing.assert_array_equal(g.view(np.uint8), np.ascontiguousarray(w).view(np.uint8))

    compare(work())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            wait_long()
        compare(work())
    with pytest.raises(ValueError, match="^positions is on the CPU"):
        ROPE.apply(cupy.asarray(q), ids)


class Interface:
    """Memory on a GPU that says so in one way alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self.tensor.__cuda_array_interface__


@cuda_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_interface_of_cuda_alone(dtype):
    (q, k), ids = qk(6, dtype), torch.arange(6) + 3
    want = ROPE.apply_qk(q, k, ids)
    tensors, positions = [there(x) for x in (q, k)], Interface(there(ids))
    out = [torch.zeros_like(x) for x in tensors]
    arrays, outs = [Interface(x) for x in tensors], tuple(Interface(x) for x in out)
    got = ROPE.apply_qk(*arrays, positions, out=outs)
    assert got[0] is outs[0] and got[1] is outs[1]
    ROPE.apply_qk_(*arrays, positions)
    parts = torch.zeros(*q.shape[:2], 3, DIM, dtype=dtype, device=DEVICE)
    ROPE.apply(Interface(there(k)), positions, out=Interface(parts[:, :, 1:]))
    torch.cuda.synchronize()
    same([*out, *tensors, parts[:, :, 1:]], [*want, *want, want[1]])
    assert not parts[:, :, 0].any()
    with pytest.raises(TypeError, match="pass out=, or rotate in place"):
        ROPE.apply(arrays[0], positions)


# -- errors -----------------------------------------------------------------------------------------


@cuda_only
def test_devices_are_not_mixed():
    (q, k), ids, on_cuda = qk(5), torch.arange(5), f"CUDA device {DEVICE.index}"
    q_there, k_there, ids_there = there(q), there(k), there(ids)
    cpu_cache, cache = cache_of(torch.bfloat16, here)[0], cache_of(torch.bfloat16, there)[0]
    coded = KVCache(memory(torch.int8, there)[0], layout="nhd", slots=there(SLOTS),
                    k_scale=Scale(data=memory(torch.int8, here)[1], computed=True))  # fmt: skip
    weight = Norms(Norm(torch.ones(DIM), kind="rms", eps=1e-6))
    learned = there(q).requires_grad_()
    cos, sin = ROPE.cos_sin(ids)
    more = {"v": k_there, "cache": cache.at(slots=there(SLOTS))}
    refused = {
        "positions": (
            lambda: ROPE.apply(q_there, ids), lambda: ROPE.apply(q_there, ids.numpy()),
            lambda: ROPE.apply(learned, ids), lambda: ROPE.apply(q_there, [0, 1, 2, 3, 4]),
            lambda: ROPE.apply_qk_(q_there, k_there, ids), lambda: ROPE.bind(q_there, k_there, ids),
        ),
        "k": (lambda: ROPE.apply_qk(q_there, k, ids_there), lambda: ROPE.apply_qk_(q_there, k, 3)),
        "out of q": (lambda: ROPE.apply(q_there, 3, out=torch.empty_like(q)),),
        "cos": (lambda: ROPE.apply(q_there, cos_sin=(cos, there(sin)), cos_sin_format="full_halves"),),
        "v": (lambda: ROPE.apply_qk(q_there, k_there, 3, **{**more, "v": k}),),
        "cache.k": (lambda: ROPE.apply_qk(q_there, k_there, 3, **{**more, "cache": cpu_cache.at(slots=there(SLOTS))}),),
        "slots": (lambda: ROPE.apply_qk(q_there, k_there, 3, **{**more, "cache": cache.at(slots=SLOTS)}),),
        "data of k_scale": (lambda: ROPE.apply_qk(q_there, k_there, 3, cache=coded),),
        "norms.q.weight": (lambda: ROPE.apply_qk(q_there, k_there, 3, norms=weight),),
    }  # fmt: skip
    for name, calls in refused.items():
        for call in calls:
            with pytest.raises(ValueError, match=f"^{name} is on the CPU, and q or k on {on_cuda}$"):
                call()
    for call in (lambda: ROPE.apply_qk(q, k_there, 3), lambda: ROPE.apply_qk_(q, k_there, ids)):
        with pytest.raises(ValueError, match=f"^k is on {on_cuda}, and q or k on the CPU$"):
            call()
    with pytest.raises(ValueError, match=f"^positions is on {on_cuda}, and q or k on the CPU$"):
        ROPE.apply(q, ids_there)
    slots = there(torch.arange(5))
    for name, to, was in (("positions", ids, ids_there), ("from_positions", ids_there, ids)):
        with pytest.raises(ValueError, match=f"^{name} is on the CPU, and cache.k on {on_cuda}$"):
            ROPE.move(cache.at(slots=slots), to, was)
    same([q_there, k_there, cache.k], [q, k, cpu_cache.k])


@cuda_only
def test_prepared_calls_are_for_the_cpu():
    q, k = map(there, qk(5))
    with pytest.raises(NotImplementedError, match="CPU"):
        ROPE.prepare_qk(q, k, 3)
