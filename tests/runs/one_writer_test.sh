#!/bin/sh
# Only one process at a time writes a run folder, an attempt or a dataset. The second one is refused and reports the first, a
# killed process's lock is replaced, and reading commands take no lock. Usage: one_writer_test.sh SPEEDRUN [MPIEXEC]
# ctest: ARGS SPEEDRUN MPIEXEC PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1 mpiexec=${2:-}
. "$(dirname "$0")/prepared_run.sh"
[ ! -e tiny/.lock ] || fail "prepare left its lock"
saves="--quiet --set schedule.steps=1000000 --set checkpoint.every=50"
train() { "$speedrun" train tiny.json --name "$@"; }
# start RUN OPTIONS...: runs in the background; waits until it has saved; $pid is its process.
start() {
    # shellcheck disable=SC2086  # options
    "$speedrun" train tiny.json --name "$@" $saves >"$1.out" 2>&1 &
    pid=$!
    wait_until saved "$1"
}
saved() { ls -d "logs/$1"/checkpoints/step-*; }
stop() { # SIGNAL
    kill "-$1" $pid
    wait $pid 2>/dev/null
}
held="is being written by process \$pid on $(uname -n) since 20[-0-9: ]* UTC (.*speedrun train tiny.json --name"

# During a run, every command that writes its folder is refused and leaves it unchanged. Reading commands work.
start a
eval "held=\"$held a\""
newest() { find logs/a/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1; }
for resume in auto logs/a "logs/../logs/a"; do expect 2 "logs/a $held" train a --resume "$resume"; done
expect 2 "run folder logs/a exists .*$held" train a
expect 2 "logs/a/../a\|one folder name" train ../logs/a --resume auto
kill -STOP $pid
expect 2 "logs/a $held" train a --resume auto
expect 0 "validation loss" "$speedrun" eval "$(newest)"
expect 0 "" "$speedrun" sample "$(newest)" --tokens 1
expect 0 "weights" "$speedrun" plan logs/a/config.json
[ "$(ls -d logs/*)" = logs/a ] || fail "a refused run left a folder: $(ls -d logs/*)"
kill -CONT $pid
stop TERM
[ ! -e logs/a/.lock ] || fail "a run that a signal has stopped left its lock"
! grep -q "continues after" logs/a/run.log || fail "a second process has written the log"
[ -s logs/a/checkpoints/final/model.safetensors ] || fail "the run was disturbed: $(cat a.out)"

# A killed run, continued by three processes simultaneously: one trains. Its history is complete, and the stale lock is
# reported.
: >out
gone() { ! kill -0 "$pid" 2>/dev/null; }
two_refused() { [ "$(cat b?.code 2>/dev/null | grep -c '^2$')" -eq 2 ]; }
continued() { [ "$(grep -c "continues after step" logs/b/run.log)" -eq "$round" ]; }
longer() { [ "$(wc -l <logs/b/metrics.jsonl)" -gt "$lines" ]; }
start b
for round in 1 2 3; do
    kill -KILL "$pid"
    wait_until gone
    wait
    rm -f b?.code
    [ -s logs/b/.lock ] || fail "no lock of a killed run"
    # shellcheck disable=SC2086
    for i in 1 2 3; do
        (train b --resume auto $saves >"b$i.out" 2>&1; echo $? >"b$i.code") &
    done
    wait_until two_refused
    wait_until continued
    [ "$(cat b?.code | wc -l)" -eq 2 ] || fail "not exactly one of three trains: $(cat b?.code)"
    pid=$(sed 's/.*"pid":\([0-9]*\),.*/\1/' logs/b/.lock)
    [ "$(grep -l "logs/b is being written by process $pid on" b?.out | wc -l)" -eq 2 ] || fail "another is named than $pid: $(cat b?.out)"
    [ "$(grep -c "replaces the lock of process [0-9]* on " logs/b/run.log)" -eq $round ] || fail "no note of the lock"
    lines=$(wc -l <logs/b/metrics.jsonl)
    wait_until longer
done
kill -TERM "$pid"
wait_until gone
wait
python3 - <<'P' || fail "the history is torn"
import json
steps = [json.loads(line)["step"] for line in open("logs/b/metrics.jsonl") if '"event":"step"' in line]
assert steps == list(range(len(steps))), steps
P
[ ! -e logs/b/.lock ] || fail "a run left its lock"

