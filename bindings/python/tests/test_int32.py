"""What the library takes as int32 alone may be int64, as torch makes it, or a list: it is copied in each call."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import OnCuda

import librope

ROPE = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")
SETS = librope.Rope.sets([ROPE, ROPE.replace(theta=1e6)])
GIVEN = {"cu_seqlens": [0, 2, 6], "page_table": [[3, 1], [0, 2]], "starts": [1, 2]}
RAGGED = {"cu_seqlens": [0, 2, 6], "page_table": [3, 1, 0, 2], "page_starts": [0, 2, 4], "starts": [1, 2]}
Q, K, V = np.random.default_rng(0).standard_normal((3, 6, 2, 8)).astype(np.float32)


def int32(x):
    return np.array(x, np.int32)


FORMS = {
    "int64": lambda x: np.array(x, np.int64),
    "with gaps": lambda x: np.repeat(np.array(x, np.int64), 2, -1)[..., ::2],
    "backwards": lambda x: np.array(x, np.int64)[..., ::-1].copy()[..., ::-1],
    "lists": lambda x: x,
    "tuples": lambda x: tuple(map(tuple, x)) if isinstance(x[0], list) else tuple(x),
}


def stored(given, make, calls=2):
    """More than one call: those that are known have a way of their own."""
    given = {name: make(x) for name, x in given.items()}
    cu_seqlens = given.pop("cu_seqlens")
    memory = [np.zeros((4, 4, 2, 8), np.float32) for _ in "kv"]
    cache = librope.KVCache(*memory, layout="nhd")
    for _ in range(calls):
        q, _ = ROPE.apply_qk(Q, K, offsets=[5, 7], cu_seqlens=cu_seqlens, v=V, cache=cache.at(**given))
    return q, *memory


@pytest.mark.parametrize("given", [GIVEN, RAGGED], ids=["rows", "one list"])
@pytest.mark.parametrize("form", FORMS)
def test_caches_take_them(form, given):
    for got, want in zip(stored(given, FORMS[form]), stored(given, int32, 1), strict=True):
        assert np.array_equal(got, want) and want.any()


def test_what_they_hold_is_read_in_each_call():
    table, starts = np.array([[3, 1], [0, 2]]), np.array([1, 2])
    memory = [np.zeros((4, 4, 2, 8), np.float32) for _ in "kv"]
    cache = librope.KVCache(*memory, layout="nhd", page_table=table, starts=starts)
    options = dict(offsets=[5, 7], cu_seqlens=int32([0, 2, 6]), v=V, cache=cache)
    ROPE.apply_qk(Q, K, **options)
    ROPE.apply_qk(Q, K, **options)
    table[:] = table[::-1].copy()
    memory[0][:] = 0
    ROPE.apply_qk(Q, K, **options)
    assert np.array_equal(memory[0], stored({**GIVEN, "page_table": table.tolist()}, int32, 1)[1])


@pytest.mark.parametrize("form", FORMS)
def test_frequency_sets_and_moves_take_them(form):
    make = FORMS[form]
    want = SETS.apply(Q, 3, cu_seqlens=int32([0, 2, 6]), freq_sets=int32([1, 0]))
    assert np.array_equal(SETS.apply(Q, 3, cu_seqlens=make([0, 2, 6]), freq_sets=make([1, 0])), want)

    moved = []
    for of in (int32, make):
        keys = np.arange(64, dtype=np.float32).reshape(2, 4, 1, 8)
        cache = librope.KVCache(keys, None, layout="nhd", page_table=of([[1], [0]]), starts=of([0, 1]))
        SETS.move(cache, [4, 5, 6], [1, 2, 3], cu_seqlens=of([0, 1, 3]), freq_sets=of([1, 0]))
        moved.append(keys)
    assert np.array_equal(*moved)


def test_prepared_calls_take_them():
    memory = [np.zeros((4, 4, 2, 8), np.float32) for _ in "kv"]
    cache = librope.KVCache(*memory, layout="nhd")
    where = cache.at(page_table=np.array(GIVEN["page_table"]), starts=np.array([1, 2]))
    call = ROPE.prepare_qk(Q, K, offsets=[5, 7], cu_seqlens=np.array([0, 2, 6]), v=V, cache=where)
    q, _ = call.apply_qk(Q, K, v=V, cache=cache)
    for got, want in zip((q, *memory), stored(GIVEN, int32, 1), strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("name", ["cu_seqlens", "page_table", "starts"])
def test_what_is_wrong(name):
    beyond = {**GIVEN, name: np.array(GIVEN[name]) + 2**40}
    with pytest.raises(ValueError, match=f"^{name} has 10995.*, and must be within int32"):
        stored(beyond, lambda x: np.array(x))
    with pytest.raises(ValueError, match=rf"^{name}\[0\] is 10995"):
        stored({**beyond, name: (np.array([0, 1, 2]) + 2**40).tolist()}, lambda x: x)
    with pytest.raises(TypeError, match=f"^{name} has dtype float64"):
        stored({**GIVEN, name: np.array(GIVEN[name], float)}, lambda x: x if isinstance(x, np.ndarray) else int32(x))


def test_rows_of_a_list_are_as_long_as_each_other():
    with pytest.raises(ValueError, match="^page_table is a list of rows, and each must be one of 2 ints"):
        stored({**GIVEN, "page_table": [[3, 1], [0]]}, lambda x: x)
    with pytest.raises(TypeError, match="^page_table as a list must hold ints"):
        stored({**GIVEN, "page_table": [[3, 1], [0, 1.5]]}, lambda x: x)


@pytest.mark.parametrize("name", ["cu_seqlens", "page_table", "starts"])
def test_bound_calls_refuse_what_they_would_not_see_again(name):
    given = {n: np.array(x) if n == name else int32(x) for n, x in GIVEN.items()}
    memory = [np.zeros((4, 4, 2, 8), np.float32) for _ in "kv"]
    cu_seqlens = given.pop("cu_seqlens")
    with pytest.raises(TypeError, match=f"^{name} has dtype int64, and a bound call would not see"):
        cache = librope.KVCache(*memory, layout="nhd", **given)
        ROPE.bind(Q, K, offsets=[5, 7], cu_seqlens=cu_seqlens, v=V, cache=cache)


def test_on_a_device_they_are_int32():
    with pytest.raises(TypeError, match="cu_seqlens has dtype int64, and must be int32"):
        ROPE.apply_(OnCuda(Q), 0, cu_seqlens=OnCuda(np.array([0, 2, 6])))


WITHOUT_NUMPY = """
import sys
from array import array
sys.modules["numpy"] = None
import librope
rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")
def run(make):
    k, v = (memoryview(array("f", range(1, 97))).cast("B").cast("f", (6, 2, 8)) for _ in "kv")
    memory = [memoryview(bytearray(1024)).cast("f", (4, 4, 2, 8)) for _ in "kv"]
    cache = librope.KVCache(*memory, layout="nhd", page_table=make([[3, 1], [0, 2]]), starts=make([1, 2]))
    rope.apply_qk_(None, k, offsets=[5, 7], cu_seqlens=make([0, 2, 6]), v=v, cache=cache)
    return [x.tobytes() for x in memory]
def arrays(code):
    def make(x):
        rows = x if isinstance(x[0], list) else [x]
        flat = memoryview(array(code, sum(rows, [])))
        return flat if rows is not x else flat.cast("B").cast(code, (2, 2))
    return make
want = run(arrays("i"))
assert any(want[0]) and run(arrays("q")) == want and run(lambda x: x) == want
"""


def test_without_numpy():
    ran = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
