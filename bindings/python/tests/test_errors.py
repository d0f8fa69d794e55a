"""Wrong arguments: the kind of exception, and that it names what is wrong."""

import fractions
import json
import pickle

import numpy as np
import pytest
from conftest import OnCuda

import librope

ROPE = librope.Rope(head_dim=16, theta=1e4, pairing="halves", rotary_dim=8, layout="thd")


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
         "rope_theta": 10000.0}  # fmt: skip


def array(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"head_dim": 15, "theta": 1e4, "pairing": "halves"}, ValueError, "head_dim"),
        ({"head_dim": 16, "pairing": "halves"}, ValueError, "theta"),
        ({"head_dim": 16, "theta": 1e4}, ValueError, "pairing"),
        ({"head_dim": 16, "theta": 1e4, "pairing": "adjacent"}, ValueError, "interleaved"),
        ({"head_dim": 16, "theta": 1e4, "pairing": "halves", "thata": 1}, TypeError, "thata"),
        ({"head_dim": 2**40, "theta": 1e4, "pairing": "halves"}, ValueError, "head_dim"),
        ({"head_dim": "x", "theta": 1e4, "pairing": "halves"}, TypeError, "head_dim"),
        ({"head_dim": 16, "theta": 1e4, "pairing": "halves", "factor": 2.0}, ValueError, "factor"),
        ({"head_dim": 8, "pairing": "halves", "inv_freq": [1.0]}, ValueError, "table_length"),
        ({"head_dim": 8, "theta": 1e4, "pairing": "halves", "mrope_section": [1] * 5}, ValueError,
         "mrope_section"),
    ],
)  # fmt: skip
def test_configuration(fields, error, says):
    with pytest.raises(error, match=says):
        librope.Rope(**fields)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ROPE.apply(array(2, 3, 15), 0), ValueError, "q has 15 channels"),
        (lambda: ROPE.apply(array(2, 16), 0, layout="bshd"), ValueError, "'bshd'"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, layout="bsdh"), ValueError, "layout is 'bsdh'"),
        (lambda: ROPE.apply(array(2, 3, 16, dtype=np.float64), 0), TypeError, "q has dtype float64"),
        (lambda: ROPE.apply(array(2, 3, 16, dtype=">f4"), 0), TypeError, "byte order"),
        (lambda: ROPE.apply(array(2, 3, 32)[..., ::2], 0), ValueError, "last axis"),
        (lambda: ROPE.apply_(array(4, 3, 16)[::-1], 0), ValueError, "negative"),
        (lambda: ROPE.apply_qk(array(2, 3, 16), array(3, 3, 16), 0), ValueError, "3 tokens"),
        (lambda: ROPE.apply_qk(None, None, 0), ValueError, "None"),
        (lambda: ROPE.apply(array(2, 3, 16)), ValueError, "positions is required"),
        (lambda: ROPE.apply(array(2, 3, 16), np.arange(3)), ValueError, "must have 2 tokens"),
        (lambda: ROPE.apply(array(2, 3, 16), np.zeros(2)), TypeError, "positions has dtype float64"),
        (lambda: ROPE.apply(array(2, 3, 16), np.zeros(2, np.uint8)), TypeError, "uint8"),
        (lambda: ROPE.apply(array(2, 3, 16), np.arange(2)[::-1]), ValueError, "negative"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, offsets=np.zeros(1, int)), ValueError, "exactly one"),
        (lambda: ROPE.apply(array(2, 3, 16), offsets=np.zeros(2, int)), ValueError, "1 sequences"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, operation="undo"), ValueError, "inverse"),
        (lambda: ROPE.apply(array(2, 3, 16), 2**70), ValueError, "positions is 1180591620717411303424"),
        (lambda: ROPE.apply("text", 0), TypeError, "q is a builtins.str"),
        (lambda: ROPE.apply_("text", 0), TypeError, "must be an array"),
        (lambda: ROPE.apply(array(2, 3, 16), "text"), TypeError, "positions is a"),
        (lambda: ROPE.apply(array(2, 3, 16), [0.5, 1]), TypeError, "ints"),
        (lambda: ROPE.apply(array(5, 3, 16), 0, cu_seqlens=np.array([0, 4], np.int32)),
         ValueError, "cu_seqlens"),
        (lambda: ROPE.apply(array(5, 3, 16), 0, cu_seqlens=np.array([0.0, 5])), TypeError, "int32"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, out=array(2, 3, 16, dtype=np.float64)),
         TypeError, "out of q has dtype float64"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, out=array(2, 4, 16)), ValueError, "heads"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, freq_sets=np.zeros(1, np.int32)), ValueError,
         "freq_sets"),
        (lambda: ROPE.apply(array(2, 3, 16), cos_sin=array(2, 8), cos_sin_format="full_halves"),
         ValueError, "cos, sin"),
        (lambda: ROPE.apply(array(2, 3, 16), cos_sin=array(2, 9), cos_sin_format="packed"),
         ValueError, "must be"),
    ],
)  # fmt: skip
def test_calls(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ROPE.apply(array(2, 3, 16), 2**63), ValueError, r"positions is .*, and must be from -2\*\*63"),
        (lambda: ROPE.apply(array(2, 3, 16), [0, 2**63]), ValueError, r"positions\[1\] is 9223372036854775808"),
        (lambda: ROPE.apply(array(2, 3, 16), True), TypeError, "positions is True, and must be an int"),
        (lambda: ROPE.apply(array(2, 3, 16), [True, 1]), TypeError, r"positions\[0\] is True"),
        (lambda: ROPE.apply(array(2, 3, 16), 1.5), TypeError, "positions is 1.5, and must be an int"),
        (lambda: librope.Rope.from_config(LLAMA, layer=10**12), ValueError, "layer is 1000000000000"),
        (lambda: librope.Rope.from_config(LLAMA, layer="0"), TypeError, "layer is '0', and must be an int"),
        (lambda: librope.Rope.from_config(LLAMA, layer=99), ValueError, r"^layer \(99\) must be from 0 to 1"),
        (lambda: librope.Rope.from_config(LLAMA, seq_len="8"), TypeError, "seq_len is '8'"),
        (lambda: librope.Pool("2"), TypeError, "threads is '2', and must be an int"),
        (lambda: librope.Pool(10**12), ValueError, "threads is 1000000000000"),
        (lambda: ROPE.cos_sin(0, tokens=-4), ValueError, "tokens is -4, and must be from 0"),
        (lambda: ROPE.cos_sin(0, tokens="4"), TypeError, "tokens is '4'"),
        (lambda: ROPE.next_change("x"), TypeError, "seq_len is 'x'"),
        (lambda: ROPE.inv_freq_of(1), ValueError, "freq_set is 1, and must be from 0 to 0"),
        (lambda: librope.Rope(head_dim=2**40, theta=1e4, pairing="halves"), ValueError,
         "head_dim is 1099511627776, and must be even and from 2 to 1024"),
        (lambda: ROPE.replace(axes=2**31), ValueError, r"axes is 2147483648, and must be from -2\*\*31 to 2\*\*31 - 1"),
        (lambda: ROPE.replace(theta=10**400), ValueError, "and must be a number that a double holds"),
        (lambda: ROPE.replace(axes=2, pair_axis=[0, 1, 300, 0]), ValueError,
         r"pair_axis\[2\] is 300, and must be from 0 to 255"),
        (lambda: ROPE.replace(axes=2, pair_axis=[0, 1, 0.9, 0]), TypeError,
         r"pair_axis\[2\] is 0.9, and must be an int"),
        (lambda: ROPE.replace(axes=2, mrope_section=[1.9, 1.9]), TypeError,
         r"mrope_section\[0\] is 1.9, and must be an int"),
        (lambda: ROPE.replace(freq_factors=["1", "2", "3", "4"]), TypeError,
         r"freq_factors\[0\] is '1', and must be a number"),
        (lambda: ROPE.replace(axes=2, mrope_section=[2**31, 1]), ValueError, r"mrope_section\[0\] is 2147483648"),
        (lambda: librope.Rope(head_dim=8, pairing="halves", inv_freq=np.ones((2, 2))), ValueError,
         r"inv_freq has shape \(2, 2\), and must have one dimension"),
        (lambda: librope.Rope(head_dim=8, pairing="halves", inv_freq=["a"] * 4), TypeError,
         r"inv_freq\[0\] is 'a', and must be a number"),
        (lambda: librope.Rope(head_dim=16, theta=1e4, pairing="halves", scaling="llama3"), ValueError,
         "because scaling='llama3' requires it"),
        (lambda: librope.Rope.sets([ROPE, ROPE.replace(theta=2e4)]).apply(array(2, 3, 16), 0), ValueError,
         "freq_sets is required: the Rope has 2 sets"),
        (lambda: ROPE.apply(array(2, 3, 16), 0, cu_seqlens=array(0, dtype=np.int32)), ValueError,
         "cu_seqlens has 0 entries"),
        (lambda: ROPE.apply_qk(array(2, 3, 16), None, 0, out=array(2, 3, 16)), TypeError, "must be a pair"),
        (lambda: ROPE.apply(np.ma.masked_array(array(2, 3, 16)), 0), TypeError, "its mask would be lost"),
        (lambda: ROPE.apply(array(2, 3, 16, dtype="V2"), 0), TypeError, "do not keep bfloat16"),
    ],
)  # fmt: skip
def test_messages_name_argument_value_and_rule(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("function", ["apply_qk", "apply_qk_", "bind", "prepare_qk"])
def test_words_that_are_not_read_are_words(function):
    """Also after a call of the same arrays, which a Rope remembers."""
    cos_sin = dict(cos_sin=(array(2, 8),) * 2, cos_sin_format="full_halves")
    shard = librope.Shard("contiguous", 0, 2)
    q, k = array(2, 3, 16), array(2, 3, 16)
    for given in (dict(positions=0), dict(offsets=np.zeros(1, int)), dict(positions=0, shard=shard), cos_sin):
        if function == "bind" and given is cos_sin:
            continue
        call = getattr(ROPE, function)
        for _ in range(2):
            call(q, k, **given)
        for word in ("zzz", "tt", "T", "", 5):
            with pytest.raises(ValueError, match=f"^positions_layout is {word!r}, and must be an order of a "):
                call(q, k, **given, positions_layout=word)
        call(q, k, **given, positions_layout="bt")
        if function != "bind" and given is not cos_sin:
            with pytest.raises(ValueError, match="^cos_sin_format is 'zzz', and must be one of packed"):
                call(q, k, **given, cos_sin_format="zzz")


@pytest.mark.parametrize("name", ["cu_seqlens", "freq_sets"])
def test_rows_are_the_angles_of_each_token(name):
    rows = dict(cos_sin=(array(2, 8),) * 2, cos_sin_format="full_halves")
    with pytest.raises(ValueError, match=f"^{name}= is not for cos_sin=.*{name} must be None"):
        ROPE.apply(array(2, 3, 16), **rows, **{name: np.array([0, 2], np.int32)})


def test_ropes_cannot_lose_attributes():
    with pytest.raises(AttributeError, match="head_dim of a Rope cannot be deleted"):
        del ROPE.head_dim


@pytest.mark.parametrize("name", ["Pool", "Bound"])
def test_what_cannot_be_pickled_says_what_it_is(name):
    thing = librope.Pool(1) if name == "Pool" else ROPE.bind(array(2, 3, 16), None, 0)
    with pytest.raises(TypeError, match=f"a librope.{name} cannot be pickled"):
        pickle.dumps(thing)


def test_configs_that_are_nearly_right():
    with pytest.raises(TypeError, match=r"pass json\.loads\(text\)"):
        librope.Rope.from_config(json.dumps(LLAMA))
    scalars = {**LLAMA, "rope_theta": np.float32(10000), "num_hidden_layers": np.int64(2)}
    assert librope.Rope.from_config(scalars) == librope.Rope.from_config(LLAMA)
    with pytest.raises(TypeError, match="config has <object"):
        librope.Rope.from_config({**LLAMA, "x": object()})


def test_keys_that_are_not_read_say_how_to_accept_them():
    scaled = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "attn_factor": 0.5}}
    with pytest.raises(NotImplementedError, match=r"attn_factor .* with Model\(.., accepted_keys=\[..\]\)"):
        librope.Model(scaled)
    librope.Model(scaled, accepted_keys=["attn_factor"])


