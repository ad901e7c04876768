#!/bin/sh
# Compares `speedrun` with its PyTorch twin (tests/bench/peers): same weights, same tokens, same machine. The f32 losses of both
# must agree first. Then both are timed alternately, and medians and ratios are printed, grouped by precision, with the
# processor and the instruction set level.
# Usage: compare_peers.sh [--device cpu|cuda] [--rounds N] [--steps N] [--modes LIST] [--speedrun PROGRAM] [--json FILE]
#                         [--set KEY=VALUE]... CONFIG
#   --device    default: cpu
#   --rounds    timed turns per side (default: 5)
#   --steps     timed steps per turn, after 3 untimed ones (default: cuda 20, cpu 5)
#   --modes     of the twin, separated by commas: eager or compiled, a dash, f32 or bf16
#               (default: cuda compiled-bf16,eager-bf16; cpu eager-f32,compiled-f32 and, if `speedrun doctor` reports
#               that the processor supports it, eager-bf16,compiled-bf16)
#   --speedrun  default: bin/ beside this script, else build/cuda or build/release
#   --json      the result, one object, rewritten after each round; also written if the comparison failed
#   --set       for both sides, as for `speedrun train`
#   CONFIG      as for `speedrun train`; data patterns are relative to the current folder
# Data are read in file order. Output projections start at random values: zeros would make the first gradients zero. Learning
# rates rise from zero, because a jump of the loss amplifies every rounding. PEER_PYTHON: a Python with PyTorch (default:
# python3).
# SPEEDRUN_ISA lowers the instruction set level of both sides.
# Exit: 0 the losses agree and all modes ran, 1 otherwise, 2 bad usage, 77 no PyTorch.
set -uf
script_dir=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
python=${PEER_PYTHON:-python3}
warm_up=3      # untimed steps of each turn
check_steps=4  # steps with compared losses
# f32 sums in another order: up to 1e-6 of the loss after four steps. A wrong mask, order or update changes it by 1e-3.
tolerance=1e-4
# bf16 has 8 bits: differences up to 2e-5 in the first loss, and up to 2e-3 in the fourth, after three updates.
bf16_first_tolerance=5e-4
bf16_tolerance=1e-2

device=cpu rounds=5 steps='' modes='' speedrun='' json='' settings=''
# shellcheck disable=SC2034  # for options.sh
options='device rounds steps modes speedrun json set' positionals=1
# shellcheck source=scripts/options.sh
. "$script_dir/options.sh"
config=${1:-}
[ -n "$config" ] || usage 2
[ -r "$config" ] || die "$config: cannot be read" 2
case $device in cuda | cpu) ;; *) die "--device $device: cuda or cpu" 2 ;; esac
[ -n "$steps" ] || { [ "$device" = cuda ] && steps=20 || steps=5; }
for number in "$rounds" "$steps"; do
    case $number in '' | *[!0-9]* | 0*) die "--rounds $rounds --steps $steps: whole numbers from 1 on" 2 ;; esac
done
if [ -z "$speedrun" ]; then
    for speedrun in "$script_dir/bin/speedrun" "$script_dir/../build/cuda/speedrun" "$script_dir/../build/release/speedrun"; do
        [ -x "$speedrun" ] && break
    done
fi
[ -x "$speedrun" ] || die "$speedrun: not there; build it, or name it with --speedrun" 2
for twin in "$script_dir/share/speedrun/tests/bench/peers/torch_gpt.py" "$script_dir/../tests/bench/peers/torch_gpt.py"; do
    [ -r "$twin" ] && break
done
if [ -z "$modes" ]; then
    modes=compiled-bf16,eager-bf16
    if [ "$device" = cpu ]; then
        modes=eager-f32,compiled-f32
        if "$speedrun" doctor | grep -q 'precision auto is bf16'; then modes=$modes,eager-bf16,compiled-bf16; fi
    fi
fi
modes=$(echo "$modes" | tr ',' ' ')
precisions=''
for mode in $modes; do # grouped by precision, in order of first occurrence
    case $mode in
    eager-f32 | compiled-f32 | eager-bf16 | compiled-bf16) ;;
    *) die "--modes $mode: eager-f32 compiled-f32 eager-bf16 compiled-bf16" 2 ;;
    esac
    case " $precisions " in *" ${mode#*-} "*) ;; *) precisions="$precisions ${mode#*-}" ;; esac
