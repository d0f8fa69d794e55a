"""Tokens of one sequence on several ranks: gathered, they have the bits of one call."""

from array import array

import librope
import numpy as np
import pytest

DIM, HEADS = 16, 2
ROPE = librope.Rope(head_dim=DIM, theta=10000.0, pairing="halves", layout="thd")
BATCHED = librope.Rope(head_dim=DIM, theta=10000.0, pairing="halves", layout="bshd")
CUTS = np.array([0, 16, 48], np.int32)


def values(tokens):
    return (np.arange(tokens * HEADS * DIM) % 251 - 100).astype(np.float32).reshape(tokens, HEADS, DIM)


def shards(ranks=4):
    """Of each scheme, those of all ranks."""
    for scheme in ("contiguous", "zigzag", "striped"):
        yield [librope.Shard(scheme, r, ranks) for r in range(ranks)]
        yield [librope.Shard(scheme, r, ranks, per_document=True) for r in range(ranks)]
    yield [librope.Shard("striped", r, ranks, block=3) for r in range(ranks)]
    yield [
        librope.Shard("zigzag", r // 2, 2, inner=librope.Shard("contiguous", r % 2, 2)) for r in range(ranks)
    ]


@pytest.mark.parametrize("ranks", list(shards()), ids=lambda ranks: ranks[0].text)
@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_ranks_together_have_the_bits_of_one_call(ranks, operation):
    x, length = values(48), 48
    offsets = np.array([7, 100])
    whole, _ = ROPE.apply_qk(x, None, offsets=offsets, cu_seqlens=CUTS, operation=operation)
    gathered = np.zeros_like(x)
    for shard in ranks:
        numbers = shard.numbers(length // 4, cu_seqlens=CUTS)
        options = {"offsets": offsets, "cu_seqlens": CUTS, "operation": operation, "shard": shard}
        rotated, _ = ROPE.apply_qk(x[numbers], None, **options)
        gathered[numbers] = rotated
        own = x[numbers]
        ROPE.apply_(own, **options)
        np.testing.assert_array_equal(own, rotated)
        ids = shard.ids(length // 4, offsets=offsets, cu_seqlens=CUTS)
        np.testing.assert_array_equal(ROPE.apply(x[numbers], ids, operation=operation), rotated)
        call = ROPE.prepare_qk(x[numbers], None, **options)
        np.testing.assert_array_equal(call.apply_qk(x[numbers])[0], rotated)
        bound = x[numbers]
        ROPE.bind(bound, **options)()
        np.testing.assert_array_equal(bound, rotated)
    np.testing.assert_array_equal(gathered, whole)


def test_batch_rows_are_divided_alike():
    x = np.stack([values(8), -values(8)])
    whole = BATCHED.apply(x, 5)
    for rank in range(2):
        shard = librope.Shard("zigzag", rank, 2)
        numbers = shard.numbers(4)
        np.testing.assert_array_equal(BATCHED.apply(x[:, numbers], 5, shard=shard), whole[:, numbers])
        np.testing.assert_array_equal(shard.ids(4, 5), numbers + 5)


def test_heads_are_divided_without_positions():
    x = values(4)
    shard = librope.Shard("heads", 1, 2)
    np.testing.assert_array_equal(ROPE.apply(x, 3, shard=shard), ROPE.apply(x, 3))


def test_a_shard_is_a_value():
    shard = librope.Shard("striped", 1, 2, block=3, inner=librope.Shard("zigzag", 0, 4))
    assert librope.Shard.of_text(shard.text) == shard
    assert hash(librope.Shard.of_text(shard.text)) == hash(shard)
    assert shard != librope.Shard("striped", 0, 2, block=3)
    with pytest.raises(AttributeError):
        shard.rank = 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("spiral", 0, 2), ValueError, "scheme.*spiral.*zigzag"),
        (("zigzag", 2, 2), ValueError, "rank is 2, and must be from 0 to 1"),
        (("zigzag", -1, 2), ValueError, "rank is -1"),
        (("zigzag", 0, 0), ValueError, "world is 0"),
        (("zigzag", 0.5, 2), TypeError, "rank is 0.5"),
        (("zigzag", 0, 2, 4), ValueError, "block is 4.*'striped'"),
        (("striped", 0, 2, -1), ValueError, "block is -1"),
        (("zigzag", 0, 2, 0, 1), TypeError, "per_document is 1"),
        (("zigzag", 0, 2, 0, False, "contiguous"), TypeError, "inner is a str"),
    ],
)
def test_what_is_no_shard(arguments, error, message):
    with pytest.raises(error, match=message):
        librope.Shard(*arguments)


