#!/bin/sh
# `speedrun records counts` and its references: on a track of the tests; with the King James text if it is prepared. Usage:
# records_counts_test.sh SPEEDRUN ROOT. Exit: 77 if KJV's shards are missing and the rest passes.
# ctest: ARGS SPEEDRUN ROOT PROPERTIES TIMEOUT 120
set -u
speedrun=$1 root=$2
. "$(dirname "$0")/prepared_run.sh"


toy_track '"classes": [{"name": "open"}, {"name": "gpu", "gpus": 1}],'
sed -i 's|"dataset": {|&"prepare": "tiny/prepare.sh",|' records/toy/track.json
counts() { "$speedrun" records counts toy "$@"; }

expect 0 "Exit codes" counts --help
expect 2 "order" counts --order 0
expect 2 "order" counts --order 13
expect 2 "order" counts --orders 4,13
expect 2 "row-length" counts --row-length 0
expect 2 "one order, --orders lists 2,3" counts --orders 2,3 --out r.json
expect 2 "no such track" "$speedrun" records counts nowhere
expect 3 "elsewhere/train_000000.bin: no such shard; prepare track toy: tiny/prepare.sh /" counts --data elsewhere
mkdir swapped && cp tiny/* swapped && cp tiny/val_000000.bin swapped/train_000000.bin
expect 3 "SHA-256 .* is no training shard of track toy" counts --data swapped

expect 0 "scored in rows of 64, vocabulary of 257" counts --orders 1,2,4 --row-length 64
[ "$(grep -c '^ *[124]  [0-9]*\.[0-9]\{6\}  ' out)" -eq 3 ] || fail "not a line for each order"
reference=records/toy/references/counts_here.json
expect 1 "$reference" counts --order 3 --out "$reference"
mkdir records/toy/references
expect 0 "median of 5 repetitions" counts --order 3 --out "$reference"
printed "$(sed -n 's/.*"loss": \([0-9]*\.[0-9]\{4\}\).*/\1/p' "$reference")"

# Boards, verify.
expect 0 "no record yet$" "$speedrun" records list toy
printed "^counts (reference, records/toy/references/counts_here.json): a table of counts of 3 tokens"
expect 0 "^\[counts (reference)\](records/toy/references/counts_here.json): a table" "$speedrun" records list toy --markdown
expect 0 '"reference": true' "$speedrun" records list toy --json
expect 0 "$reference: its loss is that of the track's shards" "$speedrun" records verify
expect 0 '"recomputed": true' "$speedrun" records verify records/toy --json
mv tiny/val_000000.bin away.bin
expect 0 "$reference: has its form; the track's shards are not here" "$speedrun" records verify
cp tiny/train_000000.bin tiny/val_000000.bin
expect 0 "$reference: has its form; the track's shards are not here" "$speedrun" records verify
mv away.bin tiny/val_000000.bin
cp "$reference" kept.json
sed -i 's/"loss": /"loss": 1/' "$reference"
expect 3 "$reference: loss: " "$speedrun" records verify
sed 's/"order": 3/"order": 2/' kept.json >"$reference"
expect 3 "$reference: loss: .*, computed again " "$speedrun" records verify
sed 's/"schema": 1/&, "best": true/' kept.json >"$reference"
expect 3 "$reference: unknown key best" "$speedrun" records list toy
expect 3 "$reference: unknown key best" "$speedrun" records verify

# A board includes a row of the reference, also of other hardware, with its name.
cp kept.json "$reference"
expect 0 "left" "$speedrun" records attempt tiny.json --runs 2 --set record.track=toy --name run
expect 0 "^counts (reference) .* [0-9.]* " "$speedrun" records list toy
! sed '/^gpu/,$d' out | grep -q "other hardware" || fail "the reference of this machine is that of another"
expect 0 "^| counts (reference) | [0-9.]* | .*[0-9.]* | - | - | 20" "$speedrun" records list toy --markdown
sed 's/"cores": [0-9]*/"cores": 999/' kept.json >"$reference"
expect 0 "that of other hardware, 999 cores, " "$speedrun" records list toy

[ $failures -eq 0 ] || exit $failures
if [ -f "$root/data/kjv/train_000000.bin" ]; then
    expect 0 "^    5  1\.0804" "$speedrun" records counts "$root/records/kjv" --data "$root/data/kjv" --order 5
    exit $failures
fi
echo "no data/kjv/train_000000.bin (data/kjv/prepare.sh makes it): the loss on KJV is not tested"
exit 77
