"""Moves of torch tensors where PyTorch sees them: the bits of eager moves, and nothing written where they are refused."""

import contextlib
import itertools
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import librope  # noqa: E402
import librope.torch as lt  # noqa: E402

torch.set_num_threads(1)

PAGES, SIZE, HEADS, DIM = 8, 8, 2, 32
ROPE = librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", rotary_dim=16)
SETS = librope.Rope.sets([librope.Rope(head_dim=DIM, theta=t, pairing="halves") for t in (1e4, 5e5)])
AXES = librope.Rope(head_dim=DIM, theta=1e4, pairing="interleaved", axes=3, mrope_section=[8, 4, 4])
OP = torch.ops.librope.move_.default


@pytest.fixture(autouse=True)
def no_code_of_others():
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


class Seen(TorchDispatchMode):
    """A dispatch mode that notes what it sees, and lets it pass."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append(function)
        return function(*args, **(kwargs or {}))


# -- random moves ------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn, torch.uint8]


class Case:
    """One move of random kind: its tensors by name, and a function of them that makes it."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        choice = self.rng.choice
        self.tensors, self.layout, self.scales, self.places, self.named = {}, {}, {}, {}, {}
        self.packed, self.form = choice([False, False, True]), choice(["t", "bt", "tb"])
        self.source, self.has_v = choice(["in place", "other slots", "other cache"]), self.rng.random() < 0.8
        layout = choice(["nhd", "hnd", "nd", ("nhd", "hnd")])
        self.memory("cache", layout)
        if self.source == "other cache":
            self.memory("other cache", "nd" if layout == "nd" else choice(["nhd", "hnd", ("hnd", "nhd")]))
        self.rope = choice([ROPE, SETS, AXES])
        self.positions()
        for role in ("cache", "source"):
            self.place(role)

    def memory(self, role, layout):
        self.layout[role] = layout
        for x, axes in zip("kv", layout if isinstance(layout, tuple) else (layout,) * 2, strict=True):
            if x == "v" and not self.has_v:
                continue
            dtype, shape = self.rng.choice(DTYPES), {"nhd": (SIZE, HEADS), "hnd": (HEADS, SIZE), "nd": (SIZE,)}[axes]
            values = torch.randn(PAGES, *shape, DIM)
            data = torch.rand(PAGES, *shape) / 10 + 0.01
            name, scale = f"{role} {x}", {}
            if dtype == torch.uint8:
                blocks = values.new_empty(PAGES, *shape, 34, dtype=torch.uint8)
                blocks[..., :2] = data.half()[..., None].view(torch.uint8)
                blocks[..., 2:] = (values * 30).to(torch.int8).view(torch.uint8)
                values = blocks
            elif dtype.itemsize == 1:
                values = (values * 30).to(dtype)
                kind = self.rng.choice(["value", "one", "given", "computed", "groups"])
                scale = {"value": {"value": 0.25}}.get(kind, {"data": None, "computed": kind in ("computed", "groups")})
                if kind == "groups":
                    scale["group"], data = 16, torch.rand(*data.shape, 2) / 10 + 0.01
                if kind != "value":
                    self.tensors[f"{name} data"] = data[0, 0].flatten()[0] if kind == "one" else data
            else:
                values = values.to(dtype)
            self.scales[name], self.tensors[name] = scale, values

    def positions(self):
        rng = self.rng
        batch = 1 if self.packed or self.form == "t" else rng.choice([1, 2])
        tokens = rng.choice([3, 5])
        self.batch, self.tokens = batch, tokens
        self.sequences, self.lengths = batch, [tokens] * batch
        if self.packed:
            self.form, self.sequences, self.lengths = "t", 2, [2, tokens - 2]
            self.tensors["cu_seqlens"] = torch.tensor([0, 2, tokens], dtype=rng.choice([torch.int32, torch.int64]))
            self.named["cu_seqlens"] = "cu_seqlens"
        order = self.form if self.rope is not AXES or rng.random() < 0.5 else "a" + self.form
        if order not in ("t", "bt"):
            self.named["positions_layout"] = order
        shape = [{"a": 3, "b": batch, "t": tokens}[x] for x in order]
        dtype = rng.choice([torch.int32, torch.int64, torch.float32])
        for name in ("positions", "from_positions"):
            self.tensors[name] = torch.randint(0, 5000, shape).to(dtype)
        if self.rope is SETS:
            for name in ("freq_sets", "from_freq_sets")[: rng.choice([1, 2])]:
                self.tensors[name] = torch.randint(0, 2, (self.sequences,), dtype=torch.int32)
                self.named[name] = name

    def place(self, role):
        """Pages 0 to 3 are written, and those from 4 on read where both are in one memory."""
        rng, first = self.rng, 4 if role == "source" and self.source == "other slots" else 0
        kind = rng.choice(["slots", "pages", "ragged", "starts"][: 3 if first else 4])
        pages = [p + first for p in rng.sample(range(4), 4)]
        numbers = {}
        if kind == "slots":
            slots = [s + first * SIZE for s in rng.sample(range(4 * SIZE), self.batch * self.tokens)]
            if role == "cache" or self.source != "in place":
                slots[rng.randrange(len(slots))] = -1
            shape = rng.choice([(-1,), (self.batch, self.tokens)])
            numbers["slots"] = torch.tensor(slots, dtype=rng.choice([torch.int32, torch.int64])).reshape(shape)
        else:
            numbers["starts"] = torch.randint(0, 3, (self.sequences,), dtype=torch.int32)
            if kind == "pages":
                numbers["page_table"] = torch.tensor(pages[: self.sequences]).reshape(-1, 1).int()
            elif kind == "ragged":
                numbers["page_table"] = torch.tensor(pages[: self.sequences], dtype=torch.int32)
                numbers["page_starts"] = torch.arange(self.sequences + 1, dtype=torch.int32)
            elif rng.random() < 0.3:
                numbers["starts"] = 1
        self.places[role] = {}
        for name, x in numbers.items():
            if isinstance(x, torch.Tensor):
                self.tensors[f"{role} {name}"] = x
                x = None
            self.places[role][name] = x

    def cache(self, tensors, memory, role):
        scales = {}
        for x in "kv":
            scale = self.scales.get(f"{memory} {x}")
            if scale:
                scale = {**scale, **({"data": tensors[f"{memory} {x} data"]} if "data" in scale else {})}
                scales[f"{x}_scale"] = librope.Scale(**scale)
        where = {n: tensors[f"{role} {n}"] if x is None else x for n, x in self.places[role].items()}
        return librope.KVCache(
            tensors[f"{memory} k"], tensors.get(f"{memory} v"), layout=self.layout[memory], **scales, **where
        )  # fmt: skip

    def run(self, tensors):
        cache, source = self.cache(tensors, "cache", "cache"), None
        if self.source != "in place":
            source = self.cache(tensors, "other cache" if self.source == "other cache" else "cache", "source")
        named = {n: tensors[x] if n == x else x for n, x in self.named.items()}
        self.rope.move(cache, tensors["positions"], tensors["from_positions"], source=source, **named)

    def copies(self):
        return {name: x.clone() for name, x in self.tensors.items()}


