"""torch: arrays of NumPy in code of torch.compile are their own memory, from the first call on.

Dynamo cannot trace the calls into the library. It goes on with librope's own frames then, in which an array would be a
tensor: they are left alone.
"""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import librope  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo")

WEIGHT = np.linspace(0.5, 1.5, 8, dtype=np.float32)
NORMS = librope.Norms(librope.Norm(WEIGHT, kind="rms", eps=1e-6), librope.Norm(WEIGHT + 1, kind="rms", eps=1e-6))
POSITIONS = np.arange(5) + 3


def x(seed=0, heads=3):
    return np.random.default_rng(seed).standard_normal((2, 5, heads, 8)).astype(np.float32)


def memory(kind=np):
    return [kind.zeros((2, 16, 3, 8), dtype=kind.float32) for _ in "kv"]


def append(rope, q, k, v, keys, values):
    cache = librope.KVCache(keys, values, layout="nhd", starts=np.zeros(2, np.int32))
    return rope.apply_qk(q, k, 3, v=v, cache=cache)[0] * 2


def append_in_place(rope, q, k, v, keys, values):
    rope.apply_qk_(q, k, 3, v=v, cache=librope.KVCache(keys, values, layout="nhd", starts=np.zeros(2, np.int32)))
    return keys * 2


def normed(rope, q, k):
    q, k = rope.apply_qk(q, k, 3, norms=NORMS)
    return q * 2, k + 1


def into(rope, q, out):
    rope.apply(q, 3, out=out)
    return out * 2


def in_place(rope, q, k, positions):
    rope.apply_qk_(q, k, positions)
    return q * 2


def in_place_of_new(rope, q):
    y = q * 3
    rope.apply_(y, 3)
    return y + 1


def bound(rope, q, out):
    rope.bind(q, None, 3, out=(out, None))()
    return out * 2


def prepared(rope, q, k):
    call = rope.prepare_qk(q, k, 3)
    q_new, k_new = call.apply_qk(q, k)
    call.apply_qk_(q, k)
    return q_new * 2, k_new + 1, q * 2


def prepared_append(rope, q, k, v, keys, values):
    where = librope.KVCache(keys, values, layout="nhd", starts=np.zeros(2, np.int32))
    call = rope.prepare_qk(q, k, 3, v=v, cache=where, norms=NORMS)
    of_layer = librope.KVCache(keys, values, layout="nhd")
    first = call.apply_qk(q, k, v=v, cache=of_layer, norms=NORMS)[0] * 2
    return first + call.apply_qk(q, k, v=v, cache=of_layer, norms=NORMS)[0], keys + 1


def rows(rope, positions):
    cos, sin = rope.cos_sin(positions)
    return cos * 2, sin + 1


def rows_into(rope, positions, cos, sin):
    rope.cos_sin(positions, out=(cos, sin))
    return cos * 2


def by_rows(rope, q, cos, sin):
    return rope.apply(q, cos_sin=(cos, sin), cos_sin_format="full_halves") * 2


def backward(rope, gradient, k, of):
    made = rope.backward_qk(gradient, k, 3, x=(of, of), norms=NORMS)
    return made.q * 2, made.norms["q.weight"] * 2


def moved(rope, keys):
    ids = np.arange(5)[None].repeat(2, 0)
    cache = librope.KVCache(keys, None, layout="nhd", starts=np.zeros(2, np.int32))
    rope.move(cache, ids + 3, ids, positions_layout="bt")
    return keys * 2


