"""torch: memory that is not the tensor's any more, and writes into tensors that PyTorch would have to see."""

import pytest

torch = pytest.importorskip("torch")

import librope  # noqa: E402
import librope.torch  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore::torch.jit.TracerWarning")

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
POSITIONS = torch.arange(4)


@pytest.fixture
def q():
    return torch.randn(1, 4, 2, 16, generator=torch.Generator().manual_seed(3))


# -- views of freed storages, whose addresses are their offsets: small numbers, and not 0 -------------------


def parts(*shape):
    """Two views, neither of which begins where its memory does, and what to free."""
    memory = torch.ones(3, *shape)
    return memory[1], memory[2], memory.untyped_storage()


def rms(weight, other):
    return librope.Norms(*[librope.Norm(x, kind="rms", eps=1e-6) for x in (weight, other)])


def caches():
    memory = [torch.zeros(4, 16, 2, 16) for _ in "kv"]
    return librope.KVCache(*memory, layout="nhd"), librope.KVCache(*memory, layout="nhd", slots=torch.arange(4))


def step_by_weights(q, offset):
    _, cache = caches()
    *weights, storage = parts(16)
    if not offset:
        weights[0] = torch.ones(16)
        storage = weights[0].untyped_storage()
    norms = rms(*weights)
    return lambda: ROPE.apply_qk(q, q, 0, v=q, cache=cache, norms=norms), storage, "norms.q.weight"


def prepared_by_weights(q, offset):
    of_layer, cache = caches()
    *weights, storage = parts(16)
    if not offset:
        weights[0] = torch.ones(16)
        storage = weights[0].untyped_storage()
    norms = rms(*weights)
    call = ROPE.prepare_qk(q, q, 0, v=q, cache=cache, norms=norms)
    return lambda: call.apply_qk(q, q, v=q, cache=of_layer, norms=norms), storage, "norms.q.weight"


def prepared_norms_alone(q, offset):
    *weights, storage = parts(16)
    norms = rms(*weights)
    call = ROPE.prepare_qk(q, q, 0, norms=norms)
    return lambda: call.apply_qk(q, q, norms=norms), storage, "norms.q.weight"


def prepared(q, offset):
    x, _, storage = parts(*q.shape)
    call = ROPE.prepare_qk(q, q, 0)
    return lambda: call.apply_qk(x, q), storage, "q"


def prepared_in_place(q, offset):
    x, _, storage = parts(*q.shape)
    call = ROPE.prepare_qk(q, q, 0)
    return lambda: call.apply_qk_(q, x), storage, "k"


def prepared_into(q, offset):
    x, _, storage = parts(*q.shape)
    call = ROPE.prepare_qk(q, q, 0)
    return lambda: call.apply_qk(q, q, out=(x, torch.empty_like(q))), storage, "out of q"


def prepared_values(q, offset):
    of_layer, cache = caches()
    x, _, storage = parts(*q.shape)
    call = ROPE.prepare_qk(q, q, 0, v=q, cache=cache)
    return lambda: call.apply_qk(q, q, v=x, cache=of_layer), storage, "v"


def by_rows(q, offset):
    x, _, storage = parts(*q.shape)
    rows = ROPE.cos_sin(POSITIONS[None])
    rotate = librope.torch.rotate_by_rows
    return lambda: rotate(x, q, *rows, "halves", 16, "eager", "bshd", "forward", "full_halves", False), storage, "q"


def by_freed_rows(q, offset):
    cos, sin, storage = parts(1, 4, 16)
    rotate = librope.torch.rotate_by_rows
    return lambda: rotate(q, q, cos, sin, "halves", 16, "eager", "bshd", "forward", "full_halves", False), storage, "cos"


@pytest.mark.parametrize(
    "make",
    [step_by_weights, prepared_by_weights, prepared_norms_alone, prepared, prepared_in_place, prepared_into,
     prepared_values, by_rows, by_freed_rows],
)  # fmt: skip
def test_a_view_of_a_freed_storage_is_refused_where_the_call_is_known(make, q):
    run, storage, name = make(q, True)
    run(), run()
    storage.resize_(0)
    with pytest.raises(ValueError, match=f"^{name} has no memory: its storage was freed"):
        run()


@pytest.mark.parametrize("make", [step_by_weights, prepared_by_weights])
def test_weights_that_were_freed_are_named(make, q):
    run, storage, name = make(q, False)
    run(), run()
    storage.resize_(0)
    with pytest.raises(ValueError, match=f"^{name} has no memory: its storage was freed"):
        run()


def test_zeros_without_memory_are_not_called_freed():
    with pytest.raises(TypeError, match=r"q is zeros without memory.*q\.clone\(\)"):
        ROPE.apply(torch._efficientzerotensor((1, 4, 2, 16)), 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["new", "in place", "gradient"])
def test_nested_tensors_are_refused_in_words(how):
    x = torch.nested.nested_tensor([torch.randn(5, 2, 16), torch.randn(4, 2, 16)])
    with pytest.raises(TypeError, match=r"q is a nested tensor.*q\.unbind\(\)"):
        if how == "in place":
            ROPE.apply_(x, 0)
        else:
            ROPE.apply(x.requires_grad_(how == "gradient"), 0)


# -- writes past PyTorch -------------------------------------------------------------------------------------


def rows_out(x, array):
    ROPE.cos_sin(0, tokens=8, format="packed", out=x.view(8, 16))


def numpy_out(x, array):
    ROPE.apply(array, 3, out=x)


def numpy_into_cache(x, array):
    ROPE.apply_qk(None, array, 3, v=array, cache=librope.KVCache(x, torch.zeros_like(x), layout="nhd", starts=0))


