"""A cache of torch tensors: the bits of apply_qk, compiled code, and no way past autograd."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
PAGES, PAGE, CANARY = 6, 4, 77


@pytest.fixture(autouse=True)
def no_code_of_others():
    """PyTorch's cache of compiled code takes two tensors for two parts of one."""
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, h, 16) for h in (4, 2, 2))


def memory(form="[2, pages]", layout="nhd", dtype=torch.float32):
    one = (PAGE, 2, 16) if layout == "nhd" else (2, PAGE, 16)
    if form == "[2, pages]":
        both = torch.full((2, PAGES, *one), CANARY, dtype=dtype)
        return both[0], both[1]
    both = torch.full((PAGES, 2, *one), CANARY, dtype=dtype)
    return both[:, 0], both[:, 1]


def slots_of(m, layout="nhd"):
    m = m if layout == "nhd" else m.transpose(1, 2)
    return m.reshape(PAGES * PAGE, 2, 16)


# Where the six tokens go, and what KVCache is told.
PLACES = {
    "slots": ([3, 9, -1, 0, 23, 8], {"slots": torch.tensor([[3, 9, -1], [0, 23, 8]])}),
    "padded": ([3, 9, 11, 0, -1, -1], {"slots": torch.tensor([3, 9, 11, 0, -5, -1, 99], dtype=torch.int32)}),
    "paged": ([22, 23, 4, 17, 18, 19], {
        "page_table": torch.tensor([[5, 1], [4, 999]], dtype=torch.int32),
        "starts": torch.tensor([2, 1], dtype=torch.int32)}),
    "ragged": ([22, 23, 4, 17, 18, 19], {
        "page_table": torch.tensor([5, 1, 4], dtype=torch.int32),
        "page_starts": torch.tensor([0, 2, 3], dtype=torch.int32),
        "starts": torch.tensor([2, 1], dtype=torch.int32)}),
    "linear": ([1, 2, 3, 5, 6, 7], {"starts": torch.tensor([1, 1], dtype=torch.int32)}),
    "linear int": ([1, 2, 3, 5, 6, 7], {"starts": 1}),
}  # fmt: skip


def check(cache, want_k, v, slots, layout="nhd"):
    for m, x in ((cache.k, want_k), (cache.v, v)):
        got, rows = slots_of(m, layout), x.reshape(6, 2, 16)
        for row, slot in zip(rows, slots, strict=True):
            assert slot < 0 or torch.equal(got[slot], row)
        rest = [i for i in range(PAGES * PAGE) if i not in slots]
        assert (got[rest] == CANARY).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["[2, pages]", "[pages, 2]"])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bits_of_apply_qk(qkv, place, form, layout, dtype):
    q, k, v = (x.to(dtype) for x in qkv)
    slots, told = PLACES[place]
    cache = librope.KVCache(*memory(form, layout, dtype), layout=layout, **told)
    want = ROPE.apply_qk(q, k, 5)
    versions = cache.k._version, q._version, k._version
    got = ROPE.apply_qk(q, k, 5, v=v, cache=cache)
    assert torch.equal(got[0], want[0]) and got[1] is None
    check(cache, want[1], v, slots, layout)
    assert cache.k._version > versions[0] and (q._version, k._version) == versions[1:]
    again = librope.KVCache(*memory(form, layout, dtype), layout=layout, **told)
    step = ROPE.bind(q.clone(), k, 5, v=v, cache=again)
    step()
    check(again, want[1], v, slots, layout)
    ROPE.apply_qk_(q, k, 5, v=v, cache=cache)
    assert torch.equal(q, want[0]) and q._version > versions[1] and k._version == versions[2]


