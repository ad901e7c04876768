#!/bin/sh
# The command line as used by scripts: exit codes, messages, files, and prepare -> plan -> train -> eval -> sample on a tiny
# text. Usage: cli_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
# Covers: kernels/cuda/*no_*.cpp kernels/runtime/runtime.cpp train/commands/plan_communication.cpp
# Covers: train/commands/plan_graph.cpp train/comm/no_*.cpp train/commands/*_command.cpp train/commands/build_findings.cpp
# Covers: train/commands/plan_search.cpp train/commands/plan_timeline.cpp train/commands/separator.cpp train/main.cpp
# Covers: train/runlog/machine.cpp
set -u
speedrun=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"

# Help and usage.
expect 0 "prepare" "$speedrun" --help
expect 0 "FIRST:LAST" "$speedrun" train --help
expect 2 "subcommand" "$speedrun"
expect 2 "nonsense" "$speedrun" nonsense
expect 2 "config" "$speedrun" train
expect 0 "schedule.steps" "$speedrun" plan --options
expect 0 "pages/new: [1-9][0-9]* pages" "$speedrun" plan --option-pages pages/new
grep -q '^| .schedule.steps. | .1000. |' pages/new/schedule.md || fail "pages/new/schedule.md lacks schedule.steps"
expect 2 "pages/new/schedule.md/x: the folder cannot be made: Not a directory" "$speedrun" plan --option-pages pages/new/schedule.md/x
expect 0 '"key":"comm_exposed_ms"' "$speedrun" plan --metrics
expect 0 "^speedrun $(cat "$here/../../VERSION")\$" "$speedrun" --version
for line in "build  *[A-Z][a-zA-Z]* \(unknown\|[0-9a-f]\{40\}\)" "CPU level  *a[vm]x" "libraries .*OpenSSL 3\.[0-9]" MPI NCCL CUDA; do
    grep -q -e "^$line" out || fail "--version says nothing of $line"
done
mv out version
expect 0 "^ok  *build\|^warn  *build" "$speedrun" doctor
for line in libraries MPI NCCL CUDA CPU "CPU level" governor memory "huge pages" disk clock; do
    grep -q -e "^\(ok\|note\|warn\) *$line" out || fail "the doctor says nothing of $line"
done
sed 1d version | while read -r line; do grep -q -F -e "$line" out || echo "$line"; done >differ
[ ! -s differ ] || fail "the doctor and --version differ in: $(cat differ)"
expect 0 '"findings"' "$speedrun" doctor --json
expect 2 "^fail  *disk .*--out" "$speedrun" doctor --out /proc/runs
expect 2 '"status": "fail"' "$speedrun" doctor --json --out /proc/runs

# Data: missing, then prepared, never overwritten.
expect 3 "tiny/train_" "$speedrun" train tiny.json --name early
[ ! -e logs/early ] || fail "a run that cannot start left a folder"
expect 3 "no_such.txt" "$speedrun" prepare --input no_such.txt --out tiny
expect 0 "train" "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10
expect 2 "tiny" "$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10

