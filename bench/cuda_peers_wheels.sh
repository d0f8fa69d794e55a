#!/usr/bin/env bash
# Wheels of the peers of cuda_peers.py that few machines with a GPU have, for one without network or
# compiler: Liger, and FlashInfer with its rotary kernels compiled and without sources, which would be
# 100 MB. scripts/gpu-check installs what it finds in DIR for its run.
#
#   bench/cuda_peers_wheels.sh DIR [ARCH]   ARCH: 9.0a by default; where there are tools and network,
#                                           after scripts/setup-cuda
#
# PYTHON: a Python with PyTorch (default: python3), which FlashInfer's build asks for its version.
# ROPE_GPU_PYTHON_VERSION: that of the machine with the GPU (3.12).
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
arch=${2:-9.0a}
python=${PYTHON:-python3} target=${ROPE_GPU_PYTHON_VERSION:-3.12}
flashinfer=0.7.4 tvm_ffi=0.1.15.post2 liger=0.8.5
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cuda=$(compgen -G "${ROPE_CUDA_VENV:-$PWD/build/cuda-venv}/lib/python3*/site-packages/nvidia/cu13")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# get DIR WHEEL..: as the machine with the GPU needs them.
get() {
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$target" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux2014_x86_64 -d "$@"
}
get "$out" "liger-kernel==$liger" "apache-tvm-ffi==$tvm_ffi"
get "$work" "flashinfer-python==$flashinfer"
full=$work/full slim=$work/slim
python3 -m zipfile -e "$work"/flashinfer_python-*.whl "$full"
"$python" -m pip install -q --no-deps --target "$work/site" "apache-tvm-ffi==$tvm_ffi" einops \
  tabulate requests nvidia-ml-py ninja certifi urllib3 charset-normalizer

# FlashInfer compiles for the architecture; its link step wants a libcudart.so and a libcuda.so, which
# CUDA's wheels do not have.
export PYTHONPATH=$work/site:$full FLASHINFER_WORKSPACE_BASE=$work/built
FLASHINFER_CUDA_ARCH_LIST=$arch CUDA_HOME=$cuda MAX_JOBS=1 PATH=$work/site/bin:$PATH "$python" -c \
  'from flashinfer.jit.rope import gen_rope_module; gen_rope_module().build()' \
  >"$work/build.log" 2>&1 || true
objects=("$work"/built/.cache/flashinfer/*/*/cached_ops/rope/*.o)
if [ ${#objects[@]} != 2 ]; then
  tail -n 20 "$work/build.log" >&2
  exit 1
fi
mkdir -p "$slim/flashinfer/data/aot/rope"
c++ "${objects[@]}" -shared -L"$cuda/lib" -l:libcudart.so.13 \
  -o "$slim/flashinfer/data/aot/rope/rope.so"

# Of its Python files those that the import reads, and the small ones.
"$python" - "$full" "$slim" <<'END'
import os
import shutil
import sys

import flashinfer  # noqa: F401

full, slim = sys.argv[1:]
read = {getattr(module, "__file__", None) for module in sys.modules.values()}
for folder, _, files in os.walk(full):
    for name in files:
        path = os.path.join(folder, name)
        is_small = os.path.getsize(path) < 60000 and not folder.startswith(full + "/flashinfer/data")
        if "dist-info" in folder or (name.endswith(".py") and (path in read or is_small)):
            to = path.replace(full, slim)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(path, to)
END
unset PYTHONPATH
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q wheel
"$work/venv/bin/python" -m wheel pack --dest-dir "$out" --build-number 1rope "$slim" >/dev/null
ls -l "$out"
