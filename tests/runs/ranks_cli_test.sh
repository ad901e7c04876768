#!/bin/sh
# Several ranks through the command line: exit codes, messages printed once, one run folder, stopping, and a rank that dies.
# Usage: ranks_cli_test.sh MPIEXEC SPEEDRUN [engine]; engine: also training over several ranks.
# ctest: ARGS MPIEXEC SPEEDRUN engine PROPERTIES LABELS mpi ENVIRONMENT mpi
set -u
mpiexec=$1 speedrun=$2 engine=${3:-}
. "$(dirname "$0")/prepared_run.sh"

ranks() { n=$1; shift; timeout 100 "$mpiexec" -np "$n" --oversubscribe --bind-to none "$speedrun" "$@"; }
# once TEXT: exactly one line of the last command's output begins with TEXT.
once() { [ "$(grep -c -e "^$1" out)" -eq 1 ] || fail "'$1' is not there once"; }
number() { grep -o "\"$2\": [0-9.]*" "logs/$1/summary.json" | cut -d' ' -f2; } # number RUN KEY
# begin RUN N SETTING...: runs in the background; waits until it trains; $pid is mpirun.
begin() {
    name=$1; n=$2; shift 2
    start "$name" "$mpiexec" -np "$n" --oversubscribe --bind-to none "$speedrun" train tiny.json --name "$name" --set schedule.steps=1000000 "$@"
}
# alike RUN: its validation loss is that of one rank.
alike() {
    [ -z "$engine" ] || awk -v a="$(number one val_loss)" -v b="$(number "$1" val_loss)" 'BEGIN { d = a - b; exit !(d < 1e-4 && d > -1e-4) }' ||
        fail "validation loss $(number "$1" val_loss) of $1, $(number one val_loss) of one rank"
}
# Prints the process of one of the ranks, a child of its supervisor.
some_rank() {
    for parent in $(cat /proc/"$pid"/task/*/children); do
        child=$(cat /proc/"$parent"/task/*/children)
        [ -z "$child" ] || { echo "${child%% *}" && return; }
    done
}
# soon_ended CODE: mpirun ends with this code within a short time.
soon_ended() {
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
    [ $tries -lt 300 ] || { fail "mpirun is still there after 30 s" && kill -KILL "$pid"; }
    ended "$1"
}
# stopped RUN: all ranks ended at the same step, and the weights are saved.
stopped() {
    has "logs/$1/summary.json" '"status": "stopped"'
    [ -s "logs/$1/checkpoints/final/model.safetensors" ] || fail "$1 saved no weights"
    is_saved "$1" rank-00001.safetensors
    [ "$(number "$1" steps)" = "$(steps_of "$1")" ] || fail "$1: steps and their lines differ"
}

# Bad usage: every rank refuses, one prints the reason, and no folder is created.
for n in 2 4; do
    expect 2 "256 x $n ranks = $((256 * n)): .*--set batch.microbatch_tokens=$((256 / n))" ranks $n train tiny.json --name bad
    once "error: batch.tokens_per_step"
    expect 2 "replicate 1 x shard 3 .* is not the number of ranks, $n" ranks $n train tiny.json --name bad --set parallel.shard=3
    once "error: parallel: "
    expect 2 "is not the number of ranks, $n" ranks $n plan tiny.json --set parallel.shard=3
    once "error: "
done
expect 2 "2 ranks cannot be cut into 4 groups" ranks 2 train tiny.json --name bad --set parallel.tensor=4
once "error: "
expect 2 "zero9" ranks 2 train tiny.json --name bad --set parallel.strategy=zero9
once "error: "
expect 3 "nowhere" ranks 2 train tiny.json --name bad --set batch.microbatch_tokens=128 --set data.val=nowhere
once "error: "
expect 2 "no_such.json" ranks 2 train no_such.json --name bad
once "error: "
[ ! -e logs/bad ] || fail "a run that cannot start left a folder"

