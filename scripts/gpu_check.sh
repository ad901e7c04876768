#!/bin/sh
# Checks everything that can only be checked on a GPU, unattended, and leaves one report.
# Runs inside a bundle of make_bundle.sh, or from a clone with a build.
# Usage: gpu_check.sh [--bin DIR] [--device cuda|cpu] [--seconds N] OUT_DIR [STAGE...]
#   tests     every kernel test on the GPU; again shuffled, twice; suite by suite where that failed
#   step      a training step of the 124M models, 32,768 tokens a microbatch: products by cuBLASLt and by our own kernels, with
#             and without CUDA graphs
#   ops       every operation timed and compared with its floor
#   train     the KJV track to its target, twice; the 124M modern model on the King James text: its first losses in f32 and in
#             bf16 against those of the CPU, and 300 steps
#   ranks     2 and 4 ranks that share the card against one; NCCL with one rank; under mpirun where speedrun has MPI
#   sanitize  the tests of operations under compute-sanitizer: memcheck, racecheck, synccheck, initcheck
#   peer      the same step against the PyTorch twin (compare_peers.sh); "skipped" where there is no PyTorch
# Default: all of them, in this order: what is worth most comes first, as cards are lent by the minute. A stage takes less than ten minutes and may be run alone; OUT_DIR may hold earlier results.
#   --bin      folder of the programs; default: bin/ beside this script, else build/cuda or build/release
#   --device   cpu: a rehearsal on a machine without a GPU, at small shapes
#   --seconds  limit of the whole call: steps for which no time is left are "not run"
#   --write-first-losses FILE: computes on the CPU what the stage train compares with, and ends (two minutes on 2 cores)
# SANITIZE_FILTER: gtest filter of the stage sanitize, default the tests of operations and one short run.
# OUT_DIR: results.jsonl and ops.jsonl (grow as results come), check.log, gpu_check.json, report.txt, peer_*.json.
# Never changes clocks or settings of the card. Exit: 0 all that was asked for passed, 1 not so, 2 bad usage.
# shellcheck disable=SC2317  # stages are called by name
set -u
script_dir=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1

usage() {
    sed -n '2,/^# shellcheck/{/^# shellcheck/!s/^# \{0,1\}//p;}' "$0"
    exit "$1"
}
die() {
    echo "error: $1" >&2
    exit "${2:-1}"
}

stages='tests step ops train ranks sanitize peer'
bin='' device=cuda seconds=100000 first_losses=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage 0 ;;
    --bin | --device | --seconds | --write-first-losses) [ $# -gt 1 ] || die "$1 needs a value; see --help" 2 ;;
    -*) die "unknown option $1; see --help" 2 ;;
    *) break ;;
    esac
    case $1 in
    --bin) bin=$2 ;;
    --device) device=$2 ;;
    --seconds) seconds=$2 ;;
    --write-first-losses) first_losses=$2 ;;
    esac
    shift 2
