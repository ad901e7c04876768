#!/bin/sh
# Runs a program of tests as several processes at once, each a share of them, for checks on a GPU that is lent by the minute: the
# tests of operations mostly wait for what the host computes to compare with.
# Usage: gpu_check_shards.sh COUNT JSON PROGRAM [OPTION...]
#   JSON     the shards' results one after the other, written if all came to their end
# Prints their output one after the other, also when told to stop. Exit: 77 if all skipped, else the highest that a shard ended with.
set -u
count=$1 json=$2 program=$3
shift 3
work=$(mktemp -d) || exit 1
print() { cat "$work"/log.* 2>/dev/null; }
trap 'rm -rf "$work"' EXIT
trap 'print; exit 124' TERM
trap 'print; exit 130' INT
rm -f "$json"
shard=0
while [ "$shard" -lt "$count" ]; do
    (
        GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$shard "$program" "--gtest_output=json:$work/json.$shard" "$@" >"$work/log.$shard" 2>&1
        echo $? >"$work/code.$shard"
    ) &
    shard=$((shard + 1))
done
wait
print
[ "$(find "$work" -name 'json.*' | wc -l)" != "$count" ] || cat "$work"/json.* >"$json"
sort -n "$work"/code.* | awk '$1 != 77 { other = 1; highest = $1 } END { print (other ? highest + 0 : 77) }' >"$work/code"
exit "$(cat "$work/code")"
