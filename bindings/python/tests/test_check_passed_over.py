"""librope check: a mistake that cannot be computed is passed over, and ends no run."""

import numpy as np
import pytest
from test_check import BF16, LLAMA, Rope, check, plain, values, words  # noqa: F401

from librope.cli.check import judge, measure, nearest, reference

FAR = {
    "pairing interleaved instead of halves": lambda r, q, p: r.replace(pairing="interleaved").apply(q, p),
    "theta 10000": lambda r, q, p: r.replace(theta=1e4).apply(q, p),
    "without the llama3 scaling": lambda r, q, p: plain(r).apply(q, p),
    "angles that are exact": lambda r, q, p: r.replace(angle="exact").apply(q, p),
}


@pytest.mark.parametrize("last", [65519, 65520, 131071])
@pytest.mark.parametrize("says", FAR)
def test_mistakes_are_named_where_float16_has_no_positions(check, rng, tmp_path, says, last):
    """From 65520 on, float16 rounds a position to infinity."""
    at = np.linspace(0, last, 64).astype(np.int64)
    np.save(tmp_path / "at.npy", at)
    q = values(rng, 64)
    after = FAR[says](Rope.from_config(LLAMA), q, at)
    status, found, _ = check(LLAMA, q, after, "--positions", tmp_path / "at.npy")
    assert status == 1 and words(found)[0] == says


# Each takes seconds, in which all mistakes and pairs of them are tried.
@pytest.mark.parametrize("dtype, tokens, last", [(np.float32, 64, 65520), (np.float16, 7, 131071), (BF16, 64, 131071)])
def test_no_rule_explains_it_where_float16_has_no_positions(check, rng, dtype, tokens, last):
    q = values(rng, tokens, dtype=dtype)
    noise = values(rng, tokens, dtype=dtype)
    status, found, _ = check(LLAMA, q, noise, "--positions", last - tokens + 1)
    assert status == 1 and not found["explained"]


@pytest.mark.parametrize("last", [60001, 65520])
def test_positions_in_float16_are_named_where_it_has_them(check, rng, tmp_path, last):
    at = np.linspace(last - 5000, last, 64).astype(np.int64)
    np.save(tmp_path / "at.npy", at)
    q = values(rng, 64)
    rounded = np.minimum(at.astype(np.float32), 65504).astype(np.float16).astype(np.int64)
    status, found, _ = check(LLAMA, q, Rope.from_config(LLAMA).apply(q, rounded),
                             "--positions", tmp_path / "at.npy")  # fmt: skip
    assert status == 1 and ("positions in float16" in words(found)) == (last < 65504)


@pytest.mark.parametrize("broken", ["turn", "predict", "apply"])
@pytest.mark.parametrize("error", [ValueError, IndexError])
def test_a_hypothesis_that_cannot_be_computed_is_passed_over(check, rng, monkeypatch, broken, error):
    """Only the config's own rule, and the one that explains, can be computed."""
    module = judge.bits if broken == "apply" else reference
    real, own = getattr(module, broken), Rope.from_config(LLAMA)

    def fail(*given):
        h = given[1] if broken == "apply" else given[0]
        if h.times != 1 or h.precision or h.rope.config.get("theta") not in (own.config["theta"], 1e4):
            raise error("of something unforeseen")
        return real(*given)

    for where in (module, judge, measure, nearest):
        if getattr(where, broken, None) is real:
            monkeypatch.setattr(where, broken, fail)
    q = values(rng, 64, 2)
    why = f"{error.__name__}: of something unforeseen"
    status, found, text = check(LLAMA, q, own.replace(theta=1e4).apply(q, 0))
    assert status == 1 and words(found)[0] == "theta 10000"
    assert {n["why"] for n in found["not_tried"]} <= {why}
    assert (f": {why}\n" in text) == bool(found["not_tried"])
    status, found, text = check(LLAMA, q, own.apply(q, 0))
    assert status == 0  # others are rivals
    if broken != "apply":
        assert any("the first 32 frequencies" in n["words"][0] for n in found["not_tried"])
        assert {n["why"] for n in found["not_tried"]} == {why}
        assert "not tried: " in text and f": {why}\n" in text
    assert check(LLAMA, q[:1], own.apply(q[:1], 0))[0] == 3  # and here they fit
    status, found, _ = check(LLAMA, q, values(rng, 64, 2))
    assert status == 1 and not found["explained"]


def test_all_is_tried(check, rng):
    q = values(rng, 64, 2)
    for after in (Rope.from_config(LLAMA).apply(q, 0), values(rng, 64, 2)):
        _, found, text = check(LLAMA, q, after)
        assert found["not_tried"] == [] and "not tried" not in text
