#!/bin/sh
# Shows that a code change affects no result. It trains a few steps of every shipped config, in every mode of precision,
# activation checkpointing and strategy, with the programs of two commits. It compares losses, gradient norms, validation losses
# and every file of weights and checkpoints, bitwise. Valid on one machine only: other machines sum in other orders.
# Usage: same_results.sh [--cases PATTERN] [--old-configs FOLDER] [--rename SED] OLD [NEW]
#   OLD, NEW   a program, or a commit, which is built in build/same/COMMIT (NEW: default build/release/speedrun)
#   --cases    only cases whose name this shell pattern matches, such as 'kjv_modern*' or '*zero?'; default: all
#   --old-configs   the configs of OLD, if keys were renamed (default: configs)
#   --rename   sed script for the names of OLD's tensors; then tensors are compared, not files
# Needs data/kjv (data/kjv/prepare.sh). Writes below build/same only. Takes about ten minutes on two cores, without builds.
# A case that the old program refuses is new and no difference. Exit: 0 all same, 1 something differs or did not run, 2 bad
# usage.
set -u
cd "$(dirname "$0")/.." || exit 1
cases='*' old_configs=configs rename=
# shellcheck disable=SC2034  # for options.sh
options='cases old-configs rename' positionals=2
# shellcheck source=scripts/options.sh
. scripts/options.sh
{ [ $# -ge 1 ] && [ $# -le 2 ]; } || usage 2
[ -f data/kjv/dataset.json ] || { echo "error: data/kjv is empty: run data/kjv/prepare.sh SPEEDRUN first" >&2; exit 1; }
work=build/same
mkdir -p "$work"
exec 9>"$work/results.lock"
flock -n 9 || { echo "error: $work is written by another comparison: wait until it ends" >&2; exit 1; }

. scripts/program_of.sh
old=$(program_of "$1" $work) || exit 1
new=$(program_of "${2:-build/release/speedrun}" $work) || exit 1
echo "old: $old"
echo "new: $new"

total=0
unknown=0
failed=0
# Open MPI refuses to run as root without these variables.
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# same NAME RANKS CONFIG SETTING...: one case.
same() {
    case_name=$1 case_ranks=$2 case_config=$3
    shift 3
    # shellcheck disable=SC2254  # the pattern is meant as one
    case $case_name in $cases) ;; *) return 0 ;; esac
    total=$((total + 1))
    case_settings=""
    for setting in "$@"; do case_settings="$case_settings --set $setting"; done
    launch=""
    [ "$case_ranks" = 1 ] || launch="mpirun -np $case_ranks --oversubscribe --bind-to none"
    for side in old new; do
        rm -rf "${work:?}/$side"
        eval "program=\$$side"
        folder=configs
        [ $side = new ] || folder=$old_configs
        # shellcheck disable=SC2086,SC2154  # words, and eval's variable
        $launch "$program" train "$folder/${case_config##*/}" $case_settings --out "$work/$side" >"$work/$side.log" 2>&1 || {
            if [ $? -eq 2 ] && [ $side = old ]; then
                echo "new        $case_name: the old program refuses the config"
                unknown=$((unknown + 1))
                return 0
            fi
            echo "FAILED     $case_name ($side): $(tail -n 1 "$work/$side.log")"
            failed=$((failed + 1))
            return 0
        }
    done
    python3 - "$work" "$case_name" "$rename" <<'COMPARE' || failed=$((failed + 1))
import filecmp, json, pathlib, subprocess, sys
work, name, rename = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def numbers(side):
    path = next((work / side).rglob("metrics.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [[row.get(key) for key in ("step", "loss", "grad_norm", "val_loss")] for row in rows]
def tensors(side):
    return sorted((work / side).rglob("*.safetensors"))
def content(path, script):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(subprocess.run(["sed", "-e", script], input=data[8:end], stdout=subprocess.PIPE, check=True).stdout)
    header.pop("__metadata__", None)
    return {key: (t["dtype"], t["shape"], data[end + t["data_offsets"][0]:end + t["data_offsets"][1]]) for key, t in header.items()}
def same_file(before, after):
    return content(before, rename) == content(after, "") if rename else filecmp.cmp(before, after, shallow=False)
old, new = numbers("old"), numbers("new")
for before, after in zip(old, new):
    if before != after:
        sys.exit(f"DIFFERENT  {name}: step, loss, norm, validation {before} -> {after}")
if not old or len(old) != len(new) or not tensors("old") or len(tensors("old")) != len(tensors("new")):
    sys.exit(f"DIFFERENT  {name}: {len(old)} and {len(new)} rows, {len(tensors('old'))} and {len(tensors('new'))} files")
for before, after in zip(tensors("old"), tensors("new")):
    if not same_file(before, after):
        sys.exit(f"DIFFERENT  {name}: {before.name}")
print(f"same       {name}: {len(old)} rows, {len(tensors('old'))} files")
COMPARE
}

short="schedule.warmup_steps=0 batch.tokens_per_step=2048 batch.microbatch_tokens=1024 schedule.steps=6 eval.every=3 data.val_tokens=4096 checkpoint.every=4 seed=3"
large="schedule.warmup_steps=0 batch.sequence_length=64 batch.tokens_per_step=256 batch.microbatch_tokens=128 schedule.steps=2 eval.every=0 data.val_tokens=256 checkpoint.last=false data.train=[\"data/kjv/train_*.bin\"] data.val=[\"data/kjv/val_*.bin\"]"
# staged CONFIG LENGTH: settings that shorten stages to two steps each, documents to a row, and leave out prefixes of tokens.
staged() {
    python3 - "$1" "$2" <<'STAGED'
import json, sys
config = json.load(open(sys.argv[1]))
stages = config["schedule"].get("stages", [])
if stages:
    print("schedule.final_steps=0", f"schedule.steps={2 * len(stages)}")
    print("schedule.stages=" + json.dumps([2 * i + 2 for i in range(len(stages))], separators=(",", ":")))
    for i, group in enumerate(config["optimizers"]["groups"]):
        if group.get("momentum_cooldown_steps"):
            print(f"optimizers.groups.{i}.momentum_cooldown_steps=2")
if config["model"].get("loss", {}).get("prefix_weight"):
    print("model.loss.prefix_weight=0")  # single bytes have no prefixes
if config["data"].get("max_document_tokens"):
    print(f"data.max_document_tokens={sys.argv[2]}")
if config.get("eval", {}).get("sequence_length"):
    print(f"eval.sequence_length={sys.argv[2]}")
STAGED
}
configs=$(ls configs/*.json)
set -f  # no expansion of patterns in settings
for config in $configs; do
    name=$(basename "$config" .json)
    case $name in
    schema) continue ;;
    kjv*) settings="$short $(staged "$config" 256)" precisions="f32 bf16" ;;
    *) settings="$large $(staged "$config" 64)" precisions=bf16 ;;
    esac
    for precision in $precisions; do
        for mode in none selective full; do
            # shellcheck disable=SC2086  # settings are words
            same "$name.$precision.$mode" 1 "$config" $settings precision=$precision memory.activation_checkpointing=$mode
        done
    done
done
for strategy in ddp zero1 zero2 zero3; do
    for config in kjv kjv_modern kjv_ngrams; do
        for ranks in 2 4; do
            # shellcheck disable=SC2086  # settings are words
            same "$config.$ranks.$strategy" "$ranks" "configs/$config.json" $short batch.microbatch_tokens=512 threads=1 \
                parallel.strategy=$strategy
        done
    done
done
echo "$total cases, $failed differ$([ $unknown -eq 0 ] || echo ", $unknown are new")"
[ "$total" -gt "$unknown" ] && [ "$failed" -eq 0 ]