def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(bits(a[n]), bits(b[n])) for n in a)


def compared(case, run):
    want, got = case.copies(), case.copies()
    case.run(want)
    run(got)
    assert same(got, want), vars(case)
    changed = [n for n in want if not torch.equal(bits(want[n]), bits(case.tensors[n]))]
    assert "cache k" in changed and all(n.startswith("cache") for n in changed)
    return got, want


def test_random_moves_that_a_dispatch_mode_sees():
    for seed in range(400):
        case = Case(seed)

        def run(tensors, case=case):
            versions = {n: x._version for n, x in tensors.items()}
            with Seen() as mode:
                case.run(tensors)
            assert mode.calls.count(OP) == 1
            written = {"cache k", "cache v"} | {f"{n} data" for n, s in case.scales.items() if s.get("computed")}
            for name, x in tensors.items():
                assert x._version - versions[name] == (name in written and not name.startswith("other")), name

        compared(case, run)


def test_random_moves_in_recorded_graphs():
    for seed in range(400, 500):
        case = Case(seed)
        graph = make_fx(lambda tensors: case.run(tensors))(case.copies())  # noqa: B023
        assert [n.target for n in graph.graph.nodes if n.op == "call_function"].count(OP) == 1
        compared(case, graph)


@pytest.mark.parametrize(("backend", "seeds"), [("aot_eager", range(500, 540)), ("inductor", range(540, 550))])
def test_random_moves_in_compiled_code(backend, seeds):
    for seed in seeds:
        case = Case(seed)
        torch._dynamo.reset()
        compared(case, torch.compile(case.run, backend=backend, fullgraph=True))


