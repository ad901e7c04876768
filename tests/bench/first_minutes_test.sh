#!/bin/sh
# gpu_check.sh --first with fake programs and GPUs. Steps run in order; one that hangs is stopped at its own limit. Calls that
# are killed are continued. Failing tools and a full disk leave the report intact. Each decision follows its figures.
# Usage: first_minutes_test.sh GPU_REPORT SOURCE_DIR
# ctest: ARGS GPU_REPORT ROOT PROPERTIES LABELS bench
set -u
gpu_report=$1 source=$2
. "$source/tests/expect.sh"
. "$source/tests/bench/gpu_check_fakes.sh"

# ---- fakes of a machine with GPUs. SMI: how nvidia-smi fails; GPUS: their number.
export SMI='' GPUS=1 SMI_PIDS="$work/smi_pids"
mkdir gpu no_gpu
ln -s kernels_tests bundle/bin/gpu_tests
mkdir -p bundle/share/speedrun/records/gpu_checks
cat >bundle/share/speedrun/records/gpu_checks/2026-11-27_h100.json <<'F'
{"device": {"card": "NVIDIA H100;"}, "steps": [],
 "ops": [{"name": "pointwise.recipe.cross_entropy_3_targets_fp8", "status": "passed", "median_ms": 3.0}]}
