#!/usr/bin/env bash
# An installed librope, moved elsewhere, serves a C program through pkg-config and a CMake project
# through find_package; a static build too.
# usage: install_test.sh <build folder> <source folder> <cmake> <C compiler>
set -eu
build=$1 source=$2 cmake=$3 cc=$4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cat >"$dir/main.c" <<'C'
#include <librope/rope.h>
#include <stdio.h>

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 64;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  if (rope_context_create(&config, &rope) != ROPE_OK) return puts(rope_last_error()), 1;
  static float q[2 * 64] = {1};
  const int64_t positions[1] = {3};
  if (rope_apply_thd(rope, ROPE_F32, 1, positions, q, 2, NULL, 0) != ROPE_OK) return 1;
  rope_context_destroy(rope);
  return q[0] < -0.98f && q[0] > -1.0f && q[32] > 0.141f && q[32] < 0.142f ? 0 : 1; /* cos 3, sin 3 */
}
C
mkdir "$dir/consumer"
cp "$dir/main.c" "$dir/consumer"
cat >"$dir/consumer/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(consumer C CXX)
find_package(librope 0.1 REQUIRED)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE librope::librope)
CMAKE

consume() { # prefix
  pkg=$(dirname "$(find "$1" -name librope.pc)")
  "$cmake" -S "$dir/consumer" -B "$dir/consumer-$2" -DCMAKE_PREFIX_PATH="$1" -DCMAKE_C_COMPILER="$cc" >"$dir/log" || { cat "$dir/log"; exit 1; }
  "$cmake" --build "$dir/consumer-$2" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
  "$dir/consumer-$2/consumer"
}

"$cmake" --install "$build" --prefix "$dir/first" >/dev/null
mv "$dir/first" "$dir/moved"
consume "$dir/moved" shared
lib=$(dirname "$pkg")
export PKG_CONFIG_PATH=$pkg
"$cc" -std=c99 -Wall -Werror $(pkg-config --cflags librope) "$dir/main.c" -o "$dir/main" $(pkg-config --libs librope)
LD_LIBRARY_PATH=$lib "$dir/main"
test "$(pkg-config --modversion librope)" = "$(sed -n 's/^#define ROPE_VERSION_[A-Z]* //p' "$source/include/librope/rope.h" | paste -sd.)"
! grep -rIl "$build\|$dir/first" "$dir/moved" --include='*.pc' --include='*.cmake' || { echo "an installed file names the build"; exit 1; }

"$cmake" -S "$source" -B "$dir/static" -DBUILD_SHARED_LIBS=OFF -DROPE_BUILD_TESTS=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_INSTALL_PREFIX="$dir/static-prefix" >"$dir/log" || { cat "$dir/log"; exit 1; }
"$cmake" --build "$dir/static" --target install >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
consume "$dir/static-prefix" static
export PKG_CONFIG_PATH=$pkg
"$cc" -std=c99 $(pkg-config --static --cflags librope) "$dir/main.c" -o "$dir/main" $(pkg-config --static --libs librope)
"$dir/main"
echo ok