def test_random_moves_that_are_functionalized():
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    for seed in range(550, 600):
        case = Case(seed)

        def run(tensors, case=case):
            with FunctionalTensorMode():
                wrapped = {n: FunctionalTensor.to_functional(x) for n, x in tensors.items()}
                case.run(wrapped)
                for n, x in wrapped.items():
                    torch._sync(x)
                    tensors[n].copy_(torch._from_functional_tensor(x.elem))

        compared(case, run)


# -- compiled code -----------------------------------------------------------------------------------


def two_memories(dtype=torch.float32, pages=PAGES):
    torch.manual_seed(5)
    return [torch.randn(pages, SIZE, HEADS, DIM).to(dtype) for _ in "kv"]


def numbers(tokens, begin=0):
    """Slots that are written, slots that are read, positions, and those from before."""
    slots = torch.randperm(PAGES * SIZE)[: 2 * tokens]
    return slots[:tokens], slots[tokens:], *torch.randint(0, 5000, (2, tokens))


def copies(*tensors):
    return [x.clone() for x in tensors]


def layers(k, v, new, old, now, was):
    """Moves, and what reads and writes the same memory between and behind them."""
    read = []
    for layer in range(k.shape[0]):
        cache = librope.KVCache(k[layer], v[layer], layout="nhd")
        read.append(k[layer].sum() + 1)
        ROPE.move(cache.at(slots=new), now, was, source=cache.at(slots=old))
        read.append(k[layer] * 2)
        v[layer].add_(1)
        ROPE.move(cache.at(slots=new), was, now)
        read.append(v[layer].sum())
    return read


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_moves_of_any_length_between_what_reads_and_writes(backend):
    """Layers of one tensor, source and cache in one memory; compiled once for all lengths."""
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(layers, backend=counter, fullgraph=True)
    for tokens in (3, 7, 4, 12):
        arguments = numbers(tokens)
        for x in arguments:
            torch._dynamo.mark_dynamic(x, 0)
        k, v = (torch.stack(two_memories()) for _ in "kv")
        k2, v2 = copies(k, v)
        want, got = layers(k, v, *arguments), compiled(k2, v2, *arguments)
        assert torch.equal(k, k2) and torch.equal(v, v2)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y)
    assert counter.frame_count == 1


