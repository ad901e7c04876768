#!/bin/sh
# Cost of a training step: a Markdown table of step time and memory against width, depth, context (with and without a window),
# batch and threads. It also has the step's FLOPs and the planned memory. Each point is a run of `speedrun bench` on made-up
# tokens, each sequence one document.
# Usage: cost_table.sh [--quick] [--steps N] [--out FILE] [--speedrun PROGRAM] [--set KEY=VALUE]... [CONFIG]
#   --quick   a few points of a tiny model, in seconds: a functional check
#   --steps   timed at each point (default: 4; the two longest contexts without a window: 2)
#   --out     the table (default: logs/cost_table-TIME.md); an existing file is not overwritten
#   --set     for all points, as for `speedrun train`
#   CONFIG    defines family, optimizers and options; the sweeps set shape, batch and threads (default: configs/kjv_modern.json)
# Exit: 0 done, 1 a run failed, 2 bad usage.
set -uf
cd "$(dirname "$0")/.." || exit 1

quick='' steps=4 out=logs/cost_table-$(date +%Y%m%d-%H%M%S).md speedrun=build/release/speedrun settings=''
# shellcheck disable=SC2034  # for options.sh
options='steps out speedrun set' flags=quick positionals=1
# shellcheck source=scripts/options.sh
. scripts/options.sh
config=${1:-configs/kjv_modern.json}
case $steps in '' | *[!0-9]* | 0) die "--steps '$steps' is not a number of steps" 2 ;; esac
[ -x "$speedrun" ] || die "$speedrun is not there: build it, or name it with --speedrun" 2
[ ! -e "$out" ] || die "--out $out exists and is not overwritten" 2
[ -r "$config" ] || die "$config cannot be read" 2

# Base point of all sweeps, and the values of each. A context must fit into a batch; long: contexts with fewer steps.
base='layers=4 width=256 context=256 tokens=8192 threads=2 window=0'
widths='128 256 384 512' depths='2 4 8' contexts='256 512 1024 2048 4096 8192' batches='2048 4096 8192 16384'
head=64 largest_window=256 long=4096
if [ -n "$quick" ]; then
    base='layers=2 width=64 context=64 tokens=512 threads=2 window=0'
    widths='64 128' depths=2 contexts='64 256' batches=512
    steps=1 head=32 largest_window=64
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$(dirname "$out")" || die "--out $out: its folder cannot be made"
: >"$work/rows"

