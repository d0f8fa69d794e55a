#!/usr/bin/env bash
# scripts/gpu-check from its beginning to its end without a GPU: in a folder to which scripts, bench
# and programs were carried, those of the stand-in, with less to do. nvidia-smi and compute-sanitizer
# are played; under the latter kernels of every kind must have run.
#
#   gpu_check_test.sh SOURCE BUILD/tests
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{scripts,bench,bin} "$work"/gpu/{tests,bench}
cp "$1/scripts/gpu-check" "$work/scripts"
cp "$1"/bench/cuda_*.py "$work/bench"
cp "$2/../bench/cuda_bench" "$work/gpu/bench"
ln -s "$2"/cuda_*test "$work/gpu/tests"

# play PROGRAM: what it does is in standard input.
play() {
  { echo '#!/bin/sh'; cat; } >"$work/$1"
  chmod +x "$work/$1"
}
for walk in "$2"/{*_grid,staged_*}_test; do # they are tests of their own
  rm -f "$work/gpu/tests/${walk##*/}"
  play "gpu/tests/${walk##*/}" <<<'echo walked'
done
play bin/nvidia-smi <<<'echo stand-in'
play bin/compute-sanitizer <<<"shift 4; LIBROPE_WALKED=$work/walked exec \"\$@\""

PATH=$work/bin:$PATH ROPE_TEST_DIVIDE=100 ROPE_BENCH_DIVIDE=2048 \
  "$work/scripts/gpu-check" gpu >"$work/output" || {
  cat "$work/output" "$work"/bench/results/*
  exit 1
}
grep -E 'rows, .* bars missed|parts failed' "$work/output"

missing=0
expect() {
  if ! grep -qE "$1" "$2"; then
    echo "no '$1' in what $2 has"
    missing=1
  fi
}
for kind in prefill append decode qknorm layer move gradient; do
  expect "^$kind +[0-9]+ .* (of copy|x copy kernel)" "$work/output"
done
expect 'gpu-check: 0 parts failed' "$work/output"
expect '"kind": "layer"' "$work"/bench/results/cuda-stand-in-*.txt
expect '^gradients [123] columns$' "$work/walked"
for dtype in 0 1 2; do
  expect "^gradients $((dtype + 1))$" "$work/walked"
  expect "^staged ($((12 + dtype))|$((15 + dtype))|$((18 + dtype)))$" "$work/walked"
  for variant in 0 1 6 7; do expect "^staged $((2 * dtype + variant))$" "$work/walked"; done
done
exit "$missing"
