# Sourced by gpu_check.sh: selects, runs, stops and records steps, and divides time and disk space. Uses bin, device, out, work,
# expected, pinned, step_seconds, grace and call_end.
# shellcheck shell=sh disable=SC2154,SC2034
merged=1 step_stage='' step_name='' running='' planning=0 put_off=0 is_full=0 rc=none
stage_end=$call_end

# merge: rewrites the report; merged: 0 all passed, 1 otherwise, 3 not written.
merge() {
    "$bin/gpu_report" merge --expect "$expected" --pinned "$pinned" --states "$work/states" --json "$out/gpu_check.json" --table "$out/report.txt" \
        "$out" "$work" >"$work/page" 2>"$work/why"
    merged=$?
    if [ "$merged" = 3 ] && make_room; then merge; fi
}

# make_room: OUT_DIR's disk is full. Deletes the reserved file and most of the log; fails if that is already done.
make_room() {
    [ "$is_full" = 0 ] || return 1
    is_full=1
    rm -f "$out/reserve"
    tail -c 20000 "$out/check.log" >"$work/end_of_log" 2>/dev/null && cat "$work/end_of_log" 2>/dev/null >"$out/check.log"
    append step --stage device --step disk --status failed --message "no space left in $out: check.log was shortened"
}

# append COMMAND OPTION...: of gpu_report, to the results; if the disk is full, to the results of this call only.
append() {
    "$bin/gpu_report" "$@" --results "$out/results.jsonl" 2>"$work/why" && return
    make_room
    "$bin/gpu_report" "$@" --results "$out/results.jsonl" 2>"$work/why" && return
    "$bin/gpu_report" "$@" --results "$work/results.jsonl"
}

# record STAGE STEP STATUS MESSAGE: for a step without a program.
record() {
    append step --stage "$1" --step "$2" --status "$3" --message "$4"
    merge
}

# state_of STAGE STEP: prints its result, from this call or an earlier one; nothing if it was never planned.
state_of() {
    sed -n "s|^$1 $2 ||p" "$work/states"
}

# due STAGE STEP: true if it must run now; later functions apply to this step. While planning it is false and records "not run",
# so that a call that is killed has an entry for every step.
due() {
    step_stage=$1 step_name=$2
    due_state=$(state_of "$1" "$2")
    if [ "$planning" = 1 ]; then
        [ -n "$due_state" ] ||
            append step --stage "$1" --step "$2" --status 'not run' --message 'not begun yet' >/dev/null
        return 1
    fi
    [ -z "$due_state" ] || [ "$due_state" = 'not run' ]
}

# A stage starts no step after using 60% of the remaining time, so that a hanging stage leaves time for the others. Its
# postponed steps run after them.
begin_stage() {
    now=$(date +%s)
    stage_end=$((now + (call_end - now) * 6 / 10))
    [ "$1" = first ] || stage_end=$call_end
}