done

if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "skipped: $python has no PyTorch (PEER_PYTHON names another Python)"
    exit 77
fi

work=$(mktemp -d) || exit 1
twin_pid=''
trap '[ -z "$twin_pid" ] || kill "$twin_pid" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export PYTHONDONTWRITEBYTECODE=1
# PyTorch's own kernels, its compiler and its oneDNN: both sides are limited to the same level.
case ${SPEEDRUN_ISA:-} in
avx2) export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ;;
avx512) export ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI ;;
avx512_bf16) export ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 ;;
esac

# Matrices of zeros would make other gradients zero.
random='{"type": "uniform", "value": 0.5, "by_fan_in": true}'
# train NAME STEPS PRECISION [SETTING]...: a run folder in $work.
train() {
    name=$1 run_steps=$2 precision=$3 keep=false
    case $name in *weights) keep=true ;; esac
    shift 3
    # shellcheck disable=SC2086  # settings are words
    "$speedrun" train "$config" --out "$work" --name "$name" --quiet $settings "$@" --set "schedule.steps=$run_steps" \
        --set "schedule.warmup_steps=$run_steps" --set schedule.decay=constant --set "precision=$precision" --set "device=$device" \
        --set "checkpoint.last=$keep" --set data.shuffle=false --set data.val_tokens=64 --set eval.every=0 --set "model.head.init=$random" \
        --set "model.layers.each.attention.out_init=$random" --set "model.layers.each.mlp.down_init=$random" \
        >"$work/$name.log" 2>&1 || die "speedrun failed: $(tail -n 3 "$work/$name.log")"
}
# Starts a twin with the config of one run and the weights of another; stores its first line in $reply.
start_twin() {
    rm -f "$work/commands" "$work/answers"
    mkfifo "$work/commands" "$work/answers" || exit 1
    "$python" "$twin" --config "$work/$1/config.json" --weights "$work/$2/checkpoints/final" --device "$device" \
        --threads "$(sed -n 's/^ *"threads": \([0-9]*\).*/\1/p' "$work/$1/config.json")" \
        <"$work/commands" >"$work/answers" 2>"$work/twin.log" &
    twin_pid=$!
    exec 3>"$work/commands" 4<"$work/answers"
    hear
}
hear() {
    IFS= read -r reply <&4 || die "the twin ended: $(tail -n 1 "$work/twin.log")"
}
ask() {
    (trap '' PIPE && echo "$1 $2" >&3) 2>/dev/null
    hear
}
stop_twin() {
    exec 3>&- 4<&-
    wait "$twin_pid"
    twin_pid=''
}
# Prints the numbers of an array in a line of JSON, one per line.
array_of() { sed -n "s/.*\"$1\": *\[\([^]]*\)\].*/\1/p" | tr -d ' ' | tr ',' '\n'; }
losses_of() { grep '"event":"step"' "$work/$1/metrics.jsonl" | sed 's/.*"loss":\([^,}]*\).*/\1/'; }
times_of() { grep '"event":"step"' "$work/$1/metrics.jsonl" | sed 's/.*"step_ms":\([^,}]*\).*/\1/'; }
error_of() { printf '%s' "$1" | sed -n 's/.*"error": "\(.*\)"}$/\1/p'; }
# processor_of KEY: prints a text about the processor from the record of the timed run; "" if unknown.
processor_of() { sed -n '/^  "cpu": {/,/^  }/s/^ *"'"$1"'": "*\([^",]*[^",]\)"*,*$/\1/p' "$work/weights/environment.json"; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.6g\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
# difference A B N: prints the largest |a − b|/b of the first N lines of two files; "nan" if one is short or is not a number.
difference() {
    paste "$1" "$2" | head -n "$3" | awk -v want="$3" '
        $1 !~ /^[0-9.]+(e[-+]?[0-9]+)?$/ || $2 !~ /^[0-9.]+(e[-+]?[0-9]+)?$/ { bad = 1 }
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (d > largest) largest = d }
        END { if (bad || NR < want) print "nan"; else printf "%.3g\n", largest }'
}
within() { awk -v d="$1" -v t="$2" 'BEGIN { exit !(d != "nan" && d + 0 <= t + 0) }'; }

