#!/bin/sh
# model.init_from: vocabularies are compared, and errors name a cure. The card of an export names data and origin. Usage:
# start_weights_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"
vocabulary=$here/../data/fixtures/small_tokenizer.json
adamw='optimizers.groups=[{"params":["*"],"lr":0.01}]'

prepare() { expect 0 "vocabulary 857" "$speedrun" prepare --input text.txt --out "$1" --tokenizer gpt2 --vocab "$2" --document-marker %% --val-every 10; }
sed 's/"A":32,"B":33/"A":33,"B":32/' "$vocabulary" >swapped.json
prepare pieces "$vocabulary"
prepare swapped swapped.json
# A file with other bytes and equal tokens.
sed 's/"model":/ "model":/' "$vocabulary" >spaced.json
prepare spaced spaced.json
for data in pieces swapped spaced; do
    sed "s/tiny\//$data\//g; s/\"vocab_size\": 257/\"vocab_size\": 857/; s/modern/gpt2/" tiny.json >$data.json
done
train() { config=$1; shift; "$speedrun" train "$config" --set "$adamw" --set schedule.steps=2 "$@"; }
expect 0 "done" train pieces.json --name source
expect 0 "GPT2LMHeadModel" "$speedrun" export logs/source hf
expect 0 "GPT-2" "$speedrun" import hf --name imported
refused="the weights are for other tokens than those of data.train: token 32 is .* there, .* here.*--vocab"
for from in hf logs/imported; do
    expect 0 "starts from weights of $from" train pieces.json --name "same-$(basename $from)" --set model.init_from=$from
    ! grep -q warning out || fail "equal vocabularies are warned of"
    expect 0 "starts from weights of $from" train spaced.json --name "spaced-$(basename $from)" --set model.init_from=$from
    expect 3 "model.init_from $from.*$refused" train swapped.json --name x --set model.init_from=$from
done
[ ! -e logs/x ] || fail "a refused run left a folder"
sed 's/tiny\//tiny\//; s/modern/gpt2/; s/257/857/' tiny.json >bytes.json
expect 3 "other tokens than those of data.train: separator 856 there, 256 here" train bytes.json --name x --set model.init_from=hf
cp -r hf damaged && echo '{"model": 5}' >damaged/tokenizer.json
expect 0 "warning: damaged/tokenizer.json: .*tokenizer of the weights is not compared" train swapped.json --name damaged --set model.init_from=damaged

# Paths without weights.
expect 2 "model.init_from nosuch: not a run folder .*runs are in logs/" train pieces.json --name x --set model.init_from=nosuch
expect 0 "done" "$speedrun" train tiny.json --name modern --quiet --set schedule.steps=2
expect 0 "SpeedrunForCausalLM" "$speedrun" export logs/modern hf_modern
for command in "import hf_modern --name x" "train tiny.json --name x --set model.init_from=hf_modern"; do
    # shellcheck disable=SC2086  # words
    expect 3 "hf_modern/config.json: model_type: expected \"gpt2\", found \"speedrun\".*use the run's folder" "$speedrun" $command
done

# data.json without its keys, and cut short.
for text in '{}' '{'; do
    cp -r logs/modern logs/odd && echo "$text" >logs/odd/data.json
    expect 3 "logs/odd: the identity of its data (data.json" "$speedrun" sample logs/odd
    ! grep -q 'json\.exception' out || fail "$(cat out)"
    expect 3 "logs/odd/data.json: data: " "$speedrun" train tiny.json --name x --set model.init_from=logs/odd/checkpoints/final
    ! grep -q 'json\.exception' out || fail "$(cat out)"
    rm -r logs/odd
done

# Every group frozen.
expect 2 "optimizers.groups: every group is frozen (lr 0): nothing would be trained" \
    "$speedrun" train tiny.json --name x --set 'optimizers.groups=[{"params":["*"],"lr":0}]'
[ ! -e logs/x ] || fail "a refused run left a folder"

# The card of a run that started from weights, on a mixture.
expect 0 "done" "$speedrun" train tiny.json --name mixed --quiet --set schedule.steps=2 --set model.init_from=logs/modern/checkpoints/final \
    --set 'data.train=[{"files":"tiny/train_*.bin","weight":1},{"files":"tiny/train_000000.bin","weight":3}]' --set data.allow_overlap=true
expect 0 "tokenizer$" "$speedrun" export logs/mixed hf_mixed
has hf_mixed/README.md '^| data, weight 1 | `tiny/train_\*.bin` |$' '^| data, weight 3 | `tiny/train_000000.bin` |$' \
    '^| validation data | tiny |$' '^| started from | `logs/modern/checkpoints/final`, step 2 |$' ' --set precision=f32'
has hf_modern/README.md "^| data | tiny |$"
! grep -q "started from" hf_modern/README.md || fail "a run from random weights has an origin"
exit $failures
