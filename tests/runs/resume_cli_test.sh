#!/bin/sh
# Stopping and continuing through the command line: exit codes, messages, files; full disks and unwritable folders.
# Usage: resume_cli_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"

losses() { grep -o '"event":"step","step":[0-9]*,"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
# same A B: two runs of 20 steps have equal losses and last checkpoints.
same() {
    losses "$1" >a.loss; losses "$2" >b.loss
    cmp -s a.loss b.loss && [ "$(wc -l <a.loss)" -eq 20 ] || fail "$1 and $2 have different losses"
    cmp -s "logs/$1/checkpoints/step-00000020/rank-00000.safetensors" "logs/$2/checkpoints/step-00000020/rank-00000.safetensors" ||
        fail "$1 and $2 end with different checkpoints"
}
train() { "$speedrun" train tiny.json "$@"; }

expect 0 "^result: done" train --name whole --set checkpoint.every=6
[ "$(ls logs/whole/checkpoints | tr '\n' ' ')" = "final step-00000018 step-00000020 " ] || fail "whole has $(ls logs/whole/checkpoints)"
(cd logs/whole/checkpoints/step-00000018 && xxhsum --quiet -c XXH128SUMS) || fail "xxhsum finds differences"
grep -q '"checkpoint_stall_ms"' logs/whole/metrics.jsonl || fail "no stall in the metrics"
grep -q 'step-00000018: 0.3 MB' logs/whole/run.log || fail "the log does not name the checkpoint"

# --resume: usage.
expect 2 "say with --name" train --resume auto
expect 2 "neither a checkpoint nor" train --resume nowhere --name x
expect 2 "continue it with --resume auto" train --name whole
expect 2 "schedule.steps: 20 there, 30 here" train --name whole --resume auto --set schedule.steps=30
expect 2 "model.layers.count: 1 there, 2 here.*" train --name x --resume logs/whole --set model.layers.count=2
[ ! -e logs/x ] || fail "a run that cannot start left a folder"

# A new run from a checkpoint, the same in place, and a finished run, which has no work.
expect 0 "continues after step 18 from logs/whole" train --name part --resume logs/whole/checkpoints/step-00000018
cmp -s logs/whole/checkpoints/step-00000020/rank-00000.safetensors logs/part/checkpoints/step-00000020/rank-00000.safetensors || fail "part differs from whole"
cp -r logs/whole logs/again && rm -r logs/again/checkpoints/step-00000020
# Invalid lines are removed: a step beyond 64 bits, an event without a name, and a line truncated by the end of its process.
echo '{"event":"step","step":92233720368547758080,"loss":1,"step_ms":1}' >>logs/again/metrics.jsonl
echo '{"event":7,"step":2,"loss":1}' >>logs/again/metrics.jsonl
echo '{"event":"step","st' >>logs/again/metrics.jsonl
expect 0 "continues after step 18" train --name again --resume auto
same whole again
[ "$(wc -l <logs/again/metrics.jsonl)" -eq "$(wc -l <logs/whole/metrics.jsonl)" ] || fail "damaged lines of metrics are kept"
[ -s logs/again/environment_from_step_18.json ] || fail "where the run was continued is not recorded"
expect 0 "^result: done" train --name again --resume auto --set eval.every=3 --set checkpoint.keep=5
same whole again

# --extend-to: bitwise the longer run from before the cooldown; from later a warning.
expect 2 "extend-to 40: name the checkpoint to extend from with --resume" train --name x --extend-to 40
expect 2 "its run has 20 steps, and --extend-to is 19: give more steps" train --name x --resume logs/whole --extend-to 19
expect 2 "x has no checkpoint to extend" train --name x --resume auto --extend-to 40
expect 2 "layers.count: 1 there, 2 here" train --name x --resume logs/whole --extend-to 40 --set model.layers.count=2
[ ! -e logs/x ] || fail "a run that cannot be extended left a folder"
expect 0 "^result: done" train --name brief --set checkpoint.every=8 --set checkpoint.keep=9
expect 0 "^result: done" train --name forty --set schedule.steps=40
expect 0 "continues after step 8 from logs/brief" train --name longer --resume logs/brief/checkpoints/step-00000008 --extend-to 40
! grep warning out || fail "a checkpoint before the cooldown is warned of"
cmp logs/forty/checkpoints/final/model.safetensors logs/longer/checkpoints/final/model.safetensors || fail "longer differs from forty"
grep -q '"step": 8' logs/longer/summary.json || fail "the summary does not name the checkpoint"
expect 0 "^result: done" train --name longer --resume auto --extend-to 40
grep -q '"path": "logs/brief/checkpoints/step-00000008"' logs/longer/summary.json || fail "a resumed run forgets its origin"
expect 0 "warning: logs/brief/.*is inside of the cooldown.*up to step 1[01] only.*such as logs/brief/checkpoints/step-00000008" \
    train --name jumped --resume logs/brief --extend-to 40

# model.init_from: a run of another schedule, and what does not fit.
expect 0 "starts from weights of logs/brief/checkpoints/step-00000020, step 20, XXH128 [0-9a-f]*$" train --name tuned --set model.init_from=logs/brief --set schedule.steps=0
cmp logs/brief/checkpoints/final/model.safetensors logs/tuned/checkpoints/final/model.safetensors || fail "tuned does not start from brief"
expect 0 "starts from weights of logs/tuned/checkpoints/final, step 0" train --name again2 --set model.init_from=logs/tuned/checkpoints/final --set schedule.steps=2
grep -q '"kind": "weights"' logs/again2/summary.json || fail "the summary does not name the weights"
expect 2 "embed.weight is .320,32. there, .320,64. here.*model.model_dim: 32 there, 64 here" train --name x --set model.init_from=logs/brief --set model.model_dim=64
expect 0 "warning: model.init_from logs/brief.*model.head.softcap: 15.0 there, 20.0 here" \
    train --name softcap --set model.init_from=logs/brief --set model.head.softcap=20 --set schedule.steps=1
mkdir -p logs/empty/checkpoints
expect 2 "logs/empty: the run has no checkpoint and has not ended" train --name x --set model.init_from=logs/empty
[ ! -e logs/x ] || fail "a run without weights left a folder"

# eval and sample accept a checkpoint.
expect 0 "validation loss" "$speedrun" eval logs/whole
mv out whole.eval
expect 0 "validation loss" "$speedrun" eval logs/whole/checkpoints/step-00000020
cmp -s out whole.eval || fail "the last checkpoint is not what the run ended with"
expect 0 "chapter" "$speedrun" sample logs/whole/checkpoints/step-00000018 --tokens 5 --prompt "chapter "

# Damage: exit 3 for an explicit checkpoint; auto uses the previous one.
printf 'x' | dd of=logs/again/checkpoints/step-00000020/rank-00000.safetensors bs=1 seek=200000 conv=notrunc 2>/dev/null
expect 3 "rank-00000.safetensors: XXH128 is .*damaged is tensor" "$speedrun" eval logs/again/checkpoints/step-00000020
expect 3 "damaged is tensor" train --name x --resume logs/again
expect 0 "skipped a damaged checkpoint: .*step-00000020.*damaged is tensor" train --name again --resume auto
same whole again

# A signal: the step is completed, a checkpoint is saved, and the run can be continued.
start long "$speedrun" train tiny.json --name long --set schedule.steps=1000000
kill -INT $pid
# A shell without job control starts background commands with SIGINT ignored; the program still handles it.
ended 130
is_saved long

# A disk that is too small for a checkpoint (here: a limit of 200 kB per file). The error is reported, training completes, the
# exit code is not 0, and existing checkpoints are kept.
cp -r logs/whole logs/full && rm -r logs/full/checkpoints/step-00000020
expect 1 "step-00000020 could not be saved: .*File too large" sh -c "trap '' XFSZ; ulimit -f 400; exec '$speedrun' train tiny.json --name full --resume auto"
grep -q "^result: done" out || fail "a full disk kept the run from its end"
[ "$(ls -A logs/full/checkpoints | tr '\n' ' ')" = "final step-00000018 " ] || fail "after a full disk there is $(ls -A logs/full/checkpoints)"
expect 0 "continues after step 18" train --name full --resume logs/full/checkpoints/step-00000018/
same whole full
# A disk that is too small for the final weights.
expect 1 "model.safetensors.*: .*File too large" sh -c "trap '' XFSZ; ulimit -f 60; exec '$speedrun' train tiny.json --name unsaved --set checkpoint.last=false --set checkpoint.every=0"
has logs/unsaved/summary.json '"status": "failed"' '"message": ".*model.safetensors.*: .*File too large"'
# The metrics exceed the limit too.
expect 1 "metrics.jsonl: writing failed" sh -c "trap '' XFSZ; ulimit -f 24; exec '$speedrun' train tiny.json --name tight --set schedule.steps=100"
# A folder in which no file can be created.
mkdir -p logs/blocked && : >logs/blocked/checkpoints
expect 1 "could not be saved: .*Not a directory" train --name blocked --resume auto
[ "$(steps_of blocked)" -eq 20 ] || fail "a blocked folder kept the run from its end"
if [ "$(id -u)" -ne 0 ]; then # root ignores permissions
    cp -r logs/whole logs/readonly && rm -r logs/readonly/checkpoints/step-00000020 && chmod a-w logs/readonly/checkpoints
    expect 1 "could not be saved: .*Permission denied" train --name readonly --resume auto
    [ -d logs/readonly/checkpoints/step-00000018 ] || fail "a read-only folder lost a checkpoint"
    chmod u+w logs/readonly/checkpoints
fi
# The run's folder is removed while it trains.
start gone "$speedrun" train tiny.json --name gone --set schedule.steps=1000000
rm -r logs/gone
kill -TERM $pid
ended 1
grep -q "could not be saved: .*No such file" out || fail "it is not said that the folder is gone"

exit $failures
