#!/bin/sh
# `speedrun launch`: a run with a killed process or rank has the same result, and deterministic failures are not
# repeated.
# Usage: launch_command_test.sh SPEEDRUN [MPIEXEC]
# ctest: ARGS SPEEDRUN MPIEXEC PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1
# Covers: train/commands/host_list.cpp train/commands/launch_hosts.cpp
set -u
speedrun=$1 mpiexec=${2:-}
. "$(dirname "$0")/prepared_run.sh"
saves="--set schedule.steps=3000 --set checkpoint.every=100"
launch() { "$speedrun" launch --backoff 0.1 "$@"; }
# As speedrun, but killed after some steps, once per line in ./lives.
cat >speedrun-dying <<J
#!/bin/sh
[ -s lives ] || exec "$speedrun" "\$@"
sed -i 1d lives
step=\$([ -s lives ] && echo 350 || echo 970)
torn=\$([ -s lives ] && echo '{"event":"step","step":349,"lo')
"$speedrun" "\$@" &
until grep -q "\"step\":\$step," logs/dies/metrics.jsonl 2>/dev/null; do sleep 0.02; done
kill -9 \$!
wait \$!
code=\$?
[ -z "\$torn" ] || sed -i "100s/^/\$torn\$torn\\n/; 200s/^/\$torn\\n/; 250s/^/null\\n/; 300s/^/\\x00\\x00\\n/" logs/dies/metrics.jsonl
exit \$code
J
# As speedrun, but it only exits, with the code in ./code.
printf '#!/bin/sh\necho >>calls\nexit "$(cat code)"\n' >speedrun-ends
chmod +x speedrun-dying speedrun-ends

# shellcheck disable=SC2086  # options
expect 0 "done" "$speedrun" train tiny.json --name whole $saves
# Killed twice and continued each time: equal weights, and one history.
printf '1\n2\n' >lives
# shellcheck disable=SC2086
expect 0 "metrics.jsonl: 4 line(s) cannot be read.*after step [3-9][0-9][0-9] .*restart 1 of 3 in 0.1 s.*restart 2 of 3 in 0.2 s" sh -c '"$@" 2>&1 | tr "\n" " "' _ "$speedrun" launch --backoff 0.1 -- ./speedrun-dying train tiny.json --name dies $saves
cmp logs/whole/checkpoints/final/model.safetensors logs/dies/checkpoints/final/model.safetensors ||
    fail "a run that was killed twice has other weights"
