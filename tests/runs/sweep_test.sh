#!/bin/sh
# scripts/sweep.sh with few steps of a tiny model: grid, table, skipped, continued and repeated runs of a second call, failed
# and killed runs, signals, cores and GPUs of parallel runs. No test depends on absolute times. Usage: sweep_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"
script=$here/../../scripts/sweep.sh
sweep() { sh "$script" --speedrun "$speedrun" "$@"; }
# Prints the column $2 of a sweep's table, in table order.
column() { awk -F '\t' -v want="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == want) c = i; next } { printf "%s ", $c }' "logs/$1/sweep.tsv"; }
row() { grep "^$2	" "logs/$1/sweep.tsv"; }

# Usage.
expect 0 "seeds=1,2,3" sweep --help
expect 2 "Usage" sweep
expect 2 "no_such.json: no such config" sweep no_such.json seeds=1
expect 2 "nothing to sweep over" sweep tiny.json
expect 2 "unknown option --job" sweep tiny.json seeds=1 --job 2
expect 2 "there is a config already" sweep tiny.json other.json
expect 2 "the key schedule.steps is given twice" sweep tiny.json schedule.steps=1 schedule.steps=2
expect 2 "schedule.steps has the value 1 twice" sweep tiny.json schedule.steps=1,1
expect 2 "schedule.steps has an empty value" sweep tiny.json schedule.steps=1,,2
expect 2 "data.train has a bracket or a quote that is not closed" sweep tiny.json 'data.train=["a","b"'
expect 2 "seeds: 'two' is not a whole number" sweep tiny.json seeds=1,two
expect 2 "seeds has the value 1 twice" sweep tiny.json seeds=1,1
for option in --jobs --out --name --speedrun; do
    expect 2 "$option needs a value" sweep tiny.json seeds=1 $option ''
    expect 2 "$option needs a value" sweep tiny.json seeds=1 $option --dry-run
done
expect 2 "--jobs 0" sweep tiny.json seeds=1 --jobs 0
expect 2 "no/such is not there" sweep tiny.json seeds=1 --speedrun no/such
expect 2 "after --: --resume is the sweep's own" sweep tiny.json seeds=1 -- --resume auto

# A dry run: complete commands, JSON lists as one value, no files written.
expect 0 "^\[4/4\] train=x_-[0-9]*,seed=2" sh "$script" tiny.json 'data.train=["a,b","c"],x*' seeds=1,2 --speedrun "$speedrun" --dry-run -- --set "record.track=a b"
[ "$(grep -c "train tiny.json .*--set 'record.track=a b' --set 'data.train=\[\"a,b\",\"c\"\]' --seed [12]" out)" -eq 2 ] || fail "the list is not handed on in one piece"
expect 0 "seed=2" sweep tiny.json record.track= seeds=2 --dry-run
grep -q -e "--set record.track= --seed 2" out || fail "the empty text is not a value"
[ ! -e logs ] || fail "a dry run left files"

# A grid of 2 x 2 with 2 seeds, two parallel runs.
grid() { sweep tiny.json optimizers.groups.0.lr=0.01,0.02 schedule.steps=2,3 seeds=1,2 --name grid "$@"; }
expect 0 "logs/grid/sweep.tsv: 8 of 8 runs are done" grid --jobs 2 -- --set checkpoint.last=false
[ "$(grep -c '^\[[1-8]/8\] lr=0.0[12],steps=[23],seed=[12]: done, loss [0-9.]*, [0-9.]* s, target after' out)" -eq 8 ] || fail "not a line for each run"
run="logs/grid/lr=0.02,steps=3,seed=2"
for setting in '"seed": 2' '"steps": 3' '"lr": 0.02' '"last": false'; do
    grep -q "$setting" "$run/config.json" || fail "$setting is not in $run/config.json"
done
column grid time_to_target_s | tr ' ' '\n' | sed '$d' >times
sort -g -c times || fail "the table is not sorted by time to target: $(cat times)"

# Makes the table from known values: sorted by the first validation at or below the target; runs that miss it are last, by loss.
number=0
for run in logs/grid/*/; do
    number=$((number + 1))
    echo "{\"event\":\"val\",\"step\":1,\"loss\":50.5,\"train_ms\":1000}
{\"event\":\"step\",\"step\":1,\"loss\":1,\"train_ms\":1100}
{\"event\":\"val\",\"step\":2,\"loss\":5e1,\"train_ms\":$((9000 - 1000 * number))}
{\"event\":\"val\",\"step\":3,\"loss\":40,\"train_ms\":9000}" >"$run/metrics.jsonl"
    [ $number -lt 7 ] || sed -i 's/":\(5e1\|40\),/":60,/' "$run/metrics.jsonl"
    sed -i "s/\"val_loss\": [^,]*/\"val_loss\": $((50 - number))/; s/\"train_ms\": [^,]*/\"train_ms\": $((number * 500))/" "$run/summary.json"
done
known() { expect 0 "8 of 8 runs are done" "$@" --speedrun /bin/false -- --set checkpoint.last=false; }
known grid # /bin/false: no run is repeated
[ "$(grep -c '(before)' out)" -eq 8 ] || fail "a finished run is not skipped"
[ "$(column grid time_to_target_s)" = "3.000 4.000 5.000 6.000 7.000 8.000 - - " ] || fail "times: $(column grid time_to_target_s)"
[ "$(column grid val_loss)" = "44 45 46 47 48 49 42 43 " ] || fail "losses: $(column grid val_loss)"
[ "$(column grid run | cut -d ' ' -f 1)" = "lr=0.02,steps=2,seed=2" ] || fail "the fastest run is not the first"
grep -q '^0.02  3      2     42.0000   4.00     -                 done$' out || fail "no row of a run that missed the target"
grep -q '^0.01  3      2/2   2/2      46.5000 ± 0.7071  1.75 ± 0.35  5.50 ± 0.71$' out || fail "no mean and deviation over seeds"
grep -q '^0.02  3      2/2   0/2      42.5000 ± 0.7071  3.75 ± 0.35  -$' out || fail "a mean time to target without a run that reached it"

# A closed reader of the output does not end a sweep.
{ sweep tiny.json schedule.steps=2 seeds=1,2 --name unread 2>/dev/null; echo $? >code; } | true
[ "$(cat code)" -eq 0 ] && [ "$(wc -l <logs/unread/sweep.tsv)" -eq 3 ] || fail "a sweep into true: $(cat code)"

# More values in the same folder are accepted; other keys, options or configs are not.
expect 0 "3 of 3 runs are done" sweep tiny.json optimizers.groups.0.lr=0.02 schedule.steps=1,2,3 seeds=1 --name grid -- --set checkpoint.last=false
[ "$(grep -c '(before)' out)" -eq 2 ] || fail "values that were added make others run again"
expect 2 "runs of other keys, or with other options" grid
expect 2 "runs of other keys, or with other options" sweep tiny.json optimizers.groups.1.lr=0.01 schedule.steps=2 --name grid -- --set checkpoint.last=false
sed 's/50/51/' tiny.json >other.json
expect 2 "another config than other.json" sweep other.json schedule.steps=2 --name grid
expect 0 "steps=4" sweep "$run/config.json" schedule.steps=4 --dry-run # a path, not a key

# Failing runs: recorded with code and message; the others continue; a second call repeats them unless told to keep them.
cat >flaky <<J
#!/bin/sh
case "\$*" in
*steps=3*) [ -e mended ] || { echo "starting"; echo "error: not	today"; exit 5; } ;;
esac
exec "$speedrun" "\$@"
J
chmod +x flaky
failing() { sweep tiny.json optimizers.groups.1.lr=0.01,x,1000 schedule.steps=3,20 --name failing --speedrun ./flaky "$@" -- --set optimizers.groups.1.weight_decay=1000; }
expect 1 "sweep.tsv: 1 of 6 runs are done" failing
[ "$(column failing status)" = "done failed failed failed failed diverged " ] || fail "status: $(column failing status)"
row failing lr=0.01,steps=3 | grep -q 'failed	5	not today$' || fail "no code and message of a failed run"
row failing lr=x,steps=20 | grep -q 'failed	2	optimizers.groups\[1\].lr: expected a number' || fail "no message of a bad value"
row failing lr=1000,steps=20 | grep -q 'diverged	4	diverged at step' || fail "no message of a diverged run"
: >mended
expect 1 "1 of 6 runs are done" failing --keep-failed
expect 1 "3 of 6 runs are done" failing
[ "$(column failing status)" = "done done done failed failed diverged " ] || fail "status after repeating: $(column failing status)"