def test_a_level_of_a_level():
    inner = librope.Shard("zigzag", 0, 2, inner=librope.Shard("zigzag", 0, 2))
    with pytest.raises(ValueError, match="inner has an inner"):
        librope.Shard("zigzag", 0, 2, inner=inner)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"positions": 0, "shard": "zigzag"}, TypeError, "shard is a str"),
        ({"positions": np.arange(3)}, ValueError, "shard= is not for positions as an array"),
        ({"positions": [0, 1, 2]}, ValueError, "shard= is not for positions as an array"),
        ({"positions": 0}, ValueError, r"tokens \(3\) must be a multiple of 2"),
        ({"offsets": np.array([1, 2])}, ValueError, "offsets has 2 entries"),
        (
            {"positions": 0, "cu_seqlens": CUTS, "shard": librope.Shard("contiguous", 0, 2)},
            ValueError,
            r"cu_seqlens\[2\] \(48\) breaks the rule: from 0 to the tokens of all ranks \(6\)",
        ),
        ({"positions": 0, "operation": "shift"}, ValueError, "shard= is not for operation 'shift'"),
    ],
)
def test_what_is_refused(options, error, message):
    x = values(3)
    exact = ROPE.replace(angle="exact")
    with pytest.raises(error, match=message):
        exact.apply_(x, **{"shard": librope.Shard("zigzag", 0, 2), **options})
    np.testing.assert_array_equal(x, values(3))


@pytest.mark.parametrize(
    ("offsets", "cuts", "message"),
    [
        (np.array([0.9, 1.7]), CUTS, "offsets has dtype float64, and must be int32 or int64"),
        (np.array([2**63 + 5, 1], np.uint64), CUTS, "offsets has dtype uint64, and must be int32 or int64"),
        (np.array([[1, 2]]), CUTS, r"offsets has shape \(1, 2\), and must have one dimension"),
        (np.array([1, 2, 3]), CUTS, "offsets has 3 entries, and there are 2 sequences"),
        (np.array([1, 2, 3, 4])[::2], CUTS, "offsets has stride 2, and must be contiguous"),
        (None, CUTS.astype(np.int64) + 2**32, "cu_seqlens has 4294967296, and must be within int32"),
        (None, CUTS.astype(np.float32), "cu_seqlens has dtype float32, and must be int32"),
        (None, CUTS[:1], "cu_seqlens has 1 entries, and must have one more than sequences"),
    ],
)
def test_ids_refuse_what_calls_refuse(offsets, cuts, message):
    """In the same words."""
    shard, x = librope.Shard("zigzag", 0, 4), values(12)
    positions = 0 if offsets is None else None
    with pytest.raises((ValueError, TypeError), match=message) as call:
        ROPE.apply(x, positions, offsets=offsets, cu_seqlens=cuts, shard=shard)
    with pytest.raises(type(call.value), match=message) as ids:
        shard.ids(12, offsets=offsets, cu_seqlens=cuts)
    assert str(ids.value) == str(call.value)
    if offsets is None:
        with pytest.raises(type(call.value), match=message):
            shard.numbers(12, cu_seqlens=cuts)


def test_ids_of_lists_and_other_arrays():
    shard = librope.Shard("zigzag", 0, 4)
    want = shard.ids(12, offsets=np.array([7, 100]), cu_seqlens=CUTS)
    for offsets in ([7, 100], np.array([7, 100], np.int32), array("q", [7, 100])):
        for cuts in (CUTS.tolist(), CUTS.astype(np.int64)):
            np.testing.assert_array_equal(shard.ids(12, offsets=offsets, cu_seqlens=cuts), want)
    for error, offsets, cuts, message in [
        (TypeError, [0.9, 1.7], [0, 16, 48], "offsets as a list must hold ints"),
        (TypeError, [0, 1], [0.0, 16.9, 48.2], "cu_seqlens as a list must hold ints"),
        (ValueError, [0, 1], [0, 16 + 2**32, 48], r"cu_seqlens\[1\] is 4294967312, and must be from"),
        (ValueError, [0, 2**63], [0, 16, 48], r"offsets\[1\] is .*, and must be from"),
        (TypeError, 3, [0, 16, 48], "offsets is a builtins.int, and must be an array"),
    ]:
        with pytest.raises(error, match=message):
            shard.ids(12, offsets=offsets, cu_seqlens=cuts)


def test_ids_say_what_is_wrong():
    shard = librope.Shard("zigzag", 0, 2, per_document=True)
    with pytest.raises(ValueError, match="per_document.*cu_seqlens"):
        shard.ids(4)
    with pytest.raises(ValueError, match=r"cu_seqlens\[1\] - cu_seqlens\[0\] \(6\) must be a multiple of 4"):
        shard.ids(4, cu_seqlens=[0, 6, 8])
    with pytest.raises(ValueError, match="offsets has 1 entries"):
        shard.ids(4, offsets=[1], cu_seqlens=[0, 4, 8])
