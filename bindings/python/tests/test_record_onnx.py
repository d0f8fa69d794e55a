"""librope.record.run_onnx: the RotaryEmbedding nodes of a graph, as onnxruntime computes them."""

import json

import numpy as np
import pytest

from librope import cli, record

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "rope_theta": 500000.0, "max_position_embeddings": 4096,
}  # fmt: skip
BATCH, TOKENS, HEADS, DIM = 2, 20, 4, 64
INV_FREQ = 1 / 500000.0 ** (np.arange(0, DIM, 2, np.float32) / np.float32(DIM))


def graph(heads=(HEADS, 2), flat=True, microsoft=True, interleaved=0, ids=(BATCH, TOKENS)):
    """q and k of one layer: [batch, tokens, heads * channels], or [batch, heads, tokens, channels]."""
    h, f32 = onnx.helper, onnx.TensorProto.FLOAT
    angles = np.arange(200, dtype=np.float32)[:, None] * INV_FREQ
    caches = [onnx.numpy_helper.from_array(f(angles), n) for n, f in (("cos", np.cos), ("sin", np.sin))]
    nodes, inputs, outputs = [], [h.make_tensor_value_info("ids", onnx.TensorProto.INT64, ids)], []
    for name, n in zip("qk", heads, strict=True):
        shape = [BATCH, TOKENS, n * DIM] if flat else [BATCH, n, TOKENS, DIM]
        given = [f"{name}2", "ids", "cos", "sin"] if microsoft else [f"{name}2", "cos", "sin", "ids"]
        more = {"num_heads": n} if flat and not microsoft else {}
        nodes += [
            h.make_node("Add", [name, name], [f"{name}2"]),
            h.make_node("RotaryEmbedding", given, [f"{name}3"], f"/model/layers.0/attn/{name}",
                        domain="com.microsoft" if microsoft else "", interleaved=interleaved, **more),
            h.make_node("Neg", [f"{name}3"], [f"{name}4"]),
        ]  # fmt: skip
        inputs.append(h.make_tensor_value_info(name, f32, shape))
        outputs.append(h.make_tensor_value_info(f"{name}4", f32, shape))
    opsets = [h.make_opsetid("", 23), h.make_opsetid("com.microsoft", 1)]
    made = h.make_graph(nodes, "g", inputs, outputs, caches)
    return h.make_model(made, opset_imports=opsets, ir_version=10)


def feed(rng, ids, flat=True, heads=(HEADS, 2)):
    found = {"ids": ids.astype(np.int64)}
    for name, n in zip("qk", heads, strict=True):
        shape = (BATCH, TOKENS, n * DIM) if flat else (BATCH, n, TOKENS, DIM)
        found[name] = rng.standard_normal(shape, np.float32)
    return found


def check(tmp_path, capsys, recording, config=CONFIG):
    (tmp_path / "config.json").write_text(json.dumps(config))
    recording.save(tmp_path / "run.npz")
    status = cli.main(["check", str(tmp_path), str(tmp_path / "run.npz"), "--json"])
    return status, json.loads(capsys.readouterr()[0])["tensors"]


@pytest.mark.parametrize("microsoft", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_nodes_are_recorded(tmp_path, capsys, rng, microsoft, flat):
    ids = np.stack([np.arange(TOKENS), np.arange(TOKENS) + 50])
    given = feed(rng, ids, flat)
    path = tmp_path / "model.onnx"
    onnx.save(graph(flat=flat, microsoft=microsoft), path)
    run = record.run_onnx(path, given)
    assert list(run) == ["/model/layers.0/attn/q", "/model/layers.0/attn/k"]
    q = run["/model/layers.0/attn/q"]
    want = given["q"].reshape(BATCH, TOKENS, HEADS, DIM) if flat else given["q"].swapaxes(1, 2)
    np.testing.assert_array_equal(q.before, 2 * want)
    np.testing.assert_array_equal(q.positions, ids)
    status, found = check(tmp_path, capsys, run)
    assert status == 0 and {t["grade"] for t in found} <= {"identical bits", "right to its rounding"}


def test_what_the_graph_does_wrong_is_named(tmp_path, capsys, rng):
    ids = np.broadcast_to(np.arange(TOKENS), (BATCH, TOKENS))
    run = record.run_onnx(graph(interleaved=1), feed(rng, ids))
    status, found = check(tmp_path, capsys, run)
    assert status == 1
    assert all(t["explanations"][0]["words"] == ["pairing interleaved instead of halves"] for t in found)


def test_one_position_is_that_of_the_first_token(tmp_path, capsys, rng):
    run = record.run_onnx(graph(ids=(1,)), feed(rng, np.array([7])))
    assert run["/model/layers.0/attn/k"].positions.tolist() == list(range(7, 7 + TOKENS))
    assert check(tmp_path, capsys, run)[0] == 0


def test_graphs_without_such_nodes(rng):
    h = onnx.helper
    x = h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    plain = h.make_model(h.make_graph([h.make_node("Neg", ["x"], ["y"])], "g", [x], [y]))
    with pytest.raises(ValueError, match="the graph has no RotaryEmbedding node$"):
        record.run_onnx(plain, {})
    node = h.make_node("GroupQueryAttention", ["x"], ["y"], domain="com.microsoft", do_rotary=1)
    fused = h.make_model(h.make_graph([node], "g", [x], [y]))
    with pytest.raises(ValueError, match="1 GroupQueryAttention nodes rotate inside"):
        record.run_onnx(fused, {})
