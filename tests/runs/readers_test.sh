#!/bin/sh
# Damaged and unusual user files: an exit code and a message, no crash and no hang. A run's files stay readable after a full
# disk. Outputs replace no device and follow no link out of a run's folder.
# Usage: readers_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
within() { timeout 20 "$speedrun" "$@"; }
train() { within train tiny.json --quiet "$@"; }
every_line_parses() {
    python3 -c 'import json, sys
for line in open(sys.argv[1]): json.loads(line)' "$1" || fail "$1 has a line that is no JSON"
}

expect 0 "^result: done" train --name whole --set checkpoint.every=8

# Configs.
nested=$(python3 -c 'print("[" * 300000)')
echo "$nested" >deep.json
python3 - <<'P'
text = open("tiny.json").read().rstrip()[:-1]
open("keys.json", "w").write(text + "," + ",".join(f'"k{i}": 1' for i in range(200000)) + "}")
open("twice.json", "w").write(text + ', "seed": 1, "seed": 2}')
open("nul.json", "w").write(text + "}\0\0")
open("huge.json", "w").write(text + ', "seed": 1e999}')
open("stages.json", "w").write(text.replace('"steps": 20', '"steps": 100000, "stages": ' + str(list(range(1, 100001)))) + "}")
P
expect 2 "deep.json: not valid JSON: nested deeper than 64" within plan deep.json
expect 2 "keys.json: not valid JSON: more than 10000 keys" within plan keys.json
expect 2 "twice.json: not valid JSON: duplicate key \"seed\"" within plan twice.json
expect 2 "nul.json: not valid JSON: NUL byte" within plan nul.json
expect 2 "huge.json: not valid JSON: .*number overflow" within plan huge.json
expect 2 "schedule.stages has 100000 entries, at most 1000" within plan stages.json
mkfifo pipe && ln -s loop loop
for file in pipe /dev/zero tiny loop; do
    expect 2 "^error: $file: cannot be read: " within plan $file
    expect 3 "^error: $file.*: cannot be read: " within trace $file
    expect 3 "^error: $file: cannot be read: " within plan tiny.json --gpu h100 --measured $file
    expect 3 "^error: $file: cannot be read: " within plan tiny.json --gpu h100 --network $file
    expect 3 "^error: $file/config.json: cannot be read: " within import $file --name x
done
expect 3 "pipe: not a regular file" train --name x --set data.train=pipe
expect 0 "parameters" sh -c "cat tiny.json | timeout 20 '$speedrun' plan /dev/stdin"
tab=$(printf 'a\tb')
expect 2 "is UTF-8 without control characters" train --name "$tab"
expect 2 "is UTF-8 without control characters" train --name "$(printf 'a\377')"
expect 2 "temperature nan: expected 0 or more" within sample logs/whole --temperature nan

# Traces and measured operations.
mkdir trace
meta='{"ph":"M","name":"process_name","pid":0,"args":{"name":"rank 0"}},{"ph":"M","name":"process_name","pid":1,"args":{"name":"rank 1"}}'
span='{"ph":"X","name":"a","pid":0,"ts":0,"dur":1,"args":{"step":1}}'
trace() { printf '{"traceEvents":[%s]}' "$1" >trace/trace.json; }
trace "$nested"; expect 3 "not a trace .*nested deeper" within trace trace
trace "{\"ph\":\"X\",\"name\":\"a\",\"pid\":0,\"ts\":0,\"dur\":1,\"args\":{\"step\":1,\"x\":$nested}}"; expect 3 "not a trace" within trace trace
trace "$meta,$span"; expect 0 "rank 0" within trace trace
expect 2 "rank 1: none of its spans says which step" within trace trace --rank 1
trace "$meta,$span,{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"ts\":0,\"dur\":1}"; expect 2 "rank 1: none of its spans" within trace trace --rank 1
for bad in '"pid":-5' '"pid":1e12' '"ts":1e300' '"dur":-1' '"dur":1e308' '"name":7' '"args":{"step":-2}' '"args":{"step":1,"bytes":9e15}'; do
    trace "$meta,$span,{\"ph\":\"X\",\"name\":\"a\",\"pid\":0,\"ts\":0,\"dur\":1,$bad}"
    expect 3 "not a trace" within trace trace
