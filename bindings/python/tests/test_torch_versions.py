"""torch: autograd is told of writes that were made, and of no others: a call that is refused has written nothing."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import librope  # noqa: E402

torch.set_num_threads(1)

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", layout="bshd")
SHORT = ROPE.replace(scaling="dynamic", factor=2.0, max_position_embeddings=64, seq_len=64)  # valid below 65 tokens
RMS = librope.Norms(librope.Norm(torch.ones(16), kind="rms", eps=1e-6))
LONG = librope.Norms(librope.Norm(torch.ones(17), kind="rms", eps=1e-6))
SLOTS = torch.tensor([1, 0, 5, 4, 2])
BEYOND = torch.tensor([1, 0, 5, 4, 80])
POSITIONS = torch.arange(5)


def in_place(q, k, memory):
    yield lambda: ROPE.apply_qk_(q, k, torch.arange(7))
    yield lambda: ROPE.apply_qk_(q, k.clone().requires_grad_(), POSITIONS)
    yield lambda: ROPE.apply_qk_(q, k, POSITIONS)


def in_place_by_rows(q, k, memory):
    cos, sin = ROPE.cos_sin(torch.arange(7))
    yield lambda: ROPE.apply_qk_(q, k, cos_sin=(cos, sin), cos_sin_format="full_halves")
    yield lambda: ROPE.apply_qk_(q, k, cos_sin=(cos[:5], sin[:5]), cos_sin_format="full_halves")


def in_place_where_pytorch_sees_it(q, k, memory):
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            return function(*arguments, **(options or {}))

    def run(positions):
        with Mode():
            ROPE.apply_qk_(q, k, positions)

    yield lambda: run(torch.arange(7))
    yield lambda: run(POSITIONS)


def output(q, k, memory):
    x = torch.randn(2, 1, 5, 3, 16)
    yield lambda: ROPE.apply_qk(*x, torch.arange(7), out=(q, k))
    yield lambda: ROPE.apply_qk(*x, POSITIONS, out=(q, q))
    yield lambda: ROPE.apply_qk(*x, POSITIONS, out=(q, k))


def norms(q, k, memory):
    yield lambda: ROPE.apply_qk_(q, k, POSITIONS, norms=LONG)
    yield lambda: ROPE.apply_qk_(q, k, POSITIONS, norms=RMS)


def appended(q, k, memory, known=False):
    v = k.clone()
    cache = librope.KVCache(*memory, layout="nhd")

    def run(slots, where=q):
        ROPE.apply_qk_(where, k.clone(), POSITIONS, v=v, cache=cache.at(slots=slots))

    if known:
        run(SLOTS, q.clone())
    yield lambda: run(BEYOND)
    yield lambda: run(SLOTS)


def appended_as_before(q, k, memory):
    yield from appended(q, k, memory, known=True)


def prepared(q, k, memory):
    call = ROPE.prepare_qk(q, k, POSITIONS, out=(q, k))
    yield lambda: call.apply_qk_(q, q)
    yield lambda: call.apply_qk_(q[..., :8], k)
    yield lambda: call.apply_qk_(q, k)


def prepared_with_an_output(q, k, memory):
    call = ROPE.prepare_qk(q, k, POSITIONS)
    x = torch.randn(2, 1, 5, 3, 16)
    yield lambda: call.apply_qk(*x, out=(q, q))
    yield lambda: call.apply_qk(*x, out=(q, k[..., :8]))
    yield lambda: call.apply_qk(*x, out=(q, k))


def prepared_append(q, k, memory):
    v, cache = k.clone(), librope.KVCache(*memory, layout="nhd")
    call = ROPE.prepare_qk(q, k, POSITIONS, v=v, cache=cache.at(slots=SLOTS), out=(q, None))
    inside = memory[0].view(1, 8, 3, 16)[:, :5]
    yield lambda: call.apply_qk_(inside, k, v=v, cache=cache)
    yield lambda: call.apply_qk(q, k, v=v, cache=cache, out=(inside, None))
    yield lambda: call.apply_qk_(q, k, v=v[..., :8], cache=cache)
    yield lambda: call.apply_qk_(q, k, v=v, cache=cache)


def prepared_norms(q, k, memory):
    call = ROPE.prepare_qk(q, k, POSITIONS, norms=RMS, out=(q, k))
    yield lambda: call.apply_qk_(q, q, norms=RMS)
    yield lambda: call.apply_qk_(q, k, norms=LONG)
    yield lambda: call.apply_qk_(q, k, norms=RMS)


def bound(q, k, memory):
    step = SHORT.bind(q, k, 0)
    yield lambda: step(64)
    yield lambda: step("3")
    yield lambda: step(3)


def moved(q, k, memory):
    cache = librope.KVCache(*memory, layout="nhd")
    there, back = torch.tensor([0, 1]), torch.tensor([1, 0])
    ids = torch.arange(2)
    yield lambda: ROPE.move(cache.at(slots=there), ids, ids, source=cache.at(slots=back))
    yield lambda: ROPE.move(cache.at(slots=there), ids, ids + 1)


def gradients_of_numpy(q, k, memory):
    x = k.numpy().copy()
    yield lambda: ROPE.backward_qk(x, None, torch.arange(7), x=(x, None), norms=RMS, out=(q, None))
    yield lambda: ROPE.backward_qk(x, None, 3, x=(x, None), norms=RMS, out=(q[..., :8], None))
    yield lambda: ROPE.backward_qk(x, None, 3, x=(x, None), norms=RMS, out=(q, None))


def rows(q, k, memory):
    yield lambda: SHORT.cos_sin(torch.arange(60, 65), format="packed", out=q[0, :, 0])
    yield lambda: SHORT.cos_sin(POSITIONS, format="split", out=(q[0, :, 0], k[0, :, 0]))
    yield lambda: SHORT.cos_sin(POSITIONS, format="packed", out=q[0, :, 0])


@pytest.mark.parametrize(
    "way",
    [in_place, in_place_by_rows, in_place_where_pytorch_sees_it, output, norms, appended, appended_as_before,
     prepared, prepared_with_an_output, prepared_append, prepared_norms, bound, moved, gradients_of_numpy, rows],
)  # fmt: skip
def test_calls_that_are_refused_are_not_announced(way):
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 5, 3, 16).unbind()
    q, k, memory = q.clone(), k.clone(), [torch.randn(2, 4, 3, 16) for _ in "kv"]
    given = (q, k, *memory)
    calls = list(way(q, k, memory))
    kept = [x.clone() for x in given]
    for call in calls[:-1]:
        before = [x._version for x in given]
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            call()
        assert [x._version for x in given] == before
        assert all(torch.equal(x, y) for x, y in zip(given, kept, strict=True))
    before = [x._version for x in given]
    calls[-1]()
    changed = [not torch.equal(x, y) for x, y in zip(given, kept, strict=True)]
    assert any(changed)
    assert all(x._version > version for x, version, c in zip(given, before, changed, strict=True) if c)


def turned_graph(q, k, memory):
    ROPE.apply_qk_(q, k, POSITIONS)
    return q, k


def stored_graph(q, k, memory):
    ROPE.apply_qk(q, k, POSITIONS, v=k, cache=librope.KVCache(*memory, layout="nhd", slots=SLOTS))
    return memory


def moved_graph(q, k, memory):
    ROPE.move(librope.KVCache(memory[0], layout="nhd", slots=SLOTS), POSITIONS + 3, POSITIONS)
    return memory[:1]


@pytest.mark.parametrize("how", ["compiled without a backend", "replayed"])
@pytest.mark.parametrize("graph", [turned_graph, stored_graph, moved_graph])
def test_graphs_announce_what_they_write(graph, how):
    """A backward that has kept such a tensor would else use what it has become."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 5, 3, 16).unbind()
    q, k, memory = q.clone(), k.clone(), [torch.randn(2, 4, 3, 16) for _ in "kv"]
    if how == "replayed":
        run = make_fx(graph)(q.clone(), k.clone(), [x.clone() for x in memory])
    else:
        torch._dynamo.reset()
        run = torch.compile(graph, backend="eager", fullgraph=True)
    given = (q, k, *memory)
    before = [x._version for x in given]
    written = run(q, k, memory)
    expected = [version + any(x is y for y in written) for x, version in zip(given, before, strict=True)]
    assert [x._version for x in given] == expected
    kept = torch.ones(3, 16, requires_grad=True)
    y = (written[0] * kept).sum()
    run(q, k, memory)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
