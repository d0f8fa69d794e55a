#!/usr/bin/env bash
# The public headers compile alone in every language version that users have, without warnings and
# without hidden padding, and C parsers read them.
# usage: header_test.sh <include folder> <C compiler> <C++ compiler>
set -eu
include=$1 cc=$2 cxx=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
strict=(-pedantic -Wall -Wextra -Werror -I"$include")

# What a program that includes the header alone may name.
declare -A uses=(
  [rope.h]='rope_qk_args a = ROPE_INIT(rope_qk_args); return (int)a.tokens;'
  [model.h]='rope_config c = ROPE_INIT(rope_config); return c.head_dim + rope_model_layer_type_count(0);'
)
for header in rope.h model.h; do
  use="int use(void);\nint use(void) { ${uses[$header]} }\n"
  printf "#include <librope/$header>\n$use" | tee "$dir/t.c" >"$dir/t.cc"
  for std in c99 c11 c17; do
    "$cc" -std=$std "${strict[@]}" -Wpadded -Wno-missing-field-initializers -c "$dir/t.c" -o "$dir/t.o"
  done
  for std in c++11 c++14 c++17 c++20; do
    "$cxx" -std=$std "${strict[@]}" -Wpadded -c "$dir/t.cc" -o "$dir/t.o"
  done
  # As engines in C++ include headers of C libraries.
  printf "extern \"C\" {\n#include <librope/$header>\n}\n$use" >"$dir/e.cc"
  for std in c++11 c++20; do
    "$cxx" -std=$std "${strict[@]}" -c "$dir/e.cc" -o "$dir/e.o"
  done
done
# A program that reads no models does not get their functions.
printf '#include <librope/rope.h>\nrope_model* model;\n' >"$dir/m.c"
! "$cc" -I"$include" -c "$dir/m.c" -o "$dir/m.o" 2>/dev/null || { echo "rope.h declares rope_model"; exit 1; }
if [ -e "$include/librope/rope.hpp" ]; then
  printf '#include <librope/rope.hpp>\n' >"$dir/h.cc"
  "$cxx" -std=c++17 "${strict[@]}" -c "$dir/h.cc" -o "$dir/h.o"
fi
# The preprocessed headers are plain C for parsers of declarations.
printf '#include <librope/model.h>\n' >"$dir/t.c"
"$cc" -std=c99 -E -P -DROPE_API= -DROPE_MUST_CHECK= -I"$include" "$dir/t.c" >"$dir/t.i"
if python3 -c 'import pycparser' 2>/dev/null; then
  grep -v __attribute__ "$dir/t.i" | sed '/__extension__/d' >"$dir/plain.i"
  python3 - "$dir/plain.i" <<'PY'
import sys
import pycparser
tree = pycparser.CParser().parse(open(sys.argv[1]).read())
names = {d.name for d in tree.ext if isinstance(d, pycparser.c_ast.Decl) and d.name}
wanted = {"rope_apply_qk", "rope_context_create", "rope_model_create", "rope_prompt_ids"}
sys.exit(0 if wanted <= names else "functions not found: %s" % (wanted - names))
PY
fi
echo ok
