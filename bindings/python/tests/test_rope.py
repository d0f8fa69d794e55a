"""Construction, attributes, model files."""

import json
import math
import pickle
import threading
from typing import get_args

import numpy as np
import pytest

import librope

LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
    "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip


def test_attributes():
    rope = librope.Rope(head_dim=64, theta=10000.0, pairing="halves")
    assert (rope.head_dim, rope.rotary_dim, rope.pairs, rope.axes) == (64, 64, 32, 1)
    assert rope.attention_factor == rope.softmax_factor == 1
    assert isinstance(rope.inv_freq, np.ndarray) and rope.inv_freq.dtype == np.float64
    np.testing.assert_allclose(rope.inv_freq, 10000.0 ** (-np.arange(32) / 32), rtol=1e-6)
    assert rope.backend.startswith("cpu")
    assert "head_dim=64" in repr(rope)


@pytest.mark.parametrize("source", ["path", "text path", "folder", "dict", "bytes"])
def test_from_config_sources(tmp_path, source):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA3))
    config = {
        "path": path, "text path": str(path), "folder": tmp_path, "dict": LLAMA3,
        "bytes": json.dumps(LLAMA3).encode(),
    }[source]  # fmt: skip
    rope = librope.Rope.from_config(config)
    assert rope.head_dim == 128 and rope.config["scaling"] == "llama3"
    assert rope.config["pairing"] == "halves"


def test_theta_that_a_table_replaces_is_refused():
    nanochat = {"model_type": "nanochat", "head_dim": 64}
    rope = librope.Rope.from_config(nanochat)
    for change in (
        lambda: librope.Rope.from_config(nanochat, theta=5e5),
        lambda: rope.replace(theta=5e5),
    ):
        with pytest.raises(ValueError, match="theta has no effect beside inv_freq"):
            change()
    assert list(rope.replace(angle="exact").inv_freq) == list(rope.inv_freq)
    other = rope.replace(theta=5e5, inv_freq=None)
    assert other.inv_freq[1] != -rope.inv_freq[1]


def test_from_config_of_transformers_like_object():
    class Config:
        def to_json_string(self, use_diff=True):
            assert not use_diff
            return json.dumps(LLAMA3)

    assert librope.Rope.from_config(Config()).config["theta"] == 500000.0


def test_layer_types():
    model = librope.Model(GEMMA3)
    assert set(model.layer_types) >= {"sliding_attention", "full_attention"}
    assert model.layers[5] == "full_attention" and len(model.layers) == 6
    with pytest.raises(ValueError, match="several kinds"):
        model.rope()
    local = librope.Rope.from_config(GEMMA3, layer=0)
    full = librope.Rope.from_config(GEMMA3, layer_type="full_attention")
    assert local.config["theta"] == 1e4 and full.config["theta"] == 1e6
    with pytest.raises(ValueError, match="must be one of"):
        librope.Rope.from_config(GEMMA3, layer_type="nonsense")
    with pytest.raises(ValueError, match="at most one"):
        librope.Rope.from_config(GEMMA3, layer=0, layer_type="full_attention")
    with pytest.raises(ValueError, match="layer"):
        librope.Rope.from_config(GEMMA3, layer=600)


def test_seq_len_and_next_change():
    config = dict(LLAMA3, rope_scaling={"rope_type": "dynamic", "factor": 2.0},
                  max_position_embeddings=2048)  # fmt: skip
    with pytest.raises(ValueError, match="seq_len"):
        librope.Rope.from_config(config)
    rope = librope.Rope.from_config(config, seq_len=1024)
    assert rope.next_change(1024) == 2049
    longer = rope.replace(seq_len=4096)
    assert longer.inv_freq[-1] < rope.inv_freq[-1]
    assert librope.Rope(head_dim=8, theta=1e4, pairing="halves").next_change(10) is None
    assert longer.next_change(4096) == 4097


