#!/usr/bin/env bash
# librope inside another CMake project, by add_subdirectory and by FetchContent: it does not write the
# project's BUILD_SHARED_LIBS, installs nothing unless asked, takes the project's
# targets of Highway and nlohmann/json, and names all its own targets librope*.
# usage: subproject_test.sh <build folder> <source folder> <cmake> <C compiler> <C++ compiler>
set -eu
dir=$1/subproject_test source=$2 cmake=$3 cc=$4 cxx=$5
rm -rf "$dir"
mkdir "$dir"
trap 'rm -rf "$dir"' EXIT
fail() { echo "subproject_test: $*" >&2; exit 1; }
quietly() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log"; fail "$*"; }; }

printf 'int mine(void);\nint mine(void) { return 1; }\n' >"$dir/mine.c"
printf '#include <librope/rope.h>\nint main(void) { return rope_version() <= 0; }\n' >"$dir/main.c"
cp "$dir/main.c" "$dir/main.cc"

# project NAME LANGUAGES: its middle comes from standard input.
project() {
  local suffix=c
  [ "$2" = C ] || suffix=cc
  mkdir "$dir/$1"
  cp "$dir"/main.* "$dir/mine.c" "$dir/$1"
  {
    echo "cmake_minimum_required(VERSION 3.22)"
    echo "project($1 LANGUAGES $2)"
    cat
    echo "add_executable(main main.$suffix)"
    echo "target_link_libraries(main PRIVATE librope::librope)"
  } >"$dir/$1/CMakeLists.txt"
}
build() { # NAME [cmake arguments]
  local name=$1
  shift
  quietly "$cmake" -S "$dir/$name" -B "$dir/$name/build" -DCMAKE_BUILD_TYPE=None -DROPE_CUDA=OFF \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" "$@"
  quietly "$cmake" --build "$dir/$name/build"
  "$dir/$name/build/main" || fail "$name: main"
}

# A parent in C without a setting stays static, and keeps its install to itself.
project plain C <<CMAKE
add_subdirectory($source librope)
add_library(mine mine.c)
get_target_property(type mine TYPE)
if(NOT type STREQUAL STATIC_LIBRARY OR DEFINED BUILD_SHARED_LIBS)
  message(FATAL_ERROR "mine is a \${type}, BUILD_SHARED_LIBS \${BUILD_SHARED_LIBS}")
endif()
get_target_property(type librope TYPE)
if(NOT type STREQUAL STATIC_LIBRARY)
  message(FATAL_ERROR "librope is a \${type}")
endif()
get_property(targets DIRECTORY $source PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER targets EXCLUDE REGEX "^librope")
if(targets)
  message(FATAL_ERROR "targets without prefix: \${targets}")
endif()
install(FILES mine.c DESTINATION share/mine)
CMAKE
build plain -DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC # kernels of one instruction set
quietly "$cmake" --install "$dir/plain/build" --prefix "$dir/prefix"
[ "$(cd "$dir/prefix" && find . -type f)" = ./share/mine/mine.c ] || fail "the parent installs $(cd "$dir/prefix" && find . -type f)"

# A parent in C++ that says otherwise, with targets of its own for the headers: here of copies. Its
# warnings, looked for in kernels of short and of long vectors, and its life without exceptions are its own.
highway=$(sed -n 's/^ROPE_HIGHWAY_INCLUDE:[A-Z]*=//p' "$dir/plain/build/CMakeCache.txt")
json=$(sed -n 's/^ROPE_JSON_INCLUDE:[A-Z]*=//p' "$dir/plain/build/CMakeCache.txt")
mkdir "$dir/third_party"
cp -r "$highway/hwy" "$json/nlohmann" "$dir/third_party"
project vendored "C CXX" <<CMAKE
set(BUILD_SHARED_LIBS OFF)
set(ROPE_BUILD_SHARED ON)
set(ROPE_INSTALL ON)
add_compile_options(-Wall -Wextra -Werror -Wconversion -Wsign-conversion -Wshadow)
add_compile_options("\$<\$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast;-Wuseless-cast;-fno-exceptions;-fno-rtti>")
add_library(hwy INTERFACE)
target_include_directories(hwy SYSTEM INTERFACE \$<BUILD_INTERFACE:$dir/third_party>)
add_library(nlohmann_json INTERFACE)
target_include_directories(nlohmann_json SYSTEM INTERFACE $dir/third_party)
add_library(nlohmann_json::nlohmann_json ALIAS nlohmann_json)
include(FetchContent)
FetchContent_Declare(librope SOURCE_DIR $source)
FetchContent_MakeAvailable(librope)
get_target_property(type librope TYPE)
if(NOT type STREQUAL SHARED_LIBRARY OR BUILD_SHARED_LIBS)
  message(FATAL_ERROR "librope is a \${type}, BUILD_SHARED_LIBS \${BUILD_SHARED_LIBS}")
endif()
CMAKE
build vendored "-DCMAKE_CXX_FLAGS=-DHWY_DISABLED_TARGETS=~HWY_BASELINE_TARGETS^HWY_AVX3"
quietly "$cmake" --install "$dir/vendored/build" --prefix "$dir/prefix"
[ -e "$dir/prefix/include/librope/rope.h" ] || fail "ROPE_INSTALL=ON installs nothing"
for header in hwy/highway.h nlohmann/json.hpp; do
  grep -rqF "/third_party/$header" "$dir/vendored/build" --include=*.d ||
    "$cmake" --build "$dir/vendored/build" -- -t deps 2>/dev/null | grep -qF "/third_party/$header" ||
    fail "the parent's $header was not used"
done

# Without ROPE_BUILD_SHARED it follows the parent.
sed -i -e 's/SHARED_LIBS OFF/SHARED_LIBS ON/' -e '/set(ROPE_BUILD_SHARED/d' -e 's/OR BUILD_SHARED_LIBS)/OR NOT BUILD_SHARED_LIBS)/' \
  "$dir/vendored/CMakeLists.txt"
quietly "$cmake" -S "$dir/vendored" -B "$dir/vendored/following" -DROPE_CUDA=OFF \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
echo ok