@pytest.mark.parametrize("what", ["one tensor", "parts of one", "views"])
def test_source_and_cache_in_one_memory(what):
    def run(memory, new, old, now, was):
        k, v = memory[0], memory[1]
        if what == "parts of one":  # pages of one tensor: the source has other pages
            new, old = new[new < 32], old[old < 32]
            n = 3
            cache = librope.KVCache(k[:4], v[:4], layout="nhd", slots=new[:n])
            source = librope.KVCache(k[4:], v[4:], layout="nhd", slots=old[:n])
            now, was = now[:n], was[:n]
        else:
            cache = librope.KVCache(k, v, layout="nhd", slots=new)
            again = (k.view(k.shape), v[:]) if what == "views" else (k, v)
            source = librope.KVCache(*again, layout="nhd", slots=old)
        ROPE.move(cache, now, was, source=source)
        return k.sum()

    arguments = numbers(20)
    if what == "parts of one":
        arguments = (torch.tensor([3, 9, 1]), torch.tensor([2, 30, 9]), *torch.arange(6).view(2, 3))
    want = torch.stack(two_memories())
    run(want, *arguments)
    for backend, apart in itertools.product(["aot_eager", "inductor"], [False, True]):
        torch._dynamo.reset()
        got = torch.stack(two_memories())
        given = [got[0], got[1]] if apart else got
        # As README.md tells; and PyTorch 2.15 slices such a part where it lies in the whole, for every operator that writes.
        if apart and (torch.__version__ < "2.15" or what == "parts of one"):
            continue
        torch.compile(run, backend=backend, fullgraph=True)(given, *arguments)
        assert torch.equal(got, want)


@pytest.mark.parametrize("how", ["in place", "source"])
def test_compiled_code_copies_no_cache(how):
    from torch._inductor.utils import run_and_get_code

    def run(k, v, new, old, now, was):
        cache = librope.KVCache(k, v, layout="nhd")
        ROPE.move(cache.at(slots=new), now, was, source=cache.at(slots=old) if how == "source" else None)

    _, code = run_and_get_code(torch.compile(run, fullgraph=True), *two_memories(), *numbers(5))
    body = code[0].partition("def call")[2]
    assert "librope.move_" in body and "copy" not in body and "clone" not in body


def test_slots_that_do_not_fit_are_seen_when_the_code_runs():
    """Where the code has copied the source, tokens may also move up one by one."""
    k, v = two_memories()
    up, ids = torch.tensor([4, 5, 6]), torch.arange(3)

    def run(k, v, new, old):
        cache = librope.KVCache(k, v, layout="nhd")
        ROPE.move(cache.at(slots=new), ids, ids + 5, source=cache.at(slots=old))

    before, was = copies(k, v), k._version
    compiled = torch.compile(run, fullgraph=True)
    for function, slots in itertools.product((run, compiled), (torch.tensor([0, 1, PAGES * SIZE]), up - 1)):
        with pytest.raises(ValueError, match=r"source.slots\[2\] \(64\)|is read in slot"):
            function(k, v, up, slots)
        assert torch.equal(k, before[0]) and torch.equal(v, before[1])
    torch.compile(run, backend="aot_eager", fullgraph=True)(k, v, up, up - 1)  # functional code has copies
    want = two_memories()
    cache = librope.KVCache(*want, layout="nhd", slots=up)
    ROPE.move(cache, ids, ids + 5, source=librope.KVCache(*copies(*want), layout="nhd", slots=up - 1))
    assert torch.equal(k, want[0]) and torch.equal(v, want[1])


def test_lists_ranges_and_numbers_in_compiled_code():
    def run(k, v, starts, table):
        cache = librope.KVCache(k, v, layout="nhd")
        ROPE.move(cache.at(slots=[4, 5, -1]), [9, 8, 7], range(3), source=cache.at(slots=range(20, 23)))
        ROPE.move(cache.at(starts=starts), range(4), (1, 2, 3, 4))
        ROPE.move(cache.at(page_table=table, starts=[1, 2]), [5, 6, 7], [1, 2, 3], cu_seqlens=[0, 1, 3])
        SETS.move(cache.at(starts=starts), [5, 6, 7], [1, 2, 3], freq_sets=[1], from_freq_sets=[0])

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for starts in (2, 1, 3, torch.tensor([2])):
        got, want = two_memories(), two_memories()
        run(*want, starts, [[3], [2]])
        compiled(*got, starts, [[3], [2]])
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        with Seen() as mode:
            run(*got, np.int64(3), np.array([[3], [2]]))
        assert mode.calls.count(OP) == 4