def test_outputs_beside_the_cache(qkv):
    q, k, v = qkv
    slots, told = PLACES["slots"]
    cache, want = librope.KVCache(*memory(), layout="nhd", **told), ROPE.apply_qk(q, k, 5)
    v_out = torch.empty_like(v)
    got = ROPE.apply_qk(q, k, 5, v=v, cache=cache, out=(None, k, v_out))
    assert torch.equal(got[0], want[0]) and got[1] is k and torch.equal(k, want[1]) and torch.equal(v_out, v)
    check(cache, want[1], v, slots)


@pytest.mark.parametrize("place", ["slots", "paged", "linear"])
@pytest.mark.parametrize("way", ["apply_qk", "apply_qk_"])
def test_what_is_known_of_a_call_is_checked_again(qkv, place, way):
    """Calls like the first one take a short way, past nothing that PyTorch has to see."""
    slots, told = PLACES[place]
    run, positions = getattr(ROPE, way), torch.arange(5, 8)
    caches = [librope.KVCache(*memory(form), layout="nhd", **told) for form in ("[2, pages]", "[pages, 2]")]
    for cache in (*caches, *caches):
        for scale, form in ((1, "dense"), (-2, "dense"), (3, "part"), (4, "part")):
            q, k, v = (scale * x for x in qkv)
            if form == "part":
                q = torch.cat([q, q], 2)[:, :, :4]
            want = ROPE.apply_qk(q, k, positions)
            cache.k.fill_(CANARY), cache.v.fill_(CANARY)
            versions = [x._version for x in (q, k, cache.k, cache.v)]
            got = run(q, k, positions, v=v, cache=cache)
            rotated = q if got is None else got[0]
            assert torch.equal(rotated, want[0]) and rotated.stride() == (q if got is None else want[0]).stride()
            check(cache, want[1], v, slots)
            grown = [x._version > n for x, n in zip((q, k, cache.k, cache.v), versions)]
            assert grown == [way == "apply_qk_", False, True, True]
    cache = caches[0]
    q, k, v = qkv
    for i in range(3):
        arrays = [x.clone().requires_grad_(i == j) for j, x in enumerate(qkv)]
        refused(NotImplementedError, "no gradient", lambda: run(arrays[0], arrays[1], positions, v=arrays[2], cache=cache))
    negative = torch.randn(2, 3, 2, 16, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    refused((TypeError, ValueError), "k ", lambda: run(q, negative, positions, v=v, cache=cache))
    refused(ValueError, r"apply_qk_?: starts\[0\] \(2\)", lambda: run(q, k, positions, v=v, cache=cache.at(starts=torch.full((2,), 2, dtype=torch.int32))))
    refused(ValueError, "overlaps", lambda: run(q, cache.k[:2, :3], positions, v=v, cache=cache))
    with torch.profiler.profile() as profile:
        run(q.clone(), k, positions, v=v, cache=cache)
    assert "librope::apply" in {e.key for e in profile.key_averages()}
    refused(NotImplementedError, "torch.func",
            lambda: torch.func.vmap(lambda x: run(x, k[0], 5, v=v[0], cache=cache, layout="thd"))(q))  # fmt: skip
    # The memory of a tensor may become other memory, of which nothing is known.
    other = torch.full((PAGES, PAGE, 2, 16), CANARY, dtype=torch.float32)
    cache.k.data = other
    want = ROPE.apply_qk(q, k, positions)
    run(q.clone(), k, positions, v=v, cache=cache)
    assert torch.equal(slots_of(other)[slots[1]], want[1].reshape(6, 2, 16)[1])
    cache.k.resize_(3, PAGE, 2, 16)
    refused(ValueError, "cache.k has 3 pages", lambda: run(q, k, positions, v=v, cache=cache))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_tensor_without_axes_is_the_int_in_it(qkv, dtype):
    q, k, v = qkv
    for positions, operation in ((7, "forward"), (9, "forward"), (5, "shift")):
        cache = librope.KVCache(*memory(), layout="nhd", starts=torch.tensor(1, dtype=dtype))
        want = ROPE.apply_qk(q, k, positions, operation=operation)
        for _ in range(2):
            got = ROPE.apply_qk(q, k, torch.tensor(positions, dtype=dtype), v=v, cache=cache, operation=operation)
            assert torch.equal(got[0], want[0])
        check(cache, want[1], v, PLACES["linear"][0])


def test_a_cache_of_other_size_is_known_apart(qkv):
    """What is known of a cache that grew must not be taken for one of its former size."""
    q, k, v = qkv
    one, other = (librope.KVCache(*memory(form), layout="nhd") for form in ("[pages, 2]", "[pages, 2]"))
    slots = PLACES["slots"][1]["slots"]
    for cache in (one, other, one, other):
        ROPE.apply_qk(q, k, 5, v=v, cache=cache.at(slots=slots))
    for x in (one.k, one.v):
        x.data = torch.zeros(9 * PAGES, PAGE, 2, 16)
    ROPE.apply_qk(q, k, 5, v=v, cache=one.at(slots=slots))
    refused(ValueError, "must be below 24",
            lambda: ROPE.apply_qk(q, k, 5, v=v, cache=other.at(slots=slots + PAGES * PAGE - 20)))  # fmt: skip


# Copied there and back; Inductor of torch 2.11 reads the copy of the second from behind it.
parts_from_outside = pytest.mark.xfail(torch.__version__ < "2.15", reason="parts of one memory in old torch.compile")


@parts_from_outside
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", ["new", "in place", "k_out"])
def test_compiled(qkv, place, way):
    """fullgraph, and what comes after the call sees what it has written."""
    torch._dynamo.reset()  # one function of Python, compiled once for each place and way
    slots, told = PLACES[place]

    def step(q, k, v, k_memory, v_memory, positions, told):
        cache = librope.KVCache(k_memory, v_memory, layout="nhd", **told)
        q, k = q * 2, k * 2
        if way == "in place":
            ROPE.apply_qk_(q, k, positions, v=v, cache=cache)
        elif way == "k_out":
            q, k = ROPE.apply_qk(q, k, positions, v=v, cache=cache, out=(None, k))
        else:
            q, k = ROPE.apply_qk(q, k, positions, v=v, cache=cache)
        return q + 1, None if k is None else k + 1, k_memory.sum()

    q, k, v = qkv
    positions = torch.arange(5, 8)
    want = ROPE.apply_qk(q * 2, k * 2, positions)
    compiled = torch.compile(step, fullgraph=True)
    for _ in range(2):
        k_memory, v_memory = memory()
        got = compiled(q, k, v, k_memory, v_memory, positions, told)
        check(librope.KVCache(k_memory, v_memory, layout="nhd"), want[1], v, slots)
        assert torch.equal(got[0], want[0] + 1)
        if way != "new":
            assert torch.equal(got[1], (k * 2 if way == "in place" else want[1]) + 1)
        assert torch.allclose(got[2], k_memory.sum())


@parts_from_outside
def test_compiled_with_a_cache_from_outside(qkv):
    q, k, v = qkv
    slots, told = PLACES["slots"]
    memories = memory()
    cache = librope.KVCache(*memories, layout="nhd")
    compiled = torch.compile(
        lambda q, k, v, s: ROPE.apply_qk(q, k, 5, v=v, cache=cache.at(slots=s)), fullgraph=True
    )
    want = ROPE.apply_qk(q, k, 5)
    got = compiled(q, k, v, told["slots"])
    assert torch.equal(got[0], want[0]) and got[1] is None
    check(cache, want[1], v, slots)


@pytest.mark.parametrize("form", ["apart", "parts inside"])
def test_compiled_code_copies_no_cache(qkv, form):
    """Declared as written, a cache could be copied there and back: many gigabytes."""
    from torch._inductor.utils import run_and_get_code

    def step(q, k, v, memory, slots):
        k_memory, v_memory = memory if form == "apart" else (memory[0], memory[1])
        cache = librope.KVCache(k_memory, v_memory, layout="nhd", slots=slots)
        return ROPE.apply_qk(q * 2, k * 2, 5, v=v, cache=cache)[0]

    both = torch.full((2, PAGES, PAGE, 2, 16), CANARY, dtype=torch.float32)
    memory = tuple(x.clone() for x in both) if form == "apart" else both
    told = PLACES["slots"][1]
    with torch.no_grad():
        _, code = run_and_get_code(torch.compile(step, fullgraph=True), *qkv, memory, told["slots"])
    body = code[0].partition("def call")[2]
    assert "librope.apply_fused_" in body and "copy" not in body and "clone" not in body


def test_sizes_may_be_symbols(qkv):
    def step(q, k, v, k_memory, v_memory, slots):
        cache = librope.KVCache(k_memory, v_memory, layout="nhd", slots=slots)
        return ROPE.apply_qk(q, k, torch.arange(q.shape[1]), v=v, cache=cache)[0]

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for tokens in (2, 3, 5):
        q, k, v = (torch.randn(1, tokens, h, 16) for h in (4, 2, 2))
        k_memory, v_memory = memory()
        got = compiled(q, k, v, k_memory, v_memory, torch.arange(tokens))
        want = ROPE.apply_qk(q, k, range(tokens))
        assert torch.equal(got, want[0]) and torch.equal(slots_of(k_memory)[:tokens], want[1][0])


def test_exported(qkv):
    class Step(torch.nn.Module):
        def forward(self, q, k, v, k_memory, v_memory, slots):
            cache = librope.KVCache(k_memory, v_memory, layout="nhd", slots=slots)
            return ROPE.apply_qk(q, k, 5, v=v, cache=cache)[0]

    q, k, v = qkv
    slots, told = PLACES["slots"]
    k_memory, v_memory = memory("[2, pages]")
    arguments = (q, k, v, k_memory.clone(), v_memory.clone(), told["slots"])
    program = torch.export.export(Step(), arguments)
    want = ROPE.apply_qk(q, k, 5)
    assert torch.equal(program.module()(*arguments), want[0])
    check(librope.KVCache(*arguments[3:5], layout="nhd"), want[1], v, slots)


def test_operator_keeps_the_rules_of_operators(qkv):
    q, k, v = qkv
    cache = memory("[2, pages]")
    told = PLACES["slots"][1]["slots"]
    arguments = (q, k, v, torch.empty_like(q), None, None, cache[0].clone(), cache[1].clone(), "nhd", told,
                 None, None, None, *[None] * 9, "", torch.arange(3), 0, ROPE.spec, "bshd", 0, False, "")  # fmt: skip
    torch.library.opcheck(torch.ops.librope.apply_fused_.default, arguments)


def refused(error, says, run):
    with pytest.raises(error, match=says):
        run()


def test_gradients_are_refused(qkv):
    q, k, v = qkv
    cache = librope.KVCache(*memory(), layout="nhd", starts=0)
    for i in range(3):
        arrays = [x.clone().requires_grad_(i == j) for j, x in enumerate(qkv)]
        for function in (ROPE.apply_qk, ROPE.apply_qk_):
            refused(NotImplementedError, "no gradient goes through v=, cache=",
                    lambda: function(arrays[0], arrays[1], 5, v=arrays[2], cache=cache))  # fmt: skip
        with torch.no_grad():
            ROPE.apply_qk(arrays[0], arrays[1], 5, v=arrays[2], cache=cache)
    grad = librope.KVCache(cache.k.clone().requires_grad_(), cache.v, layout="nhd", starts=0)
    refused(NotImplementedError, "no gradient", lambda: ROPE.apply_qk(q, k, 5, v=v, cache=grad))
    refused(RuntimeError, "requires a gradient", lambda: ROPE.bind(q, k, 5, v=v, cache=grad))
    with forward_ad.dual_level():
        refused(NotImplementedError, "no forward-mode derivative through norms=, v=, cache=",
                lambda: ROPE.apply_qk(q, k, 5, v=v, cache=cache))  # fmt: skip
    with torch.inference_mode():
        ROPE.apply_qk(q, k, 5, v=v, cache=cache)
    assert (cache.k[2:] == CANARY).all()


def test_transforms_and_modes_are_refused_or_seen(qkv):
    q, k, v = qkv
    cache = librope.KVCache(*memory(), layout="nhd", starts=0)
    refused(NotImplementedError, "torch.func",
            lambda: torch.func.vmap(lambda x: ROPE.apply_qk(x, k[0], 5, v=v[0], cache=cache, layout="thd")[0])(q))  # fmt: skip
    with pytest.raises(NotImplementedError, match="jit.trace"):
        torch.jit.trace(lambda x: ROPE.apply_qk(x, k, 5, v=v, cache=cache)[0], (q,), check_trace=False)
    rows = ROPE.cos_sin(torch.arange(3))
    compiled = torch.compile(
        lambda q: ROPE.apply_qk(q, k, cos_sin=rows, cos_sin_format="full_halves", v=v, cache=cache), fullgraph=True
    )
    with pytest.raises(Exception, match="cos_sin= is not available"):
        compiled(q)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False, custom_mapping=lt.FLOPS) as counter:
        version = cache.k._version
        ROPE.apply_qk(q, k, 5, v=v, cache=cache)
    assert counter.get_total_flops() == 3 * (q.numel() + k.numel()) and cache.k._version > version