done
[ $# -gt 0 ] || [ -n "$first_losses" ] || usage 2
case $device in cuda | cpu) ;; *) die "--device $device: cuda or cpu" 2 ;; esac
case $seconds in '' | *[!0-9]*) die "--seconds $seconds: a whole number" 2 ;; esac
if [ -n "$first_losses" ]; then
    case $first_losses in /*) ;; *) first_losses=$PWD/$first_losses ;; esac
    device=cpu
else
    out=$1
    shift
    # shellcheck disable=SC2086  # the stages are words
    [ $# -gt 0 ] || set -- $stages
    for stage in "$@"; do
        case " $stages " in *" $stage "*) ;; *) die "unknown stage $stage; there are: $stages" 2 ;; esac
    done
    mkdir -p "$out" || die "$out: cannot be made"
    out=$(CDPATH='' cd -- "$out" && pwd) || exit 1
fi
if [ -z "$bin" ]; then
    for bin in "$script_dir/bin" "$script_dir/../build/cuda" "$script_dir/../build/release"; do
        [ -x "$bin/gpu_report" ] && break
    done
fi
[ -x "$bin/gpu_report" ] || die "$bin/gpu_report: not there; build it, or name the folder of the programs with --bin" 2
bin=$(CDPATH='' cd -- "$bin" && pwd) || exit 1
# The tree that has configs, data and what tests compare with: the bundle's, or the repository. Tests look there, too.
root=$script_dir/share/speedrun
[ -d "$root" ] || root=$(CDPATH='' cd -- "$script_dir/.." && pwd) || exit 1
SPEEDRUN_ROOT=$root
# What products were chosen by timing is kept from call to call, also where there is no home: runs have the same bits.
[ -n "$first_losses" ] || SPEEDRUN_CACHE_DIR=${SPEEDRUN_CACHE_DIR:-$out/cache}
export SPEEDRUN_ROOT ${SPEEDRUN_CACHE_DIR:+SPEEDRUN_CACHE_DIR}
cd "$root" || exit 1
for tool in timeout mktemp tail grep date; do
    command -v "$tool" >/dev/null 2>&1 || die "$tool: not found"
done
# shellcheck source=scripts/cuda_env.sh
. "$script_dir/cuda_env.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'merge; exit 130' INT
trap 'merge; exit 143' TERM

# The bundle's own C++ library serves only where the machine's is too old: tools that start beside ours keep theirs.
if ! "$bin/gpu_report" --help >/dev/null 2>&1 && [ -d "$bin/../lib/fallback" ]; then
    LD_LIBRARY_PATH=$bin/../lib/fallback${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
if ! "$bin/gpu_report" --help >/dev/null 2>"$work/why"; then
    cat "$work/why" >&2
    die "$bin/gpu_report does not run on this machine"
fi

expected=$(printf 'device,%s' "$*" | tr ' ' ',')
call_end=$(($(date +%s) + seconds))
stage_end=$call_end

merge() {
    "$bin/gpu_report" merge --expect "$expected" --json "$out/gpu_check.json" --table "$out/report.txt" "$out" >/dev/null
}

# record STAGE STEP STATUS MESSAGE: of a step that was no program.
record() {
    "$bin/gpu_report" step --results "$out/results.jsonl" --stage "$1" --step "$2" --status "$3" --message "$4"
    merge
}

# Time is kept per stage: each stays below ten minutes.
begin_stage() {
    stage_end=$(($(date +%s) + 540))
    [ "$stage_end" -lt "$call_end" ] || stage_end=$call_end
}

# run STAGE STEP LIMIT [--gtest] COMMAND...: with a limit in seconds; sets rc, log and took; records nothing.
run() {
    limit=$1
    shift
    left=$((stage_end - $(date +%s)))
    [ "$limit" -lt "$left" ] || limit=$left
    log=$work/log
    rc=none took=0
    [ "$limit" -ge 5 ] || return 0
    start=$(date +%s)
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    took=$(($(date +%s) - start))
    { echo "==== exit code $rc after $took s (limit $limit s): $*" && tail -c 200000 "$log"; } >>"$out/check.log"
}

# step STAGE STEP LIMIT COMMAND...: runs it and records how it ended. gtest_step: the same for a program with tests.
step() {
    stage=$1 name=$2
    shift 2
    run "$@"
    if [ "$rc" = none ]; then record "$stage" "$name" 'not run' 'no time was left' && return 0; fi
    "$bin/gpu_report" step --results "$out/results.jsonl" --stage "$stage" --step "$name" --exit-code "$rc" \
        --seconds "$took" --limit "$limit" --log "$log"
    merge
}
gtest_step() {
    stage=$1 name=$2 step_limit=$3 program=$4
    shift 4
    rm -f "$work/gtest.json"
    run "$step_limit" "$program" "--gtest_output=json:$work/gtest.json" "$@"
    if [ "$rc" = none ]; then record "$stage" "$name" 'not run' 'no time was left' && return 0; fi
    "$bin/gpu_report" step --results "$out/results.jsonl" --stage "$stage" --step "$name" --exit-code "$rc" \
        --seconds "$took" --limit "$limit" --log "$log" --gtest "$work/gtest.json"
    merge
}

# Facts about machine and build; fails where there is no GPU.
stage_device() {
    set -- "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "kernel=$(uname -sr)" \
        "cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), $(getconf _NPROCESSORS_ONLN) cores" \
        "checked_device=$device"
    if [ -r "$bin/../manifest.txt" ]; then
        while IFS= read -r line; do set -- "$@" "$line"; done <"$bin/../manifest.txt"
    elif sha=$(git -C "$script_dir" rev-parse HEAD 2>/dev/null); then
        [ -z "$(git -C "$script_dir" status --porcelain 2>/dev/null)" ] || sha=$sha-dirty
        set -- "$@" "git_sha=$sha"
    fi
    smi='not found'
    if command -v nvidia-smi >/dev/null 2>&1; then
        fields=name,driver_version,memory.total
        more=$fields,compute_cap,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu
        smi=$(timeout 60 nvidia-smi "--query-gpu=$more" --format=csv,noheader 2>&1) ||
            smi=$(timeout 60 nvidia-smi "--query-gpu=$fields" --format=csv,noheader 2>&1) || smi="failed: $smi"
    fi
    set -- "$@" "nvidia_smi=$smi"
    "$bin/gpu_report" device --results "$out/results.jsonl" "$@"
    if [ "$device" = cpu ]; then
        record device present passed 'a rehearsal on the CPU'
        return 0
    fi
    if [ ! -x "$bin/op_bench" ]; then
        record device present failed "$bin/op_bench: not there"
        return 1
    fi
    run 120 "$bin/op_bench" --device cuda --scale small --seconds 0 --filter '^utility.fill$'
    if [ "$rc" = 0 ]; then
        record device present passed ''
        return 0
    fi
    record device present failed "no NVIDIA GPU/driver found: nvidia-smi: $smi; op_bench: $(tail -n 2 "$log" | tr '\n' ' ')"
    return 1
}

find_tests() {
    tests=$bin/gpu_tests
    [ "$device" = cuda ] || tests=$bin/kernels_tests
    [ -x "$tests" ] && return 0
    record "$1" "$1" failed "$tests: not there"
    return 1
}

stage_tests() {
    find_tests tests || return
    gtest_step tests all 240 "$tests"
    if [ "$rc" != 0 ]; then
        # An illegal access spoils all that follows it in the process: alone, each suite tells the truth about itself.
        suites=$(timeout 60 "$tests" --gtest_list_tests 2>/dev/null | sed -n 's/^\([A-Za-z0-9_/]*\.\).*/\1/p')
        for suite in $suites; do
            gtest_step tests "alone:${suite%.}" 60 "$tests" "--gtest_filter=$suite*"
        done
    fi
    # Other orders, other neighbours in the caches of shapes: the comparisons of bits are inside the tests.
    gtest_step tests shuffled_twice 240 "$tests" --gtest_shuffle --gtest_random_seed=20251116 --gtest_repeat=2
}

