"""librope check: every way of being wrong is found or called undecidable, and never "matches"."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from conftest import rotate
from hypothesis import given, settings
from hypothesis import strategies as st

import librope
from librope import cli
from librope.cli.check import grade, judge, measure, reference, rules
from librope.cli.check import sample as samples

BF16 = ml_dtypes.bfloat16


class Rope:
    """librope.Rope of tensors as most files here have them: [tokens, heads, channels]."""

    def __new__(cls, **fields):
        return librope.Rope(**fields, layout="thd")

    @staticmethod
    def from_config(config, **changes):
        return librope.Rope.from_config(config, layout="thd", **changes)

    @staticmethod
    def from_fields(fields):
        return librope.Rope.from_fields(fields, layout="thd")


LLAMA = {
    "model_type": "llama", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80,
    "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
YARN = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
    "rope_theta": 1e6, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}  # fmt: skip
PARTIAL = {
    "model_type": "glm4", "hidden_size": 512, "num_attention_heads": 4, "head_dim": 128,
    "num_hidden_layers": 2, "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 512, "num_attention_heads": 4, "head_dim": 128,
    "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
}  # fmt: skip


def told(capsys, arguments):
    """What the command says of one search, which takes seconds: (exit status, --json, text), or an error twice."""
    real, found = grade.grade, []

    def once(items):
        if not found:
            found.append(real(items))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grade, "grade", once)
        status = cli.main([*arguments, "--json"])
        out, error = capsys.readouterr()
        if status == 2:
            return status, error, error
        assert cli.main(arguments) == status
    return status, out, capsys.readouterr()[0]


@pytest.fixture
def check(tmp_path, capsys):
    """Runs the command on two arrays: (exit status, JSON, text)."""

    def run(config, before, after, *options):
        (tmp_path / "config.json").write_text(json.dumps(config))
        files = []
        for name, x in (("before", before), ("after", after)):
            files.append(str(tmp_path / f"{name}.safetensors"))
            safetensors.numpy.save_file({"q": np.ascontiguousarray(x)}, files[-1])
        arguments = ["check", str(tmp_path), *files, *map(str, options)]
        status, out, text = told(capsys, arguments)
        if status == 2:
            return status, out, text

        def refuse(text):
            raise AssertionError(f"{text} is no JSON")

        found = json.loads(out, parse_constant=refuse)
        assert text.startswith(found["verdict"])
        return status, found, text

    return run


def values(rng, tokens, heads=4, dtype=np.float32, dim=128):
    return rng.standard_normal((tokens, heads, dim), np.float32).astype(dtype)


def plain(rope, **fields):
    return Rope.from_fields({**rules.plain(rope.config), **fields})


def words(found):
    return [", ".join(e["words"]) for e in found["explanations"]]


# -- what was called a match and was none -------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["eager", "float32"])
def test_no_scaling_in_bf16_at_16_tokens(check, rng, rounding):
    q = values(rng, 16, dtype=BF16)
    rope = Rope.from_config(LLAMA, rounding=rounding)
    status, found, _ = check(LLAMA, q, plain(rope).apply(q, 0))
    assert status in (1, 3)
    named = words(found) + [", ".join(r["words"]) for r in found["not_told_apart_from"]]
    assert "without the llama3 scaling" in named


def test_another_factor_in_bf16_at_64_tokens(check, rng):
    q = values(rng, 64, dtype=BF16)
    status, found, _ = check(LLAMA, q, Rope.from_config(LLAMA, factor=32.0).apply(q, 0))
    assert status == 1 and words(found) == ["factor 32 instead of 8"]


@pytest.mark.parametrize("make", [
    lambda r, q: r.apply(q, 0), lambda r, q: q, lambda r, q: r.apply(q, 0, operation="inverse"),
    lambda r, q: r.replace(pairing="interleaved").apply(q, 0), lambda r, q: plain(r).apply(q, 0),
])  # fmt: skip
def test_position_zero_tells_nothing(check, rng, make):
    q = values(rng, 1, dtype=BF16)
    status, found, text = check(LLAMA, q, make(Rope.from_config(LLAMA), q))
    assert status == 3 and not found["matches"]
    rivals = {", ".join(r["words"]): r["decided_at_position"] for r in found["not_told_apart_from"]}
    assert rivals["pairing interleaved instead of halves"] == 1
    assert rivals["the inverse rotation"] == 1
    far = rivals["without the llama3 scaling"]
    assert 1 < far < 8192 and f"position {max(p for p in rivals.values() if p is not None)}" in text
    # More data, as asked for, decides.
    q = values(rng, far + 1, 2, dtype=BF16)
    assert check(LLAMA, q, plain(Rope.from_config(LLAMA)).apply(q, 0))[0] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("theta", [450000.0, 300000.0])
def test_theta_is_measured(check, rng, dtype, theta):
    q = values(rng, 64, dtype=dtype)
    status, found, text = check(LLAMA, q, Rope.from_config(LLAMA, theta=theta).apply(q, 0))
    assert status == 1 and found["explained"] and words(found)[0].startswith(f"theta {theta:g}")
    assert f"theta {theta:g}" in text.split("it fits")[1]


def test_shapes_and_dtypes_are_errors(check, rng):
    q = values(rng, 8)
    rope = Rope.from_config(LLAMA)
    half = np.ascontiguousarray(q[..., :64])
    status, error, _ = check(LLAMA, half, half)
    assert status == 2 and "64 channels" in error and "128" in error
    status, error, _ = check(LLAMA, q, rope.apply(q, 0)[:7])
    assert status == 2 and "(8, 4, 128)" in error and "(7, 4, 128)" in error
    status, error, _ = check(LLAMA, q, q.astype(BF16))
    assert status == 2 and "bfloat16" in error
    status, error, _ = check(LLAMA, q.astype(np.float64), q.astype(np.float64))
    assert status == 2 and "float64" in error
    status, error, _ = check(LLAMA, q[:0], q[:0])
    assert status == 2 and "nothing to measure" in error
    status, error, _ = check(LLAMA, q[None], q[None])
    assert status == 2 and "--layout" in error
    status, error, _ = check(LLAMA, q, q, "--layout", "bshd")
    assert status == 2 and "bshd" in error


# -- every mistake is found ---------------------------------------------------------------------------


def half_head(rope, q):
    out = q.copy()
    part = np.ascontiguousarray(q[..., :64])
    out[..., :64] = Rope(head_dim=64, theta=rope.config["theta"], pairing="halves").apply(part, 0)
    return out


def one_head_left(rope, q):
    out = rope.apply(q, 0)
    out[:, 2] = q[:, 2]
    return out


def transposed(rope, q):
    return rope.apply(np.ascontiguousarray(q.swapaxes(0, 1)), 0).swapaxes(0, 1)


def reshaped(rope, q):
    tokens, heads, dim = q.shape
    return rope.apply(q.reshape(heads, tokens, dim), 0, layout="hsd").reshape(q.shape)


def rows_in_bf16(rope, q):
    rows = rope.cos_sin(np.arange(len(q))[None], format="split")
    rows = tuple(r.astype(BF16).astype(np.float32) for r in rows)
    return rope.apply(q[None], cos_sin=rows, cos_sin_format="split", layout="bshd")[0]


def scaled(q):
    return (q.astype(np.float32) * np.float32(128**-0.5)).astype(q.dtype)


def count(q):
    return np.arange(len(q))


MISTAKES = {
    "pairing interleaved instead of halves":
        (LLAMA, lambda r, q: r.replace(pairing="interleaved").apply(q, 0)),
    "pairing interleaved_to_halves instead of halves":
        (LLAMA, lambda r, q: r.replace(pairing="interleaved_to_halves").apply(q, 0)),
    "pairing interleaved_to_halves instead of halves, the inverse rotation":
        (LLAMA, lambda r, q: r.replace(pairing="interleaved_to_halves").apply(q, 0, operation="inverse")),
    "theta 10000": (LLAMA, lambda r, q: r.replace(theta=1e4).apply(q, 0)),
    "positions +1": (LLAMA, lambda r, q: r.apply(q, 1)),
    "positions -1": (LLAMA, lambda r, q: r.apply(q, -1)),
    "positions +2": (LLAMA, lambda r, q: r.apply(q, 2)),
    "positions +17": (LLAMA, lambda r, q: r.apply(q, 17)),
    "without the llama3 scaling": (LLAMA, lambda r, q: plain(r).apply(q, 0)),
    "factor 32 instead of 8": (LLAMA, lambda r, q: r.replace(factor=32.0).apply(q, 0)),
    "scaling linear of factor 8 instead of llama3":
        (LLAMA, lambda r, q: plain(r, scaling="linear", factor=8.0).apply(q, 0)),
    "scaling linear of factor 4 instead of yarn":
        (YARN, lambda r, q: plain(r, scaling="linear", factor=4.0).apply(q, 0)),
    "the inverse rotation": (LLAMA, lambda r, q: r.apply(q, 0, operation="inverse")),
    "the inverse rotation, multiplied by the attention factor":
        (YARN, lambda r, q: r.apply(q, 0, operation="backward")),
    "not rotated": (LLAMA, lambda r, q: q),
    "without the attention factor": (YARN, lambda r, q: r.replace(attention_factor=1.0).apply(q, 0)),
    "channels 0 .. 127 turned": (PARTIAL, lambda r, q: r.replace(rotary_dim=128).apply(q, 0)),
    "channels 64 .. 127 turned": (PARTIAL, lambda r, q: r.replace(rotary_offset=64).apply(q, 0)),
    "channels 0 .. 63 turned, without the llama3 scaling": (LLAMA, half_head),
    "rotated twice": (LLAMA, lambda r, q: r.apply(r.apply(q, 0), 0)),
    "positions 0 .. 31, 0 .. 31": (LLAMA, lambda r, q: r.apply(q, count(q) % 32)),
    "heads taken for tokens": (LLAMA, transposed),
    "[tokens, heads] read as [heads, tokens] without transposing": (LLAMA, reshaped),
    "scaled by 0.08839, which is 1/sqrt(head_dim)": (LLAMA, lambda r, q: r.apply(scaled(q), 0)),
    "inv_freq in bfloat16": (LLAMA, lambda r, q: r.replace(inv_freq_dtype="bfloat16").apply(q, 0)),
    "pairing interleaved instead of halves, theta 10000, positions +1":
        (LLAMA, lambda r, q: r.replace(pairing="interleaved", theta=1e4).apply(q, 1)),
    "theta 10000 and no scaling": (LLAMA, lambda r, q: plain(r, theta=1e4).apply(q, 0)),
    "theta 420000 (measured)": (LLAMA, lambda r, q: r.replace(theta=420000.0).apply(q, 0)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("says", MISTAKES)
def test_mistakes_are_named(check, rng, says, dtype):
    config, wrong = MISTAKES[says]
    q = values(rng, 64, dtype=dtype)
    status, found, text = check(config, q, wrong(Rope.from_config(config), q))
    assert status == 1 and text.startswith("does not match")
    assert words(found)[0] == says and says in text


def test_rows_in_bf16_are_seen_in_float32(check, rng):
    q = values(rng, 64)
    status, found, _ = check(LLAMA, q, rows_in_bf16(Rope.from_config(LLAMA), q))
    assert status == 1 and words(found)[0] == "cos and sin in bfloat16"


def test_one_head_that_was_left_out(check, rng):
    q = values(rng, 64)
    status, found, text = check(LLAMA, q, one_head_left(Rope.from_config(LLAMA), q))
    assert status == 1 and found["only_heads"] == [2] and words(found) == ["not rotated"]
    assert "head 2" in text and found["worst"]["head"] == 2


def test_the_other_kind_of_layer(check, rng):
    q = values(rng, 64)
    model = librope.Model(GEMMA)
    wrong = model.rope(layer_type="sliding_attention", layout="thd").apply(q, 0)
    status, found, _ = check(GEMMA, q, wrong, "--layer-type", "full_attention")
    assert status == 1 and words(found)[0] == "the rule of sliding_attention layers"
    assert check(GEMMA, q, wrong, "--layer-type", "sliding_attention")[0] == 0


def test_an_angle_in_bf16_at_long_positions(check, rng):
    q = values(rng, 300, 2)
    rope = Rope.from_config(LLAMA)
    late = count(q).astype(BF16).astype(np.int64)
    status, found, _ = check(LLAMA, q, rope.apply(q, late))
    assert status == 1 and words(found)[0] == "positions in bfloat16"


def test_a_mistake_from_a_token_on(check, rng):
    q = values(rng, 32)
    rope = Rope.from_config(LLAMA)
    out = rope.apply(q, 0)
    out[16:] = rope.replace(pairing="interleaved").apply(q[16:], 16)
    status, found, text = check(LLAMA, q, out)
    assert status == 1 and found["only_tokens"] == list(range(16, 32)) and found["only_heads"] is None
    assert words(found) == ["pairing interleaved instead of halves"]
    assert "in tokens 16 .. 31, and elsewhere the config" in text and "all 4 heads" in text


def test_two_mistakes_in_different_tokens_are_admitted(check, rng):
    q = values(rng, 32)
    rope = Rope.from_config(LLAMA)
    out = rope.replace(theta=1e4).apply(q, 0)
    out[16:] = rope.replace(pairing="interleaved").apply(q[16:], 16)
    status, found, text = check(LLAMA, q, out)
    assert status == 1 and not found["explained"] and "no rule that librope knows" in text
    assert "tokens 1 .. 31" in text and "all 4 heads" in text


def test_random_values_are_no_rotation(check, rng):
    q = values(rng, 32)
    status, found, text = check(LLAMA, q, values(rng, 32))
    assert status == 1 and not found["explained"]
    assert found["measured"]["frequencies"] is None and "do not turn alike" in text


def test_the_short_factors_in_a_long_sequence(check, rng):
    pairs = 16
    config = {
        "model_type": "phi3", "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
        "rope_theta": 1e4, "max_position_embeddings": 512, "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0 + i / 16 for i in range(pairs)],
                         "long_factor": [2.0 + i for i in range(pairs)]},
    }  # fmt: skip
    q = values(rng, 100, dim=32)
    status, error, _ = check(config, q, q)
    assert status == 2 and "--seq-len" in error
    status, error, _ = check(config, q, q, "--seq-len", 64)
    assert status == 2 and "position 99" in error
    right = Rope.from_config(config, seq_len=100)
    assert check(config, q, right.apply(q, 0), "--seq-len", 100)[0] == 0
    short = Rope.from_config(config, seq_len=64)
    table = Rope(head_dim=32, pairing="halves", inv_freq=list(short.inv_freq),
                 attention_factor=short.attention_factor)  # fmt: skip
    status, found, _ = check(config, q, table.apply(q, 0), "--seq-len", 100)
    assert status == 1 and words(found)[0] == "the short factors"


# -- what matches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [LLAMA, YARN, PARTIAL])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("rounding", ["eager", "float32", "cos_sin"])
@pytest.mark.parametrize("angle", ["float32", "exact"])
def test_the_config_matches_under_every_policy(check, rng, config, dtype, rounding, angle):
    q = values(rng, 64, dtype=dtype)
    rope = Rope.from_config(config, rounding=rounding, angle=angle)
    status, found, text = check(config, q, rope.apply(q, 3), "--positions", 3)
    assert status == 0 and found["matches"] and found["worst"]["error_by_allowed"] < 1
    assert f"rounding {rounding}, angle {angle}" in found["exact"]
    assert f"rounding {rounding}" in text


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_an_independent_rotation_matches(check, rng, dtype):
    """In float64 and rounded once: within the bound, whatever the bits."""
    q = values(rng, 700, 2, dtype=dtype)
    rope = Rope.from_config(PARTIAL)
    angles = np.arange(700)[:, None, None] * 1e4 ** (-np.arange(32) / 32)
    pairing = rope.config["pairing"]
    after = rotate(q, angles, pairing=pairing, rotary_dim=64).astype(dtype)
    status, found, _ = check(PARTIAL, q, after)
    assert status == 0, found["not_told_apart_from"]


def test_layouts_batches_and_the_span_alone(check, rng):
    q = rng.standard_normal((2, 24, 3, 128), np.float32)
    rope = Rope.from_config(PARTIAL)
    ids = np.stack([np.arange(24), np.arange(24) + 7])
    after = rope.apply(q, ids, layout="bshd")
    for layout, order in (("bshd", (0, 1, 2, 3)), ("bhsd", (0, 2, 1, 3)), ("sbhd", (1, 0, 2, 3))):
        moved = (np.transpose(x, order) for x in (q, after))
        made = samples.make(*moved, ids, layout, rope)
        assert judge.judge(rope, made, {}).answer == judge.MATCHES
    span = samples.make(q[..., :64], after[..., :64], ids, "bshd", rope)
    assert judge.judge(rope, span, {}).answer == judge.MATCHES


def test_several_ids_per_token(rng):
    rope = Rope(head_dim=128, theta=1e6, pairing="halves", axes=3, mrope_section=[16, 24, 24])
    q = values(rng, 60)
    grid = np.stack(np.meshgrid(np.arange(3), np.arange(4), np.arange(5), indexing="ij"))
    ids = grid.reshape(3, 1, 60)
    after = rope.apply(q[None], ids, layout="bshd", positions_layout="abt")[0]
    assert judge.judge(rope, samples.make(q, after, ids, None, rope), {}).answer == judge.MATCHES
    swapped = rope.apply(q[None], ids[[0, 2, 1]], layout="bshd", positions_layout="abt")[0]
    verdict = judge.judge(rope, samples.make(q, swapped, ids, None, rope), {})
    assert verdict.answer == judge.NO
    assert verdict.explanations[0].words == ["axes in the order 0, 2, 1"]
    text = rope.apply(q[None], ids[[0, 0, 0]], layout="bshd", positions_layout="abt")[0]
    verdict = judge.judge(rope, samples.make(q, text, ids, None, rope), {})
    assert verdict.answer == judge.NO and "first id" in verdict.explanations[0].words[0]
    centred = ids - np.array([0, 2, 3]).reshape(3, 1, 1)
    after = rope.replace(pairing="interleaved").apply(q[None], centred, layout="bshd", positions_layout="abt")[0]
    verdict = judge.judge(rope, samples.make(q, after, ids, None, rope), {})
    assert verdict.explanations[0].words == [
        "pairing interleaved instead of halves", "ids of axis 1 -2", "ids of axis 2 -3"
    ]  # fmt: skip
    after = rope.replace(theta=1e4).apply(q[None], ids[[2, 0, 1]], layout="bshd", positions_layout="abt")[0]
    verdict = judge.judge(rope, samples.make(q, after, ids, None, rope), {})
    assert verdict.explanations[0].words == ["theta 10000", "axes in the order 2, 0, 1"]


# -- the places and the numbers ----------------------------------------------------------------------


def test_the_worst_value_is_named(check, rng):
    q = values(rng, 40)
    after = Rope.from_config(LLAMA).apply(q, 0)
    expected = float(after[17, 3, 90])
    after[17, 3, 90] += 0.5
    status, found, text = check(LLAMA, q, after)
    worst = found["worst"]
    assert (worst["token"], worst["head"], worst["channel"], worst["position"]) == (17, 3, 90, 17)
    assert worst["expected"] == pytest.approx(expected, abs=1e-5) and found["elements_over"] == 1
    assert status == 1 and "token 17, head 3, channel 90" in text and "largest error" not in text
    # Where a pair is 0 nothing is allowed: what is worst there is not what is largest.
    q[5, 1, [3, 67]] = 0
    after = Rope.from_config(LLAMA).apply(q, 0)
    after[5, 1, 3], after[17, 3, 90] = 1e-3, after[17, 3, 90] + 0.5
    _, found, text = check(LLAMA, q, after)
    worst, largest = found["worst"], found["largest_error"]
    assert (worst["token"], worst["error"]) == (5, pytest.approx(1e-3))
    assert (largest["token"], largest["head"], largest["channel"]) == (17, 3, 90)
    assert largest["error"] == pytest.approx(0.5, abs=1e-5)
    assert "worst: token 5, head 1" in text and "largest error: token 17, head 3, channel 90 (position 17):" in text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_named_with_its_place(check, rng, value):
    q = values(rng, 8)
    after = Rope.from_config(LLAMA).apply(q, 0)
    after[5, 1, 77] = value
    status, found, text = check(LLAMA, q, after)
    assert status == 1 and "token 5, head 1, channel 77" in text
    if np.isnan(value):
        assert found["nan"] == {"batch": 0, "token": 5, "head": 1, "channel": 77, "position": 5, "count": 1}
    q[5, 1, 77] = value
    status, error, _ = check(LLAMA, q, after)
    assert status == 2 and "token 5, head 1, channel 77" in error


def test_overflow_of_float16_is_what_the_dtype_asks_for(check, rng):
    q = values(rng, 64, dtype=np.float16)
    q[9, 1, 4] = q[9, 1, 68] = 65000
    after = Rope.from_config(LLAMA).apply(q, 0)
    assert np.isinf(after).any()
    assert check(LLAMA, q, after)[0] == 0


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("step", [1, 3])
def test_frequencies_are_proved_intervals(rng, dtype, step):
    rope = Rope.from_config(LLAMA)
    q = values(rng, 96, dtype=dtype)
    at = 5 + step * np.arange(96)
    sample = samples.make(q, rope.apply(q, at), at, None, rope)
    f = measure.frequencies(measure.turns(sample, rope), sample, np.zeros(64, int))
    if step > 1:  # a whole turn between neighbours cannot be seen
        assert not f.decidable and "one position apart" in f.why
        return
    assert f.decidable and f.linear
    assert ((f.low <= rope.inv_freq) & (rope.inv_freq <= f.high)).all()
    assert (f.high - f.low).max() < (1e-6 if dtype == np.float32 else 1e-2)
    off = rope.apply(q, at % 20)
    sample = samples.make(q, off, at, None, rope)
    assert not measure.frequencies(measure.turns(sample, rope), sample, np.zeros(64, int)).linear


def test_wrong_positions_are_errors(check, rng, tmp_path):
    q = values(rng, 8)
    np.save(tmp_path / "ids.npy", np.arange(9))
    status, error, _ = check(LLAMA, q, q, "--positions", tmp_path / "ids.npy")
    assert status == 2 and "(9,)" in error
    status, error, _ = check(LLAMA, q, q, "--positions", "abc")
    assert status == 2 and "abc" in error


# -- properties --------------------------------------------------------------------------------------

FIELDS = st.fixed_dictionaries({}, optional={
    "theta": st.floats(1e3, 1e8), "factor": st.floats(1.0, 64.0),
    "pairing": st.sampled_from(["halves", "interleaved", "interleaved_to_halves"]),
    "attention_factor": st.floats(0.5, 2.0), "rotary_dim": st.sampled_from([32, 64, 96]),
    "low_freq_factor": st.floats(0.5, 2.0), "angle": st.sampled_from(["float32", "exact"]),
    "rounding": st.sampled_from(["float32", "eager", "cos_sin"]),
})  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(fields=FIELDS, shift=st.integers(-40, 40), tokens=st.integers(1, 40), heads=st.integers(1, 4),
       dtype=st.sampled_from(["float32", "float16", "bfloat16"]), seed=st.integers(0, 2**20),
       operation=st.sampled_from(["forward", "forward", "inverse"]))  # fmt: skip
def test_a_changed_rule_never_matches(fields, shift, tokens, heads, dtype, seed, operation):
    """Whatever was changed: if a value leaves the bound of the config's rule, that is no match."""
    rope = Rope.from_config(LLAMA)
    kind = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    q = values(np.random.default_rng(seed), tokens, heads, kind)
    after = rope.replace(**fields).apply(q, shift, operation=operation)
    sample = samples.make(q, after, 0, None, rope)
    # The bound, written down a second time: three roundings of |c x0| + |s x1|, and float32's own.
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    x = q.astype(np.float64)
    angles = np.arange(tokens)[:, None, None] * rope.inv_freq
    want = rotate(x, angles)
    size = np.concatenate([np.abs(x[..., :64]) + np.abs(x[..., 64:])] * 2, -1)
    broken = np.abs(after.astype(np.float64) - want) > (3.2 * unit + 1.6e-7 + 2e-5) * size + 1e-7
    verdict = judge.judge(rope, sample, {})
    assert cli.check.report.described(verdict, sample)["verdict"] == verdict.answer
    if broken.any():
        assert verdict.answer == judge.NO
    for e in verdict.explanations:  # what is named does fit
        view = sample if verdict.only_heads is None else sample.part(heads=np.array(verdict.only_heads))
        if e.hypothesis.positions is None and "heads" not in " ".join(e.words):
            assert reference.fit(e.hypothesis, view).fits


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(1, 80), heads=st.integers(1, 4), start=st.integers(0, 100000),
       dtype=st.sampled_from(["float32", "float16", "bfloat16"]), seed=st.integers(0, 2**20),
       rounding=st.sampled_from(["float32", "eager", "cos_sin"]),
       scale=st.sampled_from([1e-3, 1.0, 100.0]), config=st.sampled_from([LLAMA, YARN, PARTIAL]))  # fmt: skip
