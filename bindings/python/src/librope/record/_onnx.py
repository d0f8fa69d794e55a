"""RotaryEmbedding nodes of an ONNX graph, run in onnxruntime with their inputs as further outputs.

Of com.microsoft (input, position_ids, caches) and of ONNX 23 (input, caches, position_ids).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Recording

_NODE = "RotaryEmbedding"


def run(model: Any, inputs: Mapping[str, Any], providers: tuple[str, ...]) -> Recording:
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if isinstance(model, (str, os.PathLike)):
        path = pathlib.Path(model)
        # Weights beside the file stay there; onnxruntime reads them.
        folder = str(path.parent.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        graph = onnx.load(path, load_external_data=False)
    else:
        graph = onnx.ModelProto()
        graph.CopyFrom(model)
    nodes = [n for n in graph.graph.node if n.op_type == _NODE]
    if not nodes:
        fused = [n.op_type for n in graph.graph.node if _rotates_inside(n)]
        more = f": {len(fused)} {fused[0]} nodes rotate inside, where nothing can be read" if fused else ""
        raise ValueError(f"the graph has no {_NODE} node{more}")
    constants = {t.name: t for t in graph.graph.initializer}
    there = {o.name for o in graph.graph.output}
    wanted: dict[str, None] = {}
    for n in nodes:
        for name in (n.input[0], n.output[0], _input(n, "position_ids"), _input(n, "cos_cache")):
            if name and name not in inputs and name not in constants:
                wanted[name] = None
    for name in wanted:
        if name not in there:
            graph.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=list(providers))
    values = dict(zip(wanted, session.run(list(wanted), dict(inputs)), strict=True))

    def value(name: str) -> Any:
        if name in constants:
            return onnx.numpy_helper.to_array(constants[name])
        return np.asarray(inputs[name]) if name in inputs else values[name]

    recording = Recording()
    for i, n in enumerate(nodes):
        x, y = value(n.input[0]), value(n.output[0])
        if x.ndim == 3:  # [batch, tokens, heads * channels]
            width = _head(n, x, lambda n=n: value(_input(n, "cos_cache")))
            x, y = (a.reshape(*a.shape[:2], -1, width) for a in (x, y))
            layout = "bshd"
        else:
            layout = "bhsd"
        ids = _input(n, "position_ids")
        at = value(ids) if ids else None
        if at is not None and at.size == 1 and x.shape["bshd".index("s") if layout == "bshd" else 2] > 1:
            at = int(at.reshape(-1)[0]) + np.arange(x.shape[1 if layout == "bshd" else 2])  # the first of them
        recording.add(n.name or f"{_NODE}_{i}", x, y, at, layout=layout)
    return recording


def _attribute(node: Any, name: str) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), 0)


def _rotates_inside(node: Any) -> bool:
    return bool(_attribute(node, "do_rotary"))


def _input(node: Any, name: str) -> str:
    """The name of an input, "" if it is not given."""
    microsoft = ("input", "position_ids", "cos_cache", "sin_cache")
    standard = ("input", "cos_cache", "sin_cache", "position_ids")
    at = (microsoft if node.domain == "com.microsoft" else standard).index(name)
    return str(node.input[at]) if at < len(node.input) else ""


def _head(node: Any, x: Any, cos_cache: Any) -> int:
    """The channels of a head of [batch, tokens, heads * channels]."""
    heads = _attribute(node, "num_heads")
    if heads > 0:
        return int(x.shape[2]) // heads
    if _attribute(node, "rotary_embedding_dim") > 0:
        raise ValueError(f"{node.name or _NODE} turns a part of each head, and num_heads does not tell how wide they are")
    return 2 * int(cos_cache().shape[-1])
