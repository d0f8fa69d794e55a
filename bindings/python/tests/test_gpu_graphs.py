"""Calls on a GPU are work of the current stream, which a graph records and replays."""

import threading

import pytest
from gpu_device import (
    CODES, CODE_IDS, DEVICE, DIM, GROUPS, HEADS, PAGE, PAGES, ROPE, cache_of, cuda_only, here, qk, same,
    there, torch, wait_long,
)  # fmt: skip
from gpu_device import seed  # noqa: F401  (a fixture)

# -- streams ----------------------------------------------------------------------------------------


@cuda_only
@pytest.mark.parametrize("how", ["with", "set_stream", "default"])
def test_calls_are_queued_on_the_current_stream(how):
    """Behind what was queued there before, and before what is queued afterwards."""
    (q, k), ids = qk(33, torch.bfloat16), torch.arange(33)
    want = ROPE.apply_qk(q, k, ids)
    static = [torch.zeros_like(x, device=DEVICE) for x in (q, k)]
    values, positions = [there(x) for x in (q, k)], there(ids)
    torch.cuda.synchronize()

    def work():
        wait_long()
        for x, value in zip(static, values, strict=True):
            x.copy_(value)
        made = ROPE.apply_qk(*static, positions)
        ROPE.apply_qk_(*static, positions)
        copies = [x.clone() for x in static]
        for x in static:
            x.zero_()
        return [*made, *copies]

    stream = torch.cuda.current_stream() if how == "default" else torch.cuda.Stream()
    if how == "with":
        with torch.cuda.stream(stream):
            got = work()
    elif how == "set_stream":
        before = torch.cuda.current_stream()
        torch.cuda.set_stream(stream)
        try:
            got = work()
        finally:
            torch.cuda.set_stream(before)
    else:
        got = work()
    stream.synchronize()
    same(got, [*want, *want])
    assert not any(x.any() for x in static)


@cuda_only
def test_streams_that_wait_for_each_other():
    (q, k), ids = qk(20), torch.arange(20)
    want = ROPE.apply_qk(q, k, ids)
    again = ROPE.apply_qk(*want, ids)
    static, values, positions = torch.zeros_like(q, device=DEVICE), there(q), there(ids)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    filled, turned = torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(first):
        wait_long()
        static.copy_(values)
        filled.record()
    with torch.cuda.stream(second):
        second.wait_event(filled)
        ROPE.apply_(static, positions)
        wait_long()
        turned.record()
    with torch.cuda.stream(first):
        first.wait_event(turned)
        got = ROPE.apply(static, positions)
    torch.cuda.synchronize()
    same([static, got], [want[0], again[0]])


@cuda_only
def test_a_bound_call_keeps_its_stream():
    q, ids = qk(20)[0], torch.arange(20)
    static, values, positions = torch.zeros_like(q, device=DEVICE), there(q), there(ids)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step = ROPE.bind(static, None, positions)
        wait_long()
        static.copy_(values)
    step()
    torch.cuda.synchronize()
    same([static], [ROPE.apply(q, ids)])


@cuda_only
def test_threads_have_streams_of_their_own():
    rope = ROPE.replace(theta=777.0)  # whose context all of them ask for at once
    (q, k), results = qk(64, torch.float16), {}

    def work(n):
        with torch.cuda.device(DEVICE), torch.cuda.stream(torch.cuda.Stream()):
            tensors = [there(x) for x in (q, k)]
            for i in range(20):
                rope.apply_qk_(*tensors, n + i)
            torch.cuda.current_stream().synchronize()
            results[n] = [x.cpu() for x in tensors]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        want = [here(x) for x in (q, k)]
        for i in range(20):
            rope.apply_qk_(*want, n + i)
        same(results[n], want)


@cuda_only
def test_backward_goes_on_in_the_stream_of_forward():
    q, ids = qk(50)[0], torch.arange(50)
    dy, static = torch.randn_like(q), torch.zeros_like(q, device=DEVICE).requires_grad_()
    positions, values, outer = there(ids), there(q), there(dy)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wait_long()
        with torch.no_grad():
            static.copy_(values)
        turned = ROPE.apply(static * 2, positions)
    wait_long()
    outer.mul_(2)
    turned.backward(outer)
    torch.cuda.synchronize()
    same([turned, static.grad], [ROPE.apply(q * 2, ids), 2 * ROPE.apply(2 * dy, ids, operation="backward")])


# -- graphs -----------------------------------------------------------------------------------------


def step(rope, cache, slots, q, k, v, positions, moved):
    """What a captured step does: q in place, k and v into the cache, and the keys to other positions."""
    rope.apply_qk_(q, k, positions, v=v, cache=cache.at(slots=slots))
    rope.move(cache.at(slots=slots), moved, positions)
    return rope.apply_qk(q, k, positions)


@cuda_only
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", CODES[:3], ids=CODE_IDS[:3])
@torch.no_grad()
def test_captured_steps(dtype, first):
    """A capture runs nothing, and a replay takes the positions, slots and values of its time. first: the context of
    the Rope is made during the capture."""
    rope = ROPE.replace(theta=1234.0 + CODES.index(dtype))
    q, k = (torch.randn(1, 6, heads, DIM, dtype=torch.bfloat16) for heads in (HEADS, GROUPS))
    inputs = [there(torch.zeros_like(x)) for x in (q, k, k)]
    positions, moved, slots = (torch.zeros(6, dtype=torch.int64, device=DEVICE) for _ in range(3))
    if not first:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(rope, cache_of(dtype, there)[0], slots, *inputs, positions, moved)
        torch.cuda.current_stream().wait_stream(stream)
    cache, all_memory = cache_of(dtype, there)
    inputs[0].fill_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step(rope, cache, slots, *inputs, positions, moved)
    torch.cuda.synchronize()
    assert not any(x.view(torch.uint8).any() for x in all_memory) and (inputs[0] == 1).all()

    expected, expected_memory = cache_of(dtype, here)
    for turn in range(3):
        values = [torch.randn(x.shape, dtype=x.dtype) for x in inputs]
        ids = torch.randint(5000, (6,))
        to, place = ids + 100 * turn, torch.randperm(PAGES * PAGE)[:6]
        place[turn] = -1
        for x, value in zip((*inputs, positions, moved, slots), (*values, ids, to, place), strict=True):
            x.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        want = step(rope, expected, place, *values, ids, to)
        same([*made, inputs[0], *all_memory], [*want, values[0], *expected_memory])


@cuda_only
@torch.no_grad()
def test_a_graph_outlives_its_rope():
    q, ids = qk(4)[0], torch.arange(4)
    static, positions = torch.zeros_like(q, device=DEVICE), there(ids)
    rope, graph = ROPE.replace(theta=99.0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rope.apply_(static, positions)
    want = rope.apply(q, ids + 40)
    del rope
    static.copy_(q)
    positions.add_(40)
    graph.replay()
    torch.cuda.synchronize()
    same([static], [want])
