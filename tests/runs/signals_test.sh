#!/bin/sh
# A stop signal makes a run save a checkpoint. No event on the terminal, stdout or stderr ends a run.
# Usage: signals_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1
# Covers: train/comm/standard_streams.cpp train/commands/output_relay.cpp
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"
endless="--quiet --set schedule.steps=1000000"
# Signals of a user, of a terminal and of schedulers.
for pair in HUP:129 INT:130 USR1:138 USR2:140 TERM:143 XCPU:152; do
    signal=${pair%:*}
    # shellcheck disable=SC2086  # options
    start "$signal" "$speedrun" train tiny.json --name "$signal" $endless
    kill -"$signal" $pid
    ended "${pair#*:}"
    is_saved "$signal"
    grep -q "stopped by SIG$signal" "logs/$signal/run.log" || fail "run.log does not name SIG$signal"
done
# A closed terminal sends HUP twice, an exceeded CPU limit XCPU every second: the run still saves a checkpoint.
for pair in HUP:129 XCPU:152; do
    # shellcheck disable=SC2086
    start "twice${pair%:*}" "$speedrun" train tiny.json --name "twice${pair%:*}" $endless
    kill -"${pair%:*}" $pid && kill -"${pair%:*}" $pid
    ended "${pair#*:}"
    is_saved "twice${pair%:*}"
done
# Two kinds of signals: pending ones are delivered to any thread, the lowest number first, so either may arrive first.
# shellcheck disable=SC2086
start both "$speedrun" train tiny.json --name both $endless
kill -XCPU $pid && kill -HUP $pid
wait "$pid"
got=$?
case $got in 129 | 152) ;; *) fail "both ended with $got instead of 129 or 152" ;; esac
is_saved both

# nohup: HUP stays ignored, and the run completes; other signals still stop it.
start nohup sh -c "trap '' HUP; exec \"\$@\"" _ "$speedrun" train tiny.json --name nohup --quiet --set schedule.steps=600
kill -HUP $pid
ended 0
[ "$(steps_of nohup)" -eq 600 ] || fail "HUP under nohup stopped the run"

# launch forwards HUP, reports it, and does not restart. Under nohup it ignores HUP.
# shellcheck disable=SC2086
start launched "$speedrun" launch -- "$speedrun" train tiny.json --name launched $endless
kill -HUP $pid
ended 129
is_saved launched
grep -q "launch: SIGHUP.*stopped after step $(steps_of launched)" out || fail "launch does not report SIGHUP"
start ignored sh -c "trap '' HUP; exec \"\$@\"" _ "$speedrun" launch -- "$speedrun" train tiny.json --name ignored --quiet --set schedule.steps=600
kill -HUP $pid
ended 0
[ "$(steps_of ignored)" -eq 600 ] || fail "HUP to launch under nohup stopped the run"

# Output without a reader, that cannot be written, or that is closed: the run completes, and its files have only their own text.
train() { "$speedrun" train tiny.json "$@"; }
is_complete() { # RUN [STEPS]
    lines=$(wc -l <"logs/$1/metrics.jsonl")
    if [ "$(steps_of "$1")" -ne "${2:-20}" ] || [ "$lines" -ne $((${2:-20} + 1)) ]; then fail "$1: $lines lines in metrics.jsonl"; fi
    [ -s "logs/$1/checkpoints/final/model.safetensors" ] || fail "$1 left no weights"
    ! grep -q "result:" "logs/$1/metrics.jsonl" "logs/$1/config.json" "logs/$1/summary.json" "logs/$1/environment.json" || fail "$1: printed text is in a file"
}
{ train --name head --set checkpoint.every=5; echo $? >code; } | head -n 1 >out
[ "$(cat code)" -eq 0 ] || fail "into head: $(cat code)"
{ train --name true 2>&1; echo $? >code; } | true
[ "$(cat code)" -eq 0 ] || fail "into true: $(cat code)"
check() { # RUN: after a command in `if`
    got=$?
    [ $got -eq 0 ] || fail "$1 ended with $got"
}
train --name no_stdout >&- 2>out || check no_stdout
train --name no_stderr 2>&- >out || check no_stderr
train --name no_stdin <&- >out 2>&1 || check no_stdin
train --name nothing <&- >&- 2>&- || check nothing
train --name full >/dev/full 2>/dev/full || check full
for run in head true no_stdout no_stderr no_stdin nothing full; do is_complete $run; done
{ "$speedrun" launch -- "$speedrun" train tiny.json --name launch_head 2>&1; echo $? >code; } | true
[ "$(cat code)" -eq 0 ] || fail "launch into true: $(cat code)"
is_complete launch_head

# Commands that print results: a closed reader is no error, a full disk is one.
for command in "plan tiny.json" "plan --options" "sample logs/head --tokens 200" "bench tiny.json --steps 1" "doctor" "--help" "plan --schema"; do
    # shellcheck disable=SC2086  # words
    { "$speedrun" $command 2>&1; echo $? >code; } | true
    [ "$(cat code)" -eq 0 ] || fail "$command into true: $(cat code)"
done
for command in "plan tiny.json" "eval logs/head" "--help"; do
    # shellcheck disable=SC2086
    "$speedrun" $command >/dev/full 2>out
    got=$?
    if [ $got -ne 1 ] || ! grep -q "stdout: writing failed" out; then fail "$command to a full disk: $got"; fi
done

# A file size limit acts like a full disk, without SIGXFSZ. Child programs have the default handling of both signals.
expect 1 "could not be saved: .*File too large" sh -c "ulimit -f 400; exec '$speedrun' train tiny.json --name large"
printf '#!/bin/sh\ngrep SigIgn /proc/self/status >ignored\n' >speedrun-looks
chmod +x speedrun-looks
"$speedrun" launch -- ./speedrun-looks train tiny.json --name looks || check looks
[ $((0x$(sed 's/.*[[:space:]]//' ignored) & 0x1001000)) -eq 0 ] || fail "a started program ignores SIGPIPE or SIGXFSZ: $(cat ignored)"

# A terminal that is closed: HUP and EIO. The run saves a checkpoint; under nohup it continues.
if command -v python3 >/dev/null; then
    cat >terminal.py <<'P'
"""Runs a command on a terminal of its own, closes the terminal after the first step, and ends with the command's exit code."""
import os, pty, sys, time
name, command = sys.argv[1], sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execv(command[0], command)
until = time.time() + 60
while time.time() < until and not (os.path.exists(name) and os.path.getsize(name)):
    try:
        os.read(terminal, 10000)
    except OSError:  # nohup has closed it, and the shell has not opened it yet
        time.sleep(0.02)
os.close(terminal)
print("closed")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
P
    expect 129 "closed" python3 terminal.py logs/vanished/metrics.jsonl "$speedrun" train tiny.json --name vanished --set schedule.steps=1000000
    is_saved vanished
    expect 0 "closed" python3 terminal.py logs/stays/metrics.jsonl "$(command -v nohup)" sh -c 'exec "$@" >/dev/tty 2>&1' _ "$speedrun" train tiny.json --name stays --set eval.every=0 --set schedule.steps=600
    is_complete stays 600
    expect 129 "closed" python3 terminal.py logs/watched/metrics.jsonl "$speedrun" launch -- "$speedrun" train tiny.json --name watched --set schedule.steps=1000000
    is_saved watched
else
    echo "not tried: a terminal that vanishes needs python3"
fi
exit $failures
