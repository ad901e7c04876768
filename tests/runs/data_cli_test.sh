#!/bin/sh
# A run's data: all documents are trained on, resuming on other data, inconsistent shards, and shards that change while in use.
# Usage: data_cli_test.sh SPEEDRUN [MPIEXEC]
# ctest: ARGS SPEEDRUN MPIEXEC PROPERTIES ENVIRONMENT mpi
set -u
speedrun=$1 mpiexec=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"

train() { "$speedrun" train tiny.json --quiet "$@"; }
prepare() { "$speedrun" prepare --input text.txt --document-marker %% "$@"; }
# refused CODE TEXT OPTION...: a run that cannot start and creates no folder.
refused() {
    code=$1; text=$2; shift 2
    expect "$code" "$text" train --name refused "$@"
    [ ! -e logs/refused ] || fail "a run that cannot start left a folder"
}
expect 0 "train" prepare --out tiny --val-every 10

# Documents of one letter; the first letter must be learned too. --temperature 0: the most likely letter.
for letter in A B C D; do
    head -c 200 /dev/zero | tr '\0' $letter >$letter.txt
done
letters="--set data.train=letters/train_*.bin --set data.val=tiny/val_*.bin --set data.rows=documents --set schedule.steps=60"
for shard_tokens in 1000000 300 201; do
    expect 0 "4 documents, 804 tokens" "$speedrun" prepare --input A.txt B.txt C.txt D.txt --out letters --force --shard-tokens $shard_tokens
    # shellcheck disable=SC2086
    expect 0 "" train --name letters$shard_tokens $letters
    for letter in A B C D; do
        expect 0 "^$letter$letter$letter$letter$letter$letter$" "$speedrun" sample logs/letters$shard_tokens --prompt $letter --tokens 5 --temperature 0
    done
done
expect 0 "" "$speedrun" prepare --input A.txt --out letters --force
# shellcheck disable=SC2086
expect 0 "" train --name one $letters
grep -q "of 1 documents" logs/one/run.log || fail "a dataset of one document is not trained on"

# A run records its data, and continues with them at any location.
expect 0 "" train --name whole --set checkpoint.every=10
grep -q '"file": "train_000000.bin"' logs/whole/data.json || fail "data.json does not name the shard"
resume() { train --resume logs/whole/checkpoints/step-00000010 --set checkpoint.every=10 "$@"; }
mv tiny moved
expect 0 "" resume --name moved --set 'data.train=moved/train_*.bin' --set 'data.val=moved/val_*.bin'
cmp -s logs/whole/checkpoints/step-00000020/rank-00000.safetensors logs/moved/checkpoints/step-00000020/rank-00000.safetensors ||
    fail "a run that goes on with moved data ends elsewhere"
cp -r moved tiny

# Other data: prepared with another split, changed bytes of a shard, another name, an additional or missing shard. Exit 3, and
# no folder.
other() { expect 3 "$1" resume --name other; [ ! -e logs/other ] || fail "a resume that is refused left a folder"; rm -rf tiny; cp -r moved tiny; }
prepare --out tiny --val-every 3 --force >out
other "belongs to other data: data.train: train_000000.bin has [0-9]* tokens there.*data.val: val_000000.bin has"
tr a b <text.txt >b.txt && "$speedrun" prepare --input b.txt --document-marker %% --val-every 10 --out tiny --force >out
other "data.train: train_000000.bin has other content: SHA-256 .* there, .* here; data.val: val_000000.bin has other content"
prepare --out tiny --val-every 10 --force --shard-tokens 15000 >out
other "train_000000.bin has [0-9]* tokens there\|train_000001.bin is here and not there"
expect 3 "belongs to other data" train --name whole --resume auto --set checkpoint.every=10 --set 'data.val=letters/train_*.bin'
expect 0 "" train --name whole --resume auto --set checkpoint.every=10