def test_meta_and_fake_tensors_keep_the_rules(qkv):
    q, k, v = (x.to("meta") for x in qkv)
    k_memory, v_memory = (x.to("meta") for x in memory())
    cache = librope.KVCache(k_memory, v_memory, layout="nhd", starts=0)
    got = ROPE.apply_qk(q, k, 5, v=v, cache=cache)
    assert got[0].is_meta and got[0].shape == q.shape and got[1] is None
    short = librope.KVCache(k_memory[:3], v_memory, layout="nhd", starts=0)
    refused(ValueError, "cache.k has 3 pages", lambda: ROPE.apply_qk(q, k, 5, v=v, cache=short))
    beside = librope.KVCache(*memory(), layout="nhd", starts=0)
    refused(TypeError, r"cache\.k is on cpu, and q on meta", lambda: ROPE.apply_qk(q, k, 5, v=v, cache=beside))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(2, 3, h, 16) for h in (4, 2, 2))
        wide = librope.KVCache(*(torch.empty(PAGES, PAGE, 2, 16, dtype=torch.float64) for _ in range(2)),
                               layout="nhd", starts=0)  # fmt: skip
        refused(TypeError, "cache.k has dtype float64", lambda: ROPE.apply_qk(q, k, 5, v=v, cache=wide))
        heads = librope.KVCache(*(torch.empty(PAGES, PAGE, 4, 16) for _ in range(2)), layout="nhd", starts=0)
        refused(ValueError, "cache.k has 4 heads, and k 2", lambda: ROPE.apply_qk(q, k, 5, v=v, cache=heads))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("place", PLACES)