def test_models_say_what_they_are():
    assert repr(librope.Model(LLAMA)) == "<librope.Model: full_attention: 2 layers>"
    tower = {"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3,
             "rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
             "vision_config": {"embed_dim": 64, "num_heads": 4}}  # fmt: skip
    assert repr(librope.Model(tower)) == "<librope.Model: full_attention: 3 layers, vision>"


def test_read_only():
    q, k = array(2, 3, 16), array(2, 3, 16)
    k.flags.writeable = False
    with pytest.raises(ValueError, match="k is read-only"):
        ROPE.apply_qk_(q, k, 0)
    with pytest.raises(ValueError, match="out of k is read-only"):
        ROPE.apply_qk(q, k, 0, out=(q, k))
    ROPE.apply_qk(q, k, 0)
    ROPE.apply_qk_(q, array(2, 3, 16), 0)
    with pytest.raises(ValueError, match="k is read-only"):  # the remembered call checks, too
        ROPE.apply_qk_(q, k, 0)


def test_overlap_is_refused_and_writes_nothing():
    memory = np.arange(80, dtype=np.float32).reshape(5, 1, 16)
    before = memory.copy()
    with pytest.raises(ValueError, match="overlaps"):
        ROPE.apply_qk_(memory[:4], memory[1:], 3)
    with pytest.raises(ValueError, match="overlaps"):
        ROPE.apply_qk(memory[:4], None, 3, out=(memory[1:], None))
    np.testing.assert_array_equal(memory, before)


