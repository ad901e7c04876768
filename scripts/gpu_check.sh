#!/bin/sh
# Runs all checks that need a GPU, unattended, and writes one report, also over several short calls.
# Runs inside a bundle of make_bundle.sh, or from a clone with a build.
# Usage: gpu_check.sh [OPTION...] OUT_DIR [STAGE...], or gpu_check.sh --first OUT_DIR
#   tests     every kernel test on the GPU; again shuffled, twice; suite by suite after a failure.
#   step      a training step of the 124M models, 32,768 tokens per microbatch. Matmuls by cuBLASLt and by our kernels, with
#             and without CUDA graphs.
#   ops       every operation timed and compared with its roofline bound.
#   train     the KJV track to its target, twice. The 124M modern model on the King James text: first losses in f32 and
#             in bf16 against the CPU's, and 300 steps.
#   ranks     2 and 4 ranks on one GPU against one rank; NCCL with one rank; under mpirun if speedrun has MPI.
#   sanitize  the tests of operations under compute-sanitizer: memcheck, racecheck, synccheck, initcheck.
#   peer      the same step against the PyTorch twin (compare_peers.sh); "skipped" without PyTorch.
# Default: all, in this order, most important first, as GPU time may be limited.
#   --bin            folder of the programs; default: bin/ beside this script, else build/cuda or build/release.
#   --device         cuda (default) or cpu: a rehearsal on a machine without a GPU, at small shapes.
#   --seconds N      limit of the whole call with its report; steps without time left are "not run".
#   --step-seconds N upper limit of each step.
#   --again STAGE    repeat its failed or skipped steps; may be given several times.
#   --fresh          delete the results in OUT_DIR first.
#   --first          instead of stages: the steps for the first nine minutes on a GPU (--seconds 540), in order of importance:
#                    tests and times of new kernels, 124M steps with each switch, steps of the recipes, timelines, sanitizer (on
#                    several GPUs: ranks with NCCL, with and without a launch order), PyTorch. Each step has its own limit.
#                    Samples clocks and power into OUT_DIR/clocks.csv.
#   --write-first-losses FILE: compute the CPU's losses for the stage train, and exit (two minutes on 2 cores).
# A long check in short calls, on one machine or on several with the same GPU model: repeat the call with the same OUT_DIR,
# or a copy of it. Each call continues the previous one, until no step is "not run".
#   gpu_check.sh --seconds 540 OUT; gpu_check.sh --seconds 540 OUT; gpu_check.sh --seconds 540 OUT
# Steps that passed, failed or were skipped are not repeated. A step is "not run" if the end of a call interrupts it, or
# if the remaining time is too short for it. The next call runs it from its start.
# Results of other programs or another GPU model are refused.
# SANITIZE_FILTER: gtest filter of the stage sanitize; default: the tests of operations and one short run.
# The report ends with a table of decisions: for each open default, the measurement, the rule and the decision.
# OUT_DIR: results.jsonl (appended); gpu_check.json and report.txt (rewritten after every step); check.log (at most 8 MB);
# kept/ (inputs of later steps); and during a call a reserve of 1 MiB for the report on a full disk.
# Never changes clocks or settings of the GPU. Exit: 0 all requested steps passed, 1 otherwise, 2 bad usage or other results.
# shellcheck disable=SC2317  # stages are called by name
set -u
call_start=$(date +%s)
script_dir=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1

stages='tests step ops train ranks sanitize peer'
bin='' device=cuda seconds='' step_seconds=100000 again='' fresh=0 first=0 write_first_losses='' out=''
# shellcheck disable=SC2034  # for options.sh
options='bin device seconds step-seconds again write-first-losses' flags='fresh first' positionals=any
# shellcheck source=scripts/options.sh
. "$script_dir/options.sh"
first_losses=$write_first_losses
[ $# -gt 0 ] || [ -n "$first_losses" ] || usage 2
if [ -z "$seconds" ]; then
    seconds=100000
    [ "$first" = 0 ] || seconds=540
fi
case $device in cuda | cpu) ;; *) die "--device $device: cuda or cpu" 2 ;; esac
for number in "$seconds" "$step_seconds"; do
    case $number in '' | *[!0-9]*) die "--seconds $seconds --step-seconds $step_seconds: whole numbers" 2 ;; esac
