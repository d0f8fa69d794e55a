"""Every config of the fixtures, through this package, against what transformers computed."""

import base64
import json

import ml_dtypes
import numpy as np
import pytest
from conftest import REPOSITORY

import librope

FOLDER = REPOSITORY / "tests" / "data" / "oracle"
DTYPES = {"f32": np.float32, "i64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Configs of models and hand-written ones. The defaults of transformers' config classes, which name no
# model, are left to the library's own test.
CASES = (
    [
        c["file"]
        for c in json.loads((FOLDER / "index.json").read_text())["cases"]
        if c["origin"] != "class-default"
    ]
    if FOLDER.is_dir()
    else []
)
# Where librope follows the released model or refuses, and transformers does something else.
DEVIATIONS = {
    "facebook-esm2-t6-8m-ur50d.json": "the checkpoint keeps inv_freq in float16",
    "hand-phimoe-mscale.json": "two attention factors in one context",
    "hand-phimoe-mscale-equal.json": "transformers' class keeps the short factors at every length",
    "hand-gemma3-yarn-nested.json": "truncate is honoured in a nested dictionary",
    "hand-zamba2-rope.json": "the file lacks hidden_size, which decides head_dim",
    "hand-mimo-v2-flash-thetas.json": "transformers ignores partial_rotary_factor of the file",
    "hand-default-both-thetas.json": "two values of theta are refused",
    "hand-default-both-dicts.json": "two dictionaries that differ are refused",
    "hand-default-partial-ignored.json": "a share of the head that the class ignores is refused",
    "hand-partial-both.json": "two shares of the head are refused",
    "meta-llama-llama-3-2-90b-vision-instruct.json": "layers of cross-attention do not turn",
}


def array(record):
    data = base64.b64decode(record["data"])
    return np.frombuffer(data, DTYPES[record["dtype"]]).reshape(record["shape"])


def positions_of(ids):
    """[t, axes] as the calls take it: [t], or [axes, t]."""
    return (ids[:, 0] if ids.shape[1] == 1 else ids.T).copy()


def check_rope(model, layer_type, record):
    config = model.config(layer_type)
    if "pairing" not in config and config.get("scaling") != "nope":
        config["pairing"] = record["pairing"]  # a type the library does not know by name
    for length in record["lengths"]:
        if length["seq_len"] is not None:
            config["seq_len"] = length["seq_len"]
        config["rounding"] = record["rounding"] or "float32"
        rope = librope.Rope.from_fields(config, layout="thd")
        # MLA: transformers hands over the span alone, librope takes it or the whole head.
        assert record["head_dim"] in (rope.head_dim, rope.rotary_dim)
        want = array(length["inv_freq"])
        np.testing.assert_array_equal(rope.inv_freq[: len(want)].astype(np.float32), want)
        assert rope.attention_factor == pytest.approx(length["attention_factor"], rel=1e-6)
        applied = length.get("apply")
        if applied is None or record["two_angles"]:
            continue
        ids = positions_of(array(applied["positions"]))
        for name in ("f32", "bf16", "f16"):
            for which in ("q", "k"):
                if name not in applied:
                    continue
                x = array(applied[which]).astype(DTYPES[name])
                out = rope.apply(x, ids).astype(np.float64)
                error = np.abs(out - array(applied[name][which]).astype(np.float64))
                size = 2 * max(1.0, rope.attention_factor) * np.abs(x.astype(np.float64)).max()
                bound = {"f32": 2.0**-22, "bf16": 2.0**-7, "f16": 2.0**-10}[name]
                assert error.max() <= size * bound
                if name != "f32":
                    # A cosine on the edge between two bf16 values may fall to the other side.
                    assert (error == 0).mean() >= 0.97


def with_layer_count(case):
    """The config with the number of layers, where it leaves that to the configuration class."""
    config = json.loads(json.dumps(case["config"]))
    part = "text_config" if "text_config" in config else ""
    for index in case["layers"]:
        if index >= 0:
            part = case["ropes"][index]["part"]
    text = config
    for key in part.split("."):
        text = text.get(key, text)
    counts = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers")
    if not any(key in text for key in (*counts, "layer_types", "layers_block_type")):
        text["num_hidden_layers"] = len(case["layers"])
    return config


def deviates(file):
    """Run all the same, and an error if it no longer deviates."""
    reason = DEVIATIONS.get(file)
    return [pytest.mark.xfail(reason=reason, strict=True)] if reason else []


@pytest.mark.parametrize("file", [pytest.param(file, marks=deviates(file)) for file in CASES])
def test_layers(oracle_folder, file):
    case = json.loads((oracle_folder / file).read_text())
    if case["layers"] is None:  # a vision tower alone
        assert librope.Model(case["config"]).layer_types == ("vision",)
        return
    model = librope.Model(with_layer_count(case))
    layers = model.layers
    kinds = {}
    for layer, index in enumerate(case["layers"]):
        if index < 0:
            if layer < len(layers):
                assert model.config(layers[layer]).get("scaling") == "nope"
        else:
            kinds.setdefault((layers[layer], index), layer)
    for layer_type, index in kinds:
        check_rope(model, layer_type, case["ropes"][index])