# end_session [FILE]: ends all remaining processes of the step, or of the session in FILE, including children with their own
# process groups. A subshell, as the caller may use set -f.
end_session() (
    session_file=${1:-$work/session}
    session=$(cat "$session_file" 2>/dev/null)
    [ -n "$session" ] || exit 0
    set +f
    for round in 1 2; do # twice: for processes started during the first round
        for stat in /proc/[0-9]*/stat; do
            { read -r stat_line <"$stat"; } 2>/dev/null || continue
            # After the name: state, parent, group, session.
            # shellcheck disable=SC2086  # fields are words
            set -- ${stat_line##*) }
            [ "${4:-}" = "$session" ] || continue
            pid=${stat%/stat}
            kill -KILL "${pid#/proc/}" 2>/dev/null
        done
    done
    rm -f "$session_file"
)

# run MINIMUM LIMIT COMMAND...: for at most LIMIT seconds; not at all if less than MINIMUM is left of the call. Sets rc ("none":
# not started), took, limit and log, the first and last 2 MB of its output; records nothing.
run() {
    minimum=$1 own_limit=$2
    shift 2
    [ "$device" = cuda ] || minimum=2
    [ "$own_limit" -le "$step_seconds" ] || own_limit=$step_seconds
    [ "$minimum" -le "$own_limit" ] || minimum=$own_limit
    rc=none took=0 limit=$own_limit log=$work/log why_not='no time was left'
    true >"$log"
    start=$(date +%s)
    left=$((call_end - start))
    [ "$left" -ge "$minimum" ] || return 0
    if [ "$start" -ge "$stage_end" ]; then
        put_off=1 why_not='put off: the stage has had its share of the time'
        return 0
    fi
    [ "$limit" -le "$left" ] || limit=$left
    rm -f "$work/pipe" "$work/was_read"
    mkfifo "$work/pipe" || { why_not="$work: no pipe can be made there" && return 0; }
    { head -c 2000000 >"$log"; tail -c 2000000 >"$work/end_of_log"; touch "$work/was_read"; } <"$work/pipe" 2>/dev/null &
    reader=$!
    running=$step_name
    # shellcheck disable=SC2016  # for the inner shell
    (exec setsid sh -c 'echo $$ >"$1" && shift && exec "$@"' sh "$work/session" timeout -k "$grace" "$limit" "$@") \
        </dev/null >"$work/pipe" 2>&1 &
    wait $!
    rc=$?
    end_session
    # A process that has left the session may hold the pipe open: it is not waited for.
    for round in 1 2 3 4 5 6 7 8 9 10; do
        [ ! -f "$work/was_read" ] || break
        sleep 0.1
    done
    kill "$reader" 2>/dev/null
    wait "$reader"
    running=''
    took=$(($(date +%s) - start))
    cat "$work/end_of_log" >>"$log" 2>/dev/null
    keep_log "$@"
}

# keep_log COMMAND...: appends its output to check.log, which stays below 8 MB.
keep_log() {
    [ -n "$out" ] || return 0
    {
        echo "==== exit code $rc after $took s (limit $limit s): $*"
        if [ "$(wc -c <"$log")" -le 200000 ]; then
            cat "$log"
        else
            head -c 100000 "$log"
            printf '\n[...]\n'
            tail -c 100000 "$log"
        fi
    } 2>/dev/null >>"$out/check.log"
    [ "$(wc -c <"$out/check.log")" -gt 8000000 ] || return 0
    tail -c 4000000 "$out/check.log" >"$work/end_of_log" && cat "$work/end_of_log" >"$out/check.log"
}

# finish OPTION...: records the result of the current step, set by run(); options as for `gpu_report step`.
finish() {
    if [ "$rc" = none ]; then
        record "$step_stage" "$step_name" 'not run' "$why_not"
        return
    fi
    if [ "$limit" -lt "$own_limit" ] && [ "$took" -ge "$limit" ]; then
        case $rc in 124 | 137) set -- --status 'not run' --message "the call ended after $took s of its $own_limit s" ;; esac
    fi
    [ ! -s "$out/clocks.csv" ] || set -- --clocks "$out/clocks.csv" --began "$start" "$@"
    append step --stage "$step_stage" --step "$step_name" --exit-code "$rc" --seconds "$took" --limit "$limit" --log "$log" "$@"
    merge
}

# gtest_step MINIMUM LIMIT PROGRAM OPTION...: runs a test program as the current step.
gtest_step() {
    gtest_minimum=$1 gtest_limit=$2 program=$3
    shift 3
    rm -f "$work/gtest.json"
    run "$gtest_minimum" "$gtest_limit" "$program" "--gtest_output=json:$work/gtest.json" "$@"
    finish --gtest "$work/gtest.json"
}
# As gtest_step, with several processes, limited by the cores of the machine.
sharded_gtest_step() {
    shards=$(($(getconf _NPROCESSORS_ONLN) / 2))
    [ "$shards" -le 6 ] || shards=6
    if [ "$shards" -le 1 ]; then
        gtest_step "$@"
        return
    fi
    gtest_minimum=$1 gtest_limit=$2
    shift 2
    rm -f "$work/gtest.json"
    run "$gtest_minimum" "$gtest_limit" sh "$script_dir/gpu_check_shards.sh" "$shards" "$work/gtest.json" "$@"
    finish --gtest "$work/gtest.json"
}

# stop EXIT_CODE: handles a signal to end the call.
stop() {
    trap '' INT TERM
    if [ -n "$running" ]; then
        end_session
        append step --stage "$step_stage" --step "$step_name" --status 'not run' --seconds "$(($(date +%s) - start))" \
            --message 'the call was stopped'
    fi
    merge
    exit "$1"
}
