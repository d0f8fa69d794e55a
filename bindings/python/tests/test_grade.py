"""librope check of recordings: several tensors, one verdict, and mistakes that are found and named."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_check import GEMMA, LLAMA, PARTIAL, YARN, told, values

import librope
from librope import cli, record
from librope.cli.check import grade, inputs, nearest, sample, ulp
from librope.cli.check.reference import Hypothesis

BF16 = ml_dtypes.bfloat16
TOKENS = 48


def plain(rope):
    return librope.Rope(head_dim=rope.head_dim, theta=rope.config["theta"], pairing=rope.pairing, layout="thd")


def of(config, layer=0, **changes):
    return librope.Rope.from_config(config, layer=layer, layout="thd", **changes)


def recorded(rng, turn, layers=2, dtype=np.float32, tokens=TOKENS):
    """A run of q with 4 heads and k with 2. turn: (layer, x) -> rotated x."""
    made = record.Recording()
    for layer in range(layers):
        for name, heads in (("q", 4), ("k", 2)):
            x = values(rng, tokens, heads, dtype)
            made.add(f"model.layers.{layer}.self_attn.{name}", x, turn(layer, x), np.arange(tokens), layout="thd")
    return made


@pytest.fixture
def check(tmp_path, capsys, monkeypatch):
    """Runs the command on a recording: (exit status, JSON or error, text)."""
    monkeypatch.setenv("COLUMNS", "200")  # the width of the table

    def run(config, recording, *options, kind="safetensors"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        path = str(tmp_path / f"run.{kind}")
        recording.save(path)
        arguments = ["check", str(tmp_path), path, *map(str, options)]
        status, out, text = told(capsys, arguments)
        return (status, out, text) if status == 2 else (status, json.loads(out), " ".join(text.split()))

    return run


def words(tensor):
    return [", ".join(e["words"]) for e in tensor["explanations"]]


# -- verdicts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("rounding", ["eager", "float32"])
def test_identical_bits(check, rng, dtype, rounding):
    status, found, text = check(LLAMA, recorded(rng, lambda _, x: of(LLAMA, rounding=rounding).apply(x, 0), dtype=dtype))
    assert status == 0 and found["matches"]
    for t in found["tensors"]:
        assert t["grade"] == "identical bits" and t["layer_type"] == "full_attention"
        assert any(e.startswith(f"rounding {rounding}") for e in t["exact"])
    own = librope.Model(LLAMA).config("full_attention").get("rounding", "float32")
    if own == rounding:
        assert all(t["ulp"] == {"same": 1.0, "within_one": 1.0, "largest": 0} for t in found["tensors"])
    assert "model.layers.{0, 1}.self_attn: q, k" in text and "identical bits" in text


def test_right_to_its_rounding(check, rng):
    """A rotation in float64, rounded once: near the library's bits, and not the same."""
    from conftest import rotate

    rope = of(PARTIAL)
    angles = np.arange(TOKENS)[:, None, None] * 1e4 ** (-np.arange(32) / 32)
    status, found, text = check(
        PARTIAL, recorded(rng, lambda _, x: rotate(x, angles, pairing=rope.pairing, rotary_dim=64).astype(np.float32))
    )
    assert status == 0
    for t in found["tensors"]:
        assert t["grade"] == "right to its rounding" and 0.3 < t["ulp"]["same"] < 1
        assert t["ulp"]["largest"] >= 1 and t["worst"]["error_by_allowed"] < 1
    assert "right to its rounding" in text


def test_each_layer_has_its_own_rule(check, rng):
    model = librope.Model(GEMMA)
    right = recorded(rng, lambda n, x: model.rope(layer=n, layout="thd").apply(x, 0), layers=6)
    status, found, _ = check(GEMMA, right)
    assert status == 0 and {t["layer_type"] for t in found["tensors"]} == {"sliding_attention", "full_attention"}
    local = recorded(rng, lambda n, x: model.rope(layer=0, layout="thd").apply(x, 0), layers=6)
    status, found, text = check(GEMMA, local)
    wrong = [t for t in found["tensors"] if t["grade"] == "wrong"]
    assert status == 1 and {t["name"] for t in wrong} == {f"model.layers.5.self_attn.{x}" for x in "qk"}
    assert all(words(t)[0] == "the rule of sliding_attention layers" for t in wrong)
    assert "model.layers.{0 .. 4}.self_attn" in text