# Configs.
expect 2 "no_such.json" "$speedrun" train no_such.json
expect 0 "computing: .* threads, a[vm]x" "$speedrun" plan tiny.json
expect 0 "CPU level  *avx2 (this processor has" env SPEEDRUN_ISA=avx2 "$speedrun" doctor
expect 2 "model.model_dims: unknown key, did you mean model_dim?" "$speedrun" plan tiny.json --set model.model_dims=2
expect 2 "model.num_layers: .*instead: model.layers.count" "$speedrun" plan tiny.json --set model.num_layers=2
expect 2 "model.layers.count" "$speedrun" plan tiny.json --set model.layers.count=two
expect 2 "heads 3 does not divide" "$speedrun" plan tiny.json --set model.layers.each.attention.heads=3
expect 2 "no group takes" "$speedrun" train tiny.json --set 'optimizers.groups=[{"type":"adamw","params":["blocks.*"]}]'
expect 2 "muon trains matrices only" "$speedrun" train tiny.json --set model.norms.gain=true --set 'optimizers.groups=[{"type":"muon","params":["*"]}]'
expect 2 "replicate 2 x shard 1 .* is not the number of ranks, 1" "$speedrun" plan tiny.json --set parallel.replicate=2 --set parallel.shard=1
expect 2 "ddp | zero1 | zero2 | zero3, got \"zero9\"" "$speedrun" plan tiny.json --set parallel.strategy=zero9
expect 2 "device: 'cuda'" env CUDA_VISIBLE_DEVICES=-1 "$speedrun" train tiny.json --set device=cuda
expect 2 "trace" "$speedrun" train tiny.json --trace 5
expect 0 "weights" "$speedrun" plan tiny.json
expect 0 "communication: one rank, none" "$speedrun" plan tiny.json
expect 0 "^rows of documents: .* tokens (.*%) are dropped" "$speedrun" plan tiny.json --set data.rows=documents --set data.max_document_tokens=16
expect 2 "max_document_tokens 5 is for data.rows=documents" "$speedrun" plan tiny.json --set data.max_document_tokens=5
expect 0 "all_reduce over shard (4 ranks), f32" "$speedrun" plan tiny.json --ranks 4 --set batch.microbatch_tokens=64
expect 2 "4 ranks = 1024: .*--set batch.microbatch_tokens=64" "$speedrun" plan tiny.json --ranks 4

# Stages: each in the plan, one selected for single-stage outputs, invalid lists refused.
cat >stages <<'END'
--set schedule.stages=[2,8] --set schedule.steps=8 --set batch.sequence_length=[32,64] --set model.windows.near=[8,0] --set model.layers.each.attention.window=near
--set schedule.lr_factor=[[0.5,1],1]
END
# shellcheck disable=SC2046  # words
staged() { command=$1; shift; "$speedrun" "$command" tiny.json $(cat stages) "$@"; }
expect 0 "^stage 0 of 0-1, steps 1 to 2: learning rates x 0.5 to 1, window near 8$" staged plan
printed "^stage 1 of 0-1, steps 3 to 8: learning rates x 1, window near all$" "x 32 tokens; 2 steps = 512 tokens$" "x 64 tokens; 6 steps = 1536 tokens$"
expect 0 "attention .*window 8" staged plan --stage 0
expect 2 "error: stage 1 of schedule.stages: .* 256 x 2 ranks" staged plan --ranks 2 --set batch.tokens_per_step=[512,256]
expect 0 "modelled step" staged plan --stage 0 --gpu h100
grep -q "^modelled run of 8 steps: " out && grep -q "^    0  1-2  *256 " out && grep -q "^    1  3-8  *256 " out ||
    fail "a modelled run has no line for each stage"
expect 0 '"step_ms"' staged plan --gpu h100 --json
python3 -c 'import json
plan = json.load(open("out"))
run, step = plan["run"], plan["step"]["ms"]
assert [stage["steps"] for stage in run["stages"]] == [2, 6] and run["steps"] == 8, run
assert run["stages"][1]["step_ms"] == step != run["stages"][0]["step_ms"], (run, step)
seconds = sum(stage["steps"] * stage["step_ms"] for stage in run["stages"]) / 1e3
assert abs(run["s"] - seconds) < 1e-9 * seconds, run' || fail "the stages of a modelled run do not make up the run"
expect 2 "^error: --stage 2: schedule.stages has 2, counted from 0" staged plan --stage 2
expect 2 "model.windows.near has 2 entries, schedule.stages has 3" staged plan --set 'schedule.stages=[2,4,8]'
expect 2 "schedule.stages ends after step 8, expected schedule.steps, 9" staged plan --set schedule.steps=9
expect 0 "steps of 256 tokens" staged bench --steps 1 --stage 0
expect 0 "window (or a list: by stage)\|largest number of keys per query.*(or a list: by stage)" "$speedrun" plan --options
expect 0 "8 steps in 2 stages, 2048 tokens" staged train --name staged --set eval.sequence_length=16
expect 0 "validation loss $(sed -n 's/.*"val_loss": \([0-9.]\{6\}\).*/\1/p' logs/staged/summary.json)" "$speedrun" eval logs/staged
expect 0 "chapter" "$speedrun" sample logs/staged --tokens 5 --prompt "chapter "
rm -r logs

