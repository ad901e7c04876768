#!/bin/sh
# The program runs on a processor without AVX-512: a short run on an emulated Haswell completes, its loss decreases, and its
# record has the instruction set level avx2. Needs qemu-x86_64 (Debian: qemu-user); skipped otherwise.
# Usage: qemu_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
set -u
speedrun=$(realpath "$1")
. "$(dirname "$0")/prepared_run.sh"
command -v qemu-x86_64 >/dev/null || { echo "skipped: no qemu-x86_64 (apt-get install qemu-user)"; exit 77; }
unset SPEEDRUN_ISA # use the level of the emulated processor

haswell() { timeout 200 qemu-x86_64 -cpu Haswell "$speedrun" "$@" 2>err; }
expect 0 "^result: done" haswell train tiny.json --name haswell --set schedule.steps=3 --set schedule.warmup_steps=0 \
    --set data.val_tokens=256 --set checkpoint.last=false --set threads=2
# qemu warns of Haswell features that it does not emulate; other output is shown if the test fails.
grep -v "TCG doesn't support requested feature" err
losses=$(sed -n 's/.*"event":"step".*"loss":\([^,}]*\).*/\1/p' logs/haswell/metrics.jsonl)
# An untrained model of 257 tokens has a loss of ln 257.
echo "$losses" | awk '
    $1 !~ /^[0-9]+(\.[0-9]+)?$/ { bad = 1 }
    NR == 1 { first = $1; if (first < 5.3 || first > 5.9) bad = 1 }
    END { exit bad || NR != 3 || $1 > first - 0.1 }' || fail "losses of 3 steps: $(echo "$losses" | xargs)"
isa=$(sed -n 's/.*"isa": "\([^"]*\)".*/\1/p' logs/haswell/environment.json)
[ "$isa" = avx2 ] || fail "environment.json names the instruction level '$isa' instead of avx2"

[ $failures -eq 0 ] && echo "3 steps on an emulated Haswell: losses $(echo "$losses" | xargs)"
exit $failures
