#!/usr/bin/env bash
# An installed librope, moved elsewhere, serves programs in C through pkg-config and CMake projects in
# C and in C++ through find_package, shared and static; what is installed is complete and says nothing
# of the build.
# usage: install_test.sh <build folder> <source folder> <cmake> <C compiler> <C++ compiler>
set -eu
build=$1 source=$2 cmake=$3 cc=$4 cxx=$5
dir=$build/install_test # in one place of each checkout, so that ccache finds objects of another
rm -rf "$dir"
mkdir "$dir"
trap 'rm -rf "$dir"' EXIT
fail() { echo "install_test: $*" >&2; exit 1; }
quietly() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; }; }
refused() { # PATTERN COMMAND..: the command fails and says so
  local pattern=$1
  shift
  ! "$@" >"$dir/log" 2>&1 || fail "was not refused: $*"
  tr '\n' ' ' <"$dir/log" | tr -s ' ' | grep -qE "$pattern" || { cat "$dir/log"; fail "no \"$pattern\": $*"; }
}
version=$(sed -n 's/^#define ROPE_VERSION_[A-Z]* //p' "$source/include/librope/rope.h" | paste -sd.)
minor=${version%.*}
# Only librope's own .pc file: it needs no other.
pc() { PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=$pkg pkg-config "$@"; }

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
  if (rope_apply_thd(rope, ROPE_DTYPE_F32, 1, positions, q, 2, NULL, 0) != ROPE_OK) return 1;
  rope_context_destroy(rope);
  return q[0] < -0.98f && q[0] > -1.0f && q[32] > 0.141f && q[32] < 0.142f ? 0 : 1; /* cos 3, sin 3 */
}
C
# A project of one language each; it also checks what find_package leaves behind.
for language in C CXX; do
  mkdir "$dir/$language"
  suffix=$([ $language = C ] && echo c || echo cc)
  cp "$dir/main.c" "$dir/$language/main.$suffix"
  cat >"$dir/$language/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.16)
project(consumer $language)
get_property(before DIRECTORY PROPERTY VARIABLES)
find_package(librope \${WANTED} REQUIRED \${PARTS})
get_property(after DIRECTORY PROPERTY VARIABLES)
list(REMOVE_ITEM after before \${before})
list(FILTER after EXCLUDE REGEX "^(librope_|Threads_|FIND_PACKAGE_|CMAKE_|_CMAKE_|THREADS_|PTHREAD_)")
if(after)
  message(FATAL_ERROR "find_package leaves \${after}")
endif()
add_executable(consumer main.$suffix)
target_link_libraries(consumer PRIVATE librope::librope)
CMAKE
done
consume() { # PREFIX NAME: sets pkg
  pkg=$(dirname "$(find "$1" -name librope.pc)")
  local language
  for language in C CXX; do
    quietly "$cmake" -S "$dir/$language" -B "$dir/$2-$language" -DCMAKE_PREFIX_PATH="$1" -DWANTED="$minor" \
      -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
    quietly "$cmake" --build "$dir/$2-$language"
    "$dir/$2-$language/consumer" || fail "$2 $language consumer"
  done
}
compile() { "$cc" -std=c99 -Wall -Werror "$dir/main.c" -o "$dir/main" "$@" || fail "compile $*"; }

# --- shared, moved
quietly "$cmake" --install "$build" --prefix "$dir/first"
mv "$dir/first" "$dir/moved"
consume "$dir/moved" shared
lib=$(dirname "$pkg")
compile $(pc --cflags --libs librope)
LD_LIBRARY_PATH=$lib "$dir/main"
test "$(realpath "$(pc --variable=includedir librope)")" = "$(realpath "$dir/moved/include")" || fail "includedir"
test "$(pc --modversion librope)" = "$version" || fail "librope.pc has another version"
! grep -rIl "$build\|$dir/first" "$dir/moved" --include='*.pc' --include='*.cmake' || fail "an installed file names the build"