@pytest.mark.parametrize("name", ["positions", "from_positions"])
def test_one_number_as_positions_is_refused_by_its_name(name):
    k, v = two_memories()
    before = k.clone()

    def run(k, v, n):
        ids = {"positions": torch.arange(2), "from_positions": torch.arange(2), name: n}
        ROPE.move(librope.KVCache(k, v, layout="nhd", slots=torch.tensor([1, 2])), **ids)

    for n in (5, 6):
        with pytest.raises(Exception, match=f"{name} is .*, and must be an array, list or range"):
            torch.compile(run, fullgraph=True, backend="aot_eager")(k, v, n)
        with pytest.raises(TypeError, match=f"^{name} is .*, and must be an array"), Seen():
            run(k, v, n)
    assert torch.equal(k, before)


def test_a_cache_of_numpy_beside_tensors_is_refused_by_its_name():
    k, v = (x.numpy() for x in two_memories())
    cache = librope.KVCache(k, v, layout="nhd", slots=[1, 2])
    compiled = torch.compile(lambda ids: ROPE.move(cache, ids, ids + 1), backend="aot_eager", fullgraph=True)
    before = k.copy()
    with pytest.raises(Exception, match="cache.k is a ndarray beside torch tensors"):
        compiled(torch.arange(2))
    with pytest.raises(TypeError, match="^cache.k is a ndarray beside torch tensors"), Seen():
        ROPE.move(cache, torch.arange(2), torch.arange(2))
    other = librope.KVCache(*two_memories(), layout="nhd", slots=[1, 2])
    with pytest.raises(TypeError, match="^source.k is a ndarray beside torch tensors"), Seen():
        ROPE.move(other, [0, 1], [1, 2], source=cache)
    assert np.array_equal(k, before)


# -- export ------------------------------------------------------------------------------------------


class Mover(torch.nn.Module):
    def forward(self, k, v, new, old, now, was):
        cache = librope.KVCache(k, v, layout="nhd")
        ROPE.move(cache.at(slots=new), now, was, source=cache.at(slots=old))
        return k.sum()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("form", ["program", "saved", "decomposed"])
def test_exported(strict, form, tmp_path):
    tokens = torch.export.Dim("tokens", min=2, max=30)
    program = torch.export.export(
        Mover(), (*two_memories(), *numbers(5)), strict=strict,
        dynamic_shapes=({0: torch.export.Dim("pages", max=99)},) * 2 + ({0: tokens},) * 4,
    )  # fmt: skip
    if form == "saved":
        torch.export.save(program, tmp_path / "move.pt2")
        program = torch.export.load(tmp_path / "move.pt2")
    elif form == "decomposed":
        program = program.run_decompositions()
    for count, pages in ((5, PAGES), (17, PAGES), (2, PAGES + 3)):
        arguments, got, want = numbers(count), two_memories(pages=pages), two_memories(pages=pages)
        total = Mover()(*want, *arguments)
        torch.testing.assert_close(program.module()(*got, *arguments), total)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("source", [False, True])
def test_operator_keeps_the_rules_of_operators(dtype, source):
    k, v = two_memories(dtype)
    scales = ()
    if dtype == torch.int8:
        scales = (None,) * 3 + ("None True 0 False 0.0 False,0.5 False 0 False 0.0 False", None, None, torch.ones(PAGES, SIZE, HEADS))
    read = (*(x.float() for x in two_memories()), "nhd", torch.tensor([7, 8, 9])) if source else (None, None, "", None)
    ids = torch.arange(3)
    arguments = (k, v, "nhd", ids, None, None, None, *read, None, None, None, ids, ids + 5, ROPE.spec, "", *scales)
    torch.library.opcheck(OP, arguments)


