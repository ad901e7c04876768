#!/bin/sh
# Runs a test program as several parallel processes, each with a share of the tests, as GPU time may be limited. Tests of
# operations mostly wait for reference results from the host.
# Usage: gpu_check_shards.sh COUNT JSON PROGRAM [OPTION...]
#   JSON     the concatenated results of the shards, written if all completed.
# Prints their output in order, also when it is stopped. Exit: 77 if all skipped, else the highest exit code of a shard.
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