failures='' checks='' done_rounds=0
failed() {
    echo "FAILED: $1"
    failures="$failures${failures:+, }\"$(printf '%s' "$1" | tr '\n"' '  ' | tr '\134' /)\""
}
# check NAME STEPS TOLERANCE: compares the losses of the twin's first steps with ours.
check() {
    apart=$(difference "$work/theirs" "$work/ours" "$2")
    verdict=true
    within "$apart" "$3" || verdict=false
    echo "losses of the first $2 steps, $1: largest difference $apart of the loss (at most $3)"
    [ "$apart" != nan ] || apart=null
    checks="$checks${checks:+, }{\"name\": \"$1\", \"steps\": $2, \"largest_difference\": $apart,"
    checks="$checks \"tolerance\": $3, \"passed\": $verdict}"
    [ "$verdict" = true ] || failed "the losses of $1 differ"
}
write_json() {
    [ -n "$json" ] || return 0
    result=passed
    [ -z "$failures" ] || result=failed
    {
        printf '{"config": "%s", "device": "%s", "torch": "%s", "peer_device": "%s",\n' "$config" "$device" "$torch" "$peer_device"
        printf ' "tokens_per_step": %s, "rounds": %s, "steps": %s,\n' "${tokens:-null}" "$done_rounds" "$steps"
        printf ' "processor": "%s", "cores": %s, "isa": %s,\n' "${processor:-}" "${cores:-null}" "${isa:-null}"
        printf ' "against_best": [%s],\n' "${against_best:-}"
        printf ' "result": "%s", "failures": [%s],\n "checks": [%s],\n "peers": [%s]}\n' "$result" "$failures" "$checks" "${peers:-}"
    } >"$json" || die "$json: cannot be written"
}

# The losses, on one small microbatch: f32 needs four times the memory of the timed batch in bf16.
# shellcheck disable=SC2086
sequence=$("$speedrun" plan "$config" --set device=cpu $settings 2>/dev/null | sed -n 's/^ *"sequence_length": \([0-9]*\).*/\1/p' | head -n 1)
[ -n "$sequence" ] || die "speedrun plan $config $settings: no sequence_length"
small="--set batch.microbatch_tokens=$((4 * sequence)) --set batch.tokens_per_step=$((4 * sequence))"
# shellcheck disable=SC2086
{
    train check_weights 0 f32 $small
    train check "$check_steps" f32 $small
}
start_twin check check_weights
torch=$(printf '%s' "$reply" | sed 's/.*"torch": "\([^"]*\)".*/\1/')
peer_device=$(printf '%s' "$reply" | sed 's/.*"device": "\([^"]*\)".*/\1/')
ask eager-f32 "$check_steps"
losses_of check >"$work/ours"
printf '%s\n' "$reply" | array_of losses >"$work/theirs"
why=$(error_of "$reply")
[ -z "$why" ] || failed "eager-f32: $why"
check f32 "$check_steps" "$tolerance"
stop_twin
if [ -n "$failures" ]; then
    write_json
    exit 1
fi

