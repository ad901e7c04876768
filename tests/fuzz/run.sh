#!/bin/sh
# Fuzzes a parser from its seeds with RUNS reproducible inputs; with SECONDS, with random inputs for that time. A finding is an
# error and is kept in the working folder; run the program on that file to reproduce it. Usage: run.sh PROGRAM TARGET RUNS
# [SECONDS]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$(dirname "$0")/corpus.py" "$2" "$work/corpus"
# JSON fragments that mutation rarely produces.
printf '"{"\n"}"\n"["\n"]"\n":"\n","\n"\\""\n"null"\n"true"\n"1e308"\n"-1"\n"9223372036854775808"\n"\\xff"\n' >"$work/words"
how="-seed=1 -runs=$3"
[ $# -lt 4 ] || how="-max_total_time=$4"
# libFuzzer uses compared values, including addresses, as inputs: without address randomisation the inputs are reproducible.
fixed="setarch $(uname -m) -R"
$fixed true 2>/dev/null || fixed=
# shellcheck disable=SC2086  # the options are meant to be split
$fixed "$1" $how -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=8192 -entropic=0 -reload=0 -print_final_stats=1 -dict="$work/words" \
    -artifact_prefix="finding_$2_" "$work/corpus" >"$work/log" 2>&1 || { tail -n 60 "$work/log"; exit 1; }
grep -E 'stat::number_of_executed_units|DONE' "$work/log"
