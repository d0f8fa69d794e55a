"""Fields that replace those of a model: what the text with another number gives, or an error."""

import copy
import json
import pickle

import pytest
from test_oracle import CASES

from librope import Model, Rope
from librope._changes import check_shared, follows_of

HUNYUAN = {"model_type": "hunyuan_v1_dense", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 1e4,
           "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}  # fmt: skip
GTE = {"model_type": "new", "hidden_size": 768, "num_attention_heads": 12, "rope_theta": 20000,
       "max_position_embeddings": 8192, "rope_scaling": {"type": "ntk", "factor": 8.0}}  # fmt: skip
CHATGLM = {"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
           "rope_ratio": 50}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 1e4,
         "max_position_embeddings": 4096}  # fmt: skip
YARN = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                                  "original_max_position_embeddings": 1024}}  # fmt: skip
QUOTIENT = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": None,
                                      "original_max_position_embeddings": 1024}}  # fmt: skip
LONGROPE = {**LLAMA, "rope_scaling": {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 64,
                                      "long_factor": [2.0] * 64, "original_max_position_embeddings": 1024}}
MLA = {"model_type": "deepseek_v3", "hidden_size": 4096, "num_attention_heads": 32, "qk_nope_head_dim": 128,
       "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 1e4}  # fmt: skip
GEMMA = {"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8, "head_dim": 256,
         "num_hidden_layers": 12}  # fmt: skip
GGUF = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 256,
        "llama.attention.head_count": 4, "llama.rope.dimension_count": 64, "llama.rope.freq_base": 1e4}

# Fields, the keys of texts that say them, and the factor by which the test changes them.
KEYS = {
    "theta": (("rope_theta", "rope_local_base_freq", "rotary_emb_base", "global_rope_theta", "local_rope_theta",
               "swa_rope_theta", "compress_rope_theta"), 3),
    "factor": (("factor",), 2),
    "attention_factor": (("attention_factor",), 1.25),
    "original_max_position_embeddings": (("original_max_position_embeddings",), 2),
    "max_position_embeddings": (("max_position_embeddings",), 2),
    "beta_fast": (("beta_fast",), 2),
    "beta_slow": (("beta_slow",), 2),
    "mscale": (("mscale",), 2),
    "mscale_all_dim": (("mscale_all_dim",), 2),
    "low_freq_factor": (("low_freq_factor",), 0.5),
    "high_freq_factor": (("high_freq_factor",), 2),
    "head_dim": (("head_dim",), 2),
}  # fmt: skip


def places(text, keys, found=()):
    """The paths of these keys where they have a number."""
    if isinstance(text, dict):
        for key, value in text.items():
            if key in keys and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield (*found, key)
            yield from places(value, keys, (*found, key))


def edited(text, path, times):
    text = copy.deepcopy(text)
    around = text
    for key in path[:-1]:
        around = around[key]
    around[path[-1]] *= times
    return text


def computed(make):
    """What a Rope computes; None if it is an error."""
    try:
        rope = make()
    except (ValueError, NotImplementedError):
        return None
    return [rope.inv_freq_of(0), rope.attention_factor, rope.softmax_factor, rope.rotary_dim, rope.rotary_offset]


@pytest.mark.parametrize("file", CASES)
def test_a_replaced_number_is_that_of_the_text_or_an_error(oracle_folder, file):
    text = json.loads((oracle_folder / file).read_text())["config"]
    for each in (text, with_numbers(text)):
        check_text(each)


def with_numbers(text):
    """With YaRN's numbers that make an attention factor, where the text has a scaling."""
    text = copy.deepcopy(text)
    scaling = text.get("rope_scaling")
    if isinstance(scaling, dict) and "yarn" in (scaling.get("rope_type"), scaling.get("type")):
        scaling.update(mscale=1.0, mscale_all_dim=0.5)
    return text


