#!/bin/sh
# scripts/cost_table.sh with few points of a tiny model: every row is present and complete. Times are not
# checked.
# Usage: cost_table_test.sh SPEEDRUN REPOSITORY
# ctest: ARGS SPEEDRUN ROOT PROPERTIES LABELS bench
set -u
speedrun=$1 script=$2/scripts/cost_table.sh
. "$2/tests/expect.sh"

expect 0 'Usage: cost_table.sh' "$script" --help
expect 2 "not a number" "$script" --steps some
expect 2 "no/such" "$script" --speedrun no/such
expect 2 "no_such.json" "$script" --speedrun "$speedrun" no_such.json
expect 2 "exists" "$script" --speedrun "$speedrun" --out "$work"
expect 1 "num_layer: unknown key" "$script" --speedrun "$speedrun" --quick --out "$work/failed.md" --set model.num_layer=2
[ ! -e "$work/failed.md" ] || fail "a table of a run that failed"
expect 0 "its FLOPs 4.0 times" "$script" --speedrun "$speedrun" --quick --out "$work/table.md"
for row in "threads | 1" "threads | 2" "width | 128" "layers | 2" "tokens a step | 512" "context | 256" "context, window 64 | 256"; do
    grep -q "^| $row | [0-9.]* | [0-9.]* | [0-9]* | [0-9]*% | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]* |$" "$work/table.md" ||
        fail "no whole row of $row"
done
grep -q "| 0.0 | 0.0 | 0 |" "$work/table.md" && fail "a row of zeros"
# A model twice as wide must take more than twice the work.
awk -F '|' '$2 == " width " { if (!first) first = $5; last = $5 } END { exit !(last > 2 * first) }' "$work/table.md" || fail "work does not grow with width"

[ $failures -eq 0 ] && echo "all checks of the cost table passed"
exit $failures