def bound(x, array):
    ROPE.bind(x, None, 3)()


WRITES = [rows_out, numpy_out, numpy_into_cache, bound]
REFUSED = "cannot write into a tensor in traced code, under torch.func or a dispatch mode"


@pytest.mark.parametrize("write", WRITES)
def test_writes_are_not_hidden_from_saved_tensors(write, q):
    a, x = q.clone().requires_grad_(), q.clone()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        total = (a * x).sum()
        with pytest.raises(NotImplementedError, match=REFUSED):
            write(x, q.numpy())
        total.backward()
    assert torch.equal(a.grad, q)


def test_steps_are_not_hidden_from_saved_tensors(q):
    a, x = q.clone().requires_grad_(), q.clone()
    step = ROPE.bind(x, None, 3)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        total = (a * x).sum()
        with pytest.raises(NotImplementedError, match=REFUSED):
            step()
        total.backward()
    assert torch.equal(a.grad, q) and torch.equal(x, q)
    step()
    assert not torch.equal(x, q)


@pytest.mark.parametrize("write", WRITES)
def test_writes_are_not_left_out_of_graphs(write, q):
    from torch.fx.experimental.proxy_tensor import make_fx

    array = q.numpy().copy()

    def function(x):
        x = x * 1
        write(x, array)
        return x + 1

    with pytest.raises(NotImplementedError, match=REFUSED):
        make_fx(function)(q)
    with pytest.raises(NotImplementedError, match=REFUSED):
        torch.jit.trace(function, (q,), check_trace=False)


@pytest.mark.parametrize("call", ["out", "cache without values"])
def test_outputs_of_some_under_saved_tensors(call, q):
    """PyTorch asks every argument that is written for its memory, and those that are not given have none."""
    x = q.clone()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        with pytest.raises(NotImplementedError, match="allow_mutation_on_saved_tensors"):
            if call == "out":
                ROPE.apply(q, 3, out=x)
            else:
                ROPE.apply_qk(q, q, 3, cache=librope.KVCache(x, None, layout="nhd", starts=0))
        ROPE.apply_(x, 3)
    assert torch.equal(x, ROPE.apply(q, 3))


# -- what the library takes as int32 alone -------------------------------------------------------------------

PACKED = ROPE.replace(layout="thd")
FORMS = {"int32": lambda x: torch.tensor(x, dtype=torch.int32), "int64": torch.tensor, "lists": lambda x: x}


def stored(make, wrap=lambda function: function):
    """Two calls: one that is known has a way of its own."""
    x = torch.randn(3, 6, 2, 16, generator=torch.Generator().manual_seed(1))
    memory = [torch.zeros(4, 4, 2, 16) for _ in "kv"]

    def step(q, k, v, cu_seqlens, page_table, starts):
        cache = librope.KVCache(*memory, layout="nhd", page_table=page_table, starts=starts)
        return PACKED.apply_qk(q, k, offsets=[5, 7], cu_seqlens=cu_seqlens, v=v, cache=cache)[0]

    run = wrap(step)
    for _ in range(2):
        q = run(*x, make([0, 2, 6]), make([[3, 1], [0, 2]]), make([1, 2]))
    return q, *memory


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_tables_are_int64_or_lists(form, compiled):
    torch._dynamo.reset()
    wrap = (lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)) if compiled else (lambda f: f)
    for got, want in zip(stored(FORMS[form], wrap), stored(FORMS["int32"]), strict=True):
        assert torch.equal(got, want) and want.any()


@pytest.mark.parametrize("form", FORMS)
def test_packed_sequences_have_a_gradient_by_them(form, q):
    x = q[0].clone().requires_grad_()
    turned = PACKED.apply(x, 3, cu_seqlens=FORMS[form]([0, 1, 4]))
    assert torch.equal(turned, PACKED.apply(q[0], 3, cu_seqlens=FORMS["int32"]([0, 1, 4])))
    turned.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_scale_that_is_a_tensor(shape, compiled, q):
    def step(q, k, v, keys, scale):
        cache = librope.KVCache(keys, None, layout="nhd", k_scale=librope.Scale(data=scale), slots=torch.arange(4))
        ROPE.apply_qk_(q, k, 0, cache=cache)
        return keys.view(torch.uint8)

    torch._dynamo.reset()
    run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
    found = []
    for scale, function in ((torch.full(shape, 0.02), run), (torch.full((1, 8, 2), 0.02), step)):
        found.append(function(q.clone(), q, q, torch.zeros(1, 8, 2, 16, dtype=torch.float8_e4m3fn), scale))
    assert torch.equal(*found) and found[0].any()


def test_a_scale_whose_value_is_a_tensor_is_refused_in_compiled_code(q):
    def step(scale):
        return librope.Scale(scale).value

    assert step(torch.tensor(0.5)) == 0.5
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"Scale\(data=\.\.\) takes it as it is"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.tensor(0.5))


def test_mapped_positions_of_rows_are_refused_in_words():
    with pytest.raises(NotImplementedError, match="cos_sin is not available under torch.vmap"):
        torch.vmap(ROPE.cos_sin)(torch.arange(6).view(2, 3))


def test_flat_weights_of_all_heads_are_told_what_they_are(q):
    """As those of OLMo 2."""
    norm = librope.Norm(torch.ones(32), kind="rms", eps=1e-6, span="all_heads")
    with pytest.raises(ValueError, match=r"norms\.q\.weight has shape \(32,\).*: \.view\(2, -1\) makes that of it"):
        ROPE.apply_qk(q, None, 0, norms=librope.Norms(norm))