# A modelled step on a GPU that this machine lacks.
expect 0 "modelled step .* tokens/s" "$speedrun" plan tiny.json --gpu h100
printed "^matmul 256x96x32 nt " "^attention_backward .*without tensor cores" "measured on an H100" "^step " "NVIDIA H100.*one GPU, bf16" "note: modelled, not measured"
expect 0 '"kind": "modelled"' "$speedrun" plan tiny.json --gpu 4090 --json
python3 -m json.tool out >/dev/null || fail "plan --gpu --json prints no JSON"
expect 0 "one of 4 GPUs" "$speedrun" plan tiny.json --gpu a100 --ranks 4 --set batch.microbatch_tokens=64
expect 0 "8 GPUs to a host by PCIe" "$speedrun" plan tiny.json --gpu 4090 --ranks 4 --set batch.microbatch_tokens=64
grep -q "^note: attention is counted with documents: " out || fail "a modelled step does not name its documents"
# With communication, in time.
on_4() { "$speedrun" plan tiny.json --gpu h100 --ranks 4 --set batch.microbatch_tokens=64 --set parallel.strategy=zero1 "$@"; }
expect 0 "^    0  1-.*  256 " on_4
grep -q "exposed ms" out || fail "a modelled run of 4 ranks says nothing of exposed communication"
expect 0 "^step .* ms of exposed communication$" on_4 --timeline --trace predicted.json
printed "^reductions of gradients .*" "^network, the default: " "^critical path" "^ *4096  *" "^warning: .* latency, not bytes"
expect 0 "communication .* ms, hidden" "$speedrun" trace predicted.json
echo '{"name": "slow", "between": {"gb_s": 1}, "inside": {"gb_s": 1}}' >network.json
expect 0 "^network: slow" on_4 --timeline --network network.json
expect 3 "network.json: unknown key 'gb'" eval 'echo "{\"gb\": 1}" >network.json && on_4 --timeline --network network.json'
# Search for fast layouts: prints options that the same command accepts, in order.
expect 0 "--set parallel.strategy=" on_4 --search
grep -q "^ .* the config as it is$" out && grep -q "layouts tried, of which 0 need more" out || fail "the search says nothing of the config or of memory"
first=$(grep -m 1 -o -e "--set .*" out)
# shellcheck disable=SC2086  # words
expect 0 "^step " on_4 --timeline $first
expect 0 '"config_as_it_is"' on_4 --search --json
python3 -c 'import json
found = json.load(open("out"))
times = [layout["step_ms"] for layout in found["layouts"]]
assert times == sorted(times) and len(times) > 20 and found["tried"] >= len(times), found["tried"]' || fail "plan --search --json"
expect 2 "one of them at a time" on_4 --search --timeline
expect 2 "no layout of 3 ranks can share this config's steps of 4 sequences" "$speedrun" plan tiny.json --gpu h100 --search --ranks 3
expect 2 "search" "$speedrun" plan tiny.json --search
expect 2 "timeline" "$speedrun" plan tiny.json --timeline
expect 2 "trace" "$speedrun" plan tiny.json --gpu h100 --trace x.json
expect 2 "'h1000'; there are h100, h200, a100, 4090" "$speedrun" plan tiny.json --gpu h1000
expect 2 "gpu" "$speedrun" plan tiny.json --json
expect 2 "gpu" "$speedrun" plan tiny.json --measured ops.jsonl
expect 3 "ops.jsonl: cannot be read" "$speedrun" plan tiny.json --gpu h100 --measured ops.jsonl
echo '{"kind":"op","name":"all","op":"fill","dtype":"bf16","status":"passed","flops":0,"bytes":9,"share_of_floor":0.5}' >ops.jsonl
expect 0 "^fill .*measured: all" "$speedrun" plan tiny.json --gpu h100 --measured ops.jsonl
expect 2 "name a config" "$speedrun" plan --gpu h100
expect 0 "^embed.weight  *\[320,32\]  f32 .* adamw  row t is token t's, added to the stream" "$speedrun" plan tiny.json --parameters --set precision=f32
expect 0 '"meaning": "logits = W x; rows after the vocabulary are padding"' "$speedrun" plan tiny.json --parameters --json
python3 -m json.tool out >/dev/null || fail "plan --parameters --json prints no JSON"
expect 2 "one of them at a time" "$speedrun" plan tiny.json --parameters --gpu h100
expect 2 "model.model_dims: unknown key" "$speedrun" plan tiny.json --gpu h100 --set model.model_dims=2
expect 0 "h100, h200, a100, 4090, b200 or 5090" "$speedrun" plan --help