def test_layers_without_rope_stay_as_they_are(check, rng):
    config = {**LLAMA, "model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}
    rope = of(config)
    status, found, text = check(config, recorded(rng, lambda n, x: x if n == 3 else rope.apply(x, 0), layers=4))
    assert status == 0 and found["tensors"][-1]["layer_type"] == "nope" and "the values are the same" in text
    status, found, text = check(config, recorded(rng, lambda n, x: rope.apply(x, 0), layers=4))
    assert status == 1
    assert [words(t) for t in found["tensors"] if t["grade"] == "wrong"] == [["rotated as other layers are"]] * 2
    status, found, _ = check(config, recorded(rng, lambda n, x: x, layers=4))
    assert status == 1 and [t["grade"] for t in found["tensors"]] == ["wrong"] * 6 + ["identical bits"] * 2


def test_long_tensors_tell_what_decode_steps_cannot(check, rng):
    rope = of(LLAMA)
    run = recorded(rng, lambda _, x: rope.apply(x, 0), layers=1)
    x = values(rng, 1)
    run.add("model.layers.0.self_attn@1.q", x, rope.apply(x, 0), [0], layout="thd")
    status, found, _ = check(LLAMA, run)
    assert status == 0 and len(found["tensors"]) == 3
    alone = record.Recording()
    alone.add("model.layers.0.self_attn@1.q", x, rope.apply(x, 0), [0], layout="thd")
    assert check(LLAMA, alone)[0] == 3


def test_one_tensor_of_several_is_wrong(check, rng):
    rope = of(LLAMA)
    run = recorded(rng, lambda n, x: (rope.replace(theta=1e4) if n and x.shape[1] == 2 else rope).apply(x, 0))
    status, found, text = check(LLAMA, run)
    assert status == 1 and not found["matches"]
    assert [t["grade"] for t in found["tensors"]] == ["identical bits"] * 3 + ["wrong"]
    assert words(found["tensors"][3]) == ["theta 10000"] and "theta 10000" in text
    assert check(LLAMA, run, "--name", "*.q")[0] == 0
    assert check(LLAMA, run, "--name", "*.0.*.q", "--name", "*.0.*.k")[0] == 0
    status, error, _ = check(LLAMA, run, "--name", "*.v")
    assert status == 2 and "no tensor named *.v" in error


def test_q_and_k_exchanged(check, rng):
    rope = of(LLAMA)
    q, k = values(rng, TOKENS), values(rng, TOKENS)
    run = record.Recording()
    run.add("layers.0.q", q, rope.apply(k, 0), np.arange(TOKENS), layout="thd")
    run.add("layers.0.k", k, rope.apply(q, 0), np.arange(TOKENS), layout="thd")
    status, found, _ = check(LLAMA, run)
    assert status == 1
    assert [words(t) for t in found["tensors"]] == [["it is layers.0.k that was rotated"],
                                                    ["it is layers.0.q that was rotated"]]  # fmt: skip


VL = {"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2,
      "rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
      "vision_config": {"embed_dim": 64, "num_heads": 4}}  # fmt: skip


def language_model_and_tower(rng, wrong=()):
    """wrong: names of tensors that are turned by another theta."""
    model, made = librope.Model(VL), record.Recording()
    for kind, name in (("full_attention", "model.language_model.layers.{}.self_attn"),
                       ("vision", "model.visual.blocks.{}.attn"), ("vision", "vision_tower.encoder.layers.{}.attn")):  # fmt: skip
        rope = model.rope(layer_type=kind, layout="thd")
        ids = rng.integers(0, 50, (rope.axes, TOKENS))
        for layer in range(2):
            full = f"{name.format(layer)}.q"
            x = values(rng, TOKENS, 2, dim=rope.head_dim)
            by = rope.replace(inv_freq=rope.inv_freq * 1.5, theta=None) if full in wrong else rope
            made.add(full, x, by.apply(x, ids), ids, layout="thd")
    return made


def test_towers_have_their_own_rule(check, rng):
    status, found, text = check(VL, language_model_and_tower(rng))
    assert status == 0, text
    assert [t["layer_type"] for t in found["tensors"]] == ["full_attention"] * 2 + ["vision"] * 4
    bad = "vision_tower.encoder.layers.1.attn.q"
    status, found, _ = check(VL, language_model_and_tower(rng, [bad]))
    assert status == 1 and [t["name"] for t in found["tensors"] if t["grade"] == "wrong"] == [bad]


def test_tensors_that_cannot_be_checked_do_not_hide_the_others(check, rng):
    """A tower that the config does not describe, and a tensor of another width."""
    text = {k: v for k, v in VL.items() if k != "vision_config"}
    status, found, said = check(text, language_model_and_tower(rng))
    assert status == 3 and not found["matches"] and len(found["tensors"]) == 2
    assert len(found["unchecked"]) == 4 and "does not describe its tower" in found["unchecked"][0]["why"]
    assert "not checked: model.visual.blocks.0.attn.q and 3 more" in said
    assert check(text, language_model_and_tower(rng), "--name", "*.language_model.*")[0] == 0
    status, error, _ = check(text, language_model_and_tower(rng), "--name", "*visual*")
    assert status == 2 and "does not describe its tower" in error
    wrong = "model.language_model.layers.1.self_attn.q"
    assert check(text, language_model_and_tower(rng, [wrong]))[0] == 1
    run = recorded(rng, lambda _, x: of(LLAMA).apply(x, 0))
    x = values(rng, TOKENS, dim=64)
    run.add("layers.1.extra", x, x, np.arange(TOKENS), layout="thd")
    run.add("layers.1.ids", *[values(rng, TOKENS)] * 2, layout="thd")
    status, found, _ = check(LLAMA, run)
    assert status == 3 and len(found["tensors"]) == 4
    assert "64 channels in its last axis" in found["unchecked"][0]["why"]
    assert "has no positions of layers.1.ids" in found["unchecked"][1]["why"]


def test_channels_in_another_order_give_the_same_attention(check, rng):
    """DeepSeek's pairs are read as neighbours; transformers writes halves, and other programs neighbours."""
    config = {"model_type": "deepseek_v3", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2,
              "rope_theta": 1e4, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}  # fmt: skip
    rope = of(config)
    rope = librope.Rope(head_dim=32, theta=1e4, pairing=rope.pairing, layout="thd")
    assert rope.pairing == "interleaved_to_halves"
    other = rope.replace(pairing="interleaved")

    def run(q, k, theta=1e4):
        made = record.Recording()
        for name, by in (("q", q), ("k", k)):
            x = values(rng, TOKENS, dim=32)
            made.add(f"layers.0.{name}", x, by.replace(theta=theta).apply(x, 0), np.arange(TOKENS), layout="thd")
        return made

    assert check(config, run(rope, rope))[1]["tensors"][0]["written_as"] is None
    status, found, text = check(config, run(other, other))
    assert status == 0 and [t["written_as"] for t in found["tensors"]] == ["interleaved"] * 2
    assert [t["grade"] for t in found["tensors"]] == ["identical bits"] * 2
    assert "written as interleaved: q·k is the same" in text
    status, found, text = check(config, run(rope, other))
    assert status == 1 and [t["grade"] for t in found["tensors"]] == ["identical bits", "wrong"]
    assert words(found["tensors"][1]) == ["pairing interleaved instead of interleaved_to_halves"]
    assert check(config, run(rope.replace(pairing="halves"), rope.replace(pairing="halves")))[0] == 1
    assert check(config, run(other, other, theta=2e4))[0] == 1


# -- what no single rule explains -----------------------------------------------------------------------


def test_three_mistakes_at_once(check, rng):
    base = {k: v for k, v in LLAMA.items() if k != "rope_scaling"} | {"rope_theta": 1e4}
    turn = of(LLAMA, inv_freq_dtype="bfloat16")
    status, found, _ = check(base, recorded(rng, lambda _, x: turn.apply(x, 0)))
    assert status == 1
    for t in found["tensors"]:
        assert words(t)[0] == "theta 500000, scaling llama3 of factor 8, inv_freq in bfloat16"


def test_noise_on_another_rule_is_explained_in_part(check, rng):
    wrong = of(LLAMA).replace(pairing="interleaved", theta=1e6)

    def noisy(_, x):
        y = wrong.apply(x, 0)
        off = rng.random(y.shape) < 0.1
        return np.where(off, y + 0.01 * rng.standard_normal(y.shape).astype(np.float32), y)

    status, found, text = check(LLAMA, recorded(rng, noisy, layers=1))
    assert status == 1
    best, *_, own = found["tensors"][0]["nearest"]
    assert best["words"] == ["pairing interleaved instead of halves", "theta 1e+06"]
    assert 0.85 < best["explained"] < 0.95 and best["distance"] < 0.01
    assert own["words"] == [] and own["explained"] < 0.3 and own["distance"] > 0.5
    assert "in part: pairing interleaved" in text and "the config itself: explains" in text


def test_noise_on_the_right_rule(check, rng):
    rope = of(LLAMA)
    coarse = lambda _, x: rope.apply(x, 0).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)  # noqa: E731
    status, found, text = check(LLAMA, recorded(rng, coarse, layers=1))
    (own,) = found["tensors"][0]["nearest"]
    assert status == 1 and own["words"] == [] and own["distance"] < 0.05
    assert "none is nearer than the config's" in text


