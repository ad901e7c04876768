#!/bin/sh
# scripts/ablation.py with a few steps of a tiny model: its table, repeated calls, refused input.
# Usage: ablation_test.sh SPEEDRUN. Exit code 77 = skipped, because python3 is missing.
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120
set -u
speedrun=$1
command -v python3 >/dev/null 2>&1 || { echo "skipped: python3 is missing"; exit 77; }
. "$(dirname "$0")/prepared_run.sh"
ablation() { python3 "$here/../../scripts/ablation.py" "$@" --step-seconds 0.1 --speedrun "$speedrun" -- --set schedule.steps=3 --set record.target_loss=50; }
cell() { awk -F ' *[|] *' -v row="$1" -v column="$2" '$2 == row { print $column }' out; }
loss_of() { sed -n 's/^ *"val_loss": \([0-9.]*\),*$/\1/p' "$1/summary.json"; }

cat >items.json <<'J'
[
  {"name": "muon", "what": "Muon", "set": {"optimizers.groups.0.type": "adamw"}},
  {"name": "width", "what": "half of its width", "set": {"model.model_dim": 16}}
]
J

expect 2 "no_such.json: no such config" ablation no_such.json items.json
expect 2 "no_such.json: No such file" ablation tiny.json no_such.json
echo '[{"name": "a"}]' >bad.json
expect 2 'bad.json: expected a list of {"name": ..., "what": ..., "set": {...}}' ablation tiny.json bad.json
echo '[{"name": "whole", "what": "", "set": {}}]' >bad.json
expect 2 "the name 'whole' is given twice" ablation tiny.json bad.json
echo '[{"name": "a", "what": "a", "set": {"model.no_such": 1}}]' >bad.json
expect 1 "no_such" ablation tiny.json bad.json --seeds 1 --out bad
[ ! -e logs ] || fail "a refused call left runs"

expect 0 "| half of its width |" ablation tiny.json items.json --seeds 1,2
for item in whole muon width; do
    [ -n "$(loss_of logs/ablation-tiny/$item/seed=2)" ] || fail "no run of $item with seed 2"
done
# Mean and standard error of the differences of equal seeds.
expected=$(for seed in 1 2; do
    echo "$(loss_of logs/ablation-tiny/width/seed=$seed) $(loss_of logs/ablation-tiny/whole/seed=$seed)"
done | awk '{ d[NR] = $1 - $2 } END { mean = (d[1] + d[2]) / 2; printf "%+.4f ± %.4f", mean, (d[1] > d[2] ? d[1] - d[2] : d[2] - d[1]) / 2 }')
[ "$(cell 'half of its width' 4)" = "$expected" ] || fail "the difference is not $expected"
[ "$(cell nothing 4)" = "" ] || fail "the whole config differs from itself"
[ "$(cell 'half of its width' 7 | tr -d ,)" -lt "$(cell nothing 7 | tr -d ,)" ] || fail "half of the width has as many parameters"
cp out first

# A second call trains only missing runs.
before=$(stat -c %Y logs/ablation-tiny/muon/seed=1/summary.json)
rm -r logs/ablation-tiny/muon/seed=2
expect 1 "| Muon |" ablation tiny.json items.json --seeds 1,2 --table-only
expect 0 "| Muon |" ablation tiny.json items.json --seeds 1,2
[ "$(stat -c %Y logs/ablation-tiny/muon/seed=1/summary.json)" = "$before" ] || fail "a run that was done is repeated"
[ "$(cell Muon 3)" = "$(awk -F ' *[|] *' '$2 == "Muon" { print $3 }' first)" ] || fail "the run that was missing gave another loss"

# Steps to a target are interpolated linearly between two validations.
printf '{"status": "done", "steps": 4, "val_loss": 1.0, "parameters": 5, "target_loss": 1.5, "step_ms": {}}' >made.json
for item in whole muon width; do
    mkdir -p "made/$item/seed=1"
    cp made.json "made/$item/seed=1/summary.json"
    # Two stages, of steps of 1000 and 3000 ms, and slower repetitions.
    turn() { printf '[{"first_step": 0, "end_step": 2, "step_ms": %s}, {"first_step": 2, "end_step": 4, "step_ms": %s}]' "$1" "$2"; }
    echo "[$(turn 1000 3000), $(turn 9000 9000), $(turn 10 9000)]" >"made/$item/times.json"
    for at in "2 3.0" "3 2.0" "4 1.0"; do
        # shellcheck disable=SC2086  # two numbers
        printf '{"event":"val","step":%s,"loss":%s}\n' $at
    done >"made/$item/seed=1/metrics.jsonl"
done
made() { python3 "$here/../../scripts/ablation.py" tiny.json items.json --seeds 1 --out made --table-only "$@"; }
expect 0 "| nothing | 1.0000 |  | 2000.0 ms | 6.5 s |" made
expect 0 "| nothing | 1.0000 |  | 2000.0 ms | 3.5 s |" made --target 2.5
expect 0 "| nothing | 1.0000 |  | 2000.0 ms | 2.0 s |" made --target 3
expect 0 "| nothing | 1.0000 |  | 2000.0 ms | - |" made --target 0.9

# An unreached target has no time.
expect 0 "| nothing | [0-9.]* |  | [0-9.]* ms | - |" python3 "$here/../../scripts/ablation.py" tiny.json items.json --seeds 1 --out unreached --step-seconds 0.1 --speedrun "$speedrun" -- --set schedule.steps=2 --set record.target_loss=0.01
exit $failures