done
trace "$meta,{\"ph\":\"X\",\"name\":\"a\",\"pid\":0,\"ts\":0,\"dur\":5e-321,\"args\":{\"step\":1}}"
expect 3 "no spans of rank 0 to draw" within trace trace --svg picture.svg
echo "{\"ops\":$nested}" >ops.jsonl
expect 3 "no operation in bf16 has passed there; line 1 is damaged" within plan tiny.json --gpu h100 --measured ops.jsonl

# A trace window after the end of the run.
expect 0 "warning: --trace 30:40: the run begins with step 0 and ends before step 20, no trace.json" "$speedrun" train tiny.json --name late --trace 30:40
[ ! -e logs/late/trace.json ] || fail "late has a trace"
# timeout sends TERM twice within microseconds: a single request.
expect 143 "warning: --trace 900000:900001: the run ended after" sh -c "timeout --preserve-status -s TERM 2 '$speedrun' train tiny.json --name stopped --set schedule.steps=1000000 --trace 900000:900001"

# A damaged line of metrics.jsonl is skipped.
cp -r logs/whole logs/damaged
sed -i '5s/.*/{"event":"step","step":4,{"event":"step"/' logs/damaged/metrics.jsonl
expect 0 "metrics.jsonl: line 5 is damaged and left out" within records compare logs/damaged logs/whole
rm -r logs/damaged/summary.json logs/damaged/checkpoints/step-00000020
expect 0 "metrics.jsonl: line 5 is damaged and left out" train --name damaged --resume auto
every_line_parses logs/damaged/metrics.jsonl
echo '[]' >logs/damaged/config.json
expect 3 "logs/damaged: " within records compare logs/damaged logs/whole

# A file size limit, like a full disk: no partial lines.
expect 1 "metrics.jsonl: writing failed: File too large; missing: [0-9]* lines of metrics.jsonl" sh -c "ulimit -f 24; exec timeout 20 '$speedrun' train tiny.json --quiet --name tight --set schedule.steps=100"
grep -q 'LOG ERROR' out && fail "the log library prints errors of its own"
every_line_parses logs/tight/metrics.jsonl
[ -s logs/tight/metrics.jsonl ] || fail "tight has no metrics"

# A continued run writes only inside its folder.
for name in run.log metrics.jsonl config.json checkpoints; do
    rm -rf logs/linked outside && cp -r logs/whole logs/linked && mkdir outside && mv logs/linked/$name outside/ && ln -s "$PWD/outside/$name" logs/linked/$name
    find outside -type f -exec cksum {} + >before
    expect 2 "logs/linked/$name: a symbolic link to .*a run writes only inside of its folder" train --name linked --resume auto
    find outside -type f -exec cksum {} + | cmp -s - before || fail "a run wrote to outside/$name"
done
ln -s linked_to_disk logs/moved && mv logs/whole logs/linked_to_disk
expect 0 "^result: done" train --name moved --resume auto

# User-named outputs. Separate device nodes, as a rename in /dev would replace the machine's.
head -c 200 /dev/zero >row
gradients() { within gradients tiny.json --weights logs/linked_to_disk/checkpoints/final/model.safetensors --tokens row --length 20 --separator 256 --out "$1"; }
ln -s target.safetensors link.safetensors
expect 0 "link.safetensors: 20 targets" gradients link.safetensors
[ -L link.safetensors ] && [ -s target.safetensors ] || fail "the link was replaced"
if mknod null c 1 3 2>/dev/null && (: >null) 2>/dev/null; then
    expect 0 "null: 20 targets" gradients null
    [ -c null ] || fail "the device was replaced"
else
    echo "skipped: no device file can be made in $PWD"
fi
expect 0 "written: link.json" sh -c "ln -s target.json link.json; timeout 60 '$speedrun' plan tiny.json --gpu h100 --timeline --trace link.json"
[ -L link.json ] && [ -s target.json ] || fail "the link was replaced by the plan's trace"
mkdir track
printf '{"name": "t", "dataset": {"lock": "../../../etc/passwd"}}' >track/track.json
expect 3 "dataset.lock: expected a path to a shards.lock" within records list track
exit $failures