CASES = {
    "new": (lambda rope, q: rope.apply(q, 3) * 2, lambda: [x()]),
    "new of the graph's own": (lambda rope, q: rope.apply(q * 2, 3) * 2, lambda: [x()]),
    "by positions": (lambda rope, q, at: rope.apply(q, at) * 2, lambda: [x(), POSITIONS]),
    "with gaps": (lambda rope, q: rope.apply(q[:, :, :2], 3) * 2, lambda: [x()]),
    "both": (lambda rope, q, k: rope.apply_qk(q, k, 3), lambda: [x(), x(1)]),
    "into": (into, lambda: [x(), np.zeros_like(x())]),
    "into a tensor": (into, lambda: [x(), torch.zeros(2, 5, 3, 8)]),
    "in place": (in_place, lambda: [x(), x(1), POSITIONS]),
    "in place by an int": (in_place, lambda: [x(), x(1), 3]),
    "in place of the graph's own": (in_place_of_new, lambda: [x()]),
    "cache": (append, lambda: [x(), x(1), x(2), *memory()]),
    "cache of tensors": (append, lambda: [x(), x(1), x(2), *memory(torch)]),
    "cache, in place": (append_in_place, lambda: [x(), x(1), x(2), *memory()]),
    "norms": (normed, lambda: [x(), x(1)]),
    "bind": (bound, lambda: [x(), np.zeros_like(x())]),
    "bind to a tensor": (bound, lambda: [x(), torch.zeros(2, 5, 3, 8)]),
    "prepared": (prepared, lambda: [x(), x(1)]),
    "prepared append": (prepared_append, lambda: [x(), x(1), x(2), *memory()]),
    "rows": (rows, lambda: [POSITIONS]),
    "rows into": (rows_into, lambda: [POSITIONS, *np.zeros((2, 5, 8), np.float32)]),
    "rows into tensors": (rows_into, lambda: [POSITIONS, torch.zeros(5, 8), torch.zeros(5, 8)]),
    "rows of tensors into tensors": (
        rows_into, lambda: [torch.from_numpy(POSITIONS), torch.zeros(5, 8), torch.zeros(5, 8)]
    ),
    "by rows": (by_rows, lambda: [x(), *rope_of().cos_sin(POSITIONS)]),
    "backward": (backward, lambda: [x(), x(1), x(2)]),
    "move": (moved, lambda: [memory()[0] + 1]),
}  # fmt: skip


def rope_of():
    """One that has seen no call."""
    return librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="bshd")


def same(found, want):
    return np.array_equal(np.asarray(found), np.asarray(want))


@pytest.mark.parametrize("case", CASES)
def test_compiled_code_takes_the_memory_of_arrays(case):
    function, make = CASES[case]
    rope, eager = rope_of(), make()
    want = function(rope, *eager)
    torch._dynamo.reset()
    fresh = rope_of()
    compiled = torch.compile(lambda *given: function(fresh, *given), backend="eager")
    for _ in range(3):
        given = make()
        found = compiled(*given)
        pairs = zip(found, want, strict=True) if isinstance(want, tuple) else [(found, want)]
        assert all(same(a, b) for a, b in pairs)
        assert all(same(a, b) for a, b in zip(given, eager, strict=True))  # what is written, and what is not


FIRST = """
import numpy as np
{imports}
rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="bshd")
x = np.linspace(-1, 1, 240, dtype=np.float32).reshape(2, 5, 3, 8)
{known}
found = torch.compile({function}, backend="eager")(x)
assert np.array_equal(found, {want}), found
assert "librope.torch" not in __import__("sys").modules
"""


@pytest.mark.parametrize(
    "imports, known, function, want",
    [
        ("import librope, torch", "", "lambda x: rope.apply(x, 3)", "rope.apply(x, 3)"),
        ("import torch, librope", "rope.apply(x, 1)", "lambda x: rope.apply(x, 3)", "rope.apply(x, 3)"),
        ("import torch, librope", "", "lambda x: rope.cos_sin(np.arange(5))[0] + x[0, 0, 0, 0]",
         "rope.cos_sin(np.arange(5))[0] + x[0, 0, 0, 0]"),
    ],
)  # fmt: skip
def test_librope_without_its_module_of_torch(imports, known, function, want):
    """Nobody has told Dynamo anything when the first array comes."""
    program = FIRST.format(imports=imports, known=known, function=function, want=want)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
