#!/bin/sh
# A run on several hosts: the same losses as on one; a link that is cut for a while, and for good; a host that dies.
# It ends all ranks with code 5, who name it; under launch the run goes on without it.
# Usage: hosts_test.sh SPEEDRUN MPIEXEC
# ctest: ARGS SPEEDRUN MPIEXEC PROPERTIES LABELS mpi COST 100 ENVIRONMENT mpi
set -u
speedrun=$1 mpiexec=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../expect.sh"
. "$here/../runs/tiny_run.sh"
. "$here/hosts.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
make_hosts 4
expect 0 "train" "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10

config="tiny.json --set batch.microbatch_tokens=64 --set parallel.strategy=zero1"
# on HOSTS NAME OPTIONS…: a rank on each, as one would type it on the first of them.
on() {
    count=$1 name=$2
    shift 2
    # shellcheck disable=SC2086  # options
    in_host 1 "$mpiexec" $mpirun_options --host "$(addresses "$count")" -n "$count" "$speedrun" train $config --name "$name" "$@"
}
losses() { grep -o '"step":[0-9]*,"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
wait_for_step() { wait_until grep -q "\"step\":$2," "logs/$1/metrics.jsonl"; }

for count in 2 4; do
    # shellcheck disable=SC2086  # options
    expect 0 "result: done" "$mpiexec" -n $count --oversubscribe --bind-to none "$speedrun" train $config --name here$count
    expect 0 "result: done" on $count there$count
    [ "$(losses here$count)" = "$(losses there$count)" ] || fail "other losses on $count hosts: $(losses there$count)"
    for n in $(seq $count); do
        grep -q "node$n" logs/there$count/environment.json || fail "no node$n in environment.json"
    done
done

# A link that is cut for five seconds: the run waits, and goes on.
on 2 mended --set schedule.steps=400 --set parallel.timeout_s=60 >mended.out 2>&1 &
run=$!
wait_for_step mended 20
cut 2
sleep 5
before=$(grep -c '"event":"step"' logs/mended/metrics.jsonl)
[ "$before" -lt 400 ] || fail "the run went on without its link"
mend 2
wait $run || fail "a link that was cut for 5 s ended the run: $(cat mended.out)"
expect 0 "result: done" on 2 uncut --set schedule.steps=400
[ "$(losses mended)" = "$(losses uncut)" ] || fail "a cut changed losses"

no_rank_of() { ! pgrep -f "^$speedrun train .*--name $1 " >/dev/null; }
# lost NAME HARM TEXT: a run of that name, of which HARM takes the second host: all ranks end, on both, and TEXT says who is missing.
lost() {
    on 2 "$1" --set schedule.steps=100000 --set parallel.timeout_s=3 >lost.out 2>&1 &
    run=$!
    wait_for_step "$1" 20
    "$2" 2
    wait_until no_rank_of "$1"
    grep -q "$3" lost.out || fail "$2: nobody names the host: $(cat lost.out)"
}
# A link that is cut for longer than ranks wait for each other. mpirun waits for it on its side, and then hears of the end.
lost lost cut "rank 1 on node2 is lost"
mend 2
wait $run
code=$?
[ $code -eq 5 ] || fail "a cut link ends a run with $code: $(cat lost.out)"

# A host that dies. mpirun, whose daemon dies with it, may be the first to notice, and then ends with a code of its own.
lost killed kill_host "rank 1 on node2 is lost\\|Remote daemon: .* on node 10.99.0.2"
wait $run && fail "a host that died ends a run well: $(cat lost.out)"

# The same under `launch`: it goes on with the host that answers.
printf '10.99.0.1\n10.99.0.2\n' >hosts.txt
# shellcheck disable=SC2086  # options
in_host 1 "$speedrun" launch --backoff 0.1 --stalled 15 --hosts hosts.txt --probe './answers {host}' -- "$mpiexec" $mpirun_options --host '{hosts}' \
    -n '{ranks}' "$speedrun" train $config --name on --set schedule.steps=400 --set checkpoint.every=20 --set parallel.timeout_s=3 >lost.out 2>&1 &
run=$!
wait_for_step on 50
cut 2
kill_host 2
wait $run || fail "a run under launch ended with its host: $(cat lost.out)"
for text in "10.99.0.2 does not answer" "1 rank(s) on 10.99.0.1:1" "result: done"; do
    grep -q "$text" lost.out || fail "no '$text': $(cat lost.out)"
done
[ "$(grep -c '"event":"step"' logs/on/metrics.jsonl)" -eq 400 ] || fail "its history has not 400 steps"
exit $failures
