"""What Python knows of operations and pairings, against what the library does."""

import ast
import json
import pathlib

import numpy as np
import pytest

import librope
from librope import _conventions
from librope._conventions import channel_order, rule_of
from librope._core import OPERATIONS, PAIRINGS
from librope.cli.kinds import channels

YARN = {"scaling": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}


def rope_of(pairing, **fields):
    if channel_order(pairing).per_axis:
        fields |= {"axes": 2, "mrope_section": [5, 1]}
    return librope.Rope(head_dim=16, theta=1e4, pairing=pairing, rotary_dim=12, layout="td", **fields)


def matrix(rope, operation, position=7):
    """Of all channels at one position, for which a distance and a position are given alike."""
    unit = np.eye(16, dtype=np.float32)
    return rope.apply(unit, np.full(16, position), operation=operation).T


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_channel_orders_are_those_of_the_library(pairing, rng):
    rope = rope_of(pairing)
    x = rng.standard_normal((1, 16), np.float32)
    reads0, reads1, writes0, writes1 = channels(rope, 16)
    angle = 7 * np.asarray(rope.inv_freq)
    want = x.astype(np.float64)
    want[:, writes0] = x[:, reads0] * np.cos(angle) - x[:, reads1] * np.sin(angle)
    want[:, writes1] = x[:, reads1] * np.cos(angle) + x[:, reads0] * np.sin(angle)
    np.testing.assert_allclose(rope.apply(x, 7), want, atol=1e-5)
    assert channel_order(pairing).moves == (not np.array_equal(rope.apply(x, 0), x))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_transposes_are_operations(pairing, operation):
    """Of a matrix with an attention factor beside channels that do not turn."""
    rope = rope_of(pairing, **YARN)
    assert rope.attention_factor > 1.1
    spec, transpose, negated = rope.transposed(operation)
    other = librope.Rope.from_fields(json.loads(spec), layout="td")
    np.testing.assert_allclose(matrix(other, transpose, -7 if negated else 7), matrix(rope, operation).T, atol=1e-6)


@pytest.mark.parametrize("angle", ["float32", "exact", "ggml", "divide"])
@pytest.mark.parametrize("rounding", ["float32", "eager"])
def test_a_shift_back_is_the_transpose_of_a_shift_bit_for_bit(angle, rounding, rng):
    """Where no length limits the frequencies, it is "backward" without the attention factor."""
    rope = rope_of("halves", angle=angle, rounding=rounding)
    x = rng.standard_normal((5, 16), np.float32)
    ids = np.array([0, 7, 1000, 2**31 - 1, 2**24 + 1])
    back = rope.apply(x, -ids, operation=rule_of("shift").transpose)
    np.testing.assert_array_equal(back, rope.apply(x, ids, operation="backward"))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rules_of_operations_are_those_of_the_library(operation):
    rule, rope = rule_of(operation), rope_of("halves", angle="exact")
    x = np.ones((3, 16), np.float32)
    one = rope.apply(x, np.full(3, 5), operation=operation)
    counted = rope.apply(x, np.arange(5, 8), operation=operation)
    np.testing.assert_array_equal(rope.apply(x, 5, operation=operation), one if rule.by_distance else counted)
    rows = {"cos_sin": rope.cos_sin(np.arange(3)), "cos_sin_format": "full_halves"}
    if rule.takes_rows:
        rope.apply(x, operation=operation, **rows)
        # Gradients by rows go by this: rows have the factor in them.
        assert rule.factor is None and not rule.negates
    else:
        with pytest.raises(ValueError, match="operation"):
            rope.apply(x, operation=operation, **rows)


def test_transposes_without_a_factor_have_the_text_of_the_rope(monkeypatch):
    """Which is written once: tables of frequencies are large."""
    scaled = rope_of("halves", **YARN)
    for operation in OPERATIONS:
        changes = _conventions.rule_of(operation).factor is not None
        assert (scaled.transposed(operation)[0] != scaled.spec) == changes
    monkeypatch.delattr(_conventions, "spec_of")
    rope = rope_of("halves")
    assert all(rope.transposed(operation)[0] == rope.spec for operation in OPERATIONS)


def test_what_has_no_rule_is_an_error_that_names_it(monkeypatch):
    rope = rope_of("halves")
    monkeypatch.delitem(_conventions._RULES, "shift")
    for positions in (3, np.arange(2)):
        with pytest.raises(NotImplementedError, match="operation 'shift' has no rule in librope._conventions"):
            rope.apply(np.ones((2, 16), np.float32), positions, operation="shift")
    for name in ("thirds", "halves_to_thirds", "thirds_per_axis"):
        with pytest.raises(NotImplementedError, match=f"pairing '{name}' has a channel order"):
            channel_order(name)


def test_no_other_file_compares_with_their_names():
    """Names that are made of others, and operations; "halves" alone is a half of a channel order."""
    names = {*OPERATIONS, *PAIRINGS} - {"halves", "interleaved"}
    folder = pathlib.Path(librope.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                found = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                assert path.stem == "_conventions" or not names & found, f"{path.name}:{node.lineno}"
