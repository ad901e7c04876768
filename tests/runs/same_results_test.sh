#!/bin/sh
# scripts/same_results.sh: a program is the same as itself; one that trains with another seed is not; bad usage is refused.
# Usage: same_results_test.sh SPEEDRUN ROOT
# ctest: ARGS SPEEDRUN ROOT PROPERTIES PROCESSORS 2
set -eu
program=$1
cd "$2"
[ -f data/kjv/dataset.json ] || { echo "skipped: no data/kjv"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAIL: $1" >&2
    cat "$work/out" >&2
    exit 1
}
cases='kjv_small_batch.f32.none'
sh scripts/same_results.sh --cases "$cases" "$program" "$program" >"$work/out" 2>&1 || fail "a program differs from itself"
grep -q "^same  *$cases: 8 rows, 3 files" "$work/out" || fail "not one case, or not its files"
grep -q '^1 cases, 0 differ' "$work/out" || fail "wrong count"

printf '#!/bin/sh\nexec "%s" "$@" --set seed=4\n' "$program" >"$work/other"
chmod +x "$work/other"
if sh scripts/same_results.sh --cases "$cases" "$program" "$work/other" >"$work/out" 2>&1; then fail "another seed is the same"; fi
grep -q "^DIFFERENT  $cases: step" "$work/out" || fail "the difference is not named"

printf '#!/bin/sh\ncase "$*" in *kjv_small_batch*) exit 2 ;; esac\nexec "%s" "$@"\n' "$program" >"$work/older"
chmod +x "$work/older"
if sh scripts/same_results.sh --cases "$cases" "$work/older" "$program" >"$work/out" 2>&1; then fail "nothing was compared, and passed"; fi
grep -q "^new  *$cases" "$work/out" || fail "a config that the old program refuses is not called new"
grep -q '^1 cases, 0 differ, 1 are new' "$work/out" || fail "wrong count of new cases"
if sh scripts/same_results.sh --cases "$cases" "$program" "$work/older" >"$work/out" 2>&1; then fail "a config that the new program refuses passed"; fi
grep -q "^FAILED  *$cases (new)" "$work/out" || fail "what the new program refuses is not named"

if sh scripts/same_results.sh --cases 'no such case' "$program" "$program" >"$work/out" 2>&1; then fail "no case at all passed"; fi
code=0
sh scripts/same_results.sh >"$work/out" 2>&1 || code=$?
[ "$code" = 2 ] || fail "no argument: exit $code"
code=0
sh scripts/same_results.sh no-such-commit >"$work/out" 2>&1 || code=$?
[ "$code" = 1 ] || fail "no such commit: exit $code"
echo "same_results: all as expected"