# The plan, for the launched ranks and for others.
expect 0 "2 ranks x 1 microbatches" ranks 2 plan tiny.json --set batch.microbatch_tokens=128
once "communication: 2 ranks, replicate 1 x shard 2"
expect 0 "reduce_scatter over shard (4 ranks), f32" ranks 2 plan tiny.json --ranks 4 --set batch.microbatch_tokens=64 --set parallel.strategy=zero1
expect 0 "all_gather over shard (4 ranks)" "$speedrun" plan tiny.json --ranks 4 --set batch.microbatch_tokens=64 --set parallel.strategy=zero1

# A run: one folder, written by the first rank; the result is printed once.
expect 0 "^result: done" ranks 2 train tiny.json --name two --set batch.microbatch_tokens=128 --set precision=f32 --trace 2:3
once "result: done"
once "where the time went"
[ "$(ls logs)" = two ] || fail "not one run folder: $(ls logs)"
for file in config.json environment.json metrics.jsonl summary.json run.log trace.json checkpoints/final/model.safetensors; do
    [ -s "logs/two/$file" ] || fail "no logs/two/$file"
done
[ -z "$(ls logs/two/trace_rank* 2>/dev/null)" ] || fail "the timelines of the ranks were not put together"
expect 0 "embed.weight" "$speedrun" trace logs/two --rank 1
expect 0 "buckets more" "$speedrun" trace logs/two --rank 1 --top 3
has logs/two/metrics.jsonl '"comm_ms":[0-9.]*[1-9].*"bytes":{[^}]*"all_reduce":[1-9]'
[ "$(number two ranks)" = 2 ] || fail "the summary has $(number two ranks) ranks"
has logs/two/summary.json '"mesh": "replicate 1 x shard 2'
has logs/two/summary.json '"strategy": "ddp"'
[ "$(grep -c '"device":' logs/two/environment.json)" -eq 2 ] || fail "the environment does not list two ranks"
[ "$(grep -c '"event":"step"' logs/two/metrics.jsonl)" -eq 20 ] || fail "not one line per step"
expect 2 "logs/two exists" ranks 2 train tiny.json --name two --set batch.microbatch_tokens=128
once "error: "

# Losses equal one rank's up to f32 rounding over 20 steps, as sums have another order.
expect 0 "^result: done" "$speedrun" train tiny.json --name one --set precision=f32
alike two

# Two ranks that share rows have equal losses too; their run folder is like any other.
expect 2 "parallel.context is 64, but rows have" ranks 2 plan tiny.json --ranks 64 --set parallel.context=64 --set batch.microbatch_tokens=256
once "error: "
expect 0 "all_to_all over context (2 ranks), f32" "$speedrun" plan tiny.json --ranks 2 --set parallel.context=2 --set precision=f32
has out "(rows shared by 2 ranks) x 1 microbatches"
has out "advice: a step has .* rows, enough for 2 ranks"
expect 0 "^result: done" ranks 2 train tiny.json --name context --set parallel.context=2 --set precision=f32
has logs/context/summary.json '"mesh": "replicate 1 x shard 1 x context 2'
has logs/context/metrics.jsonl '"bytes":{[^}]*"all_to_all":[1-9]'
alike context
expect 0 "validation loss" "$speedrun" eval logs/context
expect 0 "" "$speedrun" sample logs/context --prompt a --tokens 4

# Two ranks that share matrices have equal losses too, with and without sequence parallelism.
expect 2 "parallel.tensor is 64, but attention of layer 0 has" ranks 2 plan tiny.json --ranks 64 --set parallel.tensor=64
once "error: "
for sequence in false true; do
    expect 0 "over tensor (2 ranks), f32" "$speedrun" plan tiny.json --ranks 2 --set parallel.tensor=2 --set parallel.sequence=$sequence --set precision=f32
    expect 0 "^result: done" ranks 2 train tiny.json --name tensor_$sequence --set parallel.tensor=2 --set parallel.sequence=$sequence --set precision=f32
    has logs/tensor_$sequence/summary.json '"mesh": "replicate 1 x shard 1 x context 1 x tensor 2'
    alike tensor_$sequence