F
cat >gpu/nvidia-smi <<'F'
#!/bin/sh
sample() { echo $$ >>"$SMI_PIDS"; while :; do date '+%Y/%m/%d %H:%M:%S.000, 1700 MHz, 690.00 W, 60'; sleep "$1"; done; }
case $SMI in
fail) echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver' && exit 9 ;;
hang) trap '' TERM; echo $$ >>"$HUNG"; for second in $(seq 60); do sleep 1; done ;;
esac
case "$*" in
*timestamp*-lms*) [ "$SMI" = no_lms ] && echo 'Option -lms is not recognized.' && exit 2; sample 0.1 ;;
*timestamp*-l\ 1) sample 1 ;;
*query-gpu*) for gpu in $(seq "$GPUS"); do echo 'NVIDIA H100, 580.1, 81559 MiB'; done ;;
-L) for gpu in $(seq "$GPUS"); do echo "GPU $((gpu - 1)): NVIDIA H100 (UUID: GPU-$gpu)"; done ;;
*) echo "nvidia-smi $*" ;;
esac
F
cat >no_gpu/mpirun <<'F'
#!/bin/sh
echo "mpirun $2, order $NCCL_LAUNCH_ORDER_IMPLICIT, $NCCL_DEBUG" >>"$CALLS"
while [ "${1##*/}" != speedrun ]; do shift; done
exec "$@"
F
cat >no_gpu/compute-sanitizer <<'F'
#!/bin/sh
export SANITIZED=$2
while [ "${1##*/}" != gpu_tests ]; do shift; done
"$@"
code=$?
echo '========= ERROR SUMMARY: 0 errors'
exit $code
F
printf '#!/bin/sh\necho libmpi.so.40\n' >no_gpu/ldd
printf '#!/bin/sh\necho 2\n' >no_gpu/getconf
chmod +x gpu/* no_gpu/*
PATH="$work/gpu:$work/no_gpu:$PATH"
check() { sh "$check" --first "$@"; }
# stopped: no sample of clocks is taken any more.
stopped() { while read -r pid; do case $(cat "/proc/$pid/stat" 2>/dev/null) in '' | *') Z '*) ;; *) return 1 ;; esac; done <"$SMI_PIDS"; }
row() { expect 0 "^$2 *| $3 *| .* | $4" cat "$1/report.txt"; }

# ---- steps that hang keep to their own limits: in the background, checked at the end.
in_background() {
    name=$1
    shift
    env SMI_PIDS="$work/pids_$name" CALLS="$work/calls_$name" HUNG="$work/hung_$name" "$@" sh "$check" --first --seconds 60 "$name" >"page_$name" 2>&1 </dev/null &
}
in_background hanging FAULTS='first:hang step-modern,library,wgmma,8_microbatches:hang step-r44:hang'
hanging=$!
in_background smi_hangs SMI=hang
smi_hangs=$!

# ---- one GPU
: >"$CALLS"
expect 0 'what this decides' check one
cat >expected <<'T'
first
attention
attention
fp8
optimizer
utility
cross_entropy
step-modern,library,8_microbatches
step-modern,library,wgmma,8_microbatches
step-modern,library,wgmma+early,8_microbatches
step-modern,library,again,8_microbatches
step-r44
step-newest
step-modern,library,traced
memcheck
synccheck
peer-124m_modern.json
GpuRanksTest
GpuNcclTest
T
diff expected "$CALLS" >out || fail 'the steps ran in another order'
stopped || fail 'clocks are still sampled'
expect 0 'step r44 ' cat one/report.txt
expect 0 'newest .*; 1700 MHz, 690 W, 60 C\|newest .* 1700 MHz, 690 W, 60 C' cat one/report.txt
expect 0 '==== exit code 0 .*nvidia-smi -q' cat one/check.log
expect 0 '"question": "cuda.attention"' cat one/gpu_check.json
[ "$(grep -c ' | ' one/report.txt)" = 12 ] || { cp one/report.txt out && fail 'the table has not 11 rows'; }
tail -n 1 one/report.txt >out
grep -q '^figures pinned' out || fail 'the table does not end the report'
row one cuda.attention '1 to 1 ms (+0.0%), tests passed' hand
row one cuda.dependent_launch '1 to 1 ms (+0.0%), tests passed' false
row one 'rows of a group, FP8 loss' '3 ms' 'keep 128'
row one 'FP8 matmuls by cuBLASLt' 'head 2 TFLOP/s, bf16 1, 2 runs without note' yes
row one 'loss blocks a multiprocessor' '70% of the bound' '2: keep'
row one "optimizer's time a step" '1 ms, modelled 1 (+0.0%)' 'keep the model'
row one 'modelled step (plan --gpu)' 'modern 1 for 1 ms (+0.0%), r44 .*' 'keep the model'
row one 'PyTorch twin' 'x 0 ms, x1.100' 'speedrun is 10.0% faster'
row one NCCL_LAUNCH_ORDER_IMPLICIT 'not measured' -
row one sanitizer 'first,memcheck passed, first,synccheck passed' none
row one 'figures pinned in the bundle' '0 of 1 are slower' 'no regression'
cp "$CALLS" before
expect 0 'result: passed' check one
cmp -s before "$CALLS" || fail 'a finished check was repeated'

# ---- other figures, on four GPUs: every decision is another one. Without the launch order, four ranks fail.
: >"$CALLS"
expect 1 'result: failed' env GPUS=4 FAST=' step-modern,library,wgmma,8_microbatches ' LOSS_MS=4 LOSS_SHARE=0.4 FP8_RATE=0.5 \
    MODELLED_MS=2 RATIO=0.9 FAULTS='ranks-nccl,order_0,4:crash' sh "$check" --first four
grep mpirun "$CALLS" >out
printf 'mpirun %s, order %s, WARN\n' 2 1 2 0 4 1 4 0 | diff - out >difference || { cp difference out && fail 'other ranks than expected'; }
grep -q '^memcheck' "$CALLS" && fail 'the sanitizer took the time of the ranks'
row four cuda.attention '1 to 0.5 ms (-50.0%), tests passed' wgmma
row four cuda.dependent_launch '0.5 to 1 ms (+100.0%), tests passed' false
row four 'rows of a group, FP8 loss' '4 ms' '32'
row four 'FP8 matmuls by cuBLASLt' 'head 0.5 TFLOP/s, bf16 1, 2 runs without note' 'no:'
row four 'loss blocks a multiprocessor' '40% of the bound' '1:'
row four "optimizer's time a step" '1 ms, modelled 2 (-50.0%)' 'explain -1 ms'
row four 'modelled step (plan --gpu)' 'modern 2 for 1 ms (+100.0%), .*' 'correct it: modern, r44, newest'
row four 'PyTorch twin' 'x 0 ms, x0.900' 'speedrun is 10.0% slower'
row four NCCL_LAUNCH_ORDER_IMPLICIT '1: 2 passed, 0 failed; 0: 1 passed, 1 failed' 'keep 1: it hangs without'
row four sanitizer 'not measured' -
row four 'figures pinned in the bundle' '1 of 1 are slower' 'find the cause: operation pointwise.recipe.cross_entropy_3_targets_fp8 .*+33.3%'

# ---- crashes and garbage, findings of the sanitizer, and a nvidia-smi that refuses periods of 100 ms
FAULTS='first:crash fp8:garbage step-newest:crash synccheck:crash GpuNcclTest:crash'
expect 1 'result: failed' env SMI=no_lms sh "$check" --first faults
states faults
[ "$(grep -c 'failed$' out)" = 5 ] || fail 'other steps than the faulty ones have failed'
[ "$(grep -c 'passed$' out)" = 16 ] || fail 'a step did not run after one that failed'
row faults cuda.attention '1 to 1 ms (+0.0%), tests failed' hand
row faults sanitizer 'first,memcheck passed, first,synccheck failed' 'switch nothing before it is fixed: first,synccheck'
expect 0 ' 1700 MHz, 690 W' cat faults/report.txt
stopped || fail 'clocks are still sampled'
FAULTS=''

# ---- without nvidia-smi, and with one that fails
expect 0 'nvidia_smi  *skipped' env PATH="$work/no_gpu:${PATH#"$work/gpu:"}" sh "$check" --first no_smi
expect 1 'nvidia_smi  *failed' env SMI=fail sh "$check" --first smi_fails
for folder in no_smi smi_fails; do
    states $folder
    [ "$(grep -c 'passed$' out)" = 20 ] || fail "$folder: steps did not run"
    grep -q MHz $folder/report.txt && fail "$folder: has clocks"
done

# ---- calls that are stopped and killed, and one that runs the rest, of copies of their output
: >"$CALLS"
FAULTS=step-r44:hang
interrupt TERM sh "$check" --first short
[ "$got" = 143 ] || fail "exit code $got of a call that was stopped"
stopped || fail 'clocks are still sampled after TERM'
copy short short2
FAULTS=step-newest:hang
interrupt KILL sh "$check" --first --seconds 20 short2
kill_hung
copy short2 short3
FAULTS=''
expect 0 'result: passed' check short3
sort "$CALLS" | uniq -d >out
printf '%s\n' attention step-newest step-r44 | diff - out >difference || { cp difference out && fail 'steps ran again'; }
wait_until stopped

# ---- a full disk
find_isolation
if [ -n "$isolate" ]; then
    FAULTS=optimizer:full_disk
    # shellcheck disable=SC2086
    $isolate sh on_small_disk --first small
    [ $? = 1 ] || fail 'another exit code than 1 on a full disk'
    cp page out
    grep -q 'no space left in' page || fail 'the full disk is not reported'
    [ "$(grep -c ' | ' page)" = 12 ] || fail 'no table on a full disk'
    states copied
    grep -q '^ranks nccl passed' out || fail 'a full disk has ended the check'
    FAULTS=''
fi

wait "$hanging"
[ $? = 1 ] || { cp page_hanging out && fail 'another exit code than 1 of a call with steps that hang'; }
states hanging
for step in 'tests first' 'step modern,library,wgmma,8_microbatches' 'step r44'; do
    grep -q "^$step failed" out || fail "$step: not stopped at its limit"
done
[ "$(grep -c 'passed$' out)" = 18 ] || fail 'steps that hang have taken the time of others'
wait "$smi_hangs"
states smi_hangs
[ "$(grep -c 'passed$' out)" = 20 ] || fail 'a nvidia-smi that hangs has taken the time of steps'
HUNG="$work/hung_smi_hangs" kill_hung

[ "$failures" -eq 0 ] || { echo "$failures failed" && exit 1; }
echo "all passed"