WRONG = st.fixed_dictionaries({}, optional={
    "theta": st.sampled_from([1e4, 1e6, 5e6]), "factor": st.sampled_from([4.0, 16.0, 32.0]),
    "pairing": st.sampled_from(["interleaved", "interleaved_to_halves"]),
    "inv_freq_dtype": st.sampled_from(["bfloat16", "float16"]),
})  # fmt: skip


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=WRONG, shift=st.sampled_from([0, 0, 1, -1]), inverse=st.booleans(), seed=st.integers(0, 999))
def test_a_random_wrong_setting_is_named(fields, shift, inverse, seed):
    """Recorded under it, and named: all of it, and nothing else."""
    if not fields and not shift and not inverse:
        return
    rng, right = np.random.default_rng(seed), of(LLAMA)
    wrong = right.replace(**fields)
    operation = "inverse" if inverse else "forward"
    run = recorded(rng, lambda _, x: wrong.apply(x, shift, operation=operation), layers=1)
    items = [inputs.Item(n, sample.make(t.before, t.after, t.positions, "bshd", right), right, "full_attention", {})
             for n, t in run.items()]  # fmt: skip
    for g in grade.grade(items):
        assert g.word == grade.WRONG and g.verdict.explanations, (fields, shift, inverse, g.near)
        h = g.verdict.explanations[0].hypothesis
        assert (h.times, h.shift) == (-1 if inverse else 1, shift)
        for name in ("theta", "factor", "pairing", "inv_freq_dtype", "scaling"):
            assert h.rope.config.get(name) == wrong.config.get(name), g.verdict.explanations[0].words


