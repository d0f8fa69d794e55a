"""Compiles vLLM's CPU kernel: build.py CSRC FOLDER, run by the Python whose torch will load it.

The flags are those of vLLM's cmake/cpu_extension.cmake for this CPU, with -O3.
"""

import pathlib
import sys

from torch.utils import cpp_extension


def flags():
    has = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    avx512 = ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"]
    chosen = ["-O3", "-std=c++20", "-fopenmp", "-DVLLM_CPU_EXTENSION"]
    if "avx2" not in has:
        return chosen  # not x86, or too old for its vectors
    chosen.append("-mf16c")
    if not {flag.removeprefix("-m") for flag in avx512} <= has:
        return [*chosen, "-mavx2"]
    if "amx_tile" in has:
        return [*chosen, *avx512, "-mamx-bf16", "-mamx-tile", "-mavx512bf16", "-mavx512vnni"]
    return [*chosen, *avx512]


def main(csrc, folder):
    csrc = pathlib.Path(csrc)
    cpp_extension.load(
        "peer_vllm",
        [str(csrc / "cpu" / "pos_encoding.cpp"), str(pathlib.Path(__file__).parent / "vllm.cpp")],
        extra_cflags=flags(),
        extra_ldflags=["-fopenmp"],
        extra_include_paths=[str(csrc), str(csrc / "cpu")],
        build_directory=folder,
        is_python_module=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