def test_scalings_that_depend_on_the_length():
    from librope._config_text import depends_on_length, left_open, turns
    from librope._core import SCALINGS

    by_length = {"factor": 2.0, "max_position_embeddings": 2048, "seq_len": 1}
    numbers = {
        "default": {}, "linear": {"factor": 2.0}, "dynamic": by_length, "dynamic_steps": by_length,
        "yarn": {"factor": 2.0, "original_max_position_embeddings": 2048},
        "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "seq_len": 1,
                     "factor": 2.0, "original_max_position_embeddings": 2048},
        "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 2048},
        "proportional": {}, "nope": {},
    }  # fmt: skip
    assert set(numbers) == set(SCALINGS)
    for scaling, fields in numbers.items():
        rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", scaling=scaling, **fields)
        assert (rope.next_change(1) is not None) == depends_on_length(rope.config), scaling
        assert turns(rope.config) == any(rope.inv_freq), scaling
        # What is left open is what the library asks for.
        assert left_open(rope.config) == []
        for name in rope.config:
            less = {k: v for k, v in rope.config.items() if k != name}
            if name in ("seq_len", "pairing", "head_dim") and turns(rope.config):
                with pytest.raises(ValueError, match=f"^Rope: {name}"):
                    librope.Rope.from_fields(less)
                assert left_open(less) == ([name] if name != "seq_len" or depends_on_length(less) else [])


def test_pickle_and_replace():
    rope = librope.Rope.from_config(LLAMA3, layout="bhsd")
    again = pickle.loads(pickle.dumps(rope))
    assert again.spec == rope.spec and again.layout == "bhsd"
    np.testing.assert_array_equal(again.inv_freq, rope.inv_freq)
    assert rope.replace(angle="exact").config["angle"] == "exact"


def test_sets():
    ropes = [librope.Rope(head_dim=8, theta=t, pairing="halves", layout="bshd") for t in (1e4, 1e6)]
    both = librope.Rope.sets(ropes)
    assert both.freq_sets == 2
    q = np.random.default_rng(0).standard_normal((2, 3, 1, 8)).astype(np.float32)
    out, _ = both.apply_qk(q, None, np.arange(3), freq_sets=np.array([1, 0], np.int32))
    for row, rope in ((0, ropes[1]), (1, ropes[0])):
        np.testing.assert_array_equal(out[row : row + 1], rope.apply(q[row : row + 1], np.arange(3)))
    with pytest.raises(ValueError, match="freq_sets"):
        both.apply_qk(q, None, 0)
    for other in (None, "bhsd", ("bshd", "bsd")):
        mixed = [ropes[0], librope.Rope(head_dim=8, theta=1e5, pairing="halves", layout=other)]
        with pytest.raises(ValueError, match=r"^ropes\[1\] has layout .*, and ropes\[0\] 'bshd': they must agree"):
            librope.Rope.sets(mixed)
        assert librope.Rope.sets(mixed, layout="thd").layout == "thd"


def test_tables_and_sections():
    inv = [1.0, 0.5, 0.25, 0.0]
    rope = librope.Rope(head_dim=8, pairing="halves", inv_freq=inv)
    np.testing.assert_array_equal(rope.inv_freq, inv)
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", axes=3, mrope_section=[2, 1, 1])
    assert rope.axes == 3 and rope.config["mrope_section"] == [2, 1, 1]
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", axes=2, pair_axis=[0, 1, 0, 1])
    assert rope.axes == 2


@pytest.mark.parametrize("format", ["packed", "packed_sin_first", "complex", "sinusoidal",
                                    "angles", "angles_full"])  # fmt: skip
def test_cos_sin_one_array(format):
    rope = librope.Rope(head_dim=8, theta=100.0, pairing="halves")
    rows = rope.cos_sin(np.arange(5), format=format)
    a = np.arange(5)[:, None] * rope.inv_freq
    c, s = np.cos(a), np.sin(a)
    both = {
        "packed": [c, s], "packed_sin_first": [s, c], "angles": [a], "angles_full": [a, a],
        "complex": [np.stack([c, s], -1).reshape(5, 8)],
        "sinusoidal": [np.stack([s, c], -1).reshape(5, 8)],
    }[format]  # fmt: skip
    np.testing.assert_allclose(rows, np.concatenate(both, -1), atol=2e-6)