# -- numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_ulp_are_counted(rng, dtype):
    rope = of(YARN)
    x = values(rng, 8, dtype=dtype)
    y = rope.apply(x, 0)
    away = y.copy()
    bits = away.view({2: np.int16, 4: np.int32}[y.dtype.itemsize])
    bits[0, 0, 0] += 1
    bits[3, 1, 5] += 9
    s = sample.make(x, away, 0, "thd", rope)
    found = ulp.distance(Hypothesis(rope), s)
    assert found.largest == 9
    assert found.same == pytest.approx(1 - 2 / y.size) and found.within_one == pytest.approx(1 - 1 / y.size)


def test_ulp_across_zero():
    x = np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)
    assert ulp._order(x).tolist() == [0, 0, 1, -1]


def test_distances_need_finite_values(rng):
    x = values(rng, 4)
    s = sample.make(x, np.full_like(x, np.nan), 0, "thd", of(LLAMA))
    assert nearest.nearest(of(LLAMA), s, {})[-1].distance == float("inf")


# -- files --------------------------------------------------------------------------------------------


def test_npz_and_positions_of_each(check, rng):
    rope = of(LLAMA)
    run = record.Recording()
    for i, start in enumerate((0, 100)):
        x = values(rng, 40)
        at = np.arange(start, start + 40)
        run.add(f"layers.{i}.q", x, rope.apply(x, at), at, layout="thd")
    for kind in ("npz", "safetensors"):
        assert check(LLAMA, run, kind=kind)[0] == 0
    assert check(LLAMA, run, "--positions", 1)[0] == 1