# The model as its graph: layers, the busiest step, a unit as text for Graphviz and, if available, as a picture.
expect 0 "^layers: 4 units of " "$speedrun" plan tiny.json --set model.layers.count=2 --set 'model.tables={"values":{}}' \
    --set model.layers.at.1.attention.value_table=values
printed "^  0  *embeddings  *embedding 320 x 32; rmsnorm$" "^  1  *block 0  *rmsnorm; linear 32 -> 96; QK-norm, rotary 2 x 16;" \
    "^  2  *block 1  *rmsnorm; linear 32 -> 96; embedding 320 x 32;" "^  3  *head  *rmsnorm; head 32 -> 320 (257 tokens), not tied, "
expect 0 "^  linear 32 -> 96  *1  *0.002  *0.1  *1  *0.003  *0.3$" "$speedrun" plan tiny.json --set precision=f32
grep -q "^  node  *forward: calls  *GFLOP  *MiB  *backward: calls  *GFLOP  *MiB$" out || fail "plan has no table of work by node"
expect 0 "most of them at once: [0-9.]* MiB in backward of losses (head" "$speedrun" plan tiny.json
grep -q "^    scratch of head, loss x 1  *0\.[1-9]$" out || fail "plan does not say what is in memory at the busiest step"
expect 0 '"name": "block 0"' "$speedrun" plan tiny.json --gpu h100 --json
python3 -m json.tool out >/dev/null || fail "plan --gpu --json with its layers is no JSON"
expect 0 "^unit.dot: unit 1 of 0-2 (block 0), 9 nodes" "$speedrun" plan tiny.json --graph unit.dot
has unit.dot "^digraph unit {" "linear 32 -&gt; 96" "mlp.up.weight" "tokens 256 x hidden 128" "from embeddings" "cluster_fused0"
expect 0 "unit 2 of 0-2 (head)" "$speedrun" plan tiny.json --graph unit.gv --unit 2
grep -q "head 32 -&gt; 320" unit.gv || fail "--unit 2 is not the head"
expect 2 "^error: --unit 3: the model has units 0 to 2; speedrun plan tiny.json lists them" "$speedrun" plan tiny.json --graph unit.dot --unit 3
expect 2 "units 0 to 2" "$speedrun" plan tiny.json --graph unit.dot --unit -1
expect 2 "unit.svg: ends in '.svg', expected .dot or .gv" "$speedrun" plan tiny.json --graph unit.svg
[ ! -e unit.svg ] || fail "a refused picture left a file"
expect 1 "nowhere/unit.dot.part: creating it failed: No such file" "$speedrun" plan tiny.json --graph nowhere/unit.dot
expect 2 "\-\-unit 1 is for the picture" "$speedrun" plan tiny.json --unit 1
expect 2 "one of them at a time" "$speedrun" plan tiny.json --graph unit.dot --gpu h100
expect 2 "name a config" "$speedrun" plan --graph unit.dot

