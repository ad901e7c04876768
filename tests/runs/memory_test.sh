#!/bin/sh
# The memory table at the GPT-2 124M shape: `plan` and the run print the same one, and the run's peak resident memory is
# within 15% of it. Usage: memory_test.sh SPEEDRUN REPOSITORY
# ctest: ARGS SPEEDRUN ROOT
set -eu
speedrun=$1
repository=$2
[ -f "$repository/data/kjv/dataset.json" ] || { echo "skipped: run data/kjv/prepare.sh $speedrun"; exit 77; }
free=$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
[ "$free" -ge 4000 ] || { echo "skipped: $free MiB available, 4000 needed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Any tokens do: the shape is what counts.
set -- "$repository/configs/gpt2_124m.json" --set "data.train=$repository/data/kjv/train_*.bin" \
    --set "data.val=$repository/data/kjv/val_*.bin" --set data.val_tokens=1024 --set batch.microbatch_tokens=1024 \
    --set batch.tokens_per_step=1024 --set schedule.steps=1 --set schedule.warmup_steps=0 --set checkpoint.last=false
"$speedrun" plan "$@" | sed -n '/^  memory /,/^  total/p' >"$work/planned"
"$speedrun" train "$@" --out "$work" --name run --quiet
sed -n '/^  memory /,/^  total/p' "$work/run/run.log" >"$work/run.table"
diff "$work/planned" "$work/run.table" || { echo "FAILED: plan and run print different tables"; exit 1; }
cat "$work/planned"
value() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$work/run/summary.json"; }
awk -v planned="$(value memory_bytes)" -v peak="$(value peak_rss_bytes)" 'BEGIN {
    printf "planned %.1f MiB, peak resident %.1f MiB, ratio %.3f\n", planned / 1048576, peak / 1048576, peak / planned
    exit !(planned > 0 && peak / planned > 0.85 && peak / planned < 1.15) }'
