"""Records what ggml's rope makes of several ids per token where no converter writes such a file: M-RoPE
(GGML_ROPE_TYPE_MROPE, IMROPE) with frequency factors, and towers (GGML_ROPE_TYPE_VISION, by the arguments of
llama.cpp's clip.cpp for Qwen2-VL).

    GGML_ROPE=libggmlrope.so <python with numpy> tests/gguf/modes.py     # record.py says how it is built

Writes tests/data/ggml_modes.json.
"""

import base64
import ctypes
import dataclasses
import json
import os
import pathlib

import numpy

import ggml
import llama_cpp

TOKENS = [[3, 1021, 40000], [5, 517, 39000], [2, 260, 38500], [3, 1021, 40000]]  # the fourth id is the first
PATCHES = [[0, 3, 63], [0, 17, 40], [0, 3, 63], [0, 17, 40]]  # row, column, row, column
VISION = 24


def cases() -> dict[str, llama_cpp.Layer]:
    multi = {"freq_base": 1e6, "n_ctx_orig": 4096, "factors": "factors"}
    scaled = {"freq_scale": 0.25, "ext_factor": 1.0}
    mrope, imrope = llama_cpp.MODES["MROPE"], llama_cpp.MODES["IMROPE"]
    return {
        "mrope": llama_cpp.Layer(128, 128, mrope, sections=(16, 24, 24, 0), **multi),
        "mrope of four ids, linear": llama_cpp.Layer(128, 128, mrope, sections=(16, 16, 16, 16), freq_scale=0.25,
                                                     **multi),
        "mrope of a part, yarn": llama_cpp.Layer(128, 96, mrope, sections=(16, 16, 16, 0), **multi, **scaled),
        "imrope": llama_cpp.Layer(128, 128, imrope, sections=(24, 20, 20, 0), **multi),
        "imrope, yarn": llama_cpp.Layer(128, 128, imrope, sections=(24, 20, 20, 0), **multi, **scaled),
        "vision": llama_cpp.Layer(80, 40, VISION, 32768, sections=(20, 20, 20, 20)),
    }


def main() -> None:
    library, made = ctypes.CDLL(os.environ["GGML_ROPE"]), []
    for name, layer in cases().items():
        pairs = layer.n_dims // 2
        factors = (1 + 7 * numpy.arange(pairs) / pairs).astype(numpy.float32) if layer.factors else None
        # YaRN's angle is a sum of products, which compilers fuse: smaller positions, smaller differences.
        positions = PATCHES if layer.mode == VISION else [ids[:2] for ids in TOKENS] if layer.ext_factor else TOKENS
        entry = dataclasses.asdict(layer)
        entry["factors"] = None if factors is None else base64.b64encode(factors.tobytes()).decode()
        made.append({"name": name, **entry, "positions": positions,
                     "rotated": ggml.rotate(library, layer, positions, factors)})
    out = {"source": "ggml of llama-cpp-python 0.3.36, MIT", "cases": made}
    where = pathlib.Path(__file__).parents[1] / "data" / "ggml_modes.json"
    where.write_text(json.dumps(out, indent=1) + "\n")
    print(f"{len(made)} cases: {where}")


if __name__ == "__main__":
    main()