# -- what is refused, and what others see ------------------------------------------------------------


def move_in_place(k):
    ROPE.move(librope.KVCache(k, layout="nhd", slots=[0, 1]), torch.tensor([5, 6]), torch.tensor([1, 2]))
    return k


def test_derivatives_and_transforms_are_refused():
    k = torch.ones(1, 2, HEADS, DIM)
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda k: f(k).sum()), torch.func.functionalize,
                      lambda f: lambda k: torch.func.jvp(f, (k,), (k,))):  # fmt: skip
        with pytest.raises(NotImplementedError, match="move is not available under torch.func|move has no gradient"):
            transform(move_in_place)(k[None] if transform is torch.func.vmap else k)
    with pytest.raises(NotImplementedError, match="move has no gradient"), forward_ad.dual_level():
        move_in_place(k)
    with pytest.raises(NotImplementedError, match="jit.trace does not record moves"):
        torch.jit.trace(move_in_place, (k,), check_trace=False)
    learns = k.clone().requires_grad_()
    for mode in (contextlib.nullcontext(), Seen()):
        with pytest.raises(NotImplementedError, match="move has no gradient"), mode:
            move_in_place(learns)
        with pytest.raises(NotImplementedError, match="move has no gradient"), mode:
            source = librope.KVCache(learns, layout="nhd", slots=[0, 1])
            ROPE.move(librope.KVCache(k, layout="nhd", slots=[0, 1]), [5, 6], [1, 2], source=source)
    with pytest.raises(Exception, match="move has no gradient"):
        torch.compile(move_in_place, fullgraph=True, backend="aot_eager")(learns)
    graph = make_fx(move_in_place)(k.clone())
    with pytest.raises(NotImplementedError, match="no gradient goes through librope::move_"):
        graph(learns)
    assert (k == 1).all() and (learns == 1).all()
    with torch.no_grad():
        torch.compile(move_in_place, fullgraph=True, backend="aot_eager")(learns)
        graph(k)
    assert torch.equal(learns, k) and not (k == 1).all()


def test_threads_and_saved_tensors_are_refused():
    k = torch.ones(1, 2, HEADS, DIM)
    cache, pool = librope.KVCache(k, layout="nhd", slots=[0, 1]), librope.Pool(1)
    with pytest.raises(NotImplementedError, match="pool= is not available with torch.compile"), Seen():
        ROPE.move(cache, [5, 6], [1, 2], pool=pool)
    with pytest.raises(NotImplementedError, match="moves are not available under allow_mutation_on_saved"):
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            move_in_place(k)
    assert (k == 1).all()


def test_dtensors_are_refused():
    import torch.distributed as dist

    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from torch.distributed.tensor import DTensor, Replicate

    dist.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        k = torch.ones(1, 2, HEADS, DIM)
        with pytest.raises(NotImplementedError, match="DTensors are not taken in place"):
            move_in_place(DTensor.from_local(k, mesh, [Replicate()], run_check=False))
        assert (k == 1).all()
    finally:
        dist.destroy_process_group()


def test_writes_are_announced_once_and_counted():
    from torch.utils.flop_counter import FlopCounterMode

    k, v = two_memories()
    cache = librope.KVCache(k, v, layout="nhd", slots=[1, 2, 3])
    with FlopCounterMode(display=False, custom_mapping=lt.FLOPS) as counter:
        ROPE.move(cache, range(3), [1, 2, 3])
    assert counter.get_total_flops() == 3 * 3 * HEADS * DIM
    assert (k._version, v._version) == (1, 1)
    with torch.inference_mode():
        move_in_place(torch.ones(1, 2, HEADS, DIM))
        with Seen():
            move_in_place(torch.ones(1, 2, HEADS, DIM))
    with torch.profiler.profile() as profile, Seen():
        ROPE.move(cache, range(3), [1, 2, 3])
    assert "librope::move_" in {e.name for e in profile.events()}
    for backend in ("aot_eager", "inductor"):
        version = k._version
        torch._dynamo.reset()
        torch.compile(lambda: ROPE.move(cache, range(3), [1, 2, 3]), fullgraph=True, backend=backend)()
        assert k._version > version


