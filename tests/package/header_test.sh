#!/usr/bin/env bash
# The public headers compile alone in every language version that users have, without warnings and
# without hidden padding, and C parsers read them.
# usage: header_test.sh <include folder> <C compiler> <C++ compiler>
set -eu
include=$1 cc=$2 cxx=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '#include <librope/rope.h>\nint use(void);\nint use(void) { rope_qk_args a = ROPE_INIT(rope_qk_args); return (int)a.tokens; }\n' >"$dir/t.c"
cp "$dir/t.c" "$dir/t.cc"
for std in c99 c11 c17; do
  "$cc" -std=$std -pedantic -Wall -Wextra -Wpadded -Wno-missing-field-initializers -Werror -I"$include" -c "$dir/t.c" -o "$dir/t.o"
done
for std in c++11 c++14 c++17 c++20; do
  "$cxx" -std=$std -pedantic -Wall -Wextra -Wpadded -Werror -I"$include" -c "$dir/t.cc" -o "$dir/t.o"
done
# As engines in C++ include headers of C libraries.
printf 'extern "C" {\n#include <librope/rope.h>\n}\nint use();\nint use() { return static_cast<int>(ROPE_INIT(rope_qk_args).tokens); }\n' >"$dir/e.cc"
for std in c++11 c++20; do
  "$cxx" -std=$std -pedantic -Wall -Wextra -Werror -I"$include" -c "$dir/e.cc" -o "$dir/e.o"
done
if [ -e "$include/librope/rope.hpp" ]; then
  printf '#include <librope/rope.hpp>\n' >"$dir/h.cc"
  "$cxx" -std=c++17 -pedantic -Wall -Wextra -Werror -I"$include" -c "$dir/h.cc" -o "$dir/h.o"
fi
# The preprocessed header is plain C for parsers of declarations.
"$cc" -std=c99 -E -P -DROPE_API= -DROPE_MUST_CHECK= -I"$include" "$dir/t.c" >"$dir/t.i"
if python3 -c 'import pycparser' 2>/dev/null; then
  grep -v __attribute__ "$dir/t.i" | sed '/__extension__/d' >"$dir/plain.i"
  python3 - "$dir/plain.i" <<'PY'
import sys
import pycparser
tree = pycparser.CParser().parse(open(sys.argv[1]).read())
names = {d.name for d in tree.ext if isinstance(d, pycparser.c_ast.Decl) and d.name}
wanted = {"rope_apply_qk", "rope_context_create", "rope_prompt_ids"}
sys.exit(0 if wanted <= names else "functions not found: %s" % (wanted - names))
PY
fi
echo ok
