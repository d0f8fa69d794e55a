"""Tensors and arrays on a GPU: the bits of the same calls on the CPU, on every stream, in graphs and in compiled code.

LIBROPE_TEST_GPU is their device, "cuda" if it is not given. With "cpu" all that needs no CUDA runs there, where no GPU
is at hand."""

import os
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import librope  # noqa: E402
import librope._norm_gradients as norm_gradients  # noqa: E402
import librope.torch  # noqa: E402
from librope import KVCache, Norm, Norms, Scale, Scales  # noqa: E402

DEVICE = torch.device(os.environ.get("LIBROPE_TEST_GPU", "cuda"))
ON_CUDA = DEVICE.type == "cuda"

if ON_CUDA:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device", allow_module_level=True)
    DEVICE = torch.device("cuda", torch.cuda.current_device())
    try:
        librope.Rope(head_dim=2, theta=1.0, pairing="halves")._context(DEVICE.index)
    except RuntimeError as e:
        if "without CUDA" not in str(e):  # a failure of the library or the driver is one
            raise
        pytest.skip(str(e), allow_module_level=True)

torch.set_num_threads(1)
cuda_only = pytest.mark.skipif(not ON_CUDA, reason="streams, graphs and arrays of CUDA")

DIM, HEADS, GROUPS, BATCH = 64, 8, 2, 2
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
IDS = ["float32", "float16", "bfloat16"]
ROPES = {
    "halves": librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd"),
    "interleaved": librope.Rope(head_dim=DIM, theta=1e4, pairing="interleaved", layout="bshd", rounding="eager"),
    "part": librope.Rope(head_dim=DIM, rotary_dim=24, theta=5e5, pairing="halves", layout="bshd", angle="exact"),
    "yarn": librope.Rope(head_dim=DIM, theta=1e4, pairing="interleaved", layout="bshd", scaling="yarn", factor=8.0,
                         original_max_position_embeddings=64),
}  # fmt: skip
ROPE = ROPES["halves"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def there(x):
    """A copy on the device."""
    return x.to(DEVICE, copy=True)


def here(x):
    """A copy where it is: of what the CPU is given."""
    return x.clone()


def same(got, want):
    """Bit for bit, wherever they are."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        assert torch.equal(*[x.detach().cpu().contiguous().view(torch.uint8) for x in (g, w)])


def check(run, *tensors):
    """run of copies on the device gives what run of copies on the CPU gives."""
    want = run(*map(here, tensors))
    got = run(*map(there, tensors))
    assert all(x.device == DEVICE for x in got)
    same(got, want)
    return got


def qk(tokens, dtype=torch.float32, batch=BATCH):
    return tuple(torch.randn(batch, tokens, heads, DIM).to(dtype) for heads in (HEADS, GROUPS))


def wait_long():
    """Work for the current stream, some hundredths of a second long: who does not wait for it is early."""
    torch.cuda._sleep(60_000_000)


# -- eager calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 5, 700])
@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("name", ROPES)
def test_rotations(name, dtype, tokens):
    rope = ROPES[name]
    q, k = qk(tokens, dtype)
    ids = torch.randint(100_000, (BATCH, tokens))

    def run(q, k, ids):
        made = []
        given = (ids, ids.int(), ids[:1], ids[0], ids[1].int(), ids.float(), 7, 2**33)
        for positions in given:
            for operation in ("forward", "backward", "inverse"):
                made += rope.apply_qk(q, k, positions, operation=operation)
        made += rope.apply_qk(q, k, offsets=ids[:, 0].contiguous())
        out = torch.empty_like(q), torch.empty_like(k)
        assert rope.apply_qk(q, k, ids, out=out)[0] is out[0]
        made += [*out, rope.apply(q, ids), rope.apply(k, 5)]
        made += rope.apply_qk(None, k, ids)[1:]
        rope.apply_qk_(q, k, ids)
        return [*made, q, k]

    check(run, q, k, ids)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
def test_views_of_a_packed_projection(dtype):
    """In place and into new tensors, also of an odd first channel; what lies beside q and k stays."""
    ids = torch.randint(5000, (BATCH, 9))

    def run(packed, ids):
        q, k, v = packed.split([HEADS, GROUPS, GROUPS], 2)
        made = [*ROPE.apply_qk(q, k, ids), ROPE.apply(v[..., 1 : 1 + DIM], ids)]
        ROPE.apply_qk_(q[..., :DIM], k[..., 3 : 3 + DIM], ids)
        turned = packed.transpose(1, 2)[:, :, 2:7]
        ROPE.apply_(turned[..., 2 : 2 + DIM], ids[:, 2:7].contiguous(), layout="bhsd")
        return [*made, packed]

    wide = torch.randn(BATCH, 9, HEADS + 2 * GROUPS, DIM + 5).to(dtype)
    with pytest.raises(ValueError, match="^q has"):
        run(there(wide), there(ids))

    def run(packed, ids):  # noqa: F811
        q, k, v = packed.split([HEADS, GROUPS, GROUPS], 2)
        made = [*ROPE.apply_qk(q[..., :DIM], k[..., 3 : 3 + DIM], ids), ROPE.apply(v[..., 1 : 1 + DIM], ids)]
        ROPE.apply_qk_(q[..., :DIM], k[..., 3 : 3 + DIM], ids)
        turned = packed.transpose(1, 2)[:, :, 2:7]
        ROPE.apply_(turned[..., 2 : 2 + DIM], ids[:, 2:7].contiguous(), layout="bhsd")
        return [*made, packed]

    check(run, wide, ids)
    check(lambda x, ids: [ROPE.apply(x.transpose(1, 2), ids, layout="bhsd").contiguous()], *qk(9, dtype)[:1], ids)


@pytest.mark.parametrize("batch, tokens", [(0, 3), (2, 0)])
def test_empty_tensors(batch, tokens):
    def run(q, k, ids):
        ROPE.apply_qk_(q, k, ids)
        return [*ROPE.apply_qk(q, k, ids), *ROPE.apply_qk(q, k, 3)]

    check(run, *qk(tokens, batch=batch), torch.zeros(batch, tokens, dtype=torch.int64))


def test_packed_sequences_axes_sets_and_rows():
    q, k = (x.flatten(0, 1) for x in qk(10))
    cu_seqlens = torch.tensor([0, 3, 3, 12, 20], dtype=torch.int32)
    offsets, sets = torch.tensor([5, 0, 900, 2]), torch.tensor([0, 1, 1, 0], dtype=torch.int32)
    both = librope.Rope.sets([ROPE, ROPE.replace(theta=1e6)], layout="thd")
    mrope = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", axes=3, mrope_section=[8, 12, 12], layout="thd")

    def run(q, k, cu_seqlens, offsets, sets, ids):
        made = list(both.apply_qk(q, k, offsets=offsets, cu_seqlens=cu_seqlens, freq_sets=sets))
        made += mrope.apply_qk(q, k, ids)
        for dtype in ("float32", "bfloat16"):
            rows = ROPE.cos_sin(ids[0], format="full_halves", dtype=dtype)
            made += rows
            made += ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format="full_halves", layout="thd")
        return [*made, ROPE.cos_sin(ids[0].int(), format="packed")]

    check(run, q, k, cu_seqlens, offsets, sets, torch.randint(3000, (3, 20)))


def test_a_position_that_is_one_number_on_the_device():
    check(lambda x, p: [ROPE.apply(x, p)], qk(3)[0], torch.tensor(9))


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
    want, again = ROPE.apply_qk(q, k, ids), None
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


# -- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("name", ROPES)
def test_gradients(name, dtype):
    rope, (q, k), ids = ROPES[name], qk(17, dtype), torch.randint(9000, (BATCH, 17))
    outer = [torch.randn_like(x) for x in (q, k)]

    def run(q, k, ids, *outer):
        q.requires_grad_(), k.requires_grad_()
        turned = rope.apply_qk(q, k, ids)
        made = torch.autograd.grad(turned, (q, k), outer)
        one = rope.apply(q.transpose(1, 2), offsets=ids[:, 0].contiguous(), layout="bhsd")
        return [*turned, *made, *torch.autograd.grad(one.float().square().sum(), q)]

    check(run, q, k, ids, *outer)


def test_second_derivatives_and_rows():
    def run(q, k, ids, dy):
        q.requires_grad_()
        rows = ROPE.cos_sin(ids, format="full_halves")
        turned = ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format="full_halves")[0]
        (g,) = torch.autograd.grad((ROPE.apply(q, ids) ** 2 * dy).sum(), q, create_graph=True)
        return [*torch.autograd.grad(turned, q, dy, retain_graph=True), g, *torch.autograd.grad(g, q, dy)]

    q, k = qk(6)
    check(run, q, k, torch.arange(6), torch.randn_like(q))


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


def normed(rope, rounding="float32"):
    def run(q, k, ids, q_weight, k_weight, k_bias, *outer):
        leaves = [x.requires_grad_() for x in (q, k, q_weight, k_weight, k_bias)]
        norms = Norms(
            Norm(q_weight, kind="rms", eps=1e-6, rounding=rounding),
            Norm(k_weight, k_bias, kind="layer_bias", eps=1e-5, rounding=rounding),
        )
        turned = rope.apply_qk(q, k, ids, norms=norms)
        return [*turned, *torch.autograd.grad(turned, leaves, outer)]

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("tokens", [3, 300])
def test_gradients_of_norms(monkeypatch, dtype, tokens):
    """Weights' gradients are sums of parts, of which a GPU makes more, and PyTorch adds these up in an order of its
    own: the bits of the CPU are those of one part."""
    q, k = qk(tokens, dtype)
    tensors = (
        q, k, torch.randint(9000, (BATCH, tokens)), torch.randn(DIM).to(dtype),
        torch.randn(GROUPS, DIM).to(dtype), torch.randn(GROUPS, DIM).to(dtype),
        torch.randn_like(q), torch.randn_like(k),
    )  # fmt: skip
    run = normed(ROPE, "float32")
    want, got = run(*map(here, tensors)), run(*map(there, tensors))
    same(got[:4], want[:4])
    for g, w in zip(got[4:], want[4:], strict=True):
        tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2.0**-7}[dtype]
        assert g.device == DEVICE and (g.cpu() - w).abs().max() <= tolerance * w.abs().max()
    monkeypatch.setattr(norm_gradients, "parts_of", lambda tokens, on_cuda: min(1, tokens))
    check(run, *tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("kind", ["rms", "rms_one_plus", "rms_plain", "layer"])
def test_norms(kind, dtype):
    """Also of all heads together, behind the rotation, and rounded step by step; v on its way to an output."""
    q, k = qk(40, dtype)

    def run(q, k, v, ids, weight, all_weights):
        made = []
        for options in (
            {}, {"span": "all_heads"}, {"order": "after"}, {"rounding": "rounded"}, {"rounding": "eager"},
        ):  # fmt: skip
            whole = options.get("span") == "all_heads"
            given = () if kind == "rms_plain" else (all_weights if whole else weight,)
            if options == {"order": "after"} and kind == "layer":
                continue
            norms = Norms(Norm(*given, kind=kind, eps=1e-6, **options), v=Norm(kind="rms_plain", eps=1e-6))
            v_out = torch.empty_like(v)
            made += ROPE.apply_qk(q, k, ids, v=v, norms=norms, out=(torch.empty_like(q), torch.empty_like(k), v_out))
            made.append(v_out)
        return made

    check(run, q, k, torch.randn_like(k), torch.arange(40), torch.randn(DIM), torch.randn(HEADS, DIM))


# -- caches -----------------------------------------------------------------------------------------

PAGES, PAGE = 16, 8
CODES = [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float8_e5m2, torch.uint8]
CODE_IDS = ["bfloat16", "e4m3", "int8", "e5m2", "q8_0"]


def memory(dtype, where, value=0):
    """A memory of keys or values, and the array of its scales."""
    channels = DIM // 32 * 34 if dtype == torch.uint8 else DIM
    keys = torch.full((PAGES, PAGE, GROUPS, channels), value, dtype=torch.uint8).to(dtype)
    return where(keys), where(torch.zeros(PAGES, PAGE, GROUPS))


def scale_of(dtype, scales):
    if dtype in (torch.bfloat16, torch.uint8):
        return None
    return Scale(0.03) if dtype == torch.float8_e5m2 else Scale(data=scales, computed=True)


def cache_of(dtype, where):
    """A KVCache, and all of its memory."""
    (keys, k_scales), (values, v_scales) = (memory(dtype, where) for _ in "kv")
    cache = KVCache(
        keys, values, layout="nhd", k_scale=scale_of(dtype, k_scales), v_scale=scale_of(dtype, v_scales)
    )  # fmt: skip
    return cache, [keys, values, k_scales, v_scales]


SLOTS = torch.tensor([[3, 90, -1, 0, 23], [8, 127, 64, 65, -7]])
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
        assert not torch.equal(filled[0].view(torch.uint8), all_memory[0].view(torch.uint8)) or way == "another cache"
        return [*filled, *all_memory]

    same(run(there), run(here))


def test_a_shift_of_keys():
    check(lambda k, by: [rope_shifted(k, by)], qk(8, torch.float16)[1], torch.tensor([100, -3]))


def rope_shifted(k, by):
    return ROPE.replace(angle="exact").apply(k, offsets=by, operation="shift")


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


# -- compiled code ----------------------------------------------------------------------------------


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield torch.compile


def test_compiled_code_with_gradients(compiler):
    """Products by powers of two, which are exact, so that the bits are those of eager code and of the CPU."""

    def turned(q, k, ids):
        return [4 * x for x in ROPE.apply_qk(q * 2, k * 2, ids)]

    def gradients(run, where):
        q, k = (where(x).requires_grad_() for x in tensors)
        got = run(q, k, where(ids))
        return [*got, *torch.autograd.grad(got, (q, k), [where(x) for x in outer])]

    tensors, ids = qk(12, torch.bfloat16), torch.randint(4000, (BATCH, 12))
    outer = [torch.randn_like(x) for x in tensors]
    got = gradients(compiler(turned, fullgraph=True), there)
    same(got, gradients(turned, there))
    same(got, gradients(turned, here))


@torch.no_grad()
def test_compiled_code_with_a_cache(compiler):
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
            lambda: ROPE.apply(q_there, ids), lambda: ROPE.apply(q_there, ids.numpy()), lambda: ROPE.apply(learned, ids),
            lambda: ROPE.apply(q_there, [0, 1, 2, 3, 4]), lambda: ROPE.apply_qk_(q_there, k_there, ids),
            lambda: ROPE.bind(q_there, k_there, ids),
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


# -- transformers -----------------------------------------------------------------------------------

TINY = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, head_dim=16, vocab_size=256,
    intermediate_size=64, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def model_of(family, dtype=torch.float32, **fields):
    tf = pytest.importorskip("transformers")
    tf.logging.set_verbosity_error()
    config = getattr(tf, f"{family}Config")(**{**TINY, **fields})
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    return model.to(DEVICE).eval()


@pytest.fixture
def count(monkeypatch):
    """How often librope ran, and on which devices."""
    pytest.importorskip("transformers")
    import librope.transformers

    calls, real = [], librope.torch.rotate_by_rows
    monkeypatch.setattr(librope.torch, "rotate_by_rows", lambda *a: (calls.append(a[0].device), real(*a))[1])
    yield calls
    librope.transformers.unpatch()


TOKENS = torch.randint(3, 256, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@torch.no_grad()
def test_patched_models(family, dtype, count):
    """The function of the model's module bit for bit, and with it logits and generated tokens."""
    import sys

    model, ids = model_of(family, dtype), there(TOKENS)
    module = sys.modules[type(model).__module__]
    q, k = (there(x).to(dtype).transpose(1, 2) for x in qk(9))
    rows = [x.to(dtype) for x in ROPE.cos_sin(there(torch.arange(9))[None], format="full_halves")]

    def run():
        turned = module.apply_rotary_pos_emb(q, k, *rows)
        return [*turned, model(ids).logits, model.generate(ids, max_new_tokens=4, do_sample=False)]

    want = run()
    report = librope.transformers.patch(model)
    assert report.patched and not report.left_devices
    count.clear()
    got = run()
    assert len(count) >= 1 + 2 * (1 + 4) and set(count) == {DEVICE}
    same(got[:2], want[:2])
    torch.testing.assert_close(got[2], want[2], rtol=1e-5, atol=1e-6)
    assert torch.equal(got[3], want[3])
    librope.transformers.unpatch(model)
    if family == "Qwen3":
        report = librope.transformers.patch(model, norms=True)
        assert "normed in the same call" in str(report)
        count.clear()
        got = model(ids).logits
        assert len(count) == 2
        assert float((got - want[2]).abs().max()) <= 2**-6 * float(want[2].abs().max())


def test_training_of_a_patched_model(count):
    model, ids = model_of("Llama").train(), there(TOKENS)

    def gradients():
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    want = gradients()
    librope.transformers.patch(model)
    got = gradients()
    assert count
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_a_compiled_patched_model(count, monkeypatch, compiler):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.undo()  # nothing between the model and librope
    model, ids = model_of("Llama", num_hidden_layers=1), there(TOKENS)
    librope.transformers.patch(model)
    want = model(ids, use_cache=False).logits
    got, code = run_and_get_code(compiler(model, fullgraph=True), ids, use_cache=False)
    assert "librope.apply_rows" in "".join(code)
    torch.testing.assert_close(got.logits, want, rtol=1e-5, atol=1e-5)
