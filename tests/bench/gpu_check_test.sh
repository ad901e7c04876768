#!/bin/sh
# gpu_check.sh with fake programs. Stages that hang, crash, print garbage or fill the disk leave the report of
# all others intact. Several short calls make one complete report in which no step ran twice.
# Usage: gpu_check_test.sh GPU_REPORT SOURCE_DIR
# ctest: ARGS GPU_REPORT ROOT PROPERTIES LABELS bench
set -u
gpu_report=$1 source=$2
. "$source/tests/expect.sh"
. "$source/tests/bench/gpu_check_fakes.sh"

# ---- a stage with hanging steps leaves time for the next stage: 13 steps of two seconds, killed, in a call of 20.
# Checked at the end.
many='S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11'
for suite in $many; do FAULTS="$FAULTS $suite:hang"; done
env CALLS="$work/share_calls" HUNG="$work/share_hung" FAULTS="tests:hang $FAULTS" SUITES="$many" \
    sh "$check" --device cpu --seconds 20 --step-seconds 1 share tests ops >share_out 2>&1 </dev/null &
sharing=$!
FAULTS=''

# ---- faults in every stage: each step is reported, JSON and log stay complete, no process is left running.
FAULTS='tests:truncated Bad:crash step-modern,library,no_graph:hang step-modern,hand:crash step-gpt2,library:garbage
 product:garbage optimizer:hang utility:truncated train-kjv_again:crash peer-124m_modern.json:garbage peer-gpt2_124m.json:crash'
FAULTS=$(echo "$FAULTS" | tr '\n' ' ')
expect 1 'result: failed' sh "$check" --device cpu --step-seconds 2 faults
expect_states faults <<'T'
tests all failed
tests shuffled_twice passed
step modern,library passed
step modern,library,no_graph failed
step modern,hand failed
step modern,library,8_microbatches passed
step gpt2,library failed
step gpt2,library,no_graph passed
step gpt2,hand passed
step gpt2,library,8_microbatches passed
ops product failed
ops attention passed
ops pointwise passed
ops optimizer failed
ops utility failed
ops fp8 passed
train kjv passed
train kjv_again failed
train 124m_first_steps_f32 passed
train 124m_20 passed
ranks mpirun skipped
sanitize memcheck not run
sanitize racecheck not run
sanitize synccheck not run
sanitize initcheck not run
peer modern failed
peer gpt2 failed
device present passed
tests alone:Good passed
tests alone:Bad failed
T
expect 0 'the tests did not reach their end' cat faults/report.txt
expect 0 'stopped at its limit of 2 s' cat faults/report.txt
expect 0 'exit code 139' cat faults/report.txt
expect 0 'cannot be read' cat faults/report.txt
[ "$(wc -c <faults/check.log)" -lt 8000000 ] || fail 'check.log has no bound'
[ "$(wc -c <faults/gpu_check.json)" -lt 1000000 ] || fail 'gpu_check.json has no bound'
[ ! -e faults/reserve ] || fail 'the reserved space is left'
[ -s "$HUNG" ] || fail 'nothing has hung'
while read -r pid; do
    case $(cat "/proc/$pid/stat" 2>/dev/null) in '' | *') Z '*) ;; *) fail "process $pid is left running" ;; esac
done <"$HUNG"
rm -f "$HUNG"

# Failed and skipped steps run again on request, passed ones do not. Results of the failed suites are deleted.
FAULTS=''
: >"$CALLS"
expect 1 'not run: 4 steps' sh "$check" --device cpu --again tests faults tests step
states faults
[ "$(grep '^tests ' out | tr '\n' ';')" = 'tests shuffled_twice passed;tests alone:Good passed;tests all passed;' ] ||
    fail 'tests: not repeated as asked for'
[ "$(cat "$CALLS")" = tests ] || { cp "$CALLS" out && fail 'more was repeated than asked for'; }