def test_meta_and_fake_tensors_keep_the_rules():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def move(place="meta", k=None, v=None, now=None, was=None, layout="nhd", k_scale=None, **named):
        k, v = (torch.empty(PAGES, SIZE, HEADS, DIM) if x is None else x for x in (k, v))
        ids = [torch.arange(3) if x is None else x for x in (now, was)]
        if place:
            k, v, *ids = (x.to(place) for x in (k, v, *ids))
        named = {"slots": [1, 2, 3], **named}
        options = {n: named.pop(n) for n in ("positions_layout", "cu_seqlens", "freq_sets") if n in named}
        ROPE.move(librope.KVCache(k, v, layout=layout, k_scale=k_scale, **named), *ids, **options)

    refused = [
        (TypeError, "cache.k has dtype int64", {"k": torch.empty(PAGES, SIZE, HEADS, DIM).long()}),
        (ValueError, "k of the cache has dtype int8, and k_scale of the cache must be",
         {"k": torch.empty(PAGES, SIZE, HEADS, DIM).char()}),
        (ValueError, "k of the cache has dtype float32, which is none of 8", {"k_scale": librope.Scale(1.0)}),
        (ValueError, "cache.k has 24 channels", {"k": torch.empty(PAGES, SIZE, HEADS, 24)}),
        (ValueError, "which is not .* of layout 'nd'", {"layout": "nd"}),
        (TypeError, "from_positions has dtype int16", {"was": torch.arange(3).short()}),
        (ValueError, "from_positions has shape", {"was": torch.zeros(1, 3)}),
        (ValueError, "positions has shape .* must be .tokens.", {"now": torch.tensor(3)}),
    ]
    sizes = [
        (TypeError, "cu_seqlens has dtype float32", {"cu_seqlens": torch.zeros(2, device="meta")}),
        (ValueError, "cache.k has 8 pages of 8 slots, and cache.v 7", {"v": torch.empty(PAGES - 1, SIZE, HEADS, DIM)}),
        (ValueError, "slots of the cache are 2, and positions those of 3", {"slots": [1, 2]}),
        (ValueError, "positions has shape", {"was": torch.arange(4)}),
        (ValueError, "freq_sets has 2 entries", {"freq_sets": [0, 1]}),
        (ValueError, "starts has 2 entries", {"slots": None, "starts": [0, 1]}),
        (ValueError, "starts has 1 entries", {"slots": None, "starts": [1], "cu_seqlens": [0, 1, 3]}),
        (ValueError, "data of k_scale has shape", {"k": torch.empty(PAGES, SIZE, HEADS, DIM).char(),
                                                  "k_scale": librope.Scale(data=torch.empty(3, device="meta"))}),
    ]  # fmt: skip
    move()
    move(slots=None, starts=1), move(slots=None, page_table=[[0, 1]], starts=[1])
    for error, says, change in (*refused, *sizes):
        with pytest.raises(error, match=says):
            move(**change)
    with FakeTensorMode():
        move(""), move("", slots=None, starts=1)
        with torch.device("cuda"):
            move("", slots=torch.arange(3))
    for error, says, change in refused:
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(error, match=says):
            move("", **change)
    with pytest.raises(TypeError, match="cu_seqlens is 3, and must be an array"):
        move(cu_seqlens=3)
    k, v = two_memories()
    with pytest.raises(TypeError, match="positions is on meta, and cache.k on cpu"):
        move("", k, v, now=torch.arange(3, device="meta"))
    with pytest.raises(TypeError, match="cache.v is on cpu, and cache.k on meta"):
        move("", k.to("meta"), v)
