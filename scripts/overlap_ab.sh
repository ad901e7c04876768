#!/bin/sh
# Benefit of overlapping communication with compute: the same run in four variants, on several ranks of this machine with a
# simulated network, alternating. Variants: reductions start when a gradient is ready or after backward (parallel.launch);
# parameters are stepped in reverse or declared order (parallel.step_order). Prints medians. Writes a table, and for each
# variant its overlap table and a picture of one step.
# Usage: overlap_ab.sh [--ranks N] [--rounds N] [--steps N] [--latency US] [--bandwidth GBYTES] [--out DIR]
#                      [--speedrun PROGRAM] [--set KEY=VALUE]... [CONFIG]
#   --ranks      default: 2
#   --rounds     runs of each variant; each round starts with another one (default: 5)
#   --steps      per run; the first 2 are not counted (default: 22)
#   --latency    per collective, in microseconds (default: 500)
#   --bandwidth  per rank, in 1e9 bytes per second (default: 0.1)
#   --out        a new folder for results.md, VARIANT.txt and VARIANT.svg; the runs are in runs/ (default: logs/overlap_ab-TIME)
#   --set        for all variants, as for `speedrun train`
#   CONFIG       default: configs/kjv_modern.json with zero1, and one microbatch per rank and step
# MPIEXEC: the launcher with its options (default: mpirun).
# Exit: 0 the losses of all variants are equal, 1 otherwise or if a run failed, 2 bad usage.
set -uf
cd "$(dirname "$0")/.." || exit 1

ranks=2 rounds=5 steps=22 latency=500 bandwidth=0.1 out=logs/overlap_ab-$(date +%Y%m%d-%H%M%S)
speedrun=build/release/speedrun settings=''
# shellcheck disable=SC2034  # for options.sh
options='ranks rounds steps latency bandwidth out speedrun set' positionals=1
# shellcheck source=scripts/options.sh
. scripts/options.sh
config=${1:-}
for number in "$ranks" "$rounds" "$steps"; do
    case $number in '' | *[!0-9]* | 0) die "'$number' is not a number of ranks, rounds or steps" 2 ;; esac
done
[ "$ranks" -ge 2 ] || die "--ranks $ranks: one rank has nobody to talk to" 2
[ "$steps" -ge 8 ] || die "--steps $steps: want 8 or more, of which 2 do not count" 2
[ -x "$speedrun" ] || die "$speedrun is not there: build it, or name it with --speedrun" 2
[ ! -e "$out" ] || die "--out $out exists and is not overwritten" 2
if [ -z "$config" ]; then
    config=configs/kjv_modern.json
    settings="--set parallel.strategy=zero1 --set batch.tokens_per_step=8192 --set batch.microbatch_tokens=$((8192 / ranks)) $settings"
fi
settings="--set data.val_tokens=8192 $settings --set record.track= --set eval.every=0 --set schedule.steps=$steps"
settings="$settings --set parallel.simulate_latency_us=$latency --set parallel.simulate_gbytes_per_s=$bandwidth"
mkdir -p "$out/runs" || die "--out $out: the folder cannot be made"

# Launch and step order of each variant.
variants="after_backward-forward after_backward-reverse ready-forward ready-reverse"

# train VARIANT NAME OPTION...
train() {
    variant=$1 name=$2
    shift 2
    # shellcheck disable=SC2086 # settings are words
    ${MPIEXEC:-mpirun} -np "$ranks" "$speedrun" train "$config" --quiet --out "$out/runs" --name "$name" $settings \
        --set "parallel.launch=${variant%-*}" --set "parallel.step_order=${variant#*-}" "$@" >"$out/runs/$name.log" 2>&1 || {
        tail -n 5 "$out/runs/$name.log" >&2
        die "variant $variant failed; see $out/runs/$name.log"
    }
}
# values KEY FILE...: prints the values of counted steps, one per line.
values() {
    key=$1
    shift
    for file in "$@"; do sed -n "s/.*\"event\":\"step\".*\"$key\":\([-0-9.e+]*\).*/\1/p" "$file" | tail -n +3; done
}
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.2f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

round=0
while [ $round -lt "$rounds" ]; do
    # Each round starts with another variant, so that drift affects all equally.
    turn=0
    for variant in $variants $variants; do
        [ $turn -lt $((round % 4)) ] || [ $turn -ge $((round % 4 + 4)) ] || train "$variant" "$variant-$round"
        turn=$((turn + 1))
    done
    round=$((round + 1))
    echo "round $round of $rounds is done"
done
# Separate traced runs, so that tracing does not affect the timed runs.
for variant in $variants; do
    train "$variant" "$variant-traced" --trace "$((steps - 5)):$((steps - 2))"
    "$speedrun" trace "$out/runs/$variant-traced" --step $((steps - 4)) --svg "$out/$variant.svg" \
        --title "launch: ${variant%-*}, step_order: ${variant#*-} (rank 0 of $ranks, step $((steps - 4)); network: $latency us, $bandwidth GB/s)" >/dev/null || die "variant $variant: no picture"
    "$speedrun" trace "$out/runs/$variant-traced" >"$out/$variant.txt" || die "variant $variant: no overlap table"
done

# All variants must compute the same losses.
failed=0
losses() { grep -o '"loss":[^,]*,"grad_norm":[^,]*' "$1"; }
losses "$out/runs/ready-reverse-0/metrics.jsonl" >"$out/runs/losses"
for variant in $variants; do
    for run in $(seq 0 $((rounds - 1))) traced; do
        losses "$out/runs/$variant-$run/metrics.jsonl" | cmp -s - "$out/runs/losses" || {
            echo "FAILED: the losses of $variant-$run are not those of ready-reverse-0" >&2
            failed=1
        }
    done
done

{
    echo "$ranks ranks, $config, network: $latency us per collective and $bandwidth GB/s out of each rank; $rounds runs of"
    echo "$((steps - 2)) timed steps of each variant in turns; medians over all steps, of rank 0."
    echo
    echo "| launch | step order | step ms | exposed ms | in collectives ms | idle beside them ms | hidden |"
    echo "|---|---|---|---|---|---|---|"
    for variant in $variants; do
        set +f
        set -- "$out/runs/$variant"-[0-9]*/metrics.jsonl
        set -f
        idle=$(sed -n 's/.*idle beside it for \([0-9.]*\) ms.*/\1/p' "$out/$variant.txt")
        hidden=$(sed -n 's/.*, hidden \([0-9]*%\);.*/\1/p' "$out/$variant.txt")
        echo "| ${variant%-*} | ${variant#*-} | $(values step_ms "$@" | median) | $(values comm_exposed_ms "$@" | median) |" \
            "$(values comm_ms "$@" | median) | $idle | $hidden |"
    done
    echo
    echo "The last two columns are of one traced run, 4 steps."
} >"$out/results.md"
cat "$out/results.md"
echo "overlap tables and pictures: $out"
[ $failed -eq 0 ] && echo "losses and gradient norms of all runs are equal"
exit $failed
