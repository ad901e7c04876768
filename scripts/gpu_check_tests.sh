# Sourced by gpu_check.sh: its stages that run tests or time operations, using due(), run() and finish() of gpu_check_steps.sh.
# shellcheck shell=sh disable=SC2154,SC2034,SC2317
# Fails without a GPU.
stage_device() {
    step_stage=device step_name=present
    if [ "$device" = cpu ]; then
        record device present passed 'a rehearsal on the CPU'
        return 0
    fi
    if [ ! -x "$bin/op_bench" ]; then
        record device present failed "$bin/op_bench: not there"
        return 1
    fi
    run 5 120 "$bin/op_bench" --device cuda --scale small --seconds 0 --filter '^utility.fill$'
    case $rc in
    0) record device present passed '' ;;
    none) record device present 'not run' 'no time was left' ;;
    *) no_device ;;
    esac
    [ "$rc" = 0 ]
}
no_device() {
    record device present failed "no NVIDIA GPU/driver found: nvidia-smi: $(sed -n 's/^nvidia_smi=//p' "$work/facts"); op_bench: $(
        tail -n 2 "$log" | tr '\n' ' ')"
}

find_tests() {
    tests=$bin/gpu_tests
    [ "$device" = cuda ] || tests=$bin/kernels_tests
    [ -x "$tests" ] && return 0
    if due "$1" "$1"; then record "$1" "$1" failed "$tests: not there"; fi
    return 1
}

stage_tests() {
    find_tests tests || return
    if due tests all; then sharded_gtest_step 60 240 "$tests"; fi
    if [ "$(state_of tests all)" = failed ] && [ "$planning" = 0 ]; then
        # An illegal access invalidates the rest of the process: separate runs isolate each suite.
        suites=$(timeout -k 5 30 "$tests" --gtest_list_tests 2>/dev/null </dev/null | sed -n 's/^\([A-Za-z0-9_/]*\.\).*/\1/p')
        for planning in 1 0; do
            for suite in $suites; do
                if due tests "alone:${suite%.}"; then gtest_step 15 60 "$tests" "--gtest_filter=$suite*"; fi
            done
        done
    fi
    # Other orders, and other previous entries in the caches of shapes: the tests compare bits themselves.
    if due tests shuffled_twice; then
        sharded_gtest_step 60 240 "$tests" --gtest_shuffle --gtest_random_seed=20251116 --gtest_repeat=2
    fi
}

sanitizer_of() {
    for sanitizer in "$(command -v compute-sanitizer 2>/dev/null)" /usr/local/cuda*/bin/compute-sanitizer \
        /usr/local/cuda*/compute-sanitizer/compute-sanitizer /opt/nvidia/*/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer; do
        [ -x "$sanitizer" ] && return 0
    done
    sanitizer=''
    return 1
}

# sanitizer_step NAME TOOL FILTER: the tests of a gtest filter under a tool of compute-sanitizer.
sanitizer_step() {
    due sanitize "$1" || return 0
    if [ "$device" = cpu ] || ! sanitizer_of; then
        record sanitize "$1" 'not run' 'compute-sanitizer was not found, or there is no GPU for it'
        return
    fi
    tool=$2
    rm -f "$work/gtest.json"
    # Lazy loading of kernels: the tool patches all loaded kernels, otherwise including all of cuBLASLt and cuDNN.
    run 60 130 env CUDA_MODULE_LOADING=LAZY "$sanitizer" --tool "$tool" --error-exitcode 86 --print-limit 20 "$tests" \
        "--gtest_output=json:$work/gtest.json" "--gtest_filter=$3"
    set --
    if grep -qiE 'device not supported|not supported on this' "$log"; then
        set -- --status 'not run' --message "$(grep -iE -m 1 'not supported' "$log")"
    elif [ "$rc" = 86 ]; then
        set -- --message "$(grep -E -m 12 '^=========' "$log" | tail -n 11)"
    elif [ "$rc" = 0 ] && ! grep -q 'SUMMARY: 0' "$log"; then
        set -- --status failed --message "$tool printed no summary: it did not watch the tests"
    fi
    finish --gtest "$work/gtest.json" "$@"
}

stage_sanitize() {
    find_tests sanitize || return
    for tool in memcheck racecheck synccheck initcheck; do
        sanitizer_step "$tool" "$tool" "${SANITIZE_FILTER:-Backends/*:GpuRunTest.GraphsAndCallsAreBitwiseEqual}"
    done
}

# ops_step NAME FILTER OPTION...: one process per group of cases, so that a device error affects one group only.
ops_step() {
    due ops "$1" || return 0
    filter=$2 scale=full
    [ "$device" = cuda ] || scale=small
    shift 2
    rm -f "$work/ops.jsonl"
    run 20 150 "$bin/op_bench" --device "$device" --json "$work/ops.jsonl" --seconds 0.15 --scale "$scale" --filter "$filter" "$@"
    finish --ops "$work/ops.jsonl"
}

stage_ops() {
    for group in product attention pointwise optimizer utility fp8; do
        ops_step "$group" "^$group"
        # Directly after the other attention cases, for comparable conditions.
        [ "$group$device" != attentioncuda ] || ops_step attention_wgmma '^attention' --attention wgmma
    done
    [ "$device" = cuda ] || return 0
    ops_step product_hand '^product' --products hand
    ops_step product_wgmma 'relu_squared' --products wgmma
    # Cases without document masks, which cuDNN supports.
    ops_step attention_cudnn '^attention[.](gpt2|causal)' --attention cudnn
}
