"""PyTorch: transformers' eager code, the same through torch.compile, and torchtune's module."""

import importlib.metadata
import importlib.util

import torch
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves

from ..protocol import HEAD_DIM, TABLE_ROWS, THETA, Contender, Returning, Prepared, Unable
from .torch_tensors import as_numpy, as_torch

TORCH = f"torch {torch.__version__}"
TRANSFORMERS = f"transformers {importlib.metadata.version('transformers')}"


def noop(self):
    return ONE.view(1)


ONE = torch.ones(1)


def inputs(case, tensors):
    """q, k [1, tokens, heads, head_dim], and cos, sin as the model hands them on: of full width, in
    the dtype, made once per forward pass."""
    q, k = (as_torch(tensors, name)[None] for name in "qk")
    cos, sin = (as_torch(tensors, name)[None] for name in ("cos", "sin"))
    if case.pairing == "halves":
        cos, sin = (torch.cat((x, x), -1) for x in (cos, sin))
    else:
        cos, sin = (torch.repeat_interleave(x, 2, -1) for x in (cos, sin))
    return q, k, cos.to(q.dtype), sin.to(q.dtype)


class Transformers(Contender):
    name = "transformers"
    version = f"{TRANSFORMERS}, {TORCH}"
    arithmetic = "steps"
    note = "apply_rotary_pos_emb of Llama (halves) and Cohere (interleaved), eager"
    noop = noop

    def prepare(self, case, tensors):
        if case.in_place:
            raise Unable("returns new tensors")
        rotate = halves if case.pairing == "halves" else interleaved
        arguments = inputs(case, tensors)
        return Returning(tensors, lambda: rotate(*arguments, unsqueeze_dim=2), as_numpy)


class Compiled(Contender):
    name = "torch_compile"
    version = f"{TORCH}, {TRANSFORMERS}"
    arithmetic = "steps"
    note = "the same functions through torch.compile; in place: the result is copied into q and k"
    noop = noop

    def prepare(self, case, tensors):
        torch._dynamo.reset()  # one shape at a time, none dynamic
        rotate = halves if case.pairing == "halves" else interleaved
        arguments = inputs(case, tensors)
        if not case.in_place:
            compiled = torch.compile(rotate, dynamic=False)
            return Returning(tensors, lambda: compiled(*arguments, unsqueeze_dim=2), as_numpy)

        def into(q, k, cos, sin):
            new_q, new_k = rotate(q, k, cos, sin, unsqueeze_dim=2)
            q.copy_(new_q)
            k.copy_(new_k)

        return InPlace(torch.compile(into, dynamic=False), arguments)


class InPlace(Prepared):
    def __init__(self, call, arguments):
        self.call, self.arguments = call, arguments

    def run(self):
        self.call(*self.arguments)

    def release(self):
        self.call = self.arguments = None


def torchtune_rope():
    """torchtune's class, from its file alone: the package as a whole wants an older torchao."""
    package = importlib.util.find_spec("torchtune").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("rope_of_torchtune", f"{package}/modules/position_embeddings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RotaryPositionalEmbeddings(HEAD_DIM, TABLE_ROWS, int(THETA))


class Torchtune(Contender):
    name = "torchtune"
    version = f"torchtune {importlib.metadata.version('torchtune')}, {TORCH}"
    angles = "own"
    note = "RotaryPositionalEmbeddings with input_pos, eager"
    noop = noop
    rope = None

    def prepare(self, case, tensors):
        if case.in_place or case.pairing != "interleaved":
            raise Unable("returns new tensors" if case.in_place else "interleaved only")
        self.rope = self.rope or torchtune_rope()
        q, k = (as_torch(tensors, name)[None] for name in "qk")
        at = as_torch(tensors, "positions")[None]
        return Returning(tensors, lambda: (self.rope(q, input_pos=at), self.rope(k, input_pos=at)), as_numpy)


def contenders(threads, _argument):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return [Transformers(), Compiled(), Torchtune()]
