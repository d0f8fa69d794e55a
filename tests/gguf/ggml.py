"""A head through ggml's own rope, by ggml_rope.c, for record.py and modes.py."""

import base64
import ctypes

import numpy

import llama_cpp

FIELDS = [(name, ctypes.c_int) for name in ("n_dims", "mode", "n_ctx_orig", "offset")]
FIELDS += [(name, ctypes.c_float) for name in ("freq_base", "freq_scale", "ext_factor", "attn_factor",
                                               "beta_fast", "beta_slow")]


class Numbers(ctypes.Structure):
    _fields_ = [*FIELDS, ("sections", ctypes.c_int * 4)]


def rotate(library: ctypes.CDLL, layer: llama_cpp.Layer, positions: list[list[int]],
           factors: numpy.ndarray | None) -> str:
    """Base64 of f32 [tokens, head_dim]. positions: of the tokens on ggml's four axes; without sections the
    first counts."""
    numbers = Numbers(*(getattr(layer, name) for name, _ in FIELDS), (ctypes.c_int * 4)(*layer.sections))
    tokens, size = len(positions[0]), layer.head_dim
    channels = numpy.arange(size)[None, :] * 37 + numpy.arange(tokens)[:, None] * 11
    x = ((channels % 101 - 50) / 64).astype(numpy.float32)
    y = numpy.empty_like(x)
    ids = numpy.array(positions if any(layer.sections) else positions[0], dtype=numpy.int32)
    pointer = lambda array: None if array is None else array.ctypes.data_as(ctypes.c_void_p)
    if library.rotate(ctypes.byref(numbers), size, tokens, pointer(ids), pointer(factors), pointer(x),
                      pointer(y)) != 0:
        raise RuntimeError("ggml failed")
    return base64.b64encode(y.tobytes()).decode()
