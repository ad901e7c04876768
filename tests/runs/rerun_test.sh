#!/bin/sh
# Verification of a record: the machine's state in its runs, `records rerun`, the number of runs by --effect. Runs on a busy
# machine are marked, so dependent checks accept both results. Usage: rerun_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
# Covers: train/commands/commit_build.cpp train/commands/effect_runs.cpp
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"


sed -i 's/"record": {/&"track": "toy", /' tiny.json
toy_track ''
attempt() { "$speedrun" records attempt tiny.json "$@"; }

# One busy program per core during the runs.
busy=
i=0
while [ $i -lt "$(nproc)" ]; do
    sh -c 'while :; do :; done' &
    busy="$busy $!"
    i=$((i + 1))
done
attempt --runs 2 --name busy --set schedule.steps=400 --set eval.every=100 >out 2>&1
code=$?
# shellcheck disable=SC2086  # one word each
kill $busy
[ $code -eq 0 ] || fail "an attempt on a busy machine gave $code"
printed "marked: other programs took [0-9]*% of the cores"
printed "machine NOT MET  2 of 2 runs are marked, 1 allowed"
record=$(echo records/toy/*_busy)
grep -q '^Run 1 is marked: other programs took' "$record/README.md" || fail "README.md does not mark the run"
grep -q '"wall_s": [0-9]' "$record/record.json" || fail "record.json has no wall clock"
expect 0 "figures are those of its runs" "$speedrun" records verify "$record"
expect 3 "rule machine is not met: 2 of 2 runs are marked" "$speedrun" records verify --strict "$record"
rm -r "$record"

# A record, repeated by the program that made it.
expect 0 "rules" attempt --runs 3 --name fast --set schedule.steps=20 --against tiny.json --against-set schedule.steps=400 --baseline-name slow
record=$(echo records/toy/*_fast)
expect 2 "no program that can be run" "$speedrun" records rerun "$record" --binary nowhere
expect 2 "one build made all runs" "$speedrun" records rerun "$record" --baseline-binary "$speedrun"
expect 0 "$(basename "$record"): \(replicated\|busy machine\)" "$speedrun" records rerun "$record" --runs 2
printed "run 4 of 4: candidate, seed 5"
printed "loss: mean loss"
file=$(echo "$record"/replications/*.json)
[ -s "$file" ] || fail "no replication is written"
expect 0 "figures are those of its runs" "$speedrun" records verify "$record"
expect 0 "run again" "$speedrun" records list toy
printed "1 \(replicated\|busy machine\)"
sed -i 's/"verdict": "[a-z ]*"/"verdict": "other hardware"/' "$file"
expect 3 'verdict: "other hardware", computed again' "$speedrun" records verify "$record"
rm -r "$record/replications"
# A track with another target than the record's config: the rerun is refused.
sed -i 's/"target_loss": 50/"target_loss": 1/' records/toy/track.json
sed -i 's/"target_loss": 50/"target_loss": 1/' tiny.json
expect 2 "target_loss is 50, the target of track toy is 1" "$speedrun" records rerun "$record" --runs 2
sed -i 's/"target_loss": 1,/"target_loss": 50,/' records/toy/track.json
sed -i 's/"target_loss": 1}/"target_loss": 50}/' tiny.json
# A program of another commit.
printf '#!/bin/sh\n"%s" "$@" || exit\nwhile [ "$1" != --out ] && shift; do :; done\nsed -i "s/\\"git_sha\\": \\"[^\\"]*/\\"git_sha\\": \\"0123/" "$2/$4/environment.json"\n' "$speedrun" >other
chmod +x other
expect 2 "was built from 0123, the record's program from" "$speedrun" records rerun "$record" --runs 2 --binary ./other --work logs/others
# A changed record is not run.
cp "$record/record.json" kept
sed 's/"binary_sha256": "[0-9a-f]*"/"binary_sha256": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"/' "$record/record.json" >changed
expect 3 "changed since it was written" sh -c "cp changed '$record/record.json' && '$speedrun' records rerun '$record'"
cp kept "$record/record.json"

# The number of runs by the effect.
slow=$(echo records/toy/*_slow)
expect 2 "needs --against a record's folder" attempt --effect 10% --name sized
expect 2 "are left out" attempt --effect 10% --runs 3 --name sized --against "$slow"
expect 2 "effect 5%%: a share of the time" attempt --effect 5%% --name sized --against "$slow"
expect 2 "more than 1000 runs would have to show it" attempt --effect 0.0001% --name sized --against "$slow"
expect 0 "runs of each side: an effect of 90% is shown at p < 0.01 with power 0.8" attempt --effect 90% --name sized --set schedule.steps=20 --against "$slow"
printed "runs take about .* if both sides take the"

exit $failures
