#!/bin/sh
# kill -9 at random moments of a run that saves after every step: each time it continues, and in the end it is bitwise the
# run that was never killed. Usage: kill_test.sh SPEEDRUN [SEED [SECONDS]]
set -u
speedrun=$1
seed=${2:-1}
seconds=${3:-12}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"

losses() { grep -o '"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
set -- "$speedrun" train tiny.json --quiet --set schedule.steps=60 --set eval.every=20 --set checkpoint.every=1
# The run has come to its end: is it the one that was never killed? Then the next one begins.
compare() {
    losses victim >victim.loss
    cmp -s whole.loss victim.loss || fail "after $kills kills: other losses than the run that was never killed"
    last=checkpoints/step-00000060/rank-00000.safetensors
    cmp -s "logs/whole/$last" "logs/victim/$last" || fail "after $kills kills: another last checkpoint"
    rm -r logs/victim
    runs=$((runs + 1))
}

expect 0 "train" "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10
expect 0 "^result: done" "$@" --name whole
losses whole >whole.loss
kills=0 runs=0 during_save=0
end=$(($(date +%s) + seconds))
for delay in $(awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 300; ++i) printf "%.3f\n", 0.02 + 0.4 * rand() }'); do
    "$@" --name victim --resume auto >out 2>&1 &
    pid=$!
    sleep "$delay"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    got=$?
    case $got in
    0) compare ;;
    137)
        kills=$((kills + 1))
        ls -d logs/victim/checkpoints/.step-* >/dev/null 2>&1 && during_save=$((during_save + 1))
        ;;
    *) fail "exit $got after $kills kills" ;;
    esac
    [ $failures -eq 0 ] && [ "$(date +%s)" -lt "$end" ] || break
done
expect 0 "^result: done" "$@" --name victim --resume auto
[ $failures -ne 0 ] || compare

[ $failures -eq 0 ] && echo "$kills kills, $during_save of them during a save; $runs runs ended as if there had been none"
exit $failures