done
# All axes together.
expect 0 "^result: done" ranks 16 train tiny.json --name all_axes --set parallel.replicate=2 --set parallel.context=2 --set parallel.tensor=2 --set parallel.sequence=true --set parallel.strategy=zero1 --set batch.microbatch_tokens=64 --set precision=f32
has logs/all_axes/summary.json '"mesh": "replicate 2 x shard 2 x context 2 x tensor 2'
alike all_axes
expect 0 "validation loss" "$speedrun" eval logs/tensor_true
expect 0 "" "$speedrun" sample logs/tensor_true --prompt a --tokens 4

# A simulated network adds time without affecting values.
expect 0 "simulated network (3000 us, any bandwidth" "$speedrun" plan tiny.json --ranks 2 --set batch.microbatch_tokens=128 --set parallel.simulate_latency_us=3000
expect 0 "^result: done" ranks 2 train tiny.json --name slow --set batch.microbatch_tokens=128 --set precision=f32 --set parallel.simulate_latency_us=3000
[ "$(number two val_loss)" = "$(number slow val_loss)" ] || fail "the simulated network changed the loss"
awk -v ms="$(number slow comm_ms)" 'BEGIN { exit !(ms > 20 * 3 * 3) }' || fail "20 steps on the simulated network took $(number slow comm_ms) ms of it"

# The parts of each step are consistent, and exposed communication is at most all communication.
parts() {
    sed -n 's/.*"step_ms":\([^,]*\),.*"optimizer_ms":\([^,]*\),.*"comm_exposed_ms":\([^,]*\),"comm_ms":\([^,]*\),.*/\1 \2 \3 \4/p' "logs/$1/metrics.jsonl" |
        awk '{ n++; if ($2 < -1e-6 || $3 < 0 || $3 > $4 + 1e-6 || $2 + $3 > $1 + 1e-6) bad = bad "\n" $0 } END { if (bad != "" || n < 1) { print n " steps, bad:" bad; exit 1 } }' ||
        fail "$1: step_ms, optimizer_ms, comm_exposed_ms, comm_ms do not fit"
    awk -v e="$(number "$1" comm_exposed_ms)" -v o="$(number "$1" optimizer_ms)" -v c="$(number "$1" comm_ms)" -v t="$(number "$1" train_ms)" 'BEGIN { exit !(e <= c + 1e-6 && e + o <= t) }' ||
        fail "$1: the summary's parts do not fit"
}
for strategy in ddp zero1 zero3; do
    expect 0 "^result: done" ranks 2 train tiny.json --name "unclipped_$strategy" --set optimizers.clip=0 --set parallel.strategy=$strategy --set batch.microbatch_tokens=128 --set precision=f32
    parts "unclipped_$strategy"
done
for run in two context tensor_false tensor_true all_axes slow; do parts $run; done

# Divergence: all ranks detect it at the same step.
expect 4 "diverged at step" ranks 2 train tiny.json --name wild --set batch.microbatch_tokens=128 --set optimizers.groups.1.lr=1000 --set optimizers.groups.1.weight_decay=1000
once "error: diverged"
has logs/wild/summary.json '"status": "diverged"'

# Stopping. mpirun forwards SIGUSR1 to all ranks; a signal to only one of them stops all at the same step.
begin usr1 2 --set batch.microbatch_tokens=128
kill -USR1 "$pid"
soon_ended 138
stopped usr1
begin term 2 --set batch.microbatch_tokens=128
kill -TERM "$(some_rank)"
soon_ended 143
stopped term

# A rank that dies ends the run. Four ranks continue from the checkpoint of two.
begin killed 2 --set batch.microbatch_tokens=128 --set parallel.timeout_s=3 --set checkpoint.every=2
wait_until sh -c 'ls -d logs/killed/checkpoints/step-*'
kill -KILL "$(some_rank)"
soon_ended 5
has out "died of signal 9\|is lost"
: >logs/killed/metrics.jsonl # for begin, which waits for the first line
begin killed 4 --resume auto --set batch.microbatch_tokens=64 --set parallel.strategy=zero1 --set parallel.replicate=2
kill -USR1 "$pid"
soon_ended 138
has out "continues after step .* written by 2 ranks"
[ -s "logs/killed/checkpoints/$(printf 'step-%08d' "$(number killed steps)")/rank-00003.safetensors" ] || fail "four ranks saved no checkpoint"

exit $failures
