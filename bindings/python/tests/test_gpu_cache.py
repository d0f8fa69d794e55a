"""Caches and outputs on a GPU, also in 8 bits, and keys that move there: the bytes of the same calls on the CPU."""

import pytest
from gpu_device import (
    BATCH, CODES, CODE_IDS, DIM, GROUPS, PAGE, PAGES, ROPE, SLOTS, bits, cache_of, check, cuda_only, here,
    memory, qk, same, there, torch,
)  # fmt: skip
from gpu_device import compiler, seed  # noqa: F401  (fixtures)

from librope import KVCache, Norm, Norms, Scale, Scales

PLACES = {
    "slots": {"slots": SLOTS},
    "pages": {"page_table": torch.tensor([[5, 1], [4, 11]], dtype=torch.int32),
              "starts": torch.tensor([6, 1], dtype=torch.int32)},
    "ragged": {"page_table": torch.tensor([5, 1, 4], dtype=torch.int32),
               "page_starts": torch.tensor([0, 2, 3], dtype=torch.int32),
               "starts": torch.tensor([6, 1], dtype=torch.int32)},
    "starts": {"starts": torch.tensor([2, 0], dtype=torch.int32)},
    "one start": {"starts": 3},
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", CODES, ids=CODE_IDS)
def test_appends(dtype, place):
    q, k = qk(5, torch.bfloat16)
    v, ids = torch.randn_like(k), torch.randint(20_000, (BATCH, 5))
    weights = torch.randn(2, DIM)

    def run(where):
        arrays = [where(x) for x in (q, k, v, ids)]
        told = {n: x if isinstance(x, int) else where(x) for n, x in PLACES[place].items()}
        norms = Norms(*[Norm(where(w), kind="rms", eps=1e-6) for w in weights])
        made = []
        for more in ({}, {"norms": norms}):
            cache, all_memory = cache_of(dtype, where)
            made.append(ROPE.apply_qk(*arrays[:2], arrays[3], v=arrays[2], cache=cache.at(**told), **more)[0])
            assert any(x.view(torch.uint8).any() for x in all_memory)
            made += all_memory
        ROPE.apply_qk_(*arrays[:2], arrays[3], v=arrays[2], cache=cache.at(**told))
        return [*made, *all_memory, *arrays]

    same(run(there), run(here))


@cuda_only
def test_slots_that_do_not_exist_are_left_out():
    q, k = qk(5)
    cache, _ = cache_of(torch.bfloat16, there)
    slots = there(torch.where(SLOTS < 0, PAGES * PAGE + 5, SLOTS))
    ROPE.apply_qk(there(q), there(k), 9, v=there(k), cache=cache.at(slots=slots))
    want, _ = cache_of(torch.bfloat16, here)
    ROPE.apply_qk(q, k, 9, v=k, cache=want.at(slots=SLOTS))
    same([cache.k, cache.v], [want.k, want.v])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=["e4m3", "int8"])
def test_outputs_in_8_bits(dtype):
    q, k = qk(30, torch.bfloat16)

    def run(q, k, rest):
        each = [torch.zeros(x.shape[:-1], device=x.device) for x in (q, rest)]
        groups = torch.zeros(*k.shape[:-1], DIM // 16, device=k.device)
        scales = Scales(
            q=Scale(data=each[0], computed=True), rest=Scale(data=each[1], computed=True),
            k=Scale(data=groups, computed=True, group=16, power_of_two=True),
        )  # fmt: skip
        out = [torch.empty_like(x, dtype=dtype) for x in (q, k, rest)]
        ROPE.apply_qk(q, k, 5, rest=rest, out=(out[0], out[1], None, out[2]), scales=scales)
        wide = torch.empty(BATCH, 30, 2 * GROUPS, DIM, device=k.device)
        ROPE.apply_qk(None, k, 5, out=(None, wide))
        return [*out, *each, groups, wide]

    check(run, q, k, torch.randn_like(q))


@pytest.mark.parametrize("way", ["in place", "slots", "another cache"])
@pytest.mark.parametrize("dtype", [torch.float32, *CODES], ids=["float32", *CODE_IDS])
def test_moves(dtype, way):
    k = torch.randn(1, 12, GROUPS, DIM)
    rope = ROPE.replace(angle="exact")

    def run(where):
        cache, all_memory = cache_of(dtype, where)
        was, to = where(torch.arange(12)), where(torch.arange(12) * 3 + 1000)
        slots = where(torch.arange(12) * 5 + 1)
        rope.apply_qk_(None, where(k), was, v=where(k), cache=cache.at(slots=slots))
        filled = [x.clone() for x in all_memory]
        if way == "in place":
            rope.move(cache.at(slots=slots), to, was)
        elif way == "slots":
            rope.move(cache.at(slots=slots + 1), to, was, source=cache.at(slots=slots))
        else:
            other, memory_of_other = cache_of(torch.bfloat16, where)
            rope.move(other.at(slots=where(torch.arange(12))), to, was, source=cache.at(slots=slots))
            all_memory += memory_of_other
        assert memory_of_other[0].any() if way == "another cache" else (bits(filled[0]) != bits(all_memory[0])).any()
        return [*filled, *all_memory]

    same(run(there), run(here))


def test_a_shift_of_keys():
    exact = ROPE.replace(angle="exact")
    k, by = qk(8, torch.float16)[1], torch.tensor([100, -3])
    check(lambda k, by: [exact.apply(k, offsets=by, operation="shift")], k, by)


@torch.no_grad()
def test_compiled_code_with_a_cache(compiler):  # noqa: F811
    def run(q, k, v, keys, values, scales, ids, slots, weight):
        cache = KVCache(keys, values, layout="nhd", slots=slots, k_scale=Scale(data=scales, computed=True))
        norms = Norms(k=Norm(weight, kind="rms", eps=1e-6))
        q = q * 2
        ROPE.apply_qk_(q, k, ids, v=v, cache=cache, norms=norms)
        return q * 2, values.sum()

    q, k = qk(5, torch.bfloat16)
    given = [q, k, torch.randn_like(k), *memory(torch.float8_e4m3fn, here)[:1], *memory(torch.bfloat16, here),
             torch.randint(4000, (BATCH, 5)), SLOTS, torch.randn(DIM)]  # fmt: skip
    results = []
    for function, where in ((compiler(run, fullgraph=True), there), (run, there), (run, here)):
        arrays = [where(x) for x in given]
        results.append([function(*arrays)[0], *arrays])
    same(results[0], results[1])
    same(results[0], results[2])
    assert results[0][4].view(torch.uint8).any()
