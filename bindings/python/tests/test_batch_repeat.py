"""Batch rows that share their positions, as the groups of a grouped QKV do: the bits of ids spelt out for each."""

import numpy as np
import pytest

import librope

ROPE = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="sbhd")
BATCH, GROUPS, TOKENS, Q = 2, 3, 5, 4
IDS = np.random.default_rng(0).integers(0, 999, (BATCH, TOKENS))
OFFSETS = np.array([7, 100])
POSITIONS = {
    "ids": (dict(positions=IDS), dict(positions=IDS.repeat(GROUPS, 0))),
    "one row": (dict(positions=IDS[:1]), dict(positions=IDS[:1])),
    "tokens": (dict(positions=IDS[0]), dict(positions=IDS[0])),
    "int": (dict(positions=7), dict(positions=7)),
    "offsets": (dict(offsets=OFFSETS), dict(offsets=OFFSETS.repeat(GROUPS))),
}


def packed():
    """[tokens, batch, groups, q + 2, 8] as batch rows of groups: q and k."""
    x = np.random.default_rng(1).standard_normal((TOKENS, BATCH, GROUPS, Q + 2, 8), np.float32)
    x = x.reshape(TOKENS, BATCH * GROUPS, Q + 2, 8)
    return x[:, :, :Q], x[:, :, Q : Q + 1]


@pytest.mark.parametrize("operation", ["forward", "backward", "inverse"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_every_way_of_calling(kind, operation):
    q, k = packed()
    where, spelt = ({**w, "operation": operation} for w in POSITIONS[kind])
    want = ROPE.apply_qk(q, k, **spelt)
    own = packed()
    ROPE.apply_qk_(*own, batch_repeat=GROUPS, **where)
    bound = packed()
    ROPE.bind(*bound, batch_repeat=GROUPS, **where)()
    found = [ROPE.apply_qk(q, k, batch_repeat=GROUPS, **where), own, bound,
             ROPE.prepare_qk(q, k, batch_repeat=GROUPS, **where).apply_qk(q, k)]  # fmt: skip
    for one in found:
        assert all(np.array_equal(a, b) for a, b in zip(one, want, strict=True))
    again = ROPE.apply_qk(q, k, **spelt)  # what was remembered is told apart
    assert np.array_equal(again[0], want[0])


def test_shifts_move_each_row_by_its_distance():
    rope = ROPE.replace(angle="exact")
    q, _ = packed()
    want = rope.apply(q, offsets=OFFSETS.repeat(GROUPS), operation="shift")
    assert np.array_equal(rope.apply(q, offsets=OFFSETS, operation="shift", batch_repeat=GROUPS), want)


def test_sequences_that_are_packed_are_those_of_all_rows():
    q, _ = packed()
    one = q[:, :GROUPS]
    cuts = np.array([0, 2, TOKENS], np.int32)
    ids = np.r_[7:9, 100:103]
    found = ROPE.apply(one, offsets=OFFSETS, cu_seqlens=cuts, batch_repeat=GROUPS)
    assert np.array_equal(found, ROPE.apply(one, ids))


def test_sets_of_frequencies_are_those_of_rows():
    rope = librope.Rope.sets([ROPE, ROPE.replace(theta=500.0)])
    q, _ = packed()
    sets = np.array([1, 0], np.int32)
    found = rope.apply(q, 7, freq_sets=sets, batch_repeat=GROUPS)
    assert np.array_equal(found, rope.apply(q, 7, freq_sets=sets.repeat(GROUPS)))


@pytest.mark.parametrize("repeat", [float(GROUPS), True])
def test_what_is_no_int_is_refused_after_its_equal_too(repeat):
    q, k = packed()
    ROPE.apply_qk(q, k, 7, batch_repeat=int(repeat))
    with pytest.raises(TypeError, match=f"^batch_repeat is {repeat}, and must be an int"):
        ROPE.apply_qk(q, k, 7, batch_repeat=repeat)


def test_what_is_wrong_is_named():
    q, k = packed()
    rows = ROPE.cos_sin(IDS, positions_layout="bt")
    cache = librope.KVCache(np.zeros((6, TOKENS, 1, 8), np.float32), layout="nhd", starts=0)
    for options, error, text in (
        (dict(positions=IDS, batch_repeat=4), ValueError, "batch_repeat is 4, and must divide the 6 batch rows"),
        (dict(positions=IDS, batch_repeat=0), ValueError, "batch_repeat is 0"),
        (dict(positions=IDS, batch_repeat=1.5), TypeError, "batch_repeat is 1.5"),
        (dict(positions=IDS, batch_repeat=2), ValueError, "positions has shape"),
        (dict(offsets=OFFSETS, batch_repeat=2), ValueError, "offsets has 2 entries, and there are 3 sequences"),
        (dict(cos_sin=rows, cos_sin_format="full_halves", batch_repeat=3), ValueError, "batch_repeat= is not for cos"),
        (dict(positions=7, cache=cache, batch_repeat=3), (ValueError, NotImplementedError), "batch_repeat"),
    ):
        with pytest.raises(error, match=text):
            ROPE.apply_qk(q, k, **options)


@pytest.mark.parametrize("kind", POSITIONS)
def test_in_torch_with_gradients_and_in_compiled_code(kind):
    torch = pytest.importorskip("torch")
    q, k = (torch.from_numpy(x.copy()) for x in packed())
    where, spelt = ({n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in w.items()}
                    for w in POSITIONS[kind])  # fmt: skip
    want = ROPE.apply_qk(q, k, **spelt)
    torch._dynamo.reset()

    def run(q, k, options):
        return ROPE.apply_qk(q, k, batch_repeat=GROUPS, **options)

    for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        leaf = q.clone().requires_grad_()
        found = function(leaf, k, where)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
        found[0].backward(q)
        assert torch.equal(leaf.grad, ROPE.apply(q, operation="backward", **spelt))
    with pytest.raises(ValueError, match="batch_repeat is 4, and must divide the 6 batch rows"):
        ROPE.apply_qk(q.to("meta"), k.to("meta"), 7, batch_repeat=4)
    shard = librope.Shard("contiguous", 0, 2)
    found = ROPE.apply(q.clone().requires_grad_(), 7, shard=shard, batch_repeat=GROUPS)
    assert torch.equal(found, ROPE.apply(q, 7))