def test_on_a_device(qkv, place):
    """As on the CPU, but for slots that do not exist: they are left out."""
    q, k, v = (x.cuda() for x in qkv)
    positions = torch.arange(3, device="cuda")
    try:
        ROPE.apply(q, positions)
    except RuntimeError as e:
        pytest.skip(f"built without CUDA: {e}")
    slots, told = PLACES[place]
    there = {n: x if isinstance(x, int) else x.cuda() for n, x in told.items()}
    want = ROPE.apply_qk(*qkv[:2], torch.arange(3))

    def run(call, where):
        cache = librope.KVCache(*(x.cuda() for x in memory()), layout="nhd", **where)
        got = call(q, k, positions, v=v, cache=cache)
        assert torch.equal(got[0].cpu(), want[0]) and got[1] is None
        return librope.KVCache(cache.k.cpu(), cache.v.cpu(), layout="nhd")

    compiled = torch.compile(lambda *a, **named: ROPE.apply_qk(*a, **named), fullgraph=True)
    for call in (ROPE.apply_qk, ROPE.apply_qk, compiled):
        check(run(call, there), want[1], qkv[2], slots)
    if place == "slots":
        beyond = torch.where(there["slots"] == 23, PAGES * PAGE, there["slots"])
        check(run(ROPE.apply_qk, {"slots": beyond}), want[1], qkv[2], [-1 if s == 23 else s for s in slots])
        with pytest.raises(ValueError, match="slots is on the CPU"):
            run(ROPE.apply_qk, told)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_appends_and_moves_on_a_device(qkv, dtype):
    """In 8 bits with computed scales, and Q8_0: the bytes of the CPU, also on a stream of the program's own."""
    wide = torch.randn(1, 6, 2, 32, dtype=torch.bfloat16)
    rope = librope.Rope(head_dim=32, theta=1e4, pairing="halves", layout="bshd")

    def run(there):
        keys = there(torch.zeros(PAGES, PAGE, 2, 34 if dtype == torch.uint8 else 32, dtype=dtype))
        scales = there(torch.zeros(PAGES, PAGE, 2))
        scale = librope.Scale(data=scales, computed=True) if dtype == torch.float8_e4m3fn else None
        cache = librope.KVCache(keys, layout="nhd", k_scale=scale)
        was, slots = there(torch.arange(6)), there(torch.tensor([3, 9, 11, 0, 23, 8]))
        rope.apply_qk_(None, there(wide), was, cache=cache.at(slots=slots))
        rope.move(cache.at(slots=slots), there(torch.arange(6) + 100), was)
        other = there(torch.tensor([4, 10, 12, 1, 22, 7]))
        rope.move(cache.at(slots=other), was, was + 100, source=cache.at(slots=slots))
        return keys.cpu().view(torch.uint8), scales.cpu()

    try:
        ROPE.apply(qkv[0].cuda(), torch.arange(3, device="cuda"))
    except RuntimeError as e:
        pytest.skip(f"built without CUDA: {e}")
    with torch.cuda.stream(torch.cuda.Stream()):
        got = run(lambda x: x.cuda())
    for g, w in zip(got, run(lambda x: x), strict=True):
        assert torch.equal(g, w)