# A program that exits with 0 without a loss, as older ones do after a NaN.
cat >nan <<J
#!/bin/sh
"$speedrun" "\$@" || exit
sed -i 's/"val_loss": [^,]*/"val_loss": null/' logs/nan/*/summary.json
J
chmod +x nan
for turn in first second; do
    expect 1 "1/1. steps=3: diverged: the validation loss is not a number" sweep tiny.json schedule.steps=3 --name nan --speedrun ./nan
    [ "$(column nan status)" = "diverged " ] || fail "$turn: a run without a loss counts as $(column nan status)"
done

# A run that is killed; the next one continues.
cat >noted <<J
#!/bin/sh
echo \$\$ >pid
exec "$speedrun" "\$@"
J
chmod +x noted
wait_for() { wait_until grep -q -e "$1" "$2"; } # PATTERN FILE
sweep tiny.json schedule.steps=1000000,3 --name killed --speedrun ./noted >out 2>&1 &
wait_for '"step":1' "logs/killed/steps=1000000/metrics.jsonl"
kill -KILL "$(cat pid)"
wait $!
got=$?
[ $got -eq 1 ] || fail "a sweep with a killed run gave $got instead of 1"
[ "$(column killed status)" = "done killed " ] || fail "status: $(column killed status)"
grep -q '^\[1/2\] steps=1000000: killed: signal 9' out || fail "it is not said that a run was killed"

# Signals: the run saves a checkpoint, from which a second call continues; one sweep at a time in a folder.
long() { exec env --default-signal=INT sh "$script" --speedrun "$speedrun" tiny.json schedule.steps=1000000,3 seeds=4 --name long; }
run=logs/long/steps=1000000,seed=4
for signal in TERM INT; do
    [ $signal = TERM ] && text='"step":1' file=$run/metrics.jsonl || text='continues after step' file=$run/run.log
    long >out 2>&1 &
    wait_for "$text" "$file"
    mv out first.out
    expect 2 "in use by another sweep.*: process $! on $(uname -n) since 20" sweep tiny.json schedule.steps=3 seeds=4 --name long
    mv first.out out
    kill -$signal $!
    wait $!
    got=$?
    [ $signal = TERM ] && code=143 || code=130
    [ $got -eq $code ] || fail "SIG$signal gave $got instead of $code"
    grep -q "the same command again goes on" out || fail "it is not said how to go on"
    [ "$(column long status)" = "stopped waiting " ] || fail "status after SIG$signal: $(column long status)"
    grep -q '"status": "stopped"' "$run/summary.json" || fail "a stopped run saved nothing"
done

# Parallel runs: cores and GPUs are divided among the slots.
cat >gpus <<J
#!/bin/sh
if [ "\$1" = doctor ]; then
    for gpu in \$(seq \$GPUS); do echo '      "value": "Some GPU, compute capability 9.0, 1.0 GiB",'; done
    exit 0
fi
echo "\${CUDA_VISIBLE_DEVICES-all} \$(taskset -cp \$\$ | sed 's/.*: //') \$*" >>started
exit 3
J
chmod +x gpus
slots() { rm -rf logs/slots started; sweep tiny.json seeds=1,2 --name slots --speedrun ./gpus "$@"; rc=$?; sort started; return $rc; }
export GPUS=3
expect 1 "^0 .*--set threads=[1-9]" slots --jobs 2
grep -q "^1,2 .*--set threads=[1-9]" out || fail "the second slot has not the other GPUs"
GPUS=1
expect 1 "2 runs at once share 1 GPUs" slots --jobs 2
[ "$(grep -c '^0 ' started)" -eq 2 ] || fail "slots do not share the GPU"
GPUS=2
CUDA_VISIBLE_DEVICES=5,7
export CUDA_VISIBLE_DEVICES
expect 1 "^5 " slots --jobs 2
grep -q "^7 " out || fail "the GPUs that were given are not used"
unset CUDA_VISIBLE_DEVICES
GPUS=0
expect 1 "^all " slots --jobs 2
if [ "$(nproc)" -ge 2 ]; then
    [ "$(cut -d ' ' -f 2 started | sort -u | wc -l)" -eq 2 ] || fail "both slots have the same cores"
fi
expect 1 "^all " slots
! grep -q "threads=" started || fail "a run alone does not have all threads"

exit $failures