# A checkpoint of an older version is resumed, with a message that its data could not be compared.
cp -r logs/whole logs/old && rm -r logs/old/checkpoints/step-00000020
python3 - logs/old/checkpoints/step-00000010 <<'P'
import json, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
info = json.loads((folder / "checkpoint.json").read_text())
del info["data"]
(folder / "checkpoint.json").write_text(json.dumps(info))
new = subprocess.run(["xxhsum", "-H2", "checkpoint.json"], cwd=folder, capture_output=True, text=True, check=True).stdout
lines = (folder / "XXH128SUMS").read_text().splitlines()
(folder / "XXH128SUMS").write_text("\n".join(new.strip() if l.endswith(" checkpoint.json") else l for l in lines) + "\n")
P
expect 0 "warning: .*does not say what is in the shards" "$speedrun" train tiny.json --name old --resume auto --set checkpoint.every=10

# eval warns if a run's validation data have changed.
expect 0 "validation loss" "$speedrun" eval logs/whole
grep -q warning out && fail "eval warns of the data of the run"
prepare --out tiny --val-every 5 --force >out
expect 0 "warning: these are not the shards that logs/whole validated on: data.val: val_000000.bin has" "$speedrun" eval logs/whole
expect 0 "warning: these are not the shards" "$speedrun" eval logs/whole/checkpoints/step-00000020
rm -rf tiny; cp -r moved tiny

# Inconsistent shards.
refused 2 "tiny/train_000000.bin is twice in data.train" --set 'data.train=["tiny/train_*.bin","tiny/train_000000.bin"]'
refused 2 "tiny/val_000000.bin is in data.train and also in data.val.*data.allow_overlap" --set 'data.train=tiny/*.bin'
refused 2 "tiny/train_000000.bin is in data.train and also in data.val" --set 'data.val=tiny/train_*.bin'
refused 2 "have the same content" --set 'data.train=["tiny/train_*.bin","moved/train_*.bin"]'
ln -s tiny linked
refused 2 "are one file" --set 'data.val=linked/train_*.bin'
expect 0 "" train --name insisted --set 'data.val=tiny/train_*.bin' --set data.allow_overlap=true
cp tiny/val_000000.bin plain.bin
refused 3 "data.train and data.val hold different tokens: bytes .* and gpt2" --set data.val=plain.bin --set model.vocab_size=50304

# Mixtures.
expect 0 "4 documents" "$speedrun" prepare --input A.txt B.txt C.txt D.txt --out letters --force
mixture='data.train=[{"files":"tiny/train_*.bin","weight":3},{"files":["letters/train_*.bin"],"weight":1}]'
expect 0 "source 1, 25% of the rows: 804 tokens, the run draws [0-9]* .[0-9.]* epochs.: letters/train_" "$speedrun" plan tiny.json --set "$mixture"
expect 0 " 25.00% of the rows: letters/train_.*bin, [0-9]* tokens = [0-9.]* epochs; an epoch has [0-9]* tokens and drops" \
    "$speedrun" train tiny.json --name mixed --set "$mixture"
grep -q '"epoch_tokens_dropped"' logs/mixed/summary.json || fail "the summary does not count the sources"
expect 0 "" train --name mixed2 --set "$mixture" --set checkpoint.every=10
cp -r logs/mixed2 logs/mixed3 && rm -r logs/mixed3/checkpoints/step-00000020
expect 0 "" train --name mixed3 --set "$mixture" --resume auto
cmp logs/mixed2/checkpoints/final/model.safetensors logs/mixed3/checkpoints/final/model.safetensors || fail "a resumed mixture differs"
expect 2 "data.train.1.weight: 1.0 there, 2.0 here" train --name mixed3 --set "$mixture" --set data.train.1.weight=2 --resume auto
refused 2 "data.train.1..weight: 0 is outside" --set "$mixture" --set data.train.1.weight=0
refused 2 "data.train.1..weight: expected a number" --set "$mixture" --set data.train.1.weight=nan
refused 2 "data.train: expected a list of strings or a list of objects, not both" --set 'data.train=["a",{"files":"b"}]'
refused 2 "tiny/train_000000.bin is twice in data.train" --set 'data.train=[{"files":"tiny/train_*.bin"},{"files":"tiny/train_000000.bin"}]'
refused 3 "tiny and . hold different tokens" --set 'data.train=[{"files":"tiny/train_*.bin"},{"files":"plain.bin"}]' --set model.vocab_size=50304
refused 3 "no file matches 'nowhere" --set 'data.train=[{"files":"tiny/train_*.bin"},{"files":"nowhere*.bin"}]'

