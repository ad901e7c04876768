#!/bin/sh
# Compares the models that two programs build for all shipped configs, without running a step: parameters (name, shape, types,
# initial values, group), layer tables, memory, and the graph of every unit. On one rank, and split over the tensor and context
# axes.
# Usage: same_plans.sh [--cases PATTERN] [--old-configs FOLDER] [--rename SED] OLD [NEW]
#   OLD, NEW   a program, or a commit, which is built in build/same/COMMIT (NEW: default build/release/speedrun)
#   --cases    only cases whose name this shell pattern matches, such as 'kjv_modern*' or '*.tensor'; default: all
#   --old-configs   the configs of OLD, if keys were renamed (default: configs)
#   --rename   sed script for the texts of OLD, if names of parameters or values were changed
# Takes about a minute. Meanings of parameters are text and may differ. Writes below build/same.
# Exit: 0 all same, 1 something differs, 2 bad usage.
set -u
cd "$(dirname "$0")/.." || exit 1
pattern='*'
old_configs=configs
rename=
while [ $# -gt 1 ]; do
    case $1 in
    --cases) pattern=$2 ;;
    --old-configs) old_configs=$2 ;;
    --rename) rename=$2 ;;
    *) break ;;
    esac
    shift 2
done
case ${1:-} in '' | -*) sed -n '2,/^set -u/{/^set -u/!s/^# \{0,1\}//p;}' scripts/same_plans.sh >&2; exit 2 ;; esac
work=build/same
mkdir -p "$work"
exec 9>"$work/plans.lock"
flock -n 9 || { echo "error: $work is written by another comparison: wait until it ends" >&2; exit 1; }
. scripts/program_of.sh
old=$(program_of "$1" $work) || exit 1
new=$(program_of "${2:-build/release/speedrun}" $work) || exit 1

# plans SIDE PROGRAM CONFIG OPTION...: writes all compared files below $work/plans/SIDE.
plans() {
    side=$1 program=$2
    shift 2
    folder=$work/plans/$side
    rm -rf "$folder"
    mkdir -p "$folder"
    # The resolved config is not compared: keys may be renamed.
    "$program" plan "$@" 2>&1 | sed -e '/^{$/,/^}$/d' -e 's/; of [0-9.]* MiB available.*//' >"$folder/tables.txt"
    "$program" plan "$@" --parameters --json 2>&1 | grep -v '"meaning":' >"$folder/parameters.json"
    unit=0
    while "$program" plan "$@" --graph "$folder/unit_$unit.dot" --unit $unit >/dev/null 2>"$folder/error"; do unit=$((unit + 1)); done
    grep -q "the model has units" "$folder/error" || echo "no graphs: $(cat "$folder/error")" >>"$folder/tables.txt"
    rm -f "$folder/error"
}
total=0
failed=0
# same NAME CONFIG OPTION...
same() {
    label=$1 config=$2
    shift 2
    # shellcheck disable=SC2254  # a pattern
    case $label in $pattern) ;; *) return 0 ;; esac
    total=$((total + 1))
    plans old "$old" "$old_configs/${config##*/}" "$@"
    plans new "$new" "$config" "$@"
    if [ -n "$rename" ]; then
        sed -i -e "$rename" "$work"/plans/old/*
        for side in old new; do  # one word per line: the tables are wrapped by the length of names
            tr -s ' \n' '\n' <"$work/plans/$side/tables.txt" >"$work/words" && mv "$work/words" "$work/plans/$side/tables.txt"
        done
    fi
    if difference=$(diff -r "$work/plans/old" "$work/plans/new"); then return; fi
    failed=$((failed + 1))
    echo "DIFFERENT  $label"
    echo "$difference" | head -n 6 | cut -c 1-200 | sed 's/^/    /'
}
for config in configs/*.json; do
    name=$(basename "$config" .json)
    [ "$name" != schema ] || continue
    tokens=$(sed -n 's/.*"microbatch_tokens": *\([0-9]*\).*/\1/p' "$config")
    step=--set=batch.tokens_per_step=$((tokens * 8))
    same "$name" "$config"
    same "$name.first_stage" "$config" --stage 0
    same "$name.zero2" "$config" --ranks 8 "$step" --set parallel.strategy=zero2
    same "$name.tensor" "$config" --ranks 4 "$step" --set parallel.tensor=2
    same "$name.sequence" "$config" --ranks 4 "$step" --set parallel.tensor=2 --set parallel.sequence=true
    same "$name.context" "$config" --ranks 4 "$step" --set parallel.context=2
done
echo "$total plans, $failed differ"
[ $total -gt 0 ] && [ $failed -eq 0 ]