def test_a_recording_without_positions_asks_for_them(check, rng):
    x = values(rng, TOKENS)
    run = record.Recording()
    run.add("layers.0.q", x, of(LLAMA).apply(x, 5), layout="thd")
    status, error, _ = check(LLAMA, run)
    assert status == 2 and "has no positions of layers.0.q: say --positions" in error
    assert check(LLAMA, run, "--positions", 5)[0] == 0


def test_recordings_are_copies_and_refuse_what_does_not_fit(rng, tmp_path):
    x = values(rng, 4)
    run = record.Recording()
    run.add("q", x, x, 0 * np.arange(4), layout="thd")
    x[:] = 0
    assert run["q"].before.any() and run["q"].before.shape == (1, 4, 4, 128)
    for name in ("q", "", "positions"):
        with pytest.raises(ValueError, match="name is"):
            run.add(name, x, x, layout="thd")
    with pytest.raises(ValueError, match=r"before has shape .* and after"):
        run.add("k", x, x[:2], layout="thd")
    with pytest.raises(ValueError, match="layout is 'bshd'"):
        run.add("k", x, x, layout="bshd")
    with pytest.raises(ValueError, match="positions are"):
        run.add("k", x, x, ["a"], layout="thd")
    for at in (np.arange(3), np.arange(4)[:, None], np.zeros((2, 2, 4), int), np.zeros((3, 1, 5), int)):
        with pytest.raises(ValueError, match=r"k: positions have shape .*, and the tensor 1 x 4 tokens"):
            run.add("k", x, x, at, layout="thd")
    with pytest.raises(ValueError, match="k: positions are not all finite"):
        run.add("k", x, x, np.array([0, 1, np.nan, 3], np.float32), layout="thd")
    for i, at in enumerate((np.arange(4), np.zeros((1, 4), int), np.zeros((3, 4), int), np.zeros((3, 1, 4), int))):
        run.add(f"x{i}", x, x, at, layout="thd")
    with pytest.raises(ValueError, match="the recording is empty"):
        record.Recording().save(tmp_path / "a.npz")
    run.add("k", x.astype(BF16), x.astype(BF16), layout="thd")
    with pytest.raises(ValueError, match="k.before is bfloat16"):
        run.save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="npz or .safetensors"):
        run.save(tmp_path / "a.txt")
    assert not list(tmp_path.iterdir())


def damaged(path, tensors):
    safetensors.numpy.save_file(tensors, path)
    return path.read_bytes()


