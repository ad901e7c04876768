#!/bin/sh
# scripts/same_plans.sh: a program equals itself; one with another window or initial value differs; bad usage is refused.
# Usage: same_plans_test.sh SPEEDRUN ROOT
# ctest: ARGS SPEEDRUN ROOT PROPERTIES TIMEOUT 120
set -u
speedrun=$(realpath "$1") root=$2
. "$root/tests/expect.sh"
check=$root/scripts/same_plans.sh
expect 2 'Usage' sh "$check"
expect 2 'Usage' sh "$check" --unknown
expect 1 'is neither a program nor a commit' sh "$check" nowhere "$speedrun"
expect 0 '6 plans, 0 differ' sh "$check" --cases 'kjv_modern*' "$speedrun" "$speedrun"
mkdir old_configs
sed 's/"value": 1}/"value": 2}/' "$root/configs/kjv_modern.json" >old_configs/kjv_modern.json
expect 1 'DIFFERENT  kjv_modern$' sh "$check" --cases kjv_modern --old-configs "$work/old_configs" "$speedrun" "$speedrun"
expect 1 '0 plans' sh "$check" --cases 'none' "$speedrun" "$speedrun"
for change in layers.each.attention.window=64 init_scale=0.5 layers.each.attention.heads=8; do
    printf '#!/bin/sh\nexec "%s" "$@" --set model.%s\n' "$speedrun" "$change" >other
    chmod +x other
    expect 1 'DIFFERENT  kjv_modern$' sh "$check" --cases kjv_modern "$speedrun" "$work/other"
done
exit $failures
