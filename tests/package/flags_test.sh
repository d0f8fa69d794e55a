#!/usr/bin/env bash
# Compiler flags of the surroundings: -Ofast changes no bit of the results and does not switch off
# subnormal numbers in the process, sources outside of the build refuse it, and a -march that Highway
# cannot take is explained.
# usage: flags_test.sh <librope.so> <source folder> <cmake> <C compiler> <C++ compiler>
set -eu
library=$1 source=$2 cmake=$3 cc=$4 cxx=$5
dir=$(dirname "$library")/flags_test
rm -rf "$dir"
mkdir "$dir"
trap 'rm -rf "$dir"' EXIT
fail() { echo "flags_test: $*" >&2; exit 1; }

# Writes rotated bits of several policies, and of scalings with much arithmetic, to standard output.
cat >"$dir/bits.c" <<'C'
#include <librope/rope.h>
#include <stdio.h>

int main(void) {
  static float q[8 * 128];
  static int64_t positions[8] = {0, 1, 3, 4095, 131071, 1048577, 16777217, 1099511627777};
  volatile float least = 1e-38f;
  if (least / 16 == 0) return puts("subnormal numbers are flushed to zero"), 1;
  for (int32_t angle = 0; angle < 3; ++angle) {
    for (int32_t scaling = 0; scaling < 3; ++scaling) {
      rope_config config = ROPE_INIT(rope_config);
      config.head_dim = 128;
      config.theta = 500000;
      config.pairing = ROPE_PAIRING_HALVES;
      config.angle = angle;
      if (scaling == 1) config.scaling = ROPE_SCALING_LINEAR, config.factor = 7;
      if (scaling == 2) {
        config.scaling = ROPE_SCALING_YARN;
        config.factor = 32;
        config.original_max_position_embeddings = 4096;
      }
      rope_context* rope;
      if (rope_context_create(&config, &rope) != ROPE_OK) return puts(rope_last_error()), 1;
      for (int i = 0; i < 8 * 128; ++i) q[i] = (float)(i % 37 - 18) / 7;
      if (rope_apply_thd(rope, ROPE_DTYPE_F32, 8, positions, q, 1, NULL, 0) != ROPE_OK) return puts(rope_last_error()), 1;
      if (fwrite(q, sizeof q, 1, stdout) != 1) return 1;
      rope_context_destroy(rope);
    }
  }
  return 0;
}
C
bits() { # LIBRARY: their checksum
  local folder
  folder=$(dirname "$1")
  "$cc" -std=c99 -I"$source/include" "$dir/bits.c" "$1" -Wl,-rpath,"$folder" -o "$dir/bits" || fail "compile bits.c"
  "$dir/bits" >"$dir/out" || { cat "$dir/out"; fail "the program with $1"; }
  sha256sum <"$dir/out"
}
configure() {
  "$cmake" -S "$source" -DROPE_BUILD_TESTS=OFF -DROPE_CUDA=OFF -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" "$@" >"$dir/log" 2>&1
}

# Kernels of two instruction sets on x86, not of all: the flags do the same to each.
configure -B "$dir/fast" -DCMAKE_CXX_FLAGS="-DHWY_DISABLED_TARGETS=~HWY_BASELINE_TARGETS^HWY_AVX2" \
  -DCMAKE_CXX_FLAGS_RELEASE="-Ofast -ffast-math -funsafe-math-optimizations" || { cat "$dir/log"; fail "configure with -Ofast"; }
grep -q 'compiled without -ffast-math' "$dir/log" || fail "nothing said of -ffast-math"
"$cmake" --build "$dir/fast" --target librope >"$dir/log" 2>&1 || { cat "$dir/log"; fail "build with -Ofast"; }
normal=$(bits "$library")
fast=$(bits "$dir/fast/librope.so")
[ "$normal" = "$fast" ] || fail "-Ofast changes bits"

for flags in -ffast-math -Ofast -ffinite-math-only; do
  for header in math/rotate.h context/double_double.h; do
    ! "$cxx" -std=c++17 $flags -I"$source/include" -I"$source/src" -fsyntax-only -x c++ "$source/src/$header" 2>"$dir/log" ||
      fail "$header is compiled with $flags"
    grep -q 'must not be compiled with -ffast-math' "$dir/log" || { cat "$dir/log"; fail "$header with $flags"; }
  done
done

# Highway before 1.0.5 refuses this CPU with an #error that names neither CPU nor flag.
if "$cxx" -march=sapphirerapids -fsyntax-only -x c++ /dev/null 2>/dev/null; then
  if configure -B "$dir/march" -DCMAKE_CXX_FLAGS=-march=sapphirerapids; then
    grep -q 'with -march=sapphirerapids it runs on such a CPU only' "$dir/log" || fail "nothing said of -march"
  else
    tr '\n' ' ' <"$dir/log" | tr -s ' ' | grep -q 'librope needs no -march' || { cat "$dir/log"; fail "-march"; }
  fi
fi
echo ok