# Profile of a step by operation. Nothing is saved.
expect 0 "steps of 256 tokens (1 microbatches) of the dataset" "$speedrun" bench tiny.json --steps 2 --warmup 1
printed "^matmul 256x96x32 nt " "^attention_forward " "^= step " "sum of floors" "step without events"
expect 0 "made-up tokens" "$speedrun" bench tiny.json --steps 1 --warmup 0 --set 'data.train=[]' --threads 1
expect 0 '"share_of_floor"' "$speedrun" bench tiny.json --steps 1 --json
python3 -m json.tool out >/dev/null || fail "bench --json prints no JSON"
expect 2 "no_such.json" "$speedrun" bench no_such.json
expect 2 "steps" "$speedrun" bench tiny.json --steps 0
expect 2 "no group takes" "$speedrun" bench tiny.json --set 'optimizers.groups=[{"type":"adamw","params":["blocks.*"]}]'
expect 2 "device: 'cuda'" env CUDA_VISIBLE_DEVICES=-1 "$speedrun" bench tiny.json --set device=cuda
expect 0 "^tiny.json: [0-9]* steps would take about [0-9.]* s of training here" "$speedrun" bench tiny.json --run 0.1
expect 0 "^steps 3 to 8: [0-9.]* ms each" staged bench --run 0.1
expect 0 '"train_ms": [0-9]' "$speedrun" bench tiny.json --run 0.1 --json
python3 -m json.tool out >/dev/null || fail "bench --run --json prints no JSON"
expect 2 "stage" staged bench --run 1 --stage 0
expect 2 "run" "$speedrun" bench tiny.json --run soon
# A config's untrained model, initialised from its seed.
expect 0 "chapter" "$speedrun" sample tiny.json --tokens 5 --prompt "chapter "
expect 0 "validation loss [56]\\." "$speedrun" eval tiny.json
expect 2 "not a config" "$speedrun" eval no_such.json
[ ! -e logs ] || fail "the bench left a run folder"

# A run; its folder is never overwritten.
expect 0 "target 50.0000: reached" "$speedrun" train tiny.json --name first --trace 2:3
for file in config.json environment.json metrics.jsonl summary.json run.log trace.json checkpoints/final/model.safetensors; do
    [ -s "logs/first/$file" ] || fail "no logs/first/$file"
done
expect 0 "mean of steps 2, 3" "$speedrun" trace logs/first/trace.json
expect 0 '"buckets"' "$speedrun" trace logs/first --json --step 3
expect 0 "compute busy" "$speedrun" trace logs/first --step 2 --svg first.svg --title "a step"
grep -q "a step" first.svg || fail "no picture of the timeline"
expect 2 "the trace has ranks 0" "$speedrun" trace logs/first --rank 1
expect 2 "the trace has steps 2, 3" "$speedrun" trace logs/first --step 9
expect 3 "config.json: not a trace" "$speedrun" trace logs/first/config.json
expect 3 "nowhere.json" "$speedrun" trace nowhere.json
expect 2 "attempt at track 'kjv'" "$speedrun" train tiny.json --set record.track=kjv --set parallel.simulate_latency_us=5
expect 0 "of gathers per step" "$speedrun" plan tiny.json --ranks 2 --set batch.microbatch_tokens=128 --set record.track=kjv --set parallel.simulate_latency_us=5
expect 2 "simulate_gbytes_per_s" "$speedrun" plan tiny.json --set parallel.simulate_gbytes_per_s=-1
expect 2 "exists" "$speedrun" train tiny.json --name first
expect 0 "^result: done" "$speedrun" train --set eval.every=2 tiny.json --name quiet --quiet --seed 5 --set schedule.steps=2
[ "$(wc -l <out)" -le 2 ] || fail "--quiet printed more than the result"
grep -q '"seed": 5' logs/quiet/config.json || fail "--seed is not in the resolved config"
expect 0 "validation loss" "$speedrun" eval logs/first
grep -o '"val_loss": [0-9.]*' logs/first/summary.json | cut -c13-18 >loss
grep -q -e "$(cat loss)" out || fail "eval differs from the run's own validation $(cat loss)"
gradients() { "$speedrun" gradients logs/first/config.json --weights logs/first/checkpoints/final/model.safetensors --tokens tiny/val_000000.bin --out made.safetensors "$@"; }
expect 0 "^made.safetensors: 64 targets, loss .* nats mean, .* sum; gradients of 0.015625 x the sum, norm" gradients --length 64
grep -q '"blocks.0.attn.qkv.weight"' made.safetensors && grep -q '"loss.mean"' made.safetensors || fail "gradients leaves no gradients"
expect 2 "vocab_size is 257" gradients --length 64 --separator 257
expect 2 "nothing says which token they start with" gradients --length 64 --set data.val=elsewhere.bin
expect 0 "64 targets" gradients --length 64 --set data.val=elsewhere.bin --separator 256
expect 3 "missing tensor blocks.1" gradients --length 64 --set model.layers.count=2
expect 3 "tokens, but a row of" gradients --length 1000000
expect 2 "--stage 1" gradients --length 64 --stage 1
expect 2 "weights" "$speedrun" gradients tiny.json --tokens tiny/val_000000.bin --out made.safetensors
expect 0 "chapter" "$speedrun" sample logs/first --tokens 20 --prompt "chapter "
# Weights in bf16: a checkpoint stores two bytes per value, the final weights are f32, and the values are equal.
halves="--set precision=bf16 --set optimizers.groups.1.weights_dtype=bf16"
expect 0 "^result: done" "$speedrun" train tiny.json --name halves --set schedule.steps=4 --set checkpoint.every=2 $halves
expect 0 "validation loss" "$speedrun" eval logs/halves
mv out loss
expect 0 "$(cat loss)" "$speedrun" eval logs/halves/checkpoints/step-00000004
expect 0 "chapter" "$speedrun" sample logs/halves --tokens 5 --prompt "chapter "
expect 2 "groups\[1\].weights_dtype is bf16, but the run computes in f32" "$speedrun" plan tiny.json $halves --set precision=f32
# With n-grams: sampling works only with the same rows as in training.
expect 0 "done" "$speedrun" train tiny.json --name ngrams --set schedule.steps=60 \
    --set 'model.tables={"grams": {"rows": "ngrams", "max_ngram": 4, "num_rows": 999}}' \
    --set 'model.input=[{"type": "table", "table": "embed"}, {"type": "table", "table": "grams"}, {"type": "norm"}]'
