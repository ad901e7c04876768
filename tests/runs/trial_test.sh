#!/bin/sh
# `speedrun records trial`, used by programs that search: one JSON object in every case, hidden seeds, exit codes.
# Usage: trial_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=1
set -u
speedrun=$1
. "$(dirname "$0")/prepared_run.sh"

sed -i 's/"record": {/&"track": "toy", /' tiny.json
toy_track '"classes": [{"name": "open"}, {"name": "small", "max_parameters": 40000}],'

# answer CODE EXPRESSION ARGUMENTS...: the trial exits with CODE and prints one JSON object, `a`, on stdout. The Python
# expression must be true.
answer() {
    code=$1; expression=$2; shift 2
    "$speedrun" records trial "$@" >answer.json 2>error.txt </dev/null
    got=$?
    cat answer.json error.txt >out
    [ "$got" -eq "$code" ] || fail "exit $got instead of $code: trial $*"
    python3 -c "
import json
a = json.load(open('answer.json'))
assert a['exit_code'] == $code, a['exit_code']
assert $expression" 2>>out || fail "not so: $expression, of trial $*"
}

expect 0 "Exit\|exit_code" "$speedrun" records trial --help
short="tiny.json --set schedule.steps=6 --set eval.every=3"
# shellcheck disable=SC2086  # the options are meant to be split
{
    answer 0 "a['class'] == {'name': 'open', 'met': True, 'why': a['class']['why']} and a['problems'] == []" $short
    metrics=$(echo logs/trials/tiny-*/candidate-seed*/metrics.jsonl)
    answer 0 "len(a['runs']) == 2 and len({r['seed'] for r in a['runs']}) == 2
assert abs(a['loss'] - sum(r['loss'] for r in a['runs']) / 2) < 1e-12
assert a['wall_s'] > a['train_s'] > 0 and a['tokens'] == 6 * 256, a['tokens']" $short --seeds 2
    # No option selects a seed, and the config's seed is ignored.
    answer 0 "a['runs'][0]['seed'] != 3" $short --set seed=3
    cp answer.json first.json
    answer 0 "a['runs'][0]['seed'] != json.load(open('first.json'))['runs'][0]['seed']" $short --set seed=3
    expect 2 "not expected: .*--seed" "$speedrun" records trial $short --seed 3
    answer 2 "'breaks a rule of class small' in a['error']" $short --class small --set model.model_dim=64
    answer 0 "a['class']['name'] == 'small' and a['parameters'] <= 40000" $short --class small
    answer 2 "'heads 3 does not divide' in a['error']" $short --set model.layers.each.attention.heads=3
    answer 2 "'no class large' in a['error']" $short --class large
    answer 3 "'is no training shard of track toy' in a['error']" $short --set 'data.train=tiny/val_*.bin'
    answer 4 "a['loss'] is None and a['runs'][0]['status'] == 'diverged'" tiny.json --set optimizers.groups.1.lr=1000 \
        --set optimizers.groups.1.weight_decay=1000
}
# A run equals the run of train with that seed.
seed=$(basename "$(dirname "$metrics")" | tr -dc '0-9')
# shellcheck disable=SC2086
expect 0 "result: done" "$speedrun" train $short --seed "$seed" --name same
for file in logs/same/metrics.jsonl "$metrics"; do grep -o '"loss":[0-9.e-]*' "$file" >"$(basename "$(dirname "$file")").loss"; done
cmp -s same.loss "candidate-seed$seed.loss" || fail "train gives another curve than the trial"
[ -z "$(find logs/trials -name '*.safetensors')" ] || fail "weights of trials are left"
# shellcheck disable=SC2086
answer 0 "True" $short --keep-weights
[ -n "$(find logs/trials -name '*.safetensors')" ] || fail "--keep-weights left none"
exit $failures
