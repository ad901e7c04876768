#!/bin/sh
# The PyTorch twin computes the same steps as speedrun: losses of four f32 steps, including optimizers, for
# both families with all their switches. It refuses unsupported settings. Needs PyTorch (PEER_PYTHON). Without
# it, only its support of every key of both configs is tested, and the rest is skipped.
# Usage: peers_test.sh SPEEDRUN MAKE_TOKENS SOURCE_DIR
# ctest: ARGS SPEEDRUN MAKE_TOKENS ROOT PROPERTIES LABELS bench
set -u
speedrun=$1
make_tokens=$2
source=$3
python=${PEER_PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
"$make_tokens" tokens --tokens 20000 --val-tokens 2000 --vocab-size 300 >/dev/null || exit 1
# values_of CONFIG: the setting that gives both of two layers a table of values, if the config has such tables.
values_of() {
    case $1 in
    124m_modern*) echo 'model.layers.at={"0": {"attention": {"value_table": "value_embed.0"}}, "1": {"attention": {"value_table": "value_embed.1"}}}' ;;
    *) echo 'model.layers.at={}' ;;
    esac
}
# Every key of the current configs, including keys newer than the twin.
for config in gpt2_124m 124m_modern; do
    "$speedrun" train "$source/configs/$config.json" --out known --name "$config" --quiet --set 'data.train=tokens/train_*.bin' \
        --set 'data.val=tokens/val_*.bin' --set data.shuffle=false --set data.val_tokens=64 --set schedule.steps=0 --set schedule.warmup_steps=0 --set device=cpu \
        --set model.layers.count=2 --set model.model_dim=32 --set model.layers.each.attention.heads=2 --set model.vocab_size=310 --set eval.every=0 \
        --set batch.sequence_length=64 --set batch.microbatch_tokens=256 --set batch.tokens_per_step=512 --set "$(values_of $config)" \
        --set checkpoint.last=false >known.log 2>&1 || { cat known.log && exit 1; }
    "$python" -B "$source/tests/bench/peers/known_config.py" "known/$config/config.json" || exit 1
done
"$python" -c 'import torch' 2>/dev/null || { echo "skipped: $python has no PyTorch" && exit 77; }
failures=0
fail() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}

# compared NAME CODE SETTING...: compare_peers.sh on a small model, in $modes, must end with CODE.
modes=eager-f32
compared() {
    name=$1 code=$2 config=$3
    shift 3
    for setting in 'data.train=tokens/train_*.bin' 'data.val=tokens/val_*.bin' model.layers.count=2 "$(values_of "$config")" model.model_dim=32 \
        model.layers.each.attention.heads=2 model.vocab_size=310 batch.sequence_length=64 batch.microbatch_tokens=256 batch.tokens_per_step=512 "$@"; do
        set -- "$@" --set "$setting"
    done
    while [ "$1" != --set ]; do shift; done
    sh "$source/scripts/compare_peers.sh" --speedrun "$speedrun" --rounds 1 --steps 1 --modes "$modes" --json "$name.json" "$@" \
        "$source/configs/$config" >"$name.log" 2>&1
    got=$?
    [ "$got" = "$code" ] || { fail "$name: exit $got instead of $code" && cat "$name.log"; }
}

compared gpt2 0 gpt2_124m.json optimizers.clip=0.5
compared modern 0 124m_modern.json optimizers.groups.0.weight_decay=0.1
compared switches 0 124m_modern.json model.layers.each.attention.window=9 model.norms.gain=true model.norms.bias=true model.layers.each.attention.bias=true \
    model.layers.each.mlp.bias=true model.layers.each.attention.scale=0.2 \
    'optimizers.groups=[{"type":"adamw","params":["*"],"lr":0.01,"weight_decay":0.1}]'
compared plain 0 124m_modern.json data.document_mask=false model.layers.each.enter=[] model.layers.at={} model.tables={}
for name in gpt2 modern switches plain; do
    grep -q '"name": "f32", "steps": 4, .*"passed": true' "$name.json" || fail "$name.json: the losses were not compared"
    [ "$(grep -c '"tokens_per_s": [1-9]' "$name.json")" = 2 ] || fail "$name.json: two sides should be timed"
done

# The figures name their processor, and the best of each precision. Speeds of such a small model are not
# checked.
grep -q '"processor": "[^"]..*", "cores": [1-9][0-9]*, "isa": [n"]' modern.json || fail "modern.json names no processor: $(cat modern.json)"
grep -q '"precision": "f32", "speedrun": "speedrun-f32", "peer": "eager-f32", "speedrun_is_faster_by": [0-9.]*[1-9]' modern.json || fail "modern.json: no ratio"
if "$speedrun" doctor | grep -q 'precision auto is bf16'; then
    modes=eager-bf16,eager-f32
    compared both 0 124m_modern.json
    modes=eager-f32
    for precision in f32 bf16 overall; do grep -q "^$precision: speedrun-.* times as fast as" both.log || fail "no ratio of $precision: $(cat both.log)"; done
    rows=$(sed -n 's/^\(speedrun-[bf0-9]*\|eager-[bf0-9]*\)  .*/\1/p' both.log | xargs)
    [ "$rows" = "speedrun-bf16 eager-bf16 speedrun-f32 eager-f32" ] || fail "the rows of a precision are not together: $rows"
fi

# Stopped before the last round, it writes the figures of the completed rounds.
sh "$source/scripts/compare_peers.sh" --speedrun "$speedrun" --rounds 999 --steps 1 --modes eager-f32 --json stopped.json \
    --set 'data.train=tokens/train_*.bin' --set 'data.val=tokens/val_*.bin' --set model.layers.count=1 --set model.model_dim=32 \
    --set model.layers.each.attention.heads=2 --set model.vocab_size=310 --set batch.sequence_length=64 --set batch.microbatch_tokens=256 \
    --set batch.tokens_per_step=256 --set model.layers.at={} --set model.tables={} "$source/configs/124m_modern.json" >stopped.log 2>&1 &
stopped=$!
for _ in $(seq 120); do
    grep -q speedrun_is_faster_by stopped.json 2>/dev/null && break
    sleep 1
done
kill "$stopped"
wait "$stopped"
"$python" -c 'import json; r = json.load(open("stopped.json")); assert 1 <= r["rounds"] < 999 and len(r["peers"]) == 2, r' ||
    fail "stopped.json: $(cat stopped.json stopped.log)"

# The twin refuses unsupported settings by name.
compared normuon 1 124m_modern.json optimizers.groups.0.normuon=true
grep -q 'the twin has no normuon' normuon.log || fail "normuon is not refused by name: $(cat normuon.log)"
compared factor 1 124m_modern.json schedule.lr_factor=0.5
grep -q 'schedule.lr_factor 0.5: the twin has no lr_factor' factor.log || fail "a factor is not refused by name: $(cat factor.log)"

[ "$failures" -eq 0 ] || exit 1
echo "all passed"