def test_the_config_itself_is_never_refused(tokens, heads, start, dtype, seed, rounding, scale, config):
    rope = Rope.from_config(config)
    kind = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    q = values(np.random.default_rng(seed), tokens, heads).astype(np.float64) * scale
    q = q.astype(np.float32).astype(kind)
    after = rope.replace(rounding=rounding).apply(q, start)
    verdict = judge.judge(rope, samples.make(q, after, start, None, rope), {})
    assert verdict.answer != judge.NO and verdict.exact


def test_long_tensors_with_resets(rng):
    rope = Rope.from_config(LLAMA)
    q = values(rng, 2500, 1)
    after = rope.apply(q, np.arange(2500) % 1000)
    verdict = judge.judge(rope, samples.make(q, after, 0, None, rope), {})
    assert verdict.answer == judge.NO
    assert verdict.explanations[0].words == ["positions 0 .. 999, 0 .. 999, 0 .. 499"]


def test_angles_at_position_zero_are_measured(check, rng):
    q = values(rng, 40)
    _, found, _ = check(LLAMA, q, Rope.from_config(LLAMA).apply(q, 17))
    inv = Rope.from_config(LLAMA).inv_freq
    apart = np.exp(1j * np.array(found["measured"]["angle_at_position_0"])) - np.exp(17j * inv)
    assert np.abs(apart).max() < 1e-4