# Links find the dataset.json of their target; a shard without one is not called FineWeb.
mkdir links && ln -s ../tiny/train_000000.bin links/a.bin && ln -s ../tiny/val_000000.bin links/b.bin
expect 0 "" train --name links --set data.train=links/a.bin --set data.val=links/b.bin
refused 2 "50257 tokens of the dataset without dataset.json" --set data.train=plain.bin

# Names that look like patterns, and patterns with exponential matching time.
cp -r tiny 't[1]'
expect 0 "" train --name brackets --set 'data.train=t[1]/train_000000.bin' --set 'data.val=t[1]/val_*.bin'
refused 2 "braces are nested deeper" --set "data.train=$(printf '{a,%.0s' $(seq 2000))$(printf '}%.0s' $(seq 2000))"
refused 2 "more than 10000 names" --set "data.train=$(printf '{1,2}%.0s' $(seq 26))"

# A shard that changes during training. changed TEXT SHARD COMMAND...: the command changes it. The run ends with 3, the shard's
# name, and a checkpoint of its last step.
changed() {
    text=$1; shard=$2; shift 2
    rm -rf tiny logs/changed; cp -r moved tiny
    start changed "$speedrun" train tiny.json --name changed --quiet --set schedule.steps=10000000 --set eval.every=50
    "$@"
    ended 3
    grep -q "error: tiny/$shard: $text" out || fail "$*: no '$text' of tiny/$shard"
    is_saved changed
    grep -q '"status": "stopped"' logs/changed/summary.json || fail "$*: no summary"
}
changed ".*while it was in use: [0-9]* bytes when it was opened, now 0" train_000000.bin sh -c ': >tiny/train_000000.bin'
changed ".*while it was in use" val_000000.bin truncate -s 2000 tiny/val_000000.bin
changed ".*while it was in use" train_000000.bin sh -c 'echo more >>tiny/train_000000.bin'
changed ".*was written to while it was in use" train_000000.bin sh -c "printf x | dd of=tiny/train_000000.bin bs=1 seek=3000 conv=notrunc 2>/dev/null"
rm -rf tiny; cp -r moved tiny
# Deleted, or replaced by a rename: the run reads its open files.
rm -rf logs/deleted
start deleted "$speedrun" train tiny.json --name deleted --quiet --set schedule.steps=10000000
rm tiny/train_000000.bin && cp b.txt tiny/new && mv tiny/new tiny/val_000000.bin
lines=$(wc -l <logs/deleted/metrics.jsonl)
more() { [ "$(wc -l <logs/deleted/metrics.jsonl)" -gt $((lines + 20)) ]; }
wait_until more
kill -INT $pid
ended 130

# Two ranks with separate files. If the second rank's files change, both end with 3 and one checkpoint.
ranks() {
    rm -rf tiny other logs/ranks; cp -r moved tiny; mkdir other; cp -r "${second:-moved}" other/tiny
    set -- train "$work/tiny.json" --out "$work/logs" --name ranks --quiet --set batch.microbatch_tokens=64 "$@"
    timeout 100 "$mpiexec" --oversubscribe --bind-to none -np 1 "$speedrun" "$@" : -np 1 --wdir "$work/other" "$speedrun" "$@" >out 2>&1
}
ranks_changed() {
    shard=$1; shift
    rm -rf logs/ranks
    (wait_until test -s logs/ranks/metrics.jsonl && : >"other/tiny/$shard") &
    ranks --set schedule.steps=10000000 --set eval.every=50 "$@"
    got=$?
    wait
    [ $got -eq 3 ] || fail "2 ranks, $shard, $*: exit $got instead of 3"
    grep -q "error: .*tiny/$shard: the shard changed" out || fail "2 ranks: $shard is not named"
    is_saved ranks
}
if [ -n "$mpiexec" ]; then
    ranks_changed train_000000.bin
    ranks_changed train_000000.bin --set optimizers.groups.0.every=2 --set parallel.strategy=zero1
    ranks_changed val_000000.bin --set parallel.strategy=zero3
    prepare --out letters --val-every 3 --force >out
    second=letters
    ranks
    got=$?
    [ $got -eq 2 ] || fail "ranks with different data: exit $got instead of 2"
    grep -q "data: rank 1 differs from rank 0" out || fail "it is not said that ranks have different data"
else
    echo "skipped: ranks, without mpiexec"
fi

exit $failures