# value_layers: model.layers.at with the config's two tables of values in the last two of $layers layers.
value_layers() {
    grep -q '"value_embed.1"' "$config" || { echo '{}'; return; }
    for i in 0 1; do echo "\"$((layers - 2 + i))\": {\"attention\": {\"value_table\": \"value_embed.$i\"}}"; done | paste -sd , | sed 's/.*/{&}/'
}
# point SWEEP VALUE: times the point of the current variables and appends "SWEEP VALUE: figures" to $work/rows. A point is timed
# only once.
point() {
    key="$layers-$width-$context-$window-$tokens-$threads"
    if [ ! -e "$work/$key" ]; then
        timed=$steps
        [ "$context" -lt "$long" ] || [ "$window" -gt 0 ] || timed=2
        [ "$steps" -ge "$timed" ] || timed=$steps
        # shellcheck disable=SC2086 # settings are words
        "$speedrun" bench "$config" --json --warmup 1 --steps "$timed" --threads "$threads" $settings --set 'data.train=[]' \
            --set "model.layers.count=$layers" --set "model.model_dim=$width" --set "model.layers.each.attention.heads=$((width / head))" \
            --set "model.layers.each.attention.window=$window" --set "model.layers.at=$(value_layers)" --set "batch.sequence_length=$context" --set "batch.microbatch_tokens=$tokens" \
            --set "batch.tokens_per_step=$tokens" >"$work/json" 2>"$work/error" || {
            cat "$work/error" >&2
            die "$1 $2: the bench failed"
        }
        # step ms, FLOPs, attention ms, attention FLOPs, planned and touched bytes, tokens/s, ceiling
        awk '{ value = $2; sub(/,$/, "", value) }
            /"step": \{/ { step = 1 } /"operations": \[/ { operations = 1 }
            $1 == "\"ms\":" && step && !operations && ms == "" { ms = value }
            $1 == "\"flops\":" && step && !operations && flops == "" { flops = value }
            $1 == "\"tokens_per_s\":" { rate = value } $1 == "\"planned_bytes\":" { planned = value }
            $1 == "\"touched_bytes\":" { touched = value } $1 == "\"gflops_per_s\":" && !step { ceiling = value }
            $1 == "\"name\":" { attention = value ~ /attention/ }
            operations && attention && $1 == "\"ms\":" { attention_ms += value }
            operations && attention && $1 == "\"flops\":" { attention_flops += value }
            END { print ms, flops, attention_ms, attention_flops, planned, touched, rate, ceiling }' "$work/json" >"$work/$key"
        [ "$(wc -w <"$work/$key")" -eq 8 ] || die "$1 $2: the bench's JSON was not understood"
        echo "$1 $2: $(awk '{ printf "%.1f ms", $1 }' "$work/$key")" >&2
    fi
    echo "$1 $2 $(cat "$work/$key")" >>"$work/rows"
}

# sweep NAME VARIABLE VALUE...: points that differ from the base in this variable, and in the settings of WITH.
sweep() {
    name=$1 variable=$2
    shift 2
    for value in "$@"; do
        eval "$base ${WITH:-} $variable=$value"
        point "$name" "$value"
    done
}
# shellcheck disable=SC2086 # values are words
{
    sweep threads threads 1 2
    sweep width width $widths
    sweep depth layers $depths
    sweep batch tokens $batches
    sweep context context $contexts
    WITH="window=$largest_window" sweep window context $contexts
}

# rows SWEEP TITLE: prints its part of the table.
rows() {
    awk -v sweep="$1" -v title="$2" '$1 == sweep {
        printf "| %s | %s | %.1f | %.1f | %.0f | %.0f%% | %.1f | %.1f | %.1f | %.1f | %.2f |\n", title, $2, $3, $4 * 1e-9,
            $4 / $3 * 1e-6, 100 * $4 / $3 * 1e-6 / $10, $5, $6 * 1e-9, $7 / 1048576, $8 / 1048576, $8 / $7 }' "$work/rows"
}
# growth SWEEP: prints the growth of attention between the first and the last context.
growth() {
    awk -v sweep="$1" '$1 == sweep { if (!n++) { first = $2; ms = $5; flops = $6 } last = $2; end = $5; work = $6 }
        END { printf "from a context of %d to %d its time grew %.1f times, its FLOPs %.1f times", first, last, end / ms, work / flops }' "$work/rows"
}
of_json() { sed -n "s/.*\"$1\": \"\(.*\)\",/\1/p" "$work/json"; }
{
    echo "What a training step of $config costs. One thing at a time grows from $(echo "$base" | sed 's/ window=0//; s/ /, /g; s/=/ /g');"
    echo "$(of_json dtype), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(date -u +%Y-%m-%d), commit $(of_json git_sha | cut -c 1-12):"
    echo "\`scripts/cost_table.sh${quick:+ --quick}${settings}\`."
    echo
    echo "| what grows | value | step ms | GFLOP a step | GFLOP/s | of a large product | attention ms | attention GFLOP | memory planned MiB | touched MiB | ratio |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
    rows threads threads
    rows width width
    rows depth layers
    rows batch "tokens a step"
    rows context "context"
    rows window "context, window $largest_window"
    echo
    echo "Tokens a step are the same at every context, so a cost that is linear in the context stays as it is. Attention without a"
    echo "window: $(growth context). With a window of $largest_window: $(growth window)."
    echo
    echo "FLOPs are the model's, by the plan. Touched: what the process's resident memory grew by."
} >"$out" || die "--out $out cannot be written"
cat "$out"
echo "written: $out" >&2