def test_the_librarys_message_comes_through():
    with pytest.raises(ValueError, match=r"^Rope: head_dim \(15\) must be even"):
        librope.Rope(head_dim=15, theta=1e4, pairing="halves")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"rope_scaling": {"rope_type": "x"}}'])
def test_bad_json(text):
    with pytest.raises((ValueError, NotImplementedError)):
        librope.Rope.from_config(text)


def test_config_of_wrong_type():
    with pytest.raises(TypeError, match="path"):
        librope.Rope.from_config(7)
    with pytest.raises(FileNotFoundError):
        librope.Rope.from_config("/no/such/config.json")


def test_cuda_unavailable_or_working():
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves")
    try:
        rope._context(0)
    except (RuntimeError, NotImplementedError) as e:
        assert str(e)


@pytest.mark.parametrize("function", ["apply_qk", "apply_qk_", "bind", "prepare_qk"])
def test_layouts_that_are_none(function):
    call, q, k = getattr(ROPE, function), array(2, 3, 16), array(2, 16)
    call(q, k, 0, layout=["thd", "td"])
    for layout in (("thd", "td", "td"), ["thd"], (1, 2)):
        with pytest.raises(ValueError, match="^layout is .*, and must be one text for q and one for k"):
            call(q, k, 0, layout=layout)
    with pytest.raises(TypeError, match="^layout is 5, and must be a text"):
        call(q, k, 0, layout=5)


