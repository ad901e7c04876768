#!/bin/sh
# scripts/overlap_ab.sh with few steps of a tiny model: all variants run, have equal losses, and write all outputs. No test
# depends on absolute times. Usage: overlap_ab_test.sh MPIEXEC SPEEDRUN
# ctest: ARGS MPIEXEC SPEEDRUN PROPERTIES LABELS mpi PROCESSORS 2 ENVIRONMENT mpi
set -u
mpiexec=$1 speedrun=$2
. "$(dirname "$0")/prepared_run.sh"
ab=$here/../../scripts/overlap_ab.sh

expect 2 "--ranks 1" "$ab" --speedrun "$speedrun" --ranks 1
expect 2 "not a number" "$ab" --speedrun "$speedrun" --rounds some
expect 2 "no/such" "$ab" --speedrun no/such
expect 2 "exists" "$ab" --speedrun "$speedrun" --out "$work"
export MPIEXEC="$mpiexec --oversubscribe --bind-to none"
expect 0 "losses and gradient norms of all runs are equal" "$ab" --speedrun "$speedrun" --rounds 1 --steps 8 \
    --latency 300 --bandwidth 1 --out "$work/ab" --set parallel.strategy=zero1 --set batch.microbatch_tokens=128 --set data.val_tokens=1024 \
    --set "data.train=$work/tiny/train_*.bin" --set "data.val=$work/tiny/val_*.bin" "$work/tiny.json"
for variant in ready-reverse ready-forward after_backward-reverse after_backward-forward; do
    grep -q "^| ${variant%-*} | ${variant#*-} | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]* | [0-9]*% |$" ab/results.md || fail "results.md has no whole row of $variant"
    grep -q "^total" "ab/$variant.txt" || fail "no overlap table of $variant"
    grep -q "launch: ${variant%-*}, step_order: ${variant#*-}" "ab/$variant.svg" || fail "no picture of $variant"
    [ "$(wc -c <"ab/$variant.svg")" -lt 200000 ] || fail "the picture of $variant is too large"
done
grep -q '"launch": "after_backward"' ab/runs/after_backward-forward-0/config.json || fail "after_backward was not asked for"
grep -q '"step_order": "forward"' ab/runs/after_backward-forward-0/config.json || fail "forward was not asked for"

exit $failures