def check_text(text):
    try:
        model = Model(text)
    except (ValueError, NotImplementedError):
        return
    for kind in model.layer_types:
        config = model.config(kind)
        rest = {} if "pairing" in config or config.get("scaling") == "nope" else {"pairing": "halves"}
        for field, (keys, times) in KEYS.items():
            if not config.get(field):
                continue
            new = config[field] * times
            got = computed(lambda: model.rope(layer_type=kind, seq_len=5000, **rest, **{field: new}))
            if got is None:
                continue
            for path in places(text, keys):
                other = edited(text, path, times)
                want = computed(lambda: Model(other).rope(layer_type=kind, seq_len=5000, **rest))
                if want is None or Model(other).config(kind).get(field) != new:
                    continue  # the key is not that of this field
                assert got == want, (kind, field, path)


@pytest.mark.parametrize(
    "text, changes, says",
    [
        (HUNYUAN, {"theta": 5e5}, r"theta is 500000.0 and cannot be replaced alone: in the text of the model theta "
                                  r"\(11158839.* follows from rope_theta \(10000\), alpha \(1000\)"),
        (HUNYUAN, {"head_dim": 64}, "head_dim is 64 .* alpha"),
        (HUNYUAN, {"rotary_dim": 64}, "rotary_dim is 64 .* alpha"),
        (HUNYUAN, {"scaling": "linear", "factor": 2.0}, "alpha"),
        (GTE, {"theta": 1e4}, r"rope_theta \(20000\) and factor \(8\)"),
        (GTE, {"factor": 2.0}, r"factor is 2.0 .* factor \(8\)"),
        (CHATGLM, {"theta": 1e4}, r"rope_ratio \(50\)"),
        (QUOTIENT, {"original_max_position_embeddings": 2048}, r"factor \(4\) follows from the two lengths"),
        (YARN, {"factor": 8.0}, r"^factor is 8.0 and cannot be replaced alone: attention_factor \(1.06.*\) may follow "
                                r"from it. Say attention_factor= too \(None: what the scaling gives\)"),
        (YARN, {"mscale": 2.0}, "attention_factor"),
        (YARN, {"mscale_all_dim": 2.0}, "attention_factor"),
        (YARN, {"scaling": "default"}, "attention_factor"),
        (LONGROPE, {"original_max_position_embeddings": 2048}, r"factor \(4.0\) may follow from it"),
        (LONGROPE, {"max_position_embeddings": 2048}, r"factor \(4.0\) may follow from it"),
        (MLA, {"head_dim": 256}, r"rotary_dim \(64\) may follow from it"),
        (MLA, {"rotary_dim": 32}, r"rotary_offset \(128\) may follow from it"),
        (MLA, {"head_dim": 256, "rotary_dim": 64}, r"head_dim is 256 .* rotary_offset \(128\) may follow from it"),
        (HUNYUAN, {"scaling": "linear"}, "scaling is .linear. .* alpha"),
    ],
)  # fmt: skip
def test_numbers_that_others_follow_from(text, changes, says):
    for make in (lambda: Rope.from_config(text, seq_len=10, **changes),
                 lambda: Model(text).rope(layer=None, seq_len=10, **changes),
                 lambda: pickle.loads(pickle.dumps(Rope.from_config(text, seq_len=10))).replace(**changes)):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            make()


def test_what_follows_can_be_said_too():
    assert Rope.from_config(YARN, factor=8.0, attention_factor=1.5).attention_factor == 1.5
    assert Rope.from_config(MLA, rotary_dim=32, rotary_offset=160).rotary_offset == 160
    assert Rope.from_config(LLAMA, theta=5e5) == Rope.from_config({**LLAMA, "rope_theta": 5e5})
    assert Rope.from_config(HUNYUAN).replace(angle="exact", theta=Rope.from_config(HUNYUAN).config["theta"])
    same = Rope.from_config(YARN)
    assert Rope.from_config(YARN, factor=4.0) == same  # no other number


@pytest.mark.parametrize("table", [{"inv_freq": [1.0, 0.5]}, {"frequency": [[1.0, 0.5]], "axes": 1}])
def test_a_table_leaves_theta_without_effect(table):
    rope = Rope(head_dim=4, pairing="halves", **table)
    with pytest.raises(ValueError, match=f"theta has no effect beside {next(iter(table))}"):
        rope.replace(theta=1e4)


