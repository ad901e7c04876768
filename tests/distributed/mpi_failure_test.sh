#!/bin/sh
# Something goes wrong on one rank of four: every other rank must say what and who, and end with the right
# code, long before a minute is over. Usage: mpi_failure_test.sh MPIEXEC PROGRAM MODE
set -u
mpiexec=$1 program=$2 mode=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

speakers="0 2 3"  # ranks that must print the reason; rank 1 is to blame
case $mode in
hang) code=5 reason="rank 1 hangs: it runs, but did not come to communicate" ;;
stuck) code=5 reason="rank 1 hangs" speakers="" ;; # the first watch that has waited long enough speaks and ends all
stop) code=5 reason="rank 1 is lost: it does not answer, so it is dead or stopped" ;;
leave) code=5 reason="rank 1 left before its end" speakers="" ;;
die) code=5 reason="rank 1 died of signal 9" speakers="" ;;
leave_unaided | die_unaided) code=5 reason="rank 1 is lost: it does not answer, so it is dead or stopped" ;;
nothing) code=0 reason="" speakers="" ;;
fail) code=3 reason="shard 7 is damaged" speakers="0 1 2 3" ;;
chain) code=5 reason="rank 3 hangs: it runs, but did not come to communicate" speakers="0 1 2" ;;
swap) code=5 reason="ranks wait for each other: .*'first'.*'second'\|ranks wait for each other: .*'second'.*'first'" speakers="0 1 2 3" ;;
resize) code=5 reason="than [12]000 bytes: it runs another collective" speakers="0 1 2 3" ;;
plan) code=2 reason="plan: rank 1 differs from rank 0 at line 2: 'c' instead of 'b'" speakers="0 1 2 3" ;;
*) echo "unknown mode $mode" >&2 && exit 2 ;;
esac

# Open MPI's mpirun kills all ranks as soon as one is dead, before they can find out. Told to go on, it leaves that to us;
# its own status is then 0, so each rank's is noted.
options="--oversubscribe --bind-to none"
case $mode in
*_unaided)
    OMPI_MCA_orte_enable_recovery=1 && export OMPI_MCA_orte_enable_recovery
    "$mpiexec" --version | grep -q 'Open MPI) [5-9]' && options="$options --runtime-options recoverable"
    ;;
esac

failures=0
fail() {
    echo "FAILED $mode: $*" >&2
    failures=$((failures + 1))
}

begin=$(date +%s)
# shellcheck disable=SC2086 # options are words
timeout 40 "$mpiexec" -np 4 $options sh -c '
    "$0" "${1%_unaided}"
    status=$?
    echo $status >"$2/status.$OMPI_COMM_WORLD_RANK"
    exit $status' "$program" "$mode" "$folder" >"$folder/output" 2>&1
status=$?
seconds=$(($(date +%s) - begin))

[ "$mode" = nothing ] || grep -q "$reason" "$folder/output" || fail "nobody said '$reason'"
[ "$mode" != nothing ] || [ ! -s "$folder/output" ] || fail "something was said"
for rank in $speakers; do
    grep -q "error: rank $rank: .*\($reason\)\|error: rank $rank: \($reason\)" "$folder/output" || fail "rank $rank did not say '$reason'"
done
case $mode in
*_unaided)
    # The first rank to end ends the others; one may be killed between its last words and the note.
    ended=0
    for rank in $speakers; do
        [ -e "$folder/status.$rank" ] || continue
        ended=$((ended + 1))
        [ "$(cat "$folder/status.$rank")" = 5 ] || fail "rank $rank ended with $(cat "$folder/status.$rank"), want 5"
    done
    [ "$ended" -ge 1 ] || fail "no rank ended by itself"
    ;;
*) [ "$status" = "$code" ] || fail "mpirun ended with $status, want $code" ;;
esac
# Two seconds until a peer is given up, two for its watch to answer, one for last words; the rest is a loaded machine.
[ "$seconds" -le 20 ] || fail "took $seconds s"

[ "$failures" = 0 ] || { cat "$folder/output" >&2 && exit 1; }
echo "$mode: ok, $seconds s"
