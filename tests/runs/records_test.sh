#!/bin/sh
# `speedrun records`: an attempt from its first run to the record, stopped and continued, with a diverging run, on one rank and
# on two; list, compare, verify. Usage: records_test.sh SPEEDRUN [MPIEXEC]
# ctest: ARGS SPEEDRUN MPIEXEC PROPERTIES LABELS mpi ENVIRONMENT mpi
# Covers: train/commands/attempt_config.cpp train/commands/program_run.cpp train/commands/records_*.cpp
set -u
speedrun=$1 mpiexec=${2:-}
. "$(dirname "$0")/prepared_run.sh"


sed -i 's/"record": {/&"track": "toy", /' tiny.json
toy_track '"classes": [{"name": "open"}, {"name": "small", "max_parameters": 40000}, {"name": "gpu", "gpus": 1},
             {"name": "dense", "dense": true}, {"name": "few", "dense": true, "budget_tokens": 2560}, {"name": "quick", "budget_s": 600},
             {"name": "low", "target_loss": 40},
             {"name": "old", "ended": "Tables led it.", "ended_on": "2020-01-01"}],'

# Attempts that are refused before any run.
attempt() { "$speedrun" records attempt tiny.json "$@"; }
expect 0 "attempt.*all runs" "$speedrun" records --help
expect 0 "Exit codes" "$speedrun" records attempt --help
expect 2 "subcommand" "$speedrun" records
expect 2 "runs is missing" attempt
expect 2 "seeds: 3 is there twice" attempt --seeds 1,3,3
expect 2 "runs 2, but --seeds lists 3" attempt --seeds 1,2,3 --runs 2
expect 2 "record.track is empty" attempt --runs 2 --set record.track=
expect 2 "records/nowhere/track.json: no such track; records has toy" attempt --runs 2 --set record.track=nowhere
expect 2 "target_loss is 40, the target of track toy is 50" attempt --runs 2 --set record.target_loss=40
expect 2 "100 validation tokens are scored" attempt --runs 2 --set data.val_tokens=100
expect 3 "tiny/val_000000.bin: SHA-256 .* is no training shard of track toy" attempt --runs 2 --set 'data.train=tiny/val_*.bin'
expect 2 "name a/b: a folder's name" attempt --runs 2 --name a/b
expect 2 "not valid UTF-8" attempt --runs 2 --what "$(printf '\377')"
expect 2 "runs of a track start from random weights" attempt --runs 2 --set model.init_from=hf
expect 2 "need --against" attempt --runs 2 --systems-only
expect 2 "both sides are called 'tiny'" attempt --runs 2 --against tiny.json
expect 2 "heads 3 does not divide" attempt --runs 2 --name fast --against tiny.json --against-set model.layers.each.attention.heads=3
expect 2 "no class large: track toy has open, small, gpu, dense, few, quick, low, old" attempt --runs 2 --class large
expect 2 "tiny breaks a rule of class small of track toy: [0-9]* parameters, at most 40000" attempt --runs 2 --class small --set model.model_dim=64
expect 2 "slow breaks a rule of class small" attempt --runs 2 --class small --against tiny.json --against-set model.model_dim=64 --baseline-name slow
expect 2 "tiny breaks a rule of class gpu of track toy: made with 0 GPUs, 1 wanted" attempt --runs 2 --class gpu --set device=cpu
expect 2 "tiny breaks a rule of class dense of track toy: model.tables.grams.rows: .ngrams.; a dense class allows" attempt --runs 2 --class dense \
    --set 'model.tables={"grams": {"rows": "ngrams"}}' --set 'model.input=[{"type": "table", "table": "embed"}, {"type": "table", "table": "grams"}]'
expect 2 "breaks a rule of class few of track toy: schedule.steps x batch.tokens_per_step: 5120 tokens, at most 2560" attempt --runs 2 --class few
expect 2 "class old of track toy ended on 2020-01-01: Tables led it. Open classes: open, small, gpu, dense, few, quick, low" attempt --runs 2 --class old
expect 2 "target_loss is 50, the target of class low of track toy is 40" attempt --runs 2 --class low
expect 2 "systems-only leaves the losses alone, and class quick compares them" attempt --runs 2 --class quick --name fast --against tiny.json --systems-only
expect 2 "simulated network" attempt --runs 2 --set parallel.simulate_latency_us=5
expect 0 "no records" "$speedrun" records verify
[ ! -e logs ] || fail "a refused attempt left a folder"