def test_arrays_of_numpy_beside_tensors(qkv):
    q, k, v = qkv
    slots, told = PLACES["slots"]
    cache = librope.KVCache(*(m.numpy() for m in memory()), layout="nhd", slots=told["slots"].numpy())
    got = ROPE.apply_qk(q, k, 5, v=v.numpy(), cache=cache)
    want = ROPE.apply_qk(q, k, 5)
    assert torch.equal(got[0], want[0])
    assert np.array_equal(cache.k.reshape(-1, 2, 16)[slots[3]], want[1][1, 0].numpy())
    compiled = torch.compile(lambda q: ROPE.apply_qk(q, k, 5, v=v, cache=cache)[0], fullgraph=True)
    with pytest.raises(Exception, match="cache.k is a ndarray beside torch tensors"):
        compiled(q)


def test_static_cache_of_transformers():
    """keys and values [batch, heads, length, head_dim]: a page for each sequence."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        vocab_size=10,
    )  # fmt: skip
    static, plain = (transformers.StaticCache(config=config, max_cache_len=12) for _ in range(2))
    rope = ROPE.replace(layout="bhsd")
    past = 0
    for tokens in (5, 1, 1, 3):
        q, k, v = (torch.randn(2, h, tokens, 16) for h in (4, 2, 2))
        for layer in range(2):
            want = rope.apply_qk(q, k, past)
            plain.update(want[1], v, layer, {"cache_position": torch.arange(past, past + tokens)})
            if past == 0:  # its tensors are made by the first update
                static.update(torch.zeros_like(k), torch.zeros_like(v), layer, {"cache_position": torch.arange(tokens)})
            memory = static.layers[layer]
            cache = librope.KVCache(memory.keys, memory.values, layout="hnd", starts=past)
            got = rope.apply_qk(q, k, past, v=v, cache=cache)
            assert torch.equal(got[0], want[0])
        past += tokens
    for ours, theirs in zip(static.layers, plain.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_codes_in_8_bits(qkv, dtype):
    """By a scale of a power of two, where a cast of torch gives the codes."""
    q, k, v = qkv
    _, turned = ROPE.apply_qk(q, k, 5)
    keys, values = (torch.zeros(PAGES, PAGE, 2, 16, dtype=dtype) for _ in range(2))
    scales = torch.zeros(PAGES, PAGE, 2)
    computed = librope.Scale(data=scales, computed=True)
    told = {"layout": "nhd", "k_scale": librope.Scale(0.25), "starts": 1}
    for v_scale in (computed, librope.Scale(1.0), librope.Scale(1.0)):  # the last one goes the short way
        keys.zero_()
        cache = librope.KVCache(keys, values, v_scale=v_scale, **told)
        ROPE.apply_qk(q, k, 5, v=v, cache=cache)
        exact = turned.float() * 4
        expected = exact.round() if dtype == torch.int8 else exact
        n = turned.shape[1]
        for row in range(turned.shape[0]):
            found = keys[row, 1 : 1 + n].view(torch.uint8)
            assert torch.equal(found, expected[row].to(dtype).view(torch.uint8))
    sizes = v.float().abs().amax(-1)
    most = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    assert torch.equal(scales[: v.shape[0], 1 : 1 + v.shape[1]], sizes / most)


MOVER = librope.Rope(head_dim=8, theta=1e4, pairing="halves")


def move_in_place(k):
    MOVER.move(librope.KVCache(k, layout="nhd", slots=[0, 1]), torch.tensor([5, 6]), torch.tensor([1, 2]))
    return k


def test_autograd_knows_of_moves():
    k = torch.ones(1, 2, 1, 8)
    before = k._version
    move_in_place(k)
    assert k._version == before + 1
    with pytest.raises(RuntimeError, match="requires a gradient"):
        move_in_place(k.clone().requires_grad_())
    source = librope.KVCache(torch.ones(1, 2, 1, 8, requires_grad=True), layout="nhd", slots=[0, 1])
    with pytest.raises(NotImplementedError, match="move has no gradient"):
        MOVER.move(librope.KVCache(k, layout="nhd", slots=[0, 1]), [5, 6], [1, 2], source=source)
    with torch.no_grad():
        MOVER.move(librope.KVCache(k, layout="nhd", slots=[0, 1]), [5, 6], [1, 2], source=source)


def test_moves_outside_of_the_graph():
    torch._dynamo.reset()
    compiled = torch.compile(lambda k: torch.compiler.disable(move_in_place)(k + 1) * 2, backend="eager")
    k = torch.ones(1, 2, 1, 8)
    torch.testing.assert_close(compiled(k), move_in_place(k + 1) * 2)


def test_starts_as_a_list_where_pytorch_sees_the_call():
    """Under a dispatch mode a call goes through its operator, which takes tensors."""
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = (torch.randn(1, 3, 1, 8) for _ in range(3))
    rope, found = MOVER.replace(layout="bshd"), []
    for starts in (2, [2], np.int64(2), torch.tensor([2], dtype=torch.int32)):
        cache = librope.KVCache(torch.zeros(1, 8, 1, 8), torch.zeros(1, 8, 1, 8), layout="nhd", starts=starts)
        with torch.no_grad(), FlopCounterMode(display=False):
            rope.apply_qk(q, k, 4, v=v, cache=cache)
        with torch.no_grad():
            rope.apply_qk(q, k, 4, v=v, cache=cache)
        found.append(cache)
    assert found[0].v.any() and all(torch.equal(c.k, found[0].k) and torch.equal(c.v, found[0].v) for c in found)
    for starts, error in ((2**40, ValueError), (-1, ValueError), (True, TypeError)):
        cache = librope.KVCache(*memory(), layout="nhd", starts=starts)
        with torch.no_grad(), FlopCounterMode(display=False):
            refused(error, "^starts is .*, and must be", lambda: rope.apply_qk(q, k, 4, v=v, cache=cache))  # noqa: B023
    torch._dynamo.reset()
    k_memory, v_memory = torch.zeros(1, 8, 1, 8), torch.zeros(1, 8, 1, 8)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(q, k, v, k_memory, v_memory, starts):
        cache = librope.KVCache(k_memory, v_memory, layout="nhd", starts=starts)
        return rope.apply_qk(q, k, 4, v=v, cache=cache)[0]

    compiled(q, k, v, k_memory, v_memory, np.int64(2))
    assert torch.equal(k_memory, found[0].k) and torch.equal(v_memory, found[0].v)


def test_v_has_the_axes_of_k_where_there_is_no_k():
    """Also where PyTorch sees the call, and q has others."""
    from torch.fx.experimental.proxy_tensor import make_fx

    q, v = torch.randn(1, 3, 4, 16), torch.randn(1, 2, 3, 16)
    found = []

    def run(q, v, memory):
        cache = librope.KVCache(None, memory, layout="nhd", starts=0)
        return ROPE.apply_qk(q, None, 0, v=v, cache=cache, layout=("bshd", "bhsd"))[0]

    def traced(*arrays):
        return make_fx(run)(q, v, torch.zeros(1, 8, 2, 16))(*arrays)

    for function in (run, traced, torch.compile(run, backend="aot_eager", fullgraph=True)):
        memory = torch.zeros(1, 8, 2, 16)
        assert torch.equal(function(q, v, memory), ROPE.apply(q, 0))
        found.append(memory)
    assert torch.equal(found[0][0, :3], v[0].transpose(0, 1)) and all(torch.equal(m, found[0]) for m in found)
    arrays = [x.to("meta") for x in (q, v, torch.zeros(1, 8, 2, 16))]
    assert run(*arrays).shape == q.shape


@pytest.mark.parametrize("what", ["positions", "slots", "page_table", "page_starts", "starts", "cu_seqlens"])
def test_what_was_freed_after_a_call_that_is_known(qkv, what):
    q, k, v = (x[0, :2].contiguous() for x in qkv)
    place = {"slots": torch.tensor([3, 9])}
    if what[:4] == "page" or what == "starts":
        place = {"page_table": torch.zeros(1, 1, dtype=torch.int32), "starts": torch.zeros(1, dtype=torch.int32)}
    if what == "page_starts":
        place.update(page_table=torch.zeros(1, dtype=torch.int32), page_starts=torch.tensor([0, 1], dtype=torch.int32))
    arrays = {"positions": torch.arange(2), "cu_seqlens": torch.tensor([0, 2], dtype=torch.int32), **place}
    cache = librope.KVCache(*memory(), layout="nhd")

    def run():
        there = cache.at(**{name: arrays[name] for name in place})
        cu = arrays["cu_seqlens"]
        return ROPE.apply_qk(q, k, arrays["positions"], v=v, cache=there, cu_seqlens=cu, layout="thd")

    run(), run()
    array = arrays[what]
    for before in (0, 1):  # a view that begins behind another has an address, too
        arrays[what] = torch.cat((*[array] * before, array))[before * len(array) :]
        run()
        arrays[what].untyped_storage().resize_(0)
        refused(ValueError, f"^{what} has no memory: its storage was freed", run)