def test_cos_sin_two_arrays_int_and_batch():
    rope = librope.Rope(head_dim=8, theta=100.0, pairing="halves")
    cos, sin = rope.cos_sin(3, tokens=4, format="split")
    np.testing.assert_allclose(cos, np.cos(np.arange(3, 7)[:, None] * rope.inv_freq), atol=2e-6)
    cos, sin = rope.cos_sin(np.arange(8).reshape(2, 4), format="full_interleaved", dtype="float16")
    assert cos.shape == (2, 4, 8) and cos.dtype == np.float16
    out = np.full((6, 16), 9.0, np.float32)
    rope.cos_sin(np.arange(6), format="packed", out=out[:, :8])
    assert (out[:, 8:] == 9).all() and (out[0, :4] == 1).all()
    with pytest.raises(ValueError, match="tokens="):
        rope.cos_sin(0)
    with pytest.raises(ValueError, match="must be one of"):
        rope.cos_sin(0, tokens=1, format="nonsense")


def test_batch_tokens_and_dtype_of_cos_sin_agree_with_the_arrays():
    rope = librope.Rope(head_dim=8, theta=100.0, pairing="halves")
    ids, two = np.array([3, 9]), np.zeros((2, 5), int)
    rows = rope.cos_sin(ids, positions_layout="b", tokens=5, format="packed")
    np.testing.assert_array_equal(rows, np.repeat(rope.cos_sin(ids, format="packed")[:, None], 5, 1))
    assert rope.cos_sin(ids, positions_layout="b")[0].shape == (2, 1, 8)
    rows = rope.cos_sin(np.arange(5)[None], batch=3, format="packed")
    np.testing.assert_array_equal(rows, np.stack([rope.cos_sin(np.arange(5), format="packed")] * 3))
    assert rope.cos_sin(3, batch=0, tokens=4)[0].shape == (0, 4, 8)
    assert rope.cos_sin(two, batch=2, tokens=5)[0].shape == (2, 5, 8)
    out = np.empty((4, 8), np.float16)
    assert rope.cos_sin(3, tokens=4, format="packed", out=out) is out  # of its dtype
    rope.cos_sin(3, tokens=4, format="packed", out=out, dtype=np.float16)
    for says, positions, more in (
        (r"^batch is 7, and must be 2: positions has shape \(2, 5\), with axes 'bt'", two, dict(batch=7)),
        ("^batch is 0, and must be 2", two, dict(batch=0)),
        ("^tokens is 3, and must be 5: positions has shape", two, dict(tokens=3)),
        ("^dtype is 'nonsense', and must be one of", 3, dict(tokens=4, format="packed", out=out, dtype="nonsense")),
        ("^dtype is 'float32', and must be that of out, 'float16'", 3,
         dict(tokens=4, format="packed", out=out, dtype="float32")),
        ("^positions_layout is 'zzz', and must be an order of a", 3, dict(tokens=4, positions_layout="zzz")),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            rope.cos_sin(positions, **more)
    one = np.empty((2, 8), np.float32)
    for wrong in ((one, one, one), (one,), one):
        with pytest.raises(TypeError, match=r"^out is .*, and must be a pair \(cos, sin\) with format 'full_halves'"):
            rope.cos_sin(ids, out=wrong)
    assert rope.cos_sin(ids, out=[one, one.copy()])[0] is one
    with pytest.raises(TypeError, match="^tokens is 'x', and must be an int"):
        rope.cos_sin(ids, positions_layout="b", tokens="x")


def test_yarn_factors():
    rope = librope.Rope(
        head_dim=64, theta=10000.0, pairing="interleaved", scaling="yarn", factor=40.0,
        original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0,
    )  # fmt: skip
    assert rope.attention_factor == pytest.approx(1.0)
    assert rope.softmax_factor == pytest.approx((0.1 * math.log(40) + 1) ** 2)


def test_threads_share_a_rope():
    rope = librope.Rope(head_dim=32, theta=1e4, pairing="halves", layout="bshd")
    x = np.random.default_rng(1).standard_normal((4, 9, 2, 32)).astype(np.float32)
    want = {p: rope.apply(x, p) for p in range(8)}
    wrong = []

    def work(p):
        for _ in range(200):
            if not np.array_equal(rope.apply(x, p), want[p]):
                wrong.append(p)

    threads = [threading.Thread(target=work, args=(p,)) for p in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_pool():
    rope = librope.Rope(head_dim=128, theta=1e4, pairing="halves", layout="bshd")
    x = np.random.default_rng(1).standard_normal((1, 600, 8, 128)).astype(np.float32)
    pool = librope.Pool(2)
    np.testing.assert_array_equal(rope.apply(x, 5, pool=pool), rope.apply(x, 5))


def test_version():
    assert librope.__version__.count(".") == 2


def test_layout_has_no_default():
    """With four axes bshd and bhsd cannot be told apart, and an int fits both."""
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves")
    for shape in ((2, 3, 4, 8), (3, 4, 8), (3, 8)):
        q = np.zeros(shape, np.float32)
        for call in (rope.apply, rope.apply_, rope.bind):
            with pytest.raises(ValueError, match=r"layout= is required: q has shape"):
                call(q, positions=np.arange(3))
    with pytest.raises(ValueError, match="layout= is required: k has shape"):
        rope.apply_qk(None, np.zeros((3, 4, 8), np.float32), 0)
    with pytest.raises(ValueError, match="layout is 'bsdh'"):
        rope.replace(layout="bsdh")


def test_a_rope_is_immutable_hashable_and_equal():
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")
    for name in ("layout", "head_dim", "anything"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(rope, name, "bhsd")
    same = librope.Rope(pairing="halves", layout="thd", head_dim=np.int64(8), theta=np.float32(1e4))
    assert rope == same and hash(rope) == hash(same) and rope != rope.replace(layout="bshd")
    assert rope != rope.replace(theta=1e5) and rope != "rope" and len({rope, same}) == 1


def test_values_of_numpy_are_fields_too():
    rope = librope.Rope(head_dim=np.int64(8), theta=np.float32(1e4), pairing="halves")
    again = librope.Rope(head_dim=8, pairing="halves", inv_freq=rope.inv_freq)
    np.testing.assert_array_equal(again.inv_freq, rope.inv_freq)
    axes = librope.Rope(head_dim=8, theta=1e4, pairing="halves", axes=2,
                        pair_axis=np.array([0, 1, 0, 1]), freq_factors=np.ones(4, np.float32))  # fmt: skip
    assert pickle.loads(pickle.dumps(axes)) == axes
    with pytest.raises(TypeError, match="inv_freq is 1.0"):
        librope.Rope(head_dim=8, pairing="halves", inv_freq=1.0)


def test_sets_keep_all_their_frequencies():
    ropes = [librope.Rope(head_dim=8, theta=t, pairing="halves", layout="thd") for t in (1e4, 1e6)]
    both = librope.Rope.sets(ropes)
    exact = both.replace(angle="exact")
    assert exact.freq_sets == 2 and [c["angle"] for c in exact.configs] == ["exact"] * 2
    assert exact.inv_freq_of(1) == ropes[1].replace(angle="exact").inv_freq_of(0)
    assert pickle.loads(pickle.dumps(both)) == both and both != ropes[0]
    for what in ("config", "next_change"):
        with pytest.raises(ValueError, match="2 frequency sets"):
            value = getattr(both, what)  # the attribute raises, or the method
            value(10)
    with pytest.raises(ValueError, match="ropes is empty"):
        librope.Rope.sets([])


def test_pools_are_not_kept():
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")
    q = np.zeros((3, 2, 8), np.float32)
    before = threads_of_this_process()
    for _ in range(20):
        rope.apply(q, 0, pool=librope.Pool(2))
    assert threads_of_this_process() <= before + 1
    with pytest.raises(TypeError, match=r"pool is a int, and must be a librope\.Pool"):
        rope.apply(q, 0, pool=2)


def threads_of_this_process():
    import pathlib

    folder = pathlib.Path("/proc/self/task")
    if not folder.is_dir():
        pytest.skip("no /proc: threads cannot be counted")
    return len(list(folder.iterdir()))


LONG = {
    "model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 256, "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8},
}  # fmt: skip


def test_lengths_of_the_models_loop():
    """The loop of the README: seq_len where it matters, no word of it elsewhere."""
    model = librope.Model(LONG)
    with pytest.raises(ValueError, match="seq_len= is required"):
        model.ropes()
    rope = model.ropes(seq_len=10, layout="thd")["full_attention"]
    assert rope.valid_below == rope.next_change(10) == 65 and rope.valid_from == 0
    longer = model.ropes(seq_len=rope.valid_below)["full_attention"]
    assert longer.valid_below is None and longer.valid_from == 65
    assert longer.inv_freq[0] == rope.inv_freq[0] / 4
    plain = librope.Model(LLAMA3).ropes(seq_len=10)["full_attention"]
    assert plain.valid_below is None and plain.valid_from == 0 and "seq_len" not in plain.config
    q = np.ones((1, 2, 16), np.float32)
    rope.apply(q, 63)
    for positions in (64, np.array([2000]), [64]):
        with pytest.raises(ValueError, match=r"must be below 64, because in a sequence of 65 tokens"):
            rope.apply(q, positions)
    step = rope.bind(q.copy(), None, 3)
    with pytest.raises(ValueError, match="must be below 64"):
        step(64)
    rope.apply(q, 1000, operation="shift")  # a distance


def test_layers_of_a_config_that_does_not_count_them():
    """layers is empty, so that a loop goes by layer_type, which says why there is no answer."""
    model = librope.Model({k: v for k, v in LONG.items() if k != "num_hidden_layers"})
    assert model.layers == ()
    with pytest.raises((ValueError, NotImplementedError), match="layer"):
        model.layer_type(0)


def test_unknown_model_types_say_what_to_pass():
    known = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    with pytest.raises(NotImplementedError, match="gpt2"):
        librope.Rope.from_config({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2})
    config = {"model_type": "something_new", "rope_theta": 1e4, **known}
    with pytest.raises(ValueError, match=r"pairing= is required: the model_type 'something_new' .* "
                       r"Pass 'halves' \(transformers\) or 'interleaved' \(GPT-J, Meta\)$"):  # fmt: skip
        librope.Rope.from_config(config)
    rope = librope.Rope.from_config(config, pairing="halves")
    assert rope.config["theta"] == 1e4 and rope.pairing == "halves"


def test_model_can_be_pickled():
    model = pickle.loads(pickle.dumps(librope.Model(GEMMA3)))
    assert model.layers == librope.Model(GEMMA3).layers


def test_cos_sin_does_not_guess_axes():
    rope = librope.Rope(head_dim=16, theta=1e4, pairing="halves", axes=3, mrope_section=[2, 3, 3],
                        layout="bshd")  # fmt: skip
    ids = np.arange(15).reshape(3, 5)
    with pytest.raises(ValueError, match="positions_layout= is required, 'bt' or 'at'"):
        rope.cos_sin(ids)
    q = np.random.default_rng(0).standard_normal((3, 5, 2, 16)).astype(np.float32)
    rows = rope.cos_sin(ids, positions_layout="bt", format="packed")
    np.testing.assert_array_equal(
        rope.apply(q, cos_sin=rows, cos_sin_format="packed"),
        rope.apply(q, ids, positions_layout="bt"),
    )
    with pytest.raises(ValueError, match="positions_layout must say"):
        rope.apply(q, ids)
    assert rope.cos_sin(ids, positions_layout="at")[0].shape == (5, 16)
    assert rope.cos_sin(np.arange(0))[0].shape == (0, 16)
    assert rope.cos_sin(np.zeros((0, 5), int), positions_layout="bt")[0].shape == (0, 5, 16)



def test_another_librarys_version_is_refused():
    from librope import _core

    major, minor, patch = _core.VERSION
    _core.check_version(10000 * major + 100 * minor + patch + 1)
    for loaded in (10000 * (major + 1) + 100 * minor, 10000 * major + 100 * (minor + 1)):
        with pytest.raises(ImportError, match=r"was built with 0\.1"):
            _core.check_version(loaded)


def test_messages_have_pythons_words():
    with pytest.raises(ValueError, match="^Rope: pairing is required: halves"):
        librope.Rope(head_dim=8, theta=1e4)
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd")
    q = np.zeros((3, 2, 8), np.float32)
    with pytest.raises(ValueError, match="^apply_qk: cu_seqlens"):
        rope.apply(q, 0, cu_seqlens=np.array([0, 4], np.int32))
    with pytest.raises(ValueError, match="^apply_qk_: cu_seqlens"):
        rope.apply_(q, 0, cu_seqlens=np.array([0, 4], np.int32))
    cu = np.array([0, 3], np.int32)
    step = rope.bind(q, None, 0, cu_seqlens=cu)
    cu[1] = 4
    with pytest.raises(ValueError, match="^Bound: cu_seqlens"):
        step()
    with pytest.raises(ValueError, match="^Pool: threads"):
        librope.Pool(-1)
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves", layout="thd", rounding="eager")
    norms = librope.Norms(q=librope.Norm(np.ones(8, np.float32), kind="rms", eps=1e-6))
    with pytest.raises(NotImplementedError) as refused:
        rope.apply_qk(q.astype(np.float16), None, 0, norms=norms)
    for says in ("norms.q.rounding ('float32') must be 'rounded' or 'eager'", "(the Rope's rounding)",
                 "the Rope's rounding must be 'float32'"):  # fmt: skip
        assert says in str(refused.value)


def test_every_field_is_documented_and_typed():
    from librope import _choices, _core, _types

    assert set(_types.Changes.__annotations__) == set(_core.FIELDS)
    assert all(name in librope.Rope.__doc__ for name in _core.FIELDS)
    for names, table in ((_choices.Pairing, _core.PAIRINGS), (_choices.Scaling, _core.SCALINGS),
                         (_choices.Angle, _core.ANGLES), (_choices.Rounding, _core.ROUNDINGS),
                         (_choices.Operation, _core.OPERATIONS), (_choices.DType, _core.DTYPES),
                         (_choices.CosSinFormat, _core.COS_SIN_FORMATS)):  # fmt: skip
        assert get_args(names) == tuple(table)
    # Which names there are is said by the types that the manual refers to, and else in full.
    for text, types in ((librope.Rope.__doc__, ("Pairing", "Scaling", "Angle", "Rounding")),
                        (librope.Rope.cos_sin.__doc__, ("CosSinFormat",))):  # fmt: skip
        assert all(f"librope.{name}" in text and name in librope.__all__ for name in types)
    for text, table in ((librope.Rope.apply_qk.__doc__, _core.OPERATIONS),
                        (librope.Rope.cos_sin.__doc__, _core.DTYPES)):  # fmt: skip
        assert all(f'"{name}"' in text for name in table)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((50, 8), (0, 4)), ((2, 5, 8), (0, 0, 4)), ((2, 5, 8), (0, 32, 4)), ((2, 5, 8), (160, 0, 4)),
     ((2, 1, 8), (0, 32, 4)), ((5, 8), (16, 4)), ((5, 8), (-32, 4))],
)  # fmt: skip
def test_rows_to_write_must_not_lie_in_one_another(shape, strides):
    memory = np.zeros(1000, np.float32)
    out = np.lib.stride_tricks.as_strided(memory[500:], shape, strides)
    rope = librope.Rope(head_dim=8, theta=1e4, pairing="halves")
    with pytest.raises(ValueError, match="must not lie in one another|evenly spaced"):
        rope.cos_sin(np.zeros(shape[:-1], int), format="packed", out=out)
    assert not memory.any()