# An attempt and its baseline, both with a record; the baseline needs four times the work.
expect 0 "run 6 of 6: baseline (slow), seed 7" attempt --runs 3 --first-seed 5 --name fast --what "A quarter of the steps." \
    --set schedule.steps=10 --set eval.every=5 --against tiny.json --against-set schedule.steps=40 --baseline-name slow
printed "left$"
printed "time  met      the first record of its class on such hardware"
printed "class met      open: any model, any hardware; [0-9]* parameters"
printed "data  met"
grep -o '^run.*seed [0-9]' out | sed 's/.*: \(.\).*seed /\1/' | tr '\n' ' ' >order
[ "$(cat order)" = "c5 b5 b6 c6 c7 b7 " ] || fail "the runs were made in this order: $(cat order)"
for file in config.json environment.json metrics.jsonl summary.json checkpoints/final/model.safetensors; do
    [ -s "logs/attempts/fast/candidate-seed6/$file" ] || fail "no logs/attempts/fast/candidate-seed6/$file"
done
fast=$(echo records/toy/*_fast) slow=$(echo records/toy/*_slow)
for seed in 5 6 7; do
    gzip -dc "$fast/candidate-seed$seed.jsonl.gz" | cmp -s - "logs/attempts/fast/candidate-seed$seed/metrics.jsonl" || fail "the metrics of seed $seed are not those of its run"
done
has "$fast/README.md" "A quarter of the steps."
has "$fast/README.md" "| \`schedule.steps\` | 40 | 10 |"
[ "$(sha256sum "$fast/baseline-seed5.jsonl.gz" | cut -d' ' -f1)" = "$(grep -A 1 '"file": "baseline-seed5' "$fast/record.json" | grep -o '[0-9a-f]\{64\}')" ] || fail "record.json has another hash"
# A run of the attempt equals the same run of train.
expect 0 "result: done" "$speedrun" train tiny.json --seed 6 --name same --set schedule.steps=10 --set eval.every=5
grep -o '"loss":[0-9.e-]*' logs/same/metrics.jsonl >same.loss
grep -o '"loss":[0-9.e-]*' logs/attempts/fast/candidate-seed6/metrics.jsonl | cmp -s - same.loss || fail "train gives another curve than the attempt"
expect 2 "is there, and no record is overwritten" attempt --runs 3 --first-seed 5 --name fast --set schedule.steps=10 --set eval.every=5 \
    --against tiny.json --against-set schedule.steps=40 --baseline-name slow

# Commands on finished records.
expect 0 "figures are those of its runs; of class open, small" "$speedrun" records verify
expect 0 "\"problems\": \[\]" "$speedrun" records verify "$fast" --json
expect 0 "^fast " "$speedrun" records list
printed "^open (any model, any hardware), [0-9]* cores, "
printed "^small (at most 40000 parameters), [0-9]* cores, "
printed "^gpu (1 GPU): no record yet"
printed "^old (any model, any hardware): no record$"
printed "^History: the class ended on 2020-01-01. Tables led it."
printed "^few (a transformer from its weights alone, at most 2560 tokens, the lowest loss leads), [0-9]* cores, "
printed "^low (any model, any hardware; target 40 nats per token): no record yet"
[ "$(grep -c '^fast ' out)" -eq 5 ] || fail "fast is not on the boards of open, small, dense, few, quick"
[ "$(grep -c '^slow ' out)" -eq 4 ] || fail "slow is not on the boards of open, small, dense, quick"
expect 0 "^| \[fast\](records/toy/" "$speedrun" records list toy --markdown
printed '^\*\*small\*\* (at most'
expect 0 '"hardware_class": "[0-9]* cores, ' "$speedrun" records list --json
expect 0 '"baseline": "slow"' "$speedrun" records list records/toy --json
expect 0 "config schedule.steps: 10 / 40" "$speedrun" records compare "$fast" "$slow"
! grep -q warning out || fail "two records of one attempt are compared with a warning"
expect 0 '"in_turns": false' "$speedrun" records compare 'logs/attempts/fast/candidate-seed*' 'logs/same' --json
expect 2 "neither a record .* nor a run folder" "$speedrun" records compare "$fast" tiny
expect 2 "no such record" "$speedrun" records compare "$fast" nothing
cp -r "$fast" kept
sed -i 's/\("speedup": [0-9.]*\)[0-9]/\19/' "$fast/record.json"
cmp -s kept/record.json "$fast/record.json" && sed -i 's/\("speedup": [0-9.]*\)[0-9]/\18/' "$fast/record.json"
expect 3 "sha256: record.json was changed" "$speedrun" records verify
expect 3 "changed since it was written" "$speedrun" records list
cp kept/record.json "$fast/record.json"

sed -i 's/"what": "A quarter/"what": "A third/' "$fast/record.json"
expect 3 "sha256: record.json was changed" "$speedrun" records verify
[ "$(wc -l <out)" -eq 2 ] || fail "an edited text is not one line, beside that of the other record: $(cat out)"
cp kept/record.json "$fast/record.json"
mv "$fast/candidate-seed6.jsonl.gz" kept
expect 3 "candidate-seed6.jsonl.gz: missing" "$speedrun" records verify "$fast"
[ "$(wc -l <out)" -eq 1 ] || fail "missing metrics are not one line: $(cat out)"
mv kept/candidate-seed6.jsonl.gz "$fast"
sed -i 's/"class": "open"/"class": "huge"/' "$fast/record.json"
expect 3 "class: track toy has no class huge; it has open, small" "$speedrun" records verify "$fast"
[ "$(wc -l <out)" -eq 1 ] || fail "an unknown class is not one line: $(cat out)"
cp kept/record.json "$fast/record.json"

# A token budget: the lower loss is the record.
few="--runs 3 --class few --against $fast --set batch.tokens_per_step=128 --set batch.microbatch_tokens=128 --set schedule.steps=20"
# shellcheck disable=SC2086
expect 0 "^lower: .* s, loss .*, [0-9.]* below fast" attempt $few --name lower
printed "loss  met .*, alternating with fast of .* that it is lower"
printed "data  met      the track's shards, all [0-9]* validation tokens$"
lower=$(echo records/toy/*_lower)
has "$lower/record.json" '"target_loss": 0.0'
expect 0 "figures are those of its runs; of class few, quick" "$speedrun" records verify "$lower"
# An equal config on both sides is no lower loss. On a busy machine `lower` is no record and `fast` leads; otherwise `lower`
# must be beaten.
expect 0 "loss  NOT MET .*\(alternating with fast of .* that it is lower\|in turns with the record before it, .*_lower\)" attempt --runs 3 --class few --against "$fast" --name again --set schedule.steps=10 --set eval.every=5

# A record as the baseline. One run diverges on one side: kept, listed, and the attempt continues.
wild="--set optimizers.groups.1.lr=1000 --set optimizers.groups.1.weight_decay=1000"
# shellcheck disable=SC2086  # the options are meant to be split
expect 0 "diverged at step" attempt --seeds 1,2 --name wild $wild --against "$fast"
printed "runs  NOT MET  0 runs .* 2 diverged, 0 allowed"
wild_record=$(echo records/toy/*_wild)
has "$wild_record/record.json" "\"record\": \"$(basename "$fast")\""
has "$wild_record/README.md" "| candidate | 1 | diverged | - |"
expect 0 "figures are those of its runs" "$speedrun" records verify "$wild_record"
expect 0 "^wild .*no: .*runs, loss, time" "$speedrun" records list

# Stopped by a signal: finished runs are kept, the interrupted one is listed and repeated.
long="records attempt tiny.json --runs 2 --set schedule.steps=2000 --against $fast --name long"
# shellcheck disable=SC2086
start attempts/long/candidate-seed1 "$speedrun" $long
kill -INT $pid
ended 130
printed "the same command continues it"
stamp=$(stat -c %Y%i logs/attempts/long/candidate-seed1/summary.json)
expect 2 "seeds.2: nothing when it began, 3 now" "$speedrun" records attempt tiny.json --runs 3 --set schedule.steps=2000 --against "$fast" --name long
expect 2 "config.schedule.steps: 2000 when it began, 20 now" "$speedrun" records attempt tiny.json --runs 2 --against "$fast" --name long
# shellcheck disable=SC2086
expect 0 "rules" "$speedrun" $long
interrupted=$(ls -d logs/attempts/long/*.interrupted-1)
[ "$(echo "$interrupted" | wc -w)" -eq 1 ] || fail "not one interrupted run: $interrupted"
long_record=$(echo records/toy/*_long)
has "$long_record/README.md" "^Interrupted after [0-9]* steps"
[ -d "$interrupted" ] && [ "$stamp" != "$(stat -c %Y%i logs/attempts/long/candidate-seed1/summary.json)" ] || fail "the stopped run was not made afresh"
expect 0 "figures are those of its runs; of class open, small" "$speedrun" records verify

# Two builds with one config. The other build is this one with another commit's name.
other() {
    printf '#!/bin/sh\n"%s" "$@" || exit\n%s\n' "$speedrun" "$1"
}
sha=$(grep -o '"git_sha": "[0-9a-f]*' "$fast/record.json" | head -n 1)
# shellcheck disable=SC2016  # the other build expands it
rename='while [ "$1" != --out ] && shift; do :; done; sed -i "s/\"git_sha\": \"[^\"]*/\"git_sha\": \"0123456789abcdef0123456789abcdef01234567/" "$2/$4/environment.json"'
other "$rename" >old && chmod +x old
expect 2 "so --against is left out" attempt --runs 2 --name systems --baseline-binary old --against "$fast"
expect 2 "both sides are called 'tiny'" attempt --runs 2 --baseline-binary old
expect 3 "nowhere: " attempt --runs 2 --name systems --baseline-binary nowhere
expect 0 "baseline built from commit 0123456789ab" sh "$here/../../scripts/systems_record.sh" --new "$speedrun" "$PWD/old" "$fast" --runs 2 --name systems --what "The engine alone."
systems=$(echo records/toy/*_systems)
has "$systems/record.json" '"git_sha": "0123456789abcdef0123456789abcdef01234567"'
has "$systems/record.json" "$sha"
has "$systems/record.json" '"systems_only": true'
has "$systems/README.md" "loss .*systems-only"
for side in candidate baseline; do gzip -dc "$systems/$side-seed1.jsonl.gz" | grep -o '"loss":[0-9.e-]*' >$side.loss; done
cmp -s candidate.loss baseline.loss || fail "one program under two names has two curves"
expect 0 "figures are those of its runs" "$speedrun" records verify "$systems"
expect 0 "systems .*x fast " "$speedrun" records list
# Another build that reads the config differently.
other "$rename"'; sed -i "s/\"steps\": 10,/\"steps\": 11,/" "$2/$4/config.json"' >old
expect 3 "these two builds do not read the config alike" attempt --set schedule.steps=10 --runs 2 --name unlike --baseline-binary old
# Stopped while a build runs: it stops after a step, and its exit code is the attempt's.
other "$rename" >old
start attempts/stopped/candidate-seed1 "$speedrun" records attempt tiny.json --runs 2 --set schedule.steps=2000 --name stopped --baseline-binary old
kill -HUP $pid
ended 129
printed "the same command continues it"
grep -q '"status": "stopped"' logs/attempts/stopped/candidate-seed1/summary.json || fail "the build did not stop by itself"

# Two ranks: one of them prints and writes.
if [ -n "$mpiexec" ]; then
    ranks() { timeout 100 "$mpiexec" -np 2 --oversubscribe --bind-to none "$speedrun" records attempt tiny.json "$@"; }
    # shellcheck disable=SC2086
    expect 0 "run 4 of 4" ranks --runs 2 --name two --set batch.microbatch_tokens=128 $wild --against tiny.json --against-set batch.microbatch_tokens=128
    [ "$(grep -c '^run 4 of 4' out)" -eq 1 ] || fail "both ranks speak"
    [ "$(grep -c 'diverged at step' out)" -eq 2 ] || fail "not two runs that diverged"
    two=$(echo records/toy/*_two)
    [ "$(grep -c '"host"' "$two/record.json")" -eq 3 ] || fail "the record does not list two ranks"
    expect 0 "figures are those of its runs; of class open, small" "$speedrun" records verify
    # Ranks that share matrices against ranks that share rows.
    expect 0 "run 4 of 4" ranks --runs 2 --name shared --set parallel.tensor=2 --against tiny.json --against-set parallel.context=2
    expect 0 "figures are those of its runs; of class open, small" "$speedrun" records verify
    expect 2 "a process of its own and one rank; here are 2 ranks" ranks --runs 1 --name both --baseline-binary old
    expect 2 "seeds: 1 is there twice" ranks --seeds 1,1
    [ "$(grep -c '^error: ' out)" -eq 1 ] || fail "both ranks complain"
fi

exit $failures