# Another ABI is refused: by CMake's version, by its absence of components, by the name of the library.
next=${minor%.*}.$((${minor#*.} + 1))
configure=("$cmake" -S "$dir/C" -DCMAKE_PREFIX_PATH="$dir/moved" -DCMAKE_C_COMPILER="$cc")
refused 'compatible with requested version' "${configure[@]}" -B "$dir/next" -DWANTED="$next"
refused 'compatible with requested version' "${configure[@]}" -B "$dir/old" -DWANTED="$version.1"
refused 'librope has no components' "${configure[@]}" -B "$dir/parts" -DWANTED="$minor" -DPARTS="COMPONENTS;cuda"
! pc --exists "librope >= $next" || fail "librope.pc is newer than the library"
mv "$lib/librope.so.$minor" "$lib/librope.so.$next"
! LD_LIBRARY_PATH=$lib "$dir/main" 2>/dev/null || fail "the program runs with librope.so.$next"
mv "$lib/librope.so.$next" "$lib/librope.so.$minor"

# Complete: documents, and a page that names every function.
for file in LICENSE NOTICE THIRD-PARTY-NOTICES README.md CHANGELOG.md docs/models.md docs/cuda.md \
  examples/CMakeLists.txt examples/quickstart.c; do
  [ -s "$dir/moved/share/doc/librope/$file" ] || fail "not installed: $file"
done
# Links inside of it lead somewhere; those of what is not installed to the repository.
for file in README.md CHANGELOG.md docs/models.md docs/cuda.md; do
  page=$dir/moved/share/doc/librope/$file
  while read -r link; do
    [ -e "$(dirname "$page")/${link%%#*}" ] || fail "a dead link of the installed $file: $link"
  done < <(grep -o ']([^)]*)' "$page" | sed 's/^](//; s/)$//' | grep -vE '^(https?:|#)')
done
page=$dir/moved/share/man/man3/librope.3
while read -r function; do
  grep -q "\b$function\b" "$page" || fail "librope.3 does not name $function"
done <"$source/tests/package/symbols.txt"
grep -q "\"librope $minor\"" "$page" || fail "librope.3 is of another version"

# Two packages: what programs need, and what compiling needs.
quietly "$cmake" --install "$build" --prefix "$dir/runtime" --component Runtime
quietly "$cmake" --install "$build" --prefix "$dir/development" --component Development
files() { (cd "$1" && find . -type f -o -type l) | sort; }
cmp <(files "$dir/moved") <({ files "$dir/runtime"; files "$dir/development"; } | sort) || fail "the components are not the whole, or overlap"
wanted=$(printf '%s\n' "librope.so.$minor" "librope.so.$version" LICENSE NOTICE THIRD-PARTY-NOTICES | sort)
[ "$(files "$dir/runtime" | sed 's|.*/||' | sort)" = "$wanted" ] || fail "the Runtime component: $(files "$dir/runtime")"

# The installed examples, by themselves.
cp -r "$dir/moved/share/doc/librope/examples" "$dir/examples"
quietly "$cmake" -S "$dir/examples" -B "$dir/examples/build" -DCMAKE_PREFIX_PATH="$dir/moved" \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
quietly "$cmake" --build "$dir/examples/build"
"$dir/examples/build/example_quickstart" >/dev/null || fail "the installed quickstart"

# --- static, with absolute directories as Nix and Guix give them; kernels of one instruction set are
# enough, and without -g ccache has them for subproject_test
static=$dir/static-prefix
quietly "$cmake" -S "$source" -B "$dir/static" -DROPE_BUILD_SHARED=OFF -DROPE_BUILD_TESTS=OFF -DROPE_CUDA=OFF \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC -DCMAKE_INSTALL_PREFIX="$static" -DCMAKE_INSTALL_LIBDIR="$static/lib" \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
quietly "$cmake" --build "$dir/static" --target install
consume "$static" static
[ "$(pc --variable=prefix librope)" = "$static" ] || fail "absolute libdir: prefix is $(pc --variable=prefix librope)"
# librope.so is not there, and the plain command of README links the archive.
compile $(pc --cflags --libs librope)
"$dir/main"
compile $(pc --static --cflags --libs librope)
"$dir/main"
compile -static $(pc --cflags --libs librope)
"$dir/main"
# Inside a plugin it stays inside.
"$cc" -std=c99 -fPIC -shared "$dir/main.c" -o "$dir/plugin.so" -Wl,--no-undefined $(pc --cflags --libs librope) || fail "a plugin"
! nm -D --defined-only "$dir/plugin.so" | grep ' rope_' || fail "a plugin exports librope"
echo ok
