"""vLLM's kernel for CPUs, csrc/cpu/pos_encoding.cpp of its source package, as an operator of the
PyTorch beside it. The argument is the library that drivers/vllm makes."""

import torch

from ..protocol import HEAD_DIM, Contender, Prepared, Unable
from .torch_tensors import as_torch

ONE = torch.ones(1)


class Rotation(Prepared):
    def __init__(self, case, tensors):
        at = as_torch(tensors, "positions")
        q, k = (as_torch(tensors, name).flatten(1) for name in "qk")
        tables = [as_torch(tensors, name) for name in ("table_cos", "table_sin")]
        table = torch.cat(tables, -1).to(q.dtype)  # as vLLM keeps it
        rotate, neox = torch.ops.peer_vllm.rotary_embedding, case.pairing == "halves"
        self.run = lambda: rotate(at, q, k, HEAD_DIM, table, neox)

    def release(self):
        self.run = None


class Vllm(Contender):
    name = "vllm"
    arithmetic = "steps"
    note = "rotary_embedding of its CPU kernels; cos and sin in the dtype"

    def __init__(self, version):
        self.version = f"vllm {version}, torch {torch.__version__}"

    def noop(self):
        return ONE.view(1)

    def prepare(self, case, tensors):
        if not case.in_place:
            raise Unable("in place only")
        return Rotation(case, tensors)


def contenders(_threads, argument):
    """argument: the library's path | vLLM's version. Threads are torch's, set in torch_rope."""
    path, _, version = argument.partition("|")
    torch.ops.load_library(path)
    return [Vllm(version)]
