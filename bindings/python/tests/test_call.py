"""One value for what a call is made of: Call has the arguments of apply_qk_, then those of calls with outputs, and
all ways lead to it."""

import inspect

import numpy as np
import pytest

import librope
from librope._call import Call
from librope._types import BindOptions, CallOptions, OutOptions

ROPE = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")


def test_what_a_call_is_made_of_is_the_same_everywhere():
    def defaults(function):
        return {p.name: p.default for p in inspect.signature(function).parameters.values()}

    arguments = defaults(ROPE.apply_qk_)
    # In this order, since apply_qk and apply_qk_ hand them over by position.
    assert (*arguments, "rest", "scales") == Call._fields
    every = {"q": inspect.Parameter.empty, **Call._field_defaults}
    assert {**arguments, "rest": None, "scales": None} == every
    copies = defaults(ROPE.apply_qk)
    assert copies.pop("out") is None and copies == every
    assert Call._fields[3:6] == ("v", "cache", "norms")
    assert CallOptions.__optional_keys__ == set(arguments) - set(Call._fields[:5])
    assert OutOptions.__optional_keys__ == CallOptions.__optional_keys__ | {"scales"}
    assert BindOptions.__optional_keys__ == set(arguments) - set(Call._fields[:6]) - {"cos_sin", "cos_sin_format"}


@pytest.mark.parametrize("given", [("positions", "offsets"), ("positions", "cos_sin"),
                                   ("offsets", "cos_sin"), ("positions", "offsets", "cos_sin")])  # fmt: skip
def test_one_argument_gives_the_angles(given):
    q = np.ones((1, 2, 8), np.float32)
    all_of_them = {"positions": 0, "offsets": np.zeros(1, np.int64), "cos_sin": np.ones((1, 8))}
    options = {name: all_of_them[name] for name in given}
    for call in (ROPE.apply, ROPE.apply_):
        with pytest.raises(ValueError, match="positions, offsets and cos_sin: exactly one"):
            call(q, **options)


@pytest.mark.parametrize("option", ["cos_sin", "cos_sin_format", "operaton"])
def test_bind_refuses_what_it_does_not_know(option):
    with pytest.raises(TypeError, match=f"bind\\(\\) got an unexpected keyword argument '{option}'"):
        ROPE.bind(np.ones((1, 2, 8), np.float32), None, 0, **{option: None})


def test_bind_takes_the_options_of_a_call():
    q = np.ones((2, 1, 8), np.float32)
    cu_seqlens = np.array([0, 1, 2], np.int32)
    options = {"layout": "thd", "operation": "backward", "offsets": np.array([3, 5]), "cu_seqlens": cu_seqlens,
               "pool": librope.Pool(1)}  # fmt: skip
    out = np.empty_like(q)
    ROPE.bind(q, out=(out, None), **options)()
    np.testing.assert_array_equal(out, ROPE.apply(q, **options))
    np.testing.assert_array_equal(out, ROPE.apply(q, np.array([3, 5]), operation="backward"))
