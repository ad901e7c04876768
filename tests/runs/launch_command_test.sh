#!/bin/sh
# `speedrun launch`: a run whose process or whose rank is killed comes to the same end, and what would come again is not repeated.
# Usage: launch_command_test.sh SPEEDRUN [MPIEXEC]
set -u
speedrun=$1 mpiexec=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
expect 0 "train" "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10
saves="--set schedule.steps=3000 --set checkpoint.every=100"
launch() { "$speedrun" launch --backoff 0.1 "$@"; }
# As speedrun, but its process is killed after some steps as long as there are lines in ./lives.
cat >speedrun-dying <<J
#!/bin/sh
[ -s lives ] || exec "$speedrun" "\$@"
sed -i 1d lives
step=\$([ -s lives ] && echo 350 || echo 970)
"$speedrun" "\$@" &
until grep -q "\"step\":\$step," logs/dies/metrics.jsonl 2>/dev/null; do sleep 0.02; done
kill -9 \$!
wait \$!
J
# As speedrun, but it only ends, with the exit code in ./code.
printf '#!/bin/sh\necho >>calls\nexit "$(cat code)"\n' >speedrun-ends
chmod +x speedrun-dying speedrun-ends

# shellcheck disable=SC2086  # options
expect 0 "done" "$speedrun" train tiny.json --name whole $saves
# Killed twice, and each time continued: the same weights, and one history.
printf '1\n2\n' >lives
# shellcheck disable=SC2086
expect 0 "restart 1 of 3 in 0.1 s.*restart 2 of 3 in 0.2 s" sh -c '"$@" 2>&1 | tr "\n" " "' _ "$speedrun" launch --backoff 0.1 -- ./speedrun-dying train tiny.json --name dies $saves
cmp logs/whole/checkpoints/final/model.safetensors logs/dies/checkpoints/final/model.safetensors ||
    fail "a run that was killed twice has other weights"
losses() { grep -o '"step":[0-9]*,"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
[ "$(losses whole)" = "$(losses dies)" ] || fail "its history is another: $(losses dies)"

ends() { # CODE CALLS: the exit code of all, and how often the command was run
    echo "$1" >code
    : >calls
    launch --max-restarts 2 -- ./speedrun-ends train tiny.json --name none >out 2>&1
    got=$?
    [ $got -eq "$1" ] || fail "exit code $1 became $got"
    [ "$(wc -l <calls)" -eq "$2" ] || fail "exit code $1: $(wc -l <calls) calls, expected $2"
}
for code in 0 2 3 4; do ends $code 1; done
for code in 1 5 137; do
    ends $code 2
    grep -q "died after step 0 (exit code $code), as it did before" out || fail "nothing is said of a step that kills"
done
echo 5 >code
expect 5 "restarted 0 time(s), which is --max-restarts" launch --max-restarts 0 -- ./speedrun-ends train tiny.json --name none

expect 2 "no 'speedrun train' in the command" launch -- ./train tiny.json --name a
expect 2 "say with --name" launch -- ./speedrun-ends train tiny.json
expect 2 "resume logs/whole: a run that is launched again continues itself" launch -- ./speedrun-ends train tiny.json --name a --resume logs/whole
expect 2 "speedrun-none: cannot be run" launch -- ./speedrun-none train tiny.json --name a
expect 2 "command" launch

# A signal to launch stops the run, which saves itself, and is the end.
"$speedrun" launch -- "$speedrun" train tiny.json --name stops --set schedule.steps=100000 >out 2>&1 &
launcher=$!
wait_until test -s logs/stops/metrics.jsonl
kill -TERM $launcher
wait $launcher
code=$?
[ $code -eq 143 ] || fail "a launch that was stopped ends with $code: $(cat out)"
[ -s logs/stops/checkpoints/final/model.safetensors ] || fail "a run that was stopped by its launch saved no weights"
! grep -q restart out || fail "a run that was stopped is restarted"

# A rank of two is killed.
if [ -n "$mpiexec" ]; then
    # shellcheck disable=SC2086
    "$speedrun" launch --backoff 0.1 -- "$mpiexec" -n 2 --oversubscribe --bind-to none "$speedrun" train tiny.json --name ranks $saves --set batch.microbatch_tokens=128 >out 2>&1 &
    launcher=$!
    wait_until grep -q '"step":150,' logs/ranks/metrics.jsonl
    victim=$(for process in /proc/[0-9]*; do
        tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q "^$speedrun train tiny.json --name ranks" &&
            tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -q '^OMPI_COMM_WORLD_RANK=1$' && echo "${process#/proc/}"
    done | sort -n | tail -n 1) # of rank 1 and what supervises it, the one that was started last
    kill -9 "$victim" || fail "no rank to kill"
    wait $launcher
    code=$?
    if [ $code -ne 0 ] || ! grep -q "died after step .* (exit code 5); restart 1 of 3" out || ! grep -q "result: done" out; then
        fail "a run whose rank was killed ends with $code: $(cat out)"
    fi
    [ "$(grep -c '"event":"step"' logs/ranks/metrics.jsonl)" -eq 3000 ] || fail "its history has not 3000 steps"
fi
exit $failures
