#!/bin/sh
# Limits of containers and of the shell: cores, memory, processes and threads. Parts that need root, control groups or mounts
# are skipped with a message. Usage: limits_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120
set -u
speedrun=$(realpath "$1")
. "$(dirname "$0")/prepared_run.sh"
unset OMP_NUM_THREADS
n=0
# train CODE TEXT OPTIONS...: a short run in its own folder, started by $before if set.
before=''
train() {
    code=$1 text=$2
    shift 2
    n=$((n + 1))
    # shellcheck disable=SC2086
    expect "$code" "$text" $before "$speedrun" train tiny.json --name "r$n" --set schedule.steps=2 "$@"
}
cores=$(nproc)

# OMP_NUM_THREADS of any size can lower the number of threads, but not raise it.
for value in 1000000 99999999999 99999999999999999999999 2147483648 -3 0 abc ''; do
    before="env OMP_NUM_THREADS=$value"
    train 0 "on $cores threads"
done
for value in 1 1,2; do
    before="env OMP_NUM_THREADS=$value"
    train 0 'on 1 threads'
done
before=''
train 0 "exceeds the $cores cores .*; set threads=$cores" --set threads=$((cores + 1))

# Address space too small for libraries, a thread's stack or memory: a message, and no signal. The kernel kills a program that
# does not fit itself.
program_kib=$(($(wc -c <"$speedrun") / 1024))
for more in 3000 20000 50000 80000; do
    kib=$((program_kib + more))
    before="sh $work/under -v $kib"
    cat >under <<'J'
ulimit "$1" "$2" || exit 77
shift 2
exec "$@"
J
    $before "$speedrun" train tiny.json --name "v$kib" --set schedule.steps=2 --quiet >out 2>&1
    code=$?
    case $code in
    0) ;;
    1 | 2) grep -q 'error: ' out || fail "ulimit -v $kib: no message" ;;
    127) grep -q 'error while loading shared libraries' out || fail "ulimit -v $kib: no message" ;;  # the system's loader
    *) fail "ulimit -v $kib: exit $code" ;;
    esac
done
before=''

# `ulimit -u` applies to users other than root.
if [ "$(id -u)" = 0 ] && command -v setpriv prlimit >/dev/null; then
    chmod -R a+rwX "$work"
    cp "$speedrun" program && chmod a+rx program
    # as_nobody TASKS COMMAND...
    as_nobody() {
        tasks=$1
        shift
        setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --nproc="$tasks" "$@"
    }
    if as_nobody 1000 ./program --version >/dev/null 2>&1; then
        for tasks in 10 14 20; do
            expect 2 "cannot start a thread (worker .* of 32): .*of $tasks processes and threads are left (ulimit -u).*threads=1" \
                as_nobody $tasks ./program train tiny.json --name "u$tasks" --set threads=32
            expect 0 done as_nobody $tasks ./program train tiny.json --name "d$tasks" --set schedule.steps=2 --quiet
            expect 0 done as_nobody $tasks env OMP_NUM_THREADS=32 ./program train tiny.json --name "o$tasks" --set schedule.steps=2 --quiet
        done
        expect 0 'task limit .* of 14 processes and threads left (ulimit -u)' as_nobody 14 ./program doctor
    else
        echo "skipped: no program of another user can run in $work"
    fi
else
    echo "skipped: ulimit -u needs root and setpriv"
fi

# A separate control group: version 1 has one per kind, version 2 a single one.
base=/sys/fs/cgroup version=2
[ -f $base/cgroup.controllers ] || version=1
group_of() { if [ $version = 1 ]; then echo "$base/$1/speedrun_test_$$"; else echo "$base/speedrun_test_$$"; fi; }
cat >inside <<'J'
for group in $GROUPS_OF_TEST; do echo $$ >"$group/cgroup.procs" || exit 77; done
exec "$@"
J
groups=''
drop_groups() {
    tries=0
    for group in $groups; do
        until rmdir "$group" 2>/dev/null || [ $tries -ge 50 ]; do
            tries=$((tries + 1))
            sleep 0.1
        done
    done
}
trap 'drop_groups; rm -rf "$work"' EXIT
# with_limit KIND FILE_OF_VERSION_1 FILE_OF_VERSION_2 VALUE: commands after $before run under that limit.
with_limit() {
    group=$(group_of "$1")
    [ $version = 1 ] && file=$2 || file=$3
    [ "$(id -u)" = 0 ] && { [ -d "$group" ] || mkdir "$group" 2>/dev/null; } || return 1
    case " $groups " in *" $group "*) ;; *) groups="$groups $group" ;; esac
    echo "$4" 2>/dev/null >"$group/$file" || return 1
    before="env GROUPS_OF_TEST=$group sh $work/inside"
    $before true 2>/dev/null
}
if [ "$cores" -gt 1 ] && with_limit cpu cpu.cfs_quota_us cpu.max 100000; then
    expect 0 'CPU limit *1 cores, by its control group (/sys/fs/cgroup/.*runs start 1 thread' $before "$speedrun" doctor
    expect 0 'on 1 threads' $before "$speedrun" plan tiny.json
    train 0 'threads is 1: the control group.s limit of 1 cores'
    train 0 'threads is 2, which exceeds the control group.s limit' --set threads=2
else
    echo "skipped: no control group for cores can be made"
fi
if with_limit memory memory.limit_in_bytes memory.max 60M; then
    expect 2 'memory *0.05.* GiB available of .*limit 0.0586, /sys/fs/cgroup' $before "$speedrun" doctor
    expect 2 'limit 60.0, .*DOES NOT FIT' $before "$speedrun" plan tiny.json --set model.layers.count=12 --set model.model_dim=256
    # Near the limit a run is refused or completes, but is never killed.
    for width in 64 160 192 208 224 256 384; do
        for every in 0 1; do
            $before "$speedrun" train tiny.json --name "m$width$every" --quiet --set "model.model_dim=$width" --set model.layers.count=4 \
                --set schedule.steps=2 --set checkpoint.every=$every >out 2>&1
            code=$?
            case $code in
            0) grep -q 'result: done' out || fail "width $width: no result" ;;
            2) grep -q 'out of memory: the run needs .* of a limit of 60.0 MiB (/sys/fs' out || fail "width $width: no reason" ;;
            *) fail "width $width, checkpoint.every $every: exit $code" ;;
            esac
            echo "$width $code" >>codes
        done
    done
    if ! grep -q '64 0' codes || ! grep -q '384 2' codes; then fail "the widths do not straddle the limit: $(cat codes)"; fi
else
    echo "skipped: no control group for memory can be made"
fi
if with_limit pids pids.max pids.max 10; then
    expect 2 'cannot start a thread (worker .* of 32): .* of 10 processes and threads are left (/sys/fs/cgroup.*/pids.max)' \
        $before "$speedrun" train tiny.json --name p32 --set threads=32
    train 0 done --quiet --set checkpoint.every=1
    expect 0 'task limit .* of 10 processes' $before "$speedrun" doctor
else
    echo "skipped: no control group for processes can be made"
fi

# Regular files in the usual mount point.
before=''
if [ "$cores" -gt 1 ] && unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup' 2>/dev/null; then
    cat >mounted <<'J'
mount -t tmpfs none /sys/fs/cgroup && echo "50000 100000" >/sys/fs/cgroup/cpu.max && exec "$@"
J
    before="unshare -m sh $work/mounted"
    train 0 'threads is 1: the control group.s limit of 0.5 cores (/sys/fs/cgroup/cpu.max)'
else
    echo "skipped: no mount can be made"
fi
exit $failures