def test_rows_of_three_arrays():
    for function in (ROPE.apply_qk, ROPE.apply_qk_, ROPE.prepare_qk):
        for rows in ((array(2, 8),) * 3, [array(2, 8)]):
            with pytest.raises(ValueError, match=r"^cos_sin has \d arrays, and must be \(cos, sin\) or one array"):
                function(array(2, 3, 16), None, cos_sin=rows, cos_sin_format="full_halves")


@pytest.mark.parametrize("name", ["positions", "offsets"])
def test_an_array_on_another_device_has_its_name(name):
    with pytest.raises(ValueError, match=f"^{name} is on CUDA device 0, and q or k on the CPU"):
        ROPE.apply(array(2, 3, 16), **{name: OnCuda(np.zeros(2 if name == "positions" else 1, np.int64))})


@pytest.mark.parametrize("many", [False, True])
def test_an_int_of_a_library_is_asked_for_its_value_once(many):
    """And its dtype for no text: such ints come in every call."""
    asked = []

    class Dtype:
        kind = "i"

        def __str__(self):
            raise AssertionError("its text is slow")

    class Int:
        dtype, shape = Dtype(), ()

        def __index__(self):
            asked.append(1)
            return 3

    x = array(1, 3, 16)
    assert (ROPE.apply(x, [Int()] if many else Int()) == ROPE.apply(x, 3)).all() and asked == [1]


@pytest.mark.parametrize("value", [np.bool_(True), np.array(True)])
def test_a_bool_of_numpy_is_no_position(value):
    with pytest.raises(TypeError, match="^positions (is|has dtype) .*must be"):
        ROPE.apply(array(1, 3, 16), value)
    with pytest.raises(TypeError, match=r"^positions(\[0\] is| as a list must hold ints)"):
        ROPE.apply(array(1, 3, 16), [value])


@pytest.mark.parametrize("position", [fractions.Fraction(7, 2), np.float32(3), True, "3"])
def test_the_int_of_a_bound_call_is_an_int(position):
    x = np.ones((2, 3, 16), np.float32)
    step = ROPE.bind(x, None, 0)
    with pytest.raises(TypeError, match="^position is .*, and must be an int"):
        step(position)
    assert (x == 1).all()
    step(np.int64(3))
    np.testing.assert_array_equal(x, ROPE.apply(np.ones_like(x), 3))
