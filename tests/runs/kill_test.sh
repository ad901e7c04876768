#!/bin/sh
# kill -9 at random moments of a run that saves after every step. After each kill, all steps but the last one are on disk. The
# continued run ends bitwise equal to an undisturbed one. Usage: kill_test.sh SPEEDRUN [SEED [SECONDS]]
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1
seed=${2:-1}
seconds=${3:-12}
. "$(dirname "$0")/prepared_run.sh"

steps_of() { cat "logs/$1/metrics.jsonl" 2>/dev/null | grep -c '"event":"step"'; }
newest_of() { ls "logs/$1/checkpoints" 2>/dev/null | sed -n 's/^step-0*\([1-9][0-9]*\)$/\1/p' | sort -n | tail -1; }
losses() { grep -o '"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
set -- "$speedrun" train tiny.json --quiet --set schedule.steps=60 --set eval.every=20 --set checkpoint.every=1
# Compares the completed run with the undisturbed one, and starts the next one.
compare() {
    losses victim >victim.loss
    cmp -s whole.loss victim.loss || fail "after $kills kills: other losses than the run that was never killed"
    last=checkpoints/step-00000060/rank-00000.safetensors
    cmp -s "logs/whole/$last" "logs/victim/$last" || fail "after $kills kills: another last checkpoint"
    rm -r logs/victim
    runs=$((runs + 1))
}

expect 0 "^result: done" "$@" --name whole
losses whole >whole.loss
[ "$(grep -c 'on the disk' logs/whole/run.log)" -eq 60 ] || fail "60 steps saved $(grep -c 'on the disk' logs/whole/run.log) times"
# After a kill, the disk must have a checkpoint of every step in the metrics, except the last one.
note_kill() {
    kills=$((kills + 1))
    ls -d logs/victim/checkpoints/.step-* >/dev/null 2>&1 && during_save=$((during_save + 1))
    steps=$(steps_of victim) newest=$(newest_of victim)
    [ "${newest:-0}" -ge $((${steps:-0} - 1)) ] || fail "killed after $steps steps with checkpoints up to step ${newest:-0}"
    echo "${newest:-0}" >>newest
}
kills=0 runs=0 during_save=0 turn=0
end=$(($(date +%s) + seconds))
for delay in $(awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 300; ++i) printf "%.3f\n", 0.2 * rand() }'); do
    before=$(steps_of victim)
    "$@" --name victim --resume auto >out 2>&1 &
    pid=$!
    # One kill in four during start-up, the others after the first step.
    turn=$((turn + 1))
    while [ $((turn % 4)) -ne 0 ] && kill -0 $pid 2>/dev/null && [ "$(steps_of victim)" = "$before" ]; do sleep 0.01; done
    sleep "$delay"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    got=$?
    case $got in
    0) compare ;;
    137) note_kill ;;
    *) fail "exit $got after $kills kills" ;;
    esac
    [ $failures -eq 0 ] && [ "$(date +%s)" -lt "$end" ] || break
done
expect 0 "^result: done" "$@" --name victim --resume auto
[ $failures -ne 0 ] || compare

different=$(sort -u newest | wc -l)
[ "$different" -ge 3 ] || fail "$kills kills continued from no more than $different different steps"
[ $failures -eq 0 ] && echo "$kills kills, $during_save of them during a save, continued from $different steps; $runs runs ended as if there had been none"
exit $failures