expect 0 "^the quick brown fox jumps over" "$speedrun" sample logs/ngrams --prompt "the quick" --tokens 24 --temperature 0
expect 2 "not a run folder" "$speedrun" sample tiny

# A second run with the resolved config of the first has the same curve.
expect 0 "done" "$speedrun" train logs/first/config.json --name again
grep -o '"loss":[0-9.e-]*' logs/first/metrics.jsonl >first.loss
grep -o '"loss":[0-9.e-]*' logs/again/metrics.jsonl >again.loss
cmp -s first.loss again.loss || fail "the resolved config does not reproduce the run"

# GPT-2's tokenizer with the user's vocabulary, from text to sample.
vocabulary=$here/../data/fixtures/small_tokenizer.json
expect 2 "needs --vocab" "$speedrun" prepare --input text.txt --out pieces --tokenizer gpt2
expect 3 "text.txt: line 1: expected a token in base64" "$speedrun" prepare --input text.txt --out pieces --tokenizer gpt2 --vocab text.txt
expect 0 "tokenizer gpt2, vocabulary 857" "$speedrun" prepare --input text.txt --out pieces --tokenizer gpt2 --vocab "$vocabulary" --document-marker %% --val-every 10
sed 's/tiny\//pieces\//g; s/"vocab_size": 257/"vocab_size": 857/' tiny.json >pieces.json
expect 0 "done" "$speedrun" train pieces.json --name pieces
expect 0 "^the quick [a-z]" "$speedrun" sample logs/pieces --prompt "the quick" --tokens 20 --temperature 0
mv pieces/vocabulary vocabulary
cp out here
expect 0 "^the quick [a-z]" "$speedrun" sample logs/pieces --prompt "the quick" --tokens 20 --temperature 0
cmp -s here out || fail "the copy of the vocabulary in the run gives another text"
expect 0 "^the quick [a-z]" "$speedrun" sample logs/pieces --vocab "$vocabulary" --prompt "the quick" --tokens 20 --temperature 0

