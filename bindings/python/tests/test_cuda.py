"""Calls of arrays on a GPU, as far as they can be seen without one: arrays of main memory say that they lie on CUDA
device 0, and the context of that device is one of the CPU. What the library is given is then seen in what it
writes, and a stream in its refusal."""

from __future__ import annotations

import librope
import ml_dtypes
import numpy as np
import pytest
from librope import KVCache, Scale, Scales, _arrays, _dlpack

PAGES, SIZE, HEADS, DIM = 4, 4, 2, 32
CODES = {  # of DLPack
    "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32), "int64": (0, 64), "int8": (0, 8),
    "uint8": (1, 8), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip
E4M3, E8M0 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)


class OnCuda:
    """An array of NumPy that says by DLPack that it is on a GPU."""

    def __init__(self, a, device=0):
        self.a, self.device, self.shape = a, device, a.shape

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream):  # that of a producer older than DLPack 1.0
        self.stream = stream
        capsule = self.a.view(f"i{self.a.itemsize}").__dlpack__()
        tensor = _dlpack._Tensor.from_address(_dlpack._get(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = 2, self.device
        tensor.code, tensor.bits = CODES[self.a.dtype.name]
        return capsule


@pytest.fixture
def rope(monkeypatch):
    """Its context of CUDA device 0 is one of the CPU, and no other is asked for."""
    asked, real = [], librope.Rope._context

    def context(self, device):
        if device >= 0:
            asked.append(device)
        return real(self, -1)

    monkeypatch.setattr(librope.Rope, "_context", context)
    made = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd")
    yield made
    assert set(asked) <= {0}


def memory(rng, dtype):
    """Keys or values of a cache: random codes, or values."""
    if dtype == np.uint8:  # Q8_0, each block with a scale of its own
        blocks = rng.integers(0, 256, (PAGES, SIZE, HEADS, DIM // 32 * 34)).astype(np.uint8)
        blocks.reshape(-1, 34)[:, :2] = rng.uniform(0.01, 0.1, (blocks.size // 34, 1)).astype(np.float16).view(np.uint8)
        return blocks
    if np.dtype(dtype).itemsize == 1:
        return rng.integers(0, 0x7E, (PAGES, SIZE, HEADS, DIM)).astype(np.uint8).view(dtype)
    return rng.standard_normal((PAGES, SIZE, HEADS, DIM), np.float32).astype(dtype)


def scale_of(rng, dtype, there):
    """The Scale of one memory; there: what becomes of its array."""
    if dtype == np.int8:
        return Scale(data=there(rng.uniform(0.01, 0.1, (PAGES, SIZE, HEADS)).astype(np.float32)), computed=True)
    if dtype == E4M3:
        powers = rng.integers(120, 130, (PAGES, SIZE, HEADS, DIM // 16)).astype(np.uint8).view(E8M0)
        return Scale(data=there(powers), group=16)
    return None


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name].view(np.uint8), b[name].view(np.uint8), err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8, E4M3, np.uint8])
@pytest.mark.parametrize("way", ["in place", "slots", "pages", "another memory"])
def test_moves_are_those_of_the_cpu(rope, dtype, way):
    def move(wrap):
        rng, seen = np.random.default_rng(3), {}

        def there(name):
            return lambda a: wrap(seen.setdefault(name, a))

        def cache(name, dtype):
            return KVCache(
                there(f"{name} k")(memory(rng, dtype)), there(f"{name} v")(memory(rng, dtype)), layout="nhd",
                k_scale=scale_of(rng, dtype, there(f"{name} k_scale")),
                v_scale=scale_of(rng, dtype, there(f"{name} v_scale")),
            )  # fmt: skip

        def array(a, dtype=np.int64):
            return wrap(np.array(a, dtype))

        first = cache("first", dtype)
        options = {}
        if way == "in place":
            to, source = first.at(slots=array([5, 3, -1])), None
        elif way == "slots":
            to, source = first.at(slots=array([5, 3, 1])), first.at(slots=array([9, 12, 0], np.int32))
        elif way == "pages":
            to = first.at(page_table=array([[1, 0], [2, 3]], np.int32), starts=array([1, 2], np.int32))
            source = cache("second", np.float32)
            source = source.at(
                page_table=array([3, 0], np.int32), page_starts=array([0, 1, 2], np.int32),
                starts=array([0, 2], np.int32),
            )  # fmt: skip
            options["cu_seqlens"] = array([0, 2, 3], np.int32)
        else:
            to, source = first.at(slots=array([5, 3, 1])), cache("second", np.int8).at(slots=array([9, 12, 0]))
        rope.move(to, array([40, 5, 700]), array([1, 200, 300]), source=source, **options)
        return seen

    same(move(OnCuda), move(lambda a: a))


@pytest.mark.parametrize("bound", [False, True])
def test_calls_with_scales_are_those_of_the_cpu(rope, bound):
    def call(wrap):
        rng, seen = np.random.default_rng(4), {}

        def there(name, a):
            return wrap(seen.setdefault(name, a))

        q, k, v, rest = (rng.standard_normal((1, 3, HEADS, DIM), np.float32) for _ in range(4))
        outs = [np.zeros(q.shape, np.int8), None, np.zeros(q.shape, E4M3), np.zeros((1, 3, HEADS, 34), np.uint8)]
        outs = tuple(None if x is None else there(f"out {i}", x) for i, x in enumerate(outs))
        scales = Scales(
            q=Scale(data=there("q", np.zeros((1, 3, HEADS), np.float32)), computed=True),
            v=Scale(data=there("v", np.full((1, 3, HEADS, 2), 125, np.uint8).view(E8M0)), group=16),
        )
        cache = KVCache(
            there("keys", memory(rng, E4M3)), there("values", memory(rng, np.uint8)), layout="nhd",
            slots=wrap(np.array([5, 3, 1])), k_scale=scale_of(rng, E4M3, lambda a: there("k", a)),
        )  # fmt: skip
        q, k, v, rest, at = map(wrap, (q, k, v, rest, np.array([7, 0, 300])))
        arguments = {"v": v, "rest": rest, "cache": cache, "scales": scales, "out": outs}
        if bound:
            rope.bind(q, k, at, **arguments)()
        else:
            rope.apply_qk(q, k, at, **arguments)
        assert all(x.view(np.uint8).any() for x in seen.values())
        return seen

    same(call(OnCuda), call(lambda a: a))


def moved(**others):
    """The arguments of a move on the device, of which some are others."""
    rng = np.random.default_rng(5)
    at = {"positions": np.arange(2), "from_positions": np.arange(2) + 9, "cu_seqlens": np.array([0, 2], np.int32)}
    there = {
        "k": memory(rng, np.int8), "v": memory(rng, np.int8), "slots": np.arange(2),
        "k_data": np.ones((PAGES, SIZE, HEADS), np.float32), "v_data": np.ones((PAGES, SIZE, HEADS), np.float32),
    }  # fmt: skip
    caches = {}
    for role in ("cache", "source"):
        x = {n: others.get(f"{role}_{n}", OnCuda)(a) for n, a in there.items()}
        k_scale, v_scale = (Scale(data=x[f"{n}_data"], computed=True) for n in "kv")
        caches[role] = KVCache(
            x["k"], x["v"], layout="nhd", slots=x["slots"], k_scale=k_scale, v_scale=v_scale
        )  # fmt: skip
    return {**caches, **{n: others.get(n, OnCuda)(a) for n, a in at.items()}}


@pytest.mark.parametrize("other, words", [(lambda a: a, "the CPU"), (lambda a: OnCuda(a, 1), "CUDA device 1")])
def test_all_of_a_move_is_on_one_device(rope, other, words):
    names = {
        "positions": "positions", "from_positions": "from_positions", "cu_seqlens": "cu_seqlens", "cache_v": "cache.v",
        "cache_slots": "slots of the cache", "cache_k_data": "data of k_scale of the cache", "source_k": "source.k",
        "source_v": "source.v", "source_slots": "slots of the source",
        "source_v_data": "data of v_scale of the source",
    }  # fmt: skip
    rope.move(**moved())
    for argument, name in names.items():
        with pytest.raises(ValueError, match=f"^{name} is on {words}, and cache.k on CUDA device 0$"):
            rope.move(**moved(**{argument: other}))
    with pytest.raises(ValueError, match=f"and cache.k on {words}$"):
        rope.move(**moved(cache_k=other))
    with pytest.raises(ValueError, match="^positions is on the CPU, and cache.k on CUDA device 0$"):
        rope.move(**{**moved(), "positions": [3, 4]})


@pytest.mark.parametrize("other, words", [(lambda a: a, "the CPU"), (lambda a: OnCuda(a, 1), "CUDA device 1")])
def test_scales_are_on_the_device_of_the_call(rope, other, words):
    q, k = (OnCuda(np.ones((1, 2, HEADS, DIM), np.float32)) for _ in range(2))
    q_out, keys = OnCuda(np.zeros((1, 2, HEADS, DIM), np.int8)), OnCuda(memory(np.random.default_rng(1), np.int8))
    each, all_slots = np.ones((1, 2, HEADS), np.float32), np.ones((PAGES, SIZE, HEADS), np.float32)
    for q_scales, k_scales, name in ((other, OnCuda, "scales.q"), (OnCuda, other, "k_scale"), (OnCuda, OnCuda, None)):
        scales = Scales(q=Scale(data=q_scales(each), computed=True))
        k_scale = Scale(data=k_scales(all_slots), computed=True)
        cache = KVCache(keys, layout="nhd", slots=OnCuda(np.arange(2)), k_scale=k_scale)
        arguments = {"cache": cache, "scales": scales, "out": (q_out, None)}
        if name is None:
            rope.apply_qk(q, k, 7, **arguments)
            continue
        with pytest.raises(ValueError, match=f"^data of {name} is on {words}, and q or k on CUDA device 0$"):
            rope.apply_qk(q, k, 7, **arguments)
    host_q, host_k = q.a, k.a
    with pytest.raises(ValueError, match="^data of scales.q is on CUDA device 0, and q or k on the CPU$"):
        rope.apply_qk(host_q, host_k, 7, scales=scales, out=(q_out.a, None))
    prepared = rope.prepare_qk(
        host_q, None, 7, out=(q_out.a, None), scales=Scales(q=Scale(data=each, computed=True))
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match="^data of scales.q is on CUDA device 0, and prepared calls are for"):
        prepared.apply_qk(host_q, out=(q_out.a, None), scales=scales)


def test_moves_are_queued_on_the_current_stream(rope, monkeypatch):
    """That of the library of cache.k, which DLPack is told, too."""
    of = []
    monkeypatch.setattr(_arrays, "current_stream", lambda x: of.append(x) or 0x70)
    arguments = moved()
    with pytest.raises(ValueError, match="^move: stream must be None in a CPU context"):
        rope.move(**arguments)
    cache = arguments["cache"]
    assert of[-1] is cache.k and cache.k.stream == cache.k_scale.data.stream == 0x70


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_bytes_by_the_interface_of_cuda(dtype):
    class Array:
        __cuda_array_interface__ = {**np.zeros((2, 3), dtype).__array_interface__, "data": (64, False)}

    view = _arrays.read(Array(), "x")
    assert view[1](view[0], "x") == ((2, 3), (3, 1), np.dtype(dtype).name) and view[3] == 0