# Three processes create one new folder.
# shellcheck disable=SC2086
for i in 1 2 3; do (train new --resume auto --quiet >"c$i.out" 2>&1; echo $? >"c$i.code") & done
wait
grep -q '^0$' c?.code || fail "nobody trained: $(cat c?.out)"
for i in 1 2 3; do
    # A process that starts after the end of the run has no work.
    [ "$(cat c$i.code)" -eq 0 ] || grep -q "is being written by\|exists and is not overwritten\|has ended" c$i.out || fail "no reason: $(cat c$i.out)"
done

# Removing a lock ends its process within a few seconds. The result is checked below.
start d
rm logs/d/.lock
without=$pid

# Two equal attempts: the second one does not rename the first one's run. Neither does an attempt with a run that another
# process writes.
sed 's/"record": {/&"track": "toy", /' tiny.json >toy.json
toy_track '"classes": [{"name": "open"}],'
attempt() { exec "$speedrun" records attempt toy.json --seeds 1,2 --name twice --set schedule.steps=1000000; }
attempt >first.out 2>&1 &
pid=$!
wait_until test -s logs/attempts/twice/candidate-seed1/metrics.jsonl
expect 2 "logs/attempts/twice is being written by process $pid on .*records attempt" timeout 30 "$speedrun" records attempt toy.json --seeds 1,2 --name twice --set schedule.steps=1000000
! ls -d logs/attempts/twice/*interrupted* 2>/dev/null || fail "the second attempt took the first one's run for interrupted"
stop KILL
# shellcheck disable=SC2086
"$speedrun" train toy.json --out logs/attempts/twice --name candidate-seed1 --seed 1 --resume auto $saves >out 2>&1 &
pid=$!
wait_until grep -q "\"pid\":$pid," logs/attempts/twice/candidate-seed1/.lock
expect 2 "candidate-seed1 is still being written by process $pid on" timeout 30 "$speedrun" records attempt toy.json --seeds 1,2 --name twice --set schedule.steps=1000000
! ls -d logs/attempts/twice/*interrupted* 2>/dev/null || fail "a run that is written was renamed"
stop KILL

# Two processes prepare one dataset: the first one waits for its text here.
mkfifo go
{ cat go >/dev/null; cat text.txt; } | "$speedrun" prepare --input /dev/stdin --out both >first.out 2>&1 &
pid=$!
wait_until test -s both/.lock
expect 2 "both is being written by process $pid on" "$speedrun" prepare --input text.txt --out both --force
echo >go
wait $pid || fail "the first is disturbed: $(cat first.out)"
expect 2 "both already contains a dataset" "$speedrun" prepare --input text.txt --out both
expect 0 "" "$speedrun" prepare --verify both
[ ! -e both/.lock ] || fail "prepare left its lock"

# launch waits for a process that outlives its parent command.
cat >speedrun-leaves <<J
#!/bin/sh
[ ! -e left ] || exec "$speedrun" "\$@"
touch left
setsid "$speedrun" "\$@" >/dev/null 2>&1 &
until ls logs/leaves/checkpoints/step-* >/dev/null 2>&1; do sleep 0.02; done
kill -STOP \$!
(sleep 0.7; kill -9 \$!) >/dev/null 2>&1 &
exit 137
J
chmod +x speedrun-leaves
# shellcheck disable=SC2086
"$speedrun" launch --backoff 0.1 -- ./speedrun-leaves train tiny.json --name leaves --quiet --set schedule.steps=1500 --set checkpoint.every=100 >out 2>&1 ||
    fail "launch beside a process of the run that died ends with $?"
grep -q "launch: waits for the end of process [0-9]* on .*--name leaves" out || fail "launch does not wait for it"

pid=$without
wait_until gone
kill -KILL $without 2>/dev/null
wait $without
code=$?
if [ $code -ne 2 ] || ! grep -q "logs/d is no longer locked by this process: logs/d/.lock was removed" d.out; then
    fail "a run without its lock ends with $code: $(cat d.out)"
fi

# The first rank has the lock. All ranks of a second run are refused, with one message.
if [ -n "$mpiexec" ]; then
    ranks() { timeout 100 "$mpiexec" -np 2 --oversubscribe --bind-to none "$speedrun" train tiny.json --set batch.microbatch_tokens=128 --quiet "$@"; }
    ranks --name ranks --set schedule.steps=1000000 >ranks.out 2>&1 &
    launcher=$!
    wait_until test -s logs/ranks/metrics.jsonl
    expect 2 "logs/ranks is being written by process [0-9]* on " ranks --name ranks --resume auto
    [ "$(grep -c '^error: ' out)" -eq 1 ] || fail "not one rank complains"
    kill -TERM $launcher
    wait $launcher
fi
exit $failures