# Timed: the twin process persists between its turns, so that it compiles once; it is idle while it waits.
total=$((warm_up + steps))
train weights 0 "${precisions##* }"
for precision in $precisions; do train "first_$precision" "$total" "$precision"; done
processor=$(processor_of model)
cores=$(processor_of cores)
level=$(processor_of isa)
isa=${level:+\"$level\"}
tokens=$(sed -n 's/^ *"tokens_per_step": \([0-9]*\).*/\1/p' "$work/weights/config.json")
start_twin "first_${precisions##* }" weights
alive=''
for mode in $modes; do
    ask "$mode" "$total"
    why=$(error_of "$reply")
    if [ -n "$why" ]; then
        failed "$mode: $why"
        continue
    fi
    alive="$alive $mode"
    printf '%s' "$reply" | sed 's/.*"first_step_s": \([0-9.]*\).*/\1/' >"$work/start.$mode"
    losses_of "first_${mode#*-}" >"$work/ours"
    printf '%s\n' "$reply" | array_of losses >"$work/theirs"
    if [ "${mode#*-}" = f32 ]; then
        check "$mode" "$check_steps" "$tolerance"
    else
        check "$mode" 1 "$bf16_first_tolerance"
        check "$mode" "$check_steps" "$bf16_tolerance"
    fi
done
# summarise: prints the page, and the input of write_json, for the completed rounds.
summarise() {
    peers='' rows='' against_best=''
    : >"$work/rows"
    printf '%s, %s cores%s, %s; PyTorch %s on %s\n' "${processor:-processor unknown}" "${cores:-?}" "${level:+, level $level}" \
        "$(date -u +%Y-%m-%d)" "$torch" "$peer_device"
    # A turn's value is the median of its steps, a side's the median of its turns.
    printf '%-16s %14s %12s %12s %10s  %s\n' "$device" tokens/s 'step ms' 'fastest ms' ratio 'first step'
    for precision in $precisions; do
        rows="$rows speedrun-$precision"
        for mode in $alive; do [ "${mode#*-}" != "$precision" ] || rows="$rows $mode"; done
    done
    for name in $rows; do
        step_ms=$(median <"$work/medians.$name")
        base=$(median <"$work/medians.speedrun-${name##*-}")
        fastest=$(sort -g "$work/all.$name" | head -n 1)
        if [ "${name%%-*}" = speedrun ]; then
            first=$(sed -n 's/^ *"startup_ms": \([0-9.]*\).*/\1/p' "$work/round_${name#*-}_1/summary.json" |
                awk -v step="$(times_of "round_${name#*-}_1" | head -n 1)" '{ printf "%.2f", ($1 + step) / 1000 }')
        else
            first=$(awk '{ printf "%.2f", $1 }' "$work/start.$name")
        fi
        # ratio: how many times faster than this speedrun is.
        line=$(awk -v t="$tokens" -v s="${step_ms:-0}" -v b="${base:-0}" -v f="${fastest:-0}" 'BEGIN {
            if (s <= 0 || b <= 0) exit 1
            printf "%.0f %.4f %.4f %.4f", t / s * 1000, s, f, s / b }') || continue
        # shellcheck disable=SC2086  # four numbers
        set -- $line
        printf '%-16s %14s %12s %12s %10s  %s s\n' "$name" "$1" "$2" "$3" "$4" "$first"
        echo "$name $2" >>"$work/rows"
        peers="$peers${peers:+,
  }{\"name\": \"$name\", \"tokens_per_s\": $1, \"step_ms\": $2, \"fastest_ms\": $3, \"speedrun_is_faster_by\": $4, \"first_step_s\": $first}"
    done
    # The fastest mode of each side: within each precision, and overall.
    for precision in $precisions overall; do
        wanted=$precision
        [ "$precision" != overall ] || wanted='.*'
        # shellcheck disable=SC2046  # three words
        set -- $(awk -v wanted="-$wanted\$" '
            $1 !~ wanted { next }
            $1 ~ /^speedrun-/ { if (!ours || $2 < ours) { ours = $2; our_name = $1 } next }
            !theirs || $2 < theirs { theirs = $2; their_name = $1 }
            END { if (ours && theirs) printf "%s %s %.4f", our_name, their_name, theirs / ours }' "$work/rows")
        [ $# -eq 3 ] || continue
        printf '%s: %s is %s times as fast as the best PyTorch, %s\n' "$precision" "$1" "$3" "$2"
        against_best="$against_best${against_best:+,
  }{\"precision\": \"$precision\", \"speedrun\": \"$1\", \"peer\": \"$2\", \"speedrun_is_faster_by\": $3}"
    done
}

round=1
while [ "$round" -le "$rounds" ]; do
    for precision in $precisions; do
        train "round_${precision}_$round" "$total" "$precision"
        times_of "round_${precision}_$round" | tail -n "$steps" | tee -a "$work/all.speedrun-$precision" | median \
            >>"$work/medians.speedrun-$precision"
    done
    for mode in $alive; do
        ask "$mode" "$total"
        why=$(error_of "$reply")
        [ -z "$why" ] || failed "$mode, round $round: $why"
        printf '%s\n' "$reply" | array_of step_ms | tail -n "$steps" | tee -a "$work/all.$mode" | median >>"$work/medians.$mode"
    done
    # Results after each round, so that the script may be stopped early.
    done_rounds=$round
    summarise >"$work/page"
    write_json
    round=$((round + 1))
done
stop_twin
cat "$work/page"
for name in $rows; do grep -q "^$name " "$work/rows" || failed "$name: no times"; done
write_json
[ -z "$failures" ] || exit 1