losses() { grep -o '"step":[0-9]*,"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
[ "$(losses whole)" = "$(losses dies)" ] || fail "its history is another: $(losses dies | wc -l) steps"

ends() { # CODE CALLS: the overall exit code, and the number of calls
    echo "$1" >code
    : >calls
    launch --max-restarts 2 -- ./speedrun-ends train tiny.json --name none >out 2>&1
    got=$?
    [ $got -eq "$1" ] || fail "exit code $1 became $got"
    [ "$(wc -l <calls)" -eq "$2" ] || fail "exit code $1: $(wc -l <calls) calls, expected $2"
}
for code in 0 2 3 4 126 127 129 130 138 140 143 152; do ends $code 1; done
grep -q "died" out && fail "a stopped run is taken for dead"
for code in 1 5 137; do
    ends $code 2
    grep -q "died after step 0 (exit code $code), as it did before" out || fail "nothing is said of a step that kills"
done
echo 5 >code
expect 5 "restarted 0 time(s), which is --max-restarts" launch --max-restarts 0 -- ./speedrun-ends train tiny.json --name none

i=0
while [ $i -lt 4 ]; do cat text.txt; i=$((i + 1)); done >long.txt
expect 0 "train" "$speedrun" prepare --input long.txt --out long --document-marker %% --val-every 2
sed 's/tiny\/val/long\/val/; s/"model_dim": 32/"model_dim": 256/; s/"count": 1/"count": 4/' tiny.json >slow.json
# The first start hangs.
printf '#!/bin/sh\n[ -e hung ] && exec "%s" "$@"\ntouch hung\nexec sleep 1000\n' "$speedrun" >speedrun-hangs
chmod +x speedrun-hangs
expect 0 "no sign of life for 5 s (--stalled): the command is killed.*restart 1 of 3" sh -c '"$@" 2>&1 | tr "\n" " "' _ "$speedrun" launch --backoff 0.1 --stalled 5 -- ./speedrun-hangs train tiny.json --name hangs

# A validation longer than --stalled is no hang: it shows signs of life.
expect 0 "result: done" launch --max-restarts 0 --stalled 2 -- "$speedrun" train slow.json --name slow --set threads=1 --set schedule.steps=2 --set precision=f32
expect 2 "no 'speedrun train' in the command" launch -- ./train tiny.json --name a
expect 2 "say with --name" launch -- ./speedrun-ends train tiny.json
expect 2 "resume logs/whole: a run that is launched again continues itself" launch -- ./speedrun-ends train tiny.json --name a --resume logs/whole
expect 2 "speedrun-none: cannot be run: No such file" launch -- ./speedrun-none train tiny.json --name a
: >speedrun-text
expect 2 "speedrun-text: cannot be run: Permission denied" launch -- ./speedrun-text train tiny.json --name a
# Words with blanks and quotes are passed unchanged.
mkdir "it's a folder"
printf '#!/bin/sh\nprintf "%%s\\n" "$@" >words\n' >"it's a folder/speedrun"
chmod +x "it's a folder/speedrun"
launch -- "./it's a folder/speedrun" train 'a b".json' --name '$(touch harmed)' || fail "words"
[ "$(sed -n 2,4p words)" = "$(printf 'a b".json\n--name\n$(touch harmed)')" ] || fail "words have changed: $(cat words)"
expect 2 "command" launch

# Ranks are placed on hosts that answer. The command records its placement, and exits with the first code in ./codes.
cat >placed <<'J'
#!/bin/sh
echo "$1 $2 $3" >>calls
code=$(sed -n 1p codes)
sed -i 1d codes
[ "$code" = 0 ] || touch down-b
exit "$code"
J
chmod +x placed
places() { # HOSTS CODES: "line;line", "code;code" -> ./calls, ./out
    echo "$1" | tr ';' '\n' >hosts.txt
    echo "$2" | tr ';' '\n' >codes
    rm -f calls down-*
    launch --max-restarts 1 --hosts hosts.txt --probe 'test ! -e down-{host}' -- \
        ./placed '{ranks}' '{hosts}' '{names}' "$speedrun" train tiny.json --name none --set batch.microbatch_tokens=128 >out 2>&1
}
places 'a slots=1;# spare;b slots=1' '5;0' || fail "a run that lost a host ends with $?: $(cat out)"
[ "$(cat calls)" = "$(printf '2 a:1,b:1 a,b\n1 a:1 a')" ] || fail "placed elsewhere: $(cat calls)"
grep -q "b does not answer ('test ! -e down-b' ended with 1)" out || fail "nothing is said of the host that is gone: $(cat out)"
grep -q "1 rank(s) on a:1" out || fail "nothing is said of where it goes on: $(cat out)"
places 'a;b;c' 0 && grep -q "the config takes 2 of 3 ranks" out || fail "three ranks that the config has no work for: $(cat out)"
[ "$(cat calls)" = "2 a:1,b:1,c:1 a,b,c" ] || fail "placed elsewhere: $(cat calls)"
places 'b' 5
code=$?
if [ $code -ne 5 ] || ! grep -q "no host is left" out; then fail "without any host: $code, $(cat out)"; fi
expect 2 "hosts-none.txt: cannot be read" launch --hosts hosts-none.txt -- ./placed "$speedrun" train tiny.json --name a
# Names with a special meaning for a shell or ssh are refused.
for name in 'a;touch harmed' 'a;touch${IFS}harmed;' '$(touch${IFS}harmed)' '`touch${IFS}harmed`' 'a|touch' 'a&' 'a>harmed' "a'b" 'a"b' 'a*' 'a\\b' 'a(b)' 'a!' '~a' 'a,b' 'a/b' \
    -oProxyCommand=touch--harmed -l root@-oProxyCommand=x -x@a a@b@c '@a' 'a@' '[::1' '[a;b]' '[]'; do
    printf 'good\n%s slots=1\n' "$name" >hosts.txt
    expect 2 "hosts.txt: line 2: '.*' is no name of a host" launch --hosts hosts.txt --probe 'true {host}' -- ./placed "$speedrun" train tiny.json --name a
done
[ ! -e harmed ] || fail "a name of a host was run"
touch 1 ':' # would match [::1] without quotes
printf '0\n' >codes
printf '%s\n' node-1.example.org root@node_2 10.0.0.1 fe80::1 '[::1]' 'me@[fe80::1%%eth0]' >hosts.txt
rm -f calls
printf '#!/bin/sh\nprintf "%%s\\n" "$@" >>asked\n' >ask
chmod +x ask
expect 0 "" sh -c '"$@" && cat asked' _ "$speedrun" launch --hosts hosts.txt --probe './ask {host}' -- ./placed '{ranks}' '{hosts}' '{names}' "$speedrun" train tiny.json --name none --set batch.microbatch_tokens=64
cmp -s asked hosts.txt || fail "other hosts are asked: $(cat asked)"
# A missing program in the probe.
echo a >hosts.txt
expect 2 "speedrun-asks {host}': a program in it is not found" launch --hosts hosts.txt --probe 'speedrun-asks {host}' -- ./placed "$speedrun" train tiny.json --name a
printf 'a\nb\n' >hosts.txt
echo 0 >codes
expect 0 "b does not answer ('test b = a || speedrun-asks' ended with 127: a program in it is not found)" launch --hosts hosts.txt --probe 'test {host} = a || speedrun-asks' -- ./placed 1 2 3 "$speedrun" train tiny.json --name a
echo 'a slots=many' >hosts.txt
expect 2 "hosts.txt: line 1: expected 'NAME slots=N', found 'a slots=many'" launch --hosts hosts.txt -- ./placed "$speedrun" train tiny.json --name a

# A signal to launch stops the run, which saves itself, and is not restarted.
start stops "$speedrun" launch -- "$speedrun" train tiny.json --name stops --set schedule.steps=100000
kill -TERM $pid
ended 143
[ -s logs/stops/checkpoints/final/model.safetensors ] || fail "a run that was stopped by its launch saved no weights"
! grep -q restart out || fail "a run that was stopped is restarted"

# A rank of two is killed. Its host is then missing, and the run continues with one rank.
kill_rank_1() { # RUN
    victim=$(for process in /proc/[0-9]*; do
        tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q "^$speedrun train tiny.json --name $1" &&
            tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -q '^OMPI_COMM_WORLD_RANK=1$' && echo "${process#/proc/}"
    done | sort -n | tail -n 1) # processes of rank 1: its supervisor and itself, started last
    kill -9 "$victim" || fail "no rank to kill"
}
survives() { # RUN OPTIONS of launch, --, the command up to its number of ranks
    run=$1
    shift
    # shellcheck disable=SC2086
    "$speedrun" launch --backoff 0.1 "$@" --oversubscribe --bind-to none "$speedrun" train tiny.json --name "$run" $saves --set batch.microbatch_tokens=128 >out 2>&1 &
    launcher=$!
    wait_until grep -q '"step":150,' "logs/$run/metrics.jsonl"
    [ "$run" = ranks ] || touch down-b
    kill_rank_1 "$run"
    wait $launcher
    code=$?
    if [ $code -ne 0 ] || ! grep -q "died after step .* (exit code 5); restart 1 of 3" out || ! grep -q "result: done" out; then
        fail "a run whose rank was killed ends with $code: $(cat out)"
    fi
    [ "$(steps_of "$run")" -eq 3000 ] || fail "its history has not 3000 steps"
}
if [ -n "$mpiexec" ]; then
    # mpirun has time to let its ranks save, and does not notice a closed reader.
    for pair in HUP:129 TERM:143 INT:130; do
        run=mpi${pair%:*}
        start "$run" "$speedrun" launch -- "$mpiexec" -n 2 --oversubscribe --bind-to none "$speedrun" train tiny.json --name "$run" --set schedule.steps=100000 --set batch.microbatch_tokens=128
        kill -"${pair%:*}" $pid
        ended "${pair#*:}"
        has "logs/$run/run.log" "stopped by SIGUSR1"
        is_saved "$run" rank-00001.safetensors
    done
    { "$speedrun" launch --max-restarts 0 -- "$mpiexec" -n 2 --oversubscribe --bind-to none "$speedrun" train tiny.json --name unread --set schedule.steps=400 --set eval.every=10 --set batch.microbatch_tokens=128 2>&1; echo $? >code; } | true
    [ "$(cat code)" -eq 0 ] || fail "a launch of mpirun whose reader has left ends with $(cat code)"
    survives ranks -- "$mpiexec" -n 2
    rm -f down-*
    printf 'a\nb\n' >hosts.txt
    survives fewer --hosts hosts.txt --probe 'test ! -e down-{host}' -- "$mpiexec" -n '{ranks}'
    grep -q "1 rank(s) on a:1" out || fail "it did not go on with one rank: $(cat out)"
fi
exit $failures