# Exchange with the transformers library: export, import, export again with equal bytes, and a run from the imported weights.
gpt2() { name=$1; shift; "$speedrun" train tiny.json --name "$name" --set model.preset=gpt2 --set 'optimizers.groups=[{"params":["*"],"lr":0.01}]' "$@"; }
expect 0 "done" gpt2 gpt2
expect 0 "GPT2LMHeadModel, f32" "$speedrun" export logs/gpt2 hf
expect 0 "GPT-2 of 1 layers x 32, 64 positions, vocabulary 257" "$speedrun" import hf --name imported --set 'data.val=tiny/val_*.bin'
expect 0 "GPT2LMHeadModel" "$speedrun" export logs/imported hf2
cmp hf/model.safetensors hf2/model.safetensors || fail "a GPT-2 did not come back as it went"
expect 0 "validation loss" "$speedrun" eval logs/imported
expect 0 "^chapter " "$speedrun" sample logs/imported --prompt "chapter " --tokens 5
expect 0 "done" gpt2 continued --set model.init_from=hf --set schedule.steps=0
loss_of() { grep -o '"val_loss": [0-9.]*' "logs/$1/summary.json"; }
[ "$(loss_of continued)" = "$(loss_of gpt2)" ] || fail "a run does not start from the weights of model.init_from: $(loss_of gpt2), $(loss_of continued)"
expect 2 "hf does not fit the config: model.layers.count is 2, expected 1" gpt2 wrong --set model.init_from=hf --set model.layers.count=2
expect 2 "model.init_from nowhere: not a run folder .*runs are in logs/" gpt2 wrong --set model.init_from=nowhere
expect 0 "hf3: SpeedrunForCausalLM, f32, tokenizer" "$speedrun" export logs/first hf3
expect 0 "done" "$speedrun" train tiny.json --name composed --quiet --set schedule.steps=1 --set 'model.layers.each.attention.compose_heads={"keys": 8}'
expect 2 "this model cannot be exported: the library's code has no attention.compose_heads of layer 0" "$speedrun" export logs/composed hf4
expect 2 "hf3 exists: export into a new folder" "$speedrun" export logs/first hf3/
[ ! -e hf4 ] && [ ! -e hf4.part ] || fail "a refused export left a folder"
expect 3 "first/config.json: model_type: expected \"gpt2\", found nothing" "$speedrun" import logs/first

# Damage: truncated weights, a truncated shard.
rm -r logs/quiet/checkpoints/step-*
head -c 1000 logs/quiet/checkpoints/final/model.safetensors >cut && mv cut logs/quiet/checkpoints/final/model.safetensors
expect 3 "model.safetensors" "$speedrun" eval logs/quiet
head -c 2000 tiny/train_000000.bin >cut && mv tiny/train_000000.bin whole && mv cut tiny/train_000000.bin
expect 3 "train_000000.bin" "$speedrun" train tiny.json --name damaged
cp whole tiny/train_000000.bin
expect 0 "2 shards with [0-9]* tokens, as prepared" "$speedrun" prepare --verify tiny
printf '*' | dd of=tiny/train_000000.bin bs=1 seek=5000 conv=notrunc 2>dd.log || fail "$(cat dd.log)"
expect 3 "train_000000.bin: damaged.* SHA-256 is .*, expected" "$speedrun" train tiny.json --name damaged
expect 3 "train_000000.bin: damaged.* SHA-256 is .*, expected" "$speedrun" prepare --verify tiny
[ ! -e logs/damaged ] || fail "a run on damaged data left a folder"
mv whole tiny/train_000000.bin
expect 2 "vocab_size 200 is below the 257 tokens of the dataset tiny" "$speedrun" train tiny.json --name small --set model.vocab_size=200
[ ! -e logs/small ] || fail "a run that is too small for its data left a folder"

# Divergence: exit 4, naming step and parameter.
expect 4 "diverged at step [0-9]*: .*weight" "$speedrun" train tiny.json --name wild --set optimizers.groups.1.lr=1000 --set optimizers.groups.1.weight_decay=1000
grep -q '"status": "diverged"' logs/wild/summary.json || fail "the summary does not say diverged"

# A signal: the step is completed, the weights are saved, exit code 143.
start stopped "$speedrun" train tiny.json --name stopped --set schedule.steps=1000000
kill -TERM $pid
ended 143
[ -s logs/stopped/checkpoints/final/model.safetensors ] || fail "a stopped run saved no weights"
grep -q '"status": "stopped"' logs/stopped/summary.json || fail "the summary does not say stopped"

exit $failures
