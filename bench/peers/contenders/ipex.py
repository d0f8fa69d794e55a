"""Intel's extension for PyTorch: torch_ipex.rotary_position_embedding. It pins the torch that it
was built for, so it has an environment of its own."""

import intel_extension_for_pytorch
import torch

from ..protocol import HEAD_DIM, K_HEADS, Q_HEADS, Contender, Returning, Unable
from .torch_tensors import as_numpy, as_torch

ONE = torch.ones(1)


class Ipex(Contender):
    name = "ipex"
    version = f"intel-extension-for-pytorch {intel_extension_for_pytorch.__version__}, torch {torch.__version__}"
    note = "rotary_position_embedding, one call for q and one for k, f32 table, sin before cos"

    def noop(self):
        return ONE.view(1)

    def prepare(self, case, tensors):
        if case.in_place:
            raise Unable("returns new tensors")
        table = torch.cat([as_torch(tensors, name) for name in ("table_sin", "table_cos")], -1)
        q, k = (as_torch(tensors, name)[None] for name in "qk")
        at = as_torch(tensors, "positions")[None]
        offset = HEAD_DIM // 2 if case.pairing == "halves" else 1
        rotate = torch.ops.torch_ipex.rotary_position_embedding

        def run():
            return (rotate(q, table, at, Q_HEADS, HEAD_DIM, offset, HEAD_DIM)[0],
                    rotate(k, table, at, K_HEADS, HEAD_DIM, offset, HEAD_DIM)[0])

        return Returning(tensors, run, as_numpy)


def contenders(threads, _argument):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return [Ipex()]