def test_a_factor_of_longrope_and_the_length_that_it_is_made_of():
    rope = Rope(head_dim=4, theta=1e4, pairing="halves", scaling="longrope", short_factor=[1.0, 1.0], seq_len=10,
                long_factor=[2.0, 2.0], original_max_position_embeddings=1024, max_position_embeddings=4096)  # fmt: skip
    with pytest.raises(ValueError, match=r"factor is 8.0 .* max_position_embeddings \(4096\) may follow from it"):
        rope.replace(factor=8.0)


def test_only_notes_of_this_kind_about_what_follows_bind_it():
    notes = ["full: theta (3) follows from a", "sliding: theta (4) follows from b", "full: theta (3) is large"]
    assert follows_of(notes, "full") == ("theta (3) follows from a",)


def test_kinds_may_differ_in_how_they_are_computed():
    check_shared({"full": {"angle": "exact"}, "sliding": {}}, {"angle": "exact"})
    with pytest.raises(ValueError, match="theta is 3.0 for all kinds"):
        check_shared({"full": {"theta": 1.0}, "sliding": {}}, {"theta": 3.0})


def test_frequency_factors_were_made_for_one_theta():
    """llama.cpp's converter makes those of Llama 3.1 of rope_theta and four numbers."""
    model = Model.from_gguf(GGUF, factors={"rope_freqs.weight": [1.0] * 16 + [8.0] * 16})
    with pytest.raises(ValueError, match=r"theta is 500000.0 .* freq_factors \(\[32 numbers\]\) may follow from it"):
        model.rope(theta=5e5)
    for changes in ({"scaling": "linear", "factor": 2.0}, {"head_dim": 128}, {"rotary_dim": 32}):
        with pytest.raises(ValueError, match="freq_factors .* may follow from it"):
            model.rope(**changes)
    assert "freq_factors" not in model.rope(theta=5e5, freq_factors=None).config


def test_alpha_of_a_gguf_file():
    keys = {k.replace("llama", "hunyuan-dense"): v for k, v in GGUF.items()}
    keys.update({"general.architecture": "hunyuan-dense", "hunyuan-dense.rope.scaling.alpha": 1000.0})
    model = Model.from_gguf(keys, factors={})
    with pytest.raises(ValueError, match="rope.freq_base"):
        model.rope(theta=5e5)


def test_one_number_for_kinds_that_differ():
    model = Model(GEMMA)
    with pytest.raises(ValueError, match=r"theta is 30000.0 for all kinds of layers, which differ in it: 1000000.0 in "
                                         r"full_attention, 10000.0 in sliding_attention. .*rope\(layer_type=, theta=\)"):
        model.ropes(theta=3e4)
    assert model.rope(layer_type="full_attention", theta=3e4).config["theta"] == 3e4
    assert {r.config["angle"] for r in model.ropes(angle="exact").values()} == {"exact"}
    assert {r.head_dim for r in Model(LLAMA).ropes(theta=3e4).values()} == {128}


def test_fields_keep_what_the_text_says_of_them():
    rope = Rope.from_config(HUNYUAN)
    for fields in (rope.config, rope.configs[0], Model(HUNYUAN).config("full_attention"), copy.copy(rope.config),
                   copy.deepcopy(rope.config), pickle.loads(pickle.dumps(rope.config))):  # fmt: skip
        again = Rope.from_fields(fields)
        assert again == rope and again.config == rope.config
        with pytest.raises(ValueError, match="alpha"):
            again.replace(theta=1e4)
    Rope.from_fields(json.loads(json.dumps(rope.config))).replace(theta=1e4)  # plain fields are the caller's


def test_the_sets_of_a_model_keep_what_it_says():
    rope = Rope.sets([Rope.from_config(HUNYUAN), Rope.from_config(HUNYUAN, angle="float32")])
    with pytest.raises(ValueError, match="alpha"):
        rope.replace(theta=1e4)
