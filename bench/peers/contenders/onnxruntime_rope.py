"""onnxruntime: a model of two RotaryEmbedding nodes, q and k, bound to the shared memory. Both
operators: com.microsoft's, and the standard one of ONNX opset 23."""

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper

from ..protocol import HEAD_DIM, K_HEADS, Q_HEADS, TABLE_ROWS, Contender, Prepared, Unable

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
HEADS = {"q": Q_HEADS, "k": K_HEADS}


def session(model, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def rope_model(case, domain):
    """Inputs and outputs [1, tokens, heads * head_dim]; the tables are inputs, too."""
    dtype = TYPES[case.dtype]
    info = helper.make_tensor_value_info
    tables = [info(name, dtype, [TABLE_ROWS, HEAD_DIM // 2]) for name in ("cos", "sin")]
    at = info("positions", TensorProto.INT64, [1, case.tokens])
    nodes, ins, outs = [], [], []
    for name, heads in HEADS.items():
        shape = [1, case.tokens, heads * HEAD_DIM]
        ins.append(info(name, dtype, shape))
        outs.append(info(f"{name}_out", dtype, shape))
        order = [name, "positions", "cos", "sin"] if domain else [name, "cos", "sin", "positions"]
        nodes.append(helper.make_node("RotaryEmbedding", order, [f"{name}_out"], domain=domain, num_heads=heads,
                                      interleaved=int(case.pairing == "interleaved")))
    graph = helper.make_graph(nodes, "rope", [*ins, *tables, at], outs)
    opsets = [helper.make_opsetid("", 23)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


class Bound(Prepared):
    def __init__(self, case, tensors, domain):
        self.session = session(rope_model(case, domain), case.threads)
        self.binding = self.session.io_binding()
        dtype = {"f32": numpy.float32, "f16": numpy.float16}[case.dtype]
        # Of the contender's own: tables in the dtype of q, as the operators want them.
        self.tables = [tensors.array(f"table_{name}").astype(dtype) for name in ("cos", "sin")]
        for name, table in zip(("cos", "sin"), self.tables, strict=True):
            self.binding.bind_input(name, "cpu", 0, dtype, table.shape, table.ctypes.data)
        self.binding.bind_input("positions", "cpu", 0, numpy.int64, (1, case.tokens), tensors.address("positions"))
        for name, heads in HEADS.items():
            shape = (1, case.tokens, heads * HEAD_DIM)
            self.binding.bind_input(name, "cpu", 0, dtype, shape, tensors.address(name))
            self.binding.bind_output(f"{name}_out", "cpu", 0, dtype, shape, tensors.address(f"{name}_out"))
        self.run = lambda: self.session.run_with_iobinding(self.binding)

    def release(self):
        self.run = self.binding = self.session = self.tables = None


class OnnxRuntime(Contender):
    version = f"onnxruntime {onnxruntime.__version__}"
    arithmetic = "steps"

    def __init__(self, name, domain, note, threads):
        self.name, self.domain, self.note = name, domain, note
        value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "noop", value[:1], value[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        self.small = session(model, threads)
        self.small_binding = self.small.io_binding()
        self.one, self.out = numpy.ones(1, numpy.float32), numpy.ones(1, numpy.float32)
        self.small_binding.bind_input("x", "cpu", 0, numpy.float32, (1,), self.one.ctypes.data)
        self.small_binding.bind_output("y", "cpu", 0, numpy.float32, (1,), self.out.ctypes.data)

    def noop(self):
        self.small.run_with_iobinding(self.small_binding)

    def prepare(self, case, tensors):
        if case.in_place:
            raise Unable("a graph's output may not be its input")
        if case.dtype == "bf16":
            raise Unable("no bf16 on its CPU provider")
        return Bound(case, tensors, self.domain)


def contenders(threads, _argument):
    return [
        OnnxRuntime("ort_contrib", "com.microsoft", "com.microsoft.RotaryEmbedding, bound to memory", threads),
        OnnxRuntime("ort_opset23", "", f"RotaryEmbedding of opset 23 (onnx {onnx.__version__}), bound to memory",
                    threads),
    ]