done
if [ -n "$first_losses" ]; then
    case $first_losses in /*) ;; *) first_losses=$PWD/$first_losses ;; esac
    device=cpu
else
    out=$1
    shift
    if [ "$first" = 1 ]; then
        [ $# -eq 0 ] || die '--first has its own steps: no STAGE' 2
        set -- tests ops step peer
    fi
    # shellcheck disable=SC2086  # the stages are words
    [ $# -gt 0 ] || set -- $stages
    # shellcheck disable=SC2086
    for stage in "$@" $again; do
        case " $stages " in *" $stage "*) ;; *) die "unknown stage $stage; there are: $stages" 2 ;; esac
    done
fi
expected=$(printf 'device,%s' "$*" | tr ' ' ',')
if [ -z "$bin" ]; then
    for bin in "$script_dir/bin" "$script_dir/../build/cuda" "$script_dir/../build/release"; do
        [ -x "$bin/gpu_report" ] && break
    done
fi
[ -x "$bin/gpu_report" ] || die "$bin/gpu_report: not there; build it, or name the folder of the programs with --bin" 2
bin=$(CDPATH='' cd -- "$bin" && pwd) || exit 1
for tool in timeout setsid mkfifo mktemp sha256sum head tail grep date; do
    command -v "$tool" >/dev/null 2>&1 || die "$tool: not found"
done
# shellcheck source=scripts/cuda_env.sh
. "$script_dir/cuda_env.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"; [ -z "$out" ] || rm -f "$out/reserve"' EXIT
# No core files of crashing programs.
# shellcheck disable=SC3045  # where the shell has it
ulimit -c 0 2>/dev/null

# The bundle's own C++ library is used only if the machine's is too old: other tools then use the machine's.
if ! "$bin/gpu_report" --help >/dev/null 2>&1 && [ -d "$bin/../lib/fallback" ]; then
    LD_LIBRARY_PATH=$bin/../lib/fallback${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
if ! "$bin/gpu_report" --help >/dev/null 2>"$work/why"; then
    cat "$work/why" >&2
    die "$bin/gpu_report does not run on this machine"
fi

# call_smi OPTION...: nvidia-smi, stopped after 10 s, sooner in a short call.
call_smi() { timeout -k 1 "$((seconds > 200 ? 10 : 1 + seconds / 20))" nvidia-smi "$@" 2>&1 </dev/null; }
# find_facts: writes facts about build and machine to $work/facts, one per line.
find_facts() {
    if [ -r "$bin/../manifest.txt" ]; then
        cat "$bin/../manifest.txt"
    elif sha=$(git -C "$script_dir" rev-parse HEAD 2>/dev/null); then
        [ -z "$(git -C "$script_dir" status --porcelain 2>/dev/null)" ] || sha=$sha-dirty
        echo "git_sha=$sha"
    fi
    programs=$(for program in speedrun op_bench kernels_tests gpu_tests make_tokens; do
        [ ! -r "$bin/$program" ] || { echo "$program" && cat "$bin/$program"; }
    done | sha256sum | cut -c 1-16)
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
    echo "programs=$programs"
    echo "checked_device=$device"
    echo "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "kernel=$(uname -sr)"
    echo "cpu=$cpu, $(getconf _NPROCESSORS_ONLN) cores"
    smi='not found' card=''
    if command -v nvidia-smi >/dev/null 2>&1; then
        fields=name,driver_version,memory.total
        more=$fields,compute_cap,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu
        smi=$(call_smi "--query-gpu=$more" --format=csv,noheader) ||
            smi=$(call_smi "--query-gpu=$fields" --format=csv,noheader) || smi="failed: $smi"
        case $smi in failed*) ;; *) card=$(echo "$smi" | cut -d , -f 1 | tr '\n' ';') ;; esac
    fi
    echo "nvidia_smi=$(echo "$smi" | tr '\n' ' ')"
    [ "$device" = cuda ] || card="none: $cpu"
    echo "card=$card"
}

# open_results: opens OUT_DIR: new, or with results of earlier calls, possibly copied from read-only files.
open_results() {
    mkdir -p "$out" || die "$out: cannot be made"
    out=$(CDPATH='' cd -- "$out" && pwd) || exit 1
    chmod -R u+w "$out" 2>/dev/null
    if [ "$fresh" = 1 ]; then
        (cd "$out" && rm -rf results.jsonl gpu_check.json report.txt check.log kept) || exit 1
    fi
    mkdir -p "$out/kept" || die "$out: cannot be written to"
    touch "$out/check.log" "$out/results.jsonl" || die "$out: cannot be written to"
    dd if=/dev/zero of="$out/reserve" bs=65536 count=16 2>"$work/why" || die "$out: less than 1 MiB is free"
    find_facts >"$work/facts"
    set --
    while IFS= read -r fact; do set -- "$@" "$fact"; done <"$work/facts"
    "$bin/gpu_report" origin --results "$out/results.jsonl" "$@" || die "give another OUT_DIR, or --fresh, which forgets them" 2
    append device "$@"
    for stage in $again; do append again --stage "$stage"; done
    merge
}

# The last seconds are reserved for killing processes and for the report.
reserve=10 grace=5
if [ "$device" = cpu ]; then reserve=2 grace=1; fi
call_end=$((call_start + seconds - reserve))
# shellcheck source=scripts/gpu_check_steps.sh
. "$script_dir/gpu_check_steps.sh"
# shellcheck source=scripts/gpu_check_tests.sh
. "$script_dir/gpu_check_tests.sh"
# shellcheck source=scripts/gpu_check_train.sh
. "$script_dir/gpu_check_train.sh"
# The tree with configs, data and reference results: the bundle's, or the repository. Tests use it too.
root=$script_dir/share/speedrun
[ -d "$root" ] || root=$(CDPATH='' cd -- "$script_dir/.." && pwd) || exit 1
pinned=$root/records/gpu_checks/2026-11-27_h100.json
SPEEDRUN_ROOT=$root
export SPEEDRUN_ROOT
if [ -n "$first_losses" ]; then
    cd "$root" && write_first_losses "$first_losses" && cat "$first_losses"
    exit
fi
open_results
cd "$root" || exit 1
# The matmul algorithms chosen by timing are kept between calls, also without a home folder, so that runs are bitwise equal.
SPEEDRUN_CACHE_DIR=${SPEEDRUN_CACHE_DIR:-$out/kept}
export SPEEDRUN_CACHE_DIR
trap 'stop 130' INT
trap 'stop 143' TERM
turns='first second'
if [ "$first" = 1 ]; then
    # shellcheck source=scripts/gpu_check_first.sh
    . "$script_dir/gpu_check_first.sh"
    begin_first
    set -- first
    turns=second
fi
planning=1
for stage in "$@"; do "stage_$stage"; done
planning=0
merge
if stage_device; then
    for turn in $turns; do
        for stage in "$@"; do
            begin_stage "$turn"
            "stage_$stage"
        done
        [ "$put_off" = 1 ] || break
    done
fi
merge
cat "$work/page"
left=$(grep -c 'not run$' "$work/states")
[ "$left" = 0 ] || echo "not run: $left steps; the same call with the same OUT_DIR goes on with them"
if [ "$merged" = 3 ]; then echo "$(cat "$work/why"): this report is only printed" >&2; else echo "report: $out/gpu_check.json"; fi
[ "$merged" = 0 ]
