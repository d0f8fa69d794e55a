#!/usr/bin/env bash
# What librope.so shows to the linker: exactly the functions of the headers, its SONAME, and no more
# needed libraries than the documented ones.
# usage: abi_test.sh <librope.so> <header>..
set -eu
library=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "$*" >&2; exit 1; }

exports=$(nm -D --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort)
diff <(sort "$here/symbols.txt") <(echo "$exports") || fail "exported symbols are not those of symbols.txt"
nm -D --defined-only "$library" | awk '$2 != "A" && $3 !~ /@@LIBROPE_0\.1$/ {print $3; bad = 1} END {exit bad}' ||
  fail "symbols without the version LIBROPE_0.1"
# Every function that the headers declare, and no other.
declared=$(grep -hv '^ \*' "$@" | grep -oE '\brope_[a-z0-9_]+\(' | tr -d '(' | grep -v '^rope_init_$' | sort -u)
diff <(sort "$here/symbols.txt") <(echo "$declared") || fail "the headers declare other functions"

dynamic=$(readelf -d "$library")
grep -q 'SONAME.*\[librope\.so\.0\.1\]' <<<"$dynamic" || fail "SONAME is not librope.so.0.1"
needed=$(grep NEEDED <<<"$dynamic" | sed 's/.*\[\(.*\)\].*/\1/')
for name in $needed; do
  case $name in
    libstdc++.so.* | libm.so.* | libgcc_s.so.* | libc.so.* | libpthread.so.* | ld-linux*) ;;
    *) fail "needs $name" ;;
  esac
done
! grep -qE 'RPATH|RUNPATH|TEXTREL' <<<"$dynamic" || fail "has a run path or text relocations"
! readelf -W -l "$library" | grep -E 'GNU_STACK.*RWE' || fail "wants an executable stack"
echo ok