sanitizer_of() {
    for sanitizer in "$(command -v compute-sanitizer 2>/dev/null)" /usr/local/cuda*/bin/compute-sanitizer \
        /usr/local/cuda*/compute-sanitizer/compute-sanitizer /opt/nvidia/*/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer; do
        [ -x "$sanitizer" ] && return 0
    done
    sanitizer=''
    return 1
}

stage_sanitize() {
    find_tests sanitize || return
    for tool in memcheck racecheck synccheck initcheck; do
        if [ "$device" = cpu ] || ! sanitizer_of; then
            record sanitize "$tool" 'not run' 'compute-sanitizer was not found, or there is no GPU for it'
            continue
        fi
        rm -f "$work/gtest.json"
        # Kernels loaded as they are needed: the tool patches whatever is loaded, all of cuBLASLt and cuDNN otherwise.
        run 130 env CUDA_MODULE_LOADING=LAZY "$sanitizer" --tool "$tool" --error-exitcode 86 --print-limit 20 "$tests" \
            "--gtest_output=json:$work/gtest.json" "--gtest_filter=${SANITIZE_FILTER:-Backends/*:GpuRunTest.GraphsAndCallsAreBitwiseEqual}"
        set -- --message ''
        if [ "$rc" = none ]; then
            set -- --status 'not run' --message 'no time was left'
            rc=0
        elif grep -qiE 'device not supported|not supported on this' "$log"; then
            set -- --status 'not run' --message "$(grep -iE -m 1 'not supported' "$log")"
        elif [ "$rc" = 86 ]; then
            set -- --message "$(grep -E -m 12 '^=========' "$log" | tail -n 11)"
        elif [ "$rc" = 0 ] && ! grep -q 'SUMMARY: 0' "$log"; then
            set -- --status failed --message "$tool printed no summary: it did not watch the tests"
        fi
        "$bin/gpu_report" step --results "$out/results.jsonl" --stage sanitize --step "$tool" --exit-code "$rc" \
            --seconds "$took" --limit "$limit" --log "$log" --gtest "$work/gtest.json" "$@"
        merge
    done
}

# One process per group of cases: an error that spoils the device spoils no other group.
stage_ops() {
    scale=full
    [ "$device" = cuda ] || scale=small
    for group in product attention pointwise optimizer utility; do
        step ops "$group" 150 "$bin/op_bench" --device "$device" --scale "$scale" --filter "^$group" --json "$out/ops.jsonl"
    done
    [ "$device" = cuda ] || return 0
    step ops product_hand 150 "$bin/op_bench" --device cuda --products hand --filter '^product' --json "$out/ops.jsonl"
    # Where no documents are masked: what cuDNN serves.
    step ops attention_cudnn 150 "$bin/op_bench" --device cuda --attention cudnn --filter '^attention[.](gpt2|causal)' \
        --json "$out/ops.jsonl"
}

# shellcheck source=scripts/gpu_check_train.sh
. "$script_dir/gpu_check_train.sh"
if [ -n "$first_losses" ]; then
    write_first_losses "$first_losses" && cat "$first_losses"
    exit
fi
if stage_device; then
    for stage in "$@"; do
        begin_stage
        "stage_$stage"
    done
fi
"$bin/gpu_report" merge --expect "$expected" --json "$out/gpu_check.json" --table "$out/report.txt" "$out"
result=$?
echo "report: $out/gpu_check.json"
exit "$result"