# ---- with enough cores, the tests run as several processes: each a share, all in one step; a crash of one
# fails it.
mkdir cores
printf '#!/bin/sh\necho 8\n' >cores/getconf
chmod +x cores/getconf
: >"$CALLS"
expect 0 '4 passed, 0 failed' env PATH="$work/cores:$PATH" sh "$check" --device cpu shards tests
[ "$(sort "$CALLS" | uniq -c | tr -s ' ' | tr '\n' ';')" = ' 4 shuffled; 4 tests;' ] || { cp "$CALLS" out && fail 'not four processes for each'; }
FAULTS=tests:crash
expect 1 'no test ran; exit code 139' env PATH="$work/cores:$PATH" sh "$check" --device cpu crashed tests
FAULTS=''

# ---- short calls: stopped, killed, cut off by the end of the call, and one that runs the rest. Each has a
# read-only copy of the output of the one before.
: >"$CALLS"
FAULTS=step-modern,library:hang
interrupt TERM sh "$check" --device cpu short step ops train
[ "$got" = 143 ] || fail "exit code $got of a call that was stopped"
expect 0 'the call was stopped' cat short/report.txt
copy short short2
FAULTS=step-modern,hand:hang
interrupt KILL sh "$check" --device cpu short2 step ops train
kill_hung
states short2
grep -q '^step modern,hand not run' out || fail 'a killed call has not left what it had not done'
grep -q '^step modern,library passed' out || fail 'a killed call has lost what it had done'
copy short2 short3
FAULTS='' SLOW=step-modern,hand
expect 1 'step modern,hand: not run the call ended after' sh "$check" --device cpu --seconds 11 short3 step ops train
copy short3 short4
SLOW=''
expect 0 'result: passed' sh "$check" --device cpu short4 step ops train
expect 0 'step gpt2,library,8_microbatches .* ms\|call 4: ' cat short4/report.txt
states short4
[ "$(grep -c 'passed$' out)" = 19 ] || fail 'steps are missing after the last call'
printf '%s\n' step-modern,hand step-modern,hand step-modern,library >expected # killed and cut off; stopped
sort "$CALLS" | uniq -c | sed -n 's/^ *\([2-9]\) \(.*\)/\1 \2/p' | while read -r count name; do
    while [ "$count" -gt 1 ]; do echo "$name" && count=$((count - 1)); done
done >out
cmp -s expected out || fail 'these steps were begun more often than they had to be, or not often enough'
cp "$CALLS" before
expect 0 'result: passed' sh "$check" --device cpu short4 step ops train
cmp -s before "$CALLS" || fail 'a finished check was repeated'

# Results of other programs are refused, with both named; --fresh deletes them.
echo '# another build' >>bundle/bin/op_bench
echo git_sha=second >bundle/manifest.txt
expect 2 "git_sha: recorded 'first', now 'second'; programs: recorded '" sh "$check" --device cpu short4 ops
expect 2 'another OUT_DIR, or --fresh' sh "$check" --device cpu short4 ops
expect 1 'ops product: not run no time was left' sh "$check" --device cpu --fresh --seconds 0 short4 ops

# ---- a full disk: a small file system, if it can be mounted.
find_isolation
if [ -z "$isolate" ]; then
    echo 'a full disk: skipped, no file system may be mounted here'
else
    FAULTS=attention:full_disk
    # shellcheck disable=SC2086
    $isolate sh on_small_disk --device cpu small ops train
    [ $? = 1 ] || fail 'another exit code than 1 on a full disk'
    expect 0 'no space left in' cat page
    expect_states copied <<'T'
ops product passed
ops attention failed
ops pointwise passed
ops optimizer passed
ops utility passed
ops fp8 passed
train kjv passed
train kjv_again passed
train 124m_first_steps_f32 passed
train 124m_20 passed
device present passed
device disk failed
T
    cp page out
fi

wait "$sharing"
[ $? = 1 ] || { cp share_out out && fail 'another exit code than 1 of a call in which all hangs'; }
grep -q 'not run put off' share_out || { cp share_out out && fail 'nothing was put off'; }
grep -q -x product share_calls || { cp share_out out && fail 'a stage that hangs has taken all of the time'; }

[ "$failures" -eq 0 ] || { echo "$failures failed" && exit 1; }
echo "all passed"
