#!/bin/sh
# One rank of four fails: every other rank must print the reason with the rank, and end with the right
# code, long before a minute is over. Usage: mpi_failure_test.sh MPIEXEC PROGRAM MODE
# Covers: train/comm/peer_watch.cpp train/comm/supervisor.cpp
set -u
mpiexec=$1 program=$2 mode=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

speakers="0 2 3"  # ranks that must print the reason; rank 1 is to blame
case $mode in
hang) code=5 reason="rank 1 hangs: it runs, but did not come to communicate" ;;
stuck) code=5 reason="rank 1 hangs" speakers="" ;; # the first watch to time out prints and ends all ranks
stop) code=5 reason="rank 1 is lost: it does not answer, so it is dead or stopped" ;;
leave) code=5 reason="rank 1 left before its end" speakers="" ;;
die) code=5 reason="rank 1 died of signal 9" speakers="" ;;
leave_unaided | die_unaided) code=5 reason="rank 1 is lost: it does not answer, so it is dead or stopped" ;;
nothing) code=0 reason="" speakers="" ;;
pause) code=0 reason="rank [0-3] was stopped or suspended for [3-9] s; it waits afresh" speakers="" ;;
fail) code=3 reason="shard 7 is damaged" speakers="0 1 2 3" ;;
chain) code=5 reason="rank 3 hangs: it runs, but did not come to communicate" speakers="0 1 2" ;;
swap) code=5 reason="ranks wait for each other: .*'first'.*'second'\|ranks wait for each other: .*'second'.*'first'" speakers="0 1 2 3" ;;
resize) code=5 reason="than [12]000 bytes: it runs another collective" speakers="0 1 2 3" ;;
plan) code=2 reason="plan: rank 1 differs from rank 0 at line 2: 'c' instead of 'b'" speakers="0 1 2 3" ;;
*) echo "unknown mode $mode" >&2 && exit 2 ;;
esac

failures=0
fail() {
    echo "FAILED $mode: $*" >&2
    failures=$((failures + 1))
}

# mpirun kills all ranks as soon as one of its processes ends, before the other ranks can detect the loss. In unaided
# modes, the shell that mpirun started for rank 1 therefore outlives the rank. Open MPI's option to continue after a
# death is no alternative: Open MPI 5 counts a rank that exits with an error twice. Then mpirun hangs, or it ends before
# the last ranks, which a broken pipe kills.
begin=$(date +%s)
timeout -k 5 40 "$mpiexec" -np 4 --oversubscribe --bind-to none sh -c '
    "$0" "${1%_unaided}"
    status=$?
    case $OMPI_COMM_WORLD_RANK:$1 in 1:*_unaided) exec sleep 60 ;; esac
    exit $status' "$program" "$mode" >"$folder/output" 2>&1
status=$?
seconds=$(($(date +%s) - begin))

[ "$mode" = nothing ] || grep -q "$reason" "$folder/output" || fail "nobody said '$reason'"
[ "$mode" != nothing ] || [ ! -s "$folder/output" ] || fail "something was said"
for rank in $speakers; do
    grep -q "error: rank $rank: .*\($reason\)\|error: rank $rank: \($reason\)" "$folder/output" || fail "rank $rank did not say '$reason'"
done
[ "$status" = "$code" ] || fail "mpirun ended with $status, want $code"
# Two seconds until a peer counts as lost, two for its watch to answer, one to print; the rest allows for a loaded machine. The
# pause adds five seconds in which all ranks are stopped, and a new timeout after it.
[ "$mode" = pause ] && limit=35 || limit=20
[ "$seconds" -le $limit ] || fail "took $seconds s"

[ "$failures" = 0 ] || { cat "$folder/output" >&2 && exit 1; }
echo "$mode: ok, $seconds s"