def test_files_that_are_no_recordings(tmp_path, capsys, rng):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    x = values(rng, 8)
    whole = {"layers.0.q.before": x, "layers.0.q.after": of(LLAMA).apply(x, 0), "positions": np.arange(8)}

    def refused(name, content, *options):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif name.endswith(".npz"):
            np.savez(path, **content)
        else:
            safetensors.numpy.save_file(content, path)
        status = cli.main(["check", str(tmp_path), str(path), *options])
        error = capsys.readouterr()[1]
        assert status == 2 and error.startswith("librope check: "), error
        return error

    good = damaged(tmp_path / "a.safetensors", whole)
    for end in (0, 4, 8, 60, len(good) // 2, len(good) - 1):
        assert "cannot be read as .safetensors" in refused("a.safetensors", good[:end])
    np.savez(tmp_path / "b.npz", **whole)
    good = (tmp_path / "b.npz").read_bytes()
    for end in (0, 4, 60, len(good) // 2, len(good) - 1):
        assert "cannot be read as .npz" in refused("a.npz", good[:end])
    assert "holds Python objects" in refused("a.npz", {"q.before": np.array([{}]), "q.after": x})
    for kind in ("a.npz", "a.safetensors"):
        assert "no recording" in refused(kind, {"q": x})
        assert "no layers.0.q.after" in refused(kind, {"layers.0.q.before": x})
        assert "no layers.0.q.before" in refused(kind, {"layers.0.q.after": x})
        assert "before has shape (8, 4, 128) and after (7, 4, 128)" in refused(
            kind, {**whole, "layers.0.q.after": x[:7].copy()}
        )
        assert "positions have shape (7,)" in refused(kind, {**whole, "positions": np.arange(7)})
        assert "nothing to measure" in refused(
            kind, {**whole, "layers.0.q.before": x[:, :0].copy(), "layers.0.q.after": x[:, :0].copy()}
        )
        assert "64 channels" in refused(
            kind, {**whole, "layers.0.q.before": x[..., :64].copy(), "layers.0.q.after": x[..., :64].copy()}
        )
        assert "0 everywhere" in refused(kind, {**whole, "layers.0.q.before": 0 * x})
        assert "does not fit into 64 bits" in refused(kind, {**whole, "positions": np.full(8, 2**64 - 1, np.uint64)})
        assert "must be integers" in refused(kind, {**whole, "positions": np.ones(8, bool)})
        assert "float64" in refused(
            kind, {**whole, **{f"layers.0.q.{n}": x.astype(np.float64) for n in ("before", "after")}}
        )
        bad = x.copy()
        bad[3, 2, 1] = np.nan
        assert "token 3, head 2, channel 1" in refused(kind, {**whole, "layers.0.q.before": bad})
        assert "6 dimensions" in refused(
            kind, {**whole, "layers.0.q.before": x[None, None, None], "layers.0.q.after": x[None, None, None]}
        )
        assert "layers.99" in refused(
            kind, {"layers.99.q.before": x, "layers.99.q.after": x, "positions": np.arange(8)}
        )
    status = cli.main(["check", str(tmp_path), str(tmp_path / "none.npz")])
    assert status == 2 and "no such file" in capsys.readouterr()[1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_nothing_but_one_value_is_an_answer(check, rng, value):
    status, found, _ = check(LLAMA, recorded(rng, lambda _, x: np.full_like(x, value), layers=1))
    assert status == 1 and all(t["grade"] == "wrong" and not t["explanations"] for t in found["tensors"])


def test_nan_after_is_an_answer(check, rng):
    rope = of(LLAMA)

    def broken(_, x):
        y = rope.apply(x, 0)
        y[3, 1, 7] = np.nan
        return y

    status, found, text = check(LLAMA, recorded(rng, broken))
    assert status == 1 and all(t["nan"]["token"] == 3 and t["grade"] == "wrong" for t in found["tensors"])
    assert "NaN" in text


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_picture(check, rng, tmp_path, name):
    rope = of(LLAMA)
    run = recorded(rng, lambda n, x: (rope.replace(theta=1e4) if n else rope).apply(x, 0))
    assert check(LLAMA, run, "--picture", tmp_path / name)[0] == 1
    assert (tmp_path / name).stat().st_size > 10000
    status, error, _ = check(LLAMA, run, "--picture", tmp_path / "a.txt")
    assert status == 2 and "a .png or .svg file is expected" in error


def test_picture_shows_where(rng):
    """One wrong pair of one token, and nothing else, is above the bound."""
    from librope.cli.check import picture

    rope = of(LLAMA)
    x = values(rng, 20)
    y = rope.apply(x, 0)
    y[7, 2, 64 + 11] += 0.1
    item = inputs.Item("q", sample.make(x, y, 0, "thd", rope), rope, "full_attention", {})
    (g,) = grade.grade([item])
    assert np.argwhere(picture.errors(g) > 1).tolist() == [[7, 11]]
    assert len(picture.figure([g] * 11, "x").get_axes()) == 9
