#!/bin/sh
# Non-finite weights: exit 4 and the parameter's name from every command that reads them. Usage:
# diverged_cli_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120
set -u
speedrun=$(realpath "$1")
. "$(dirname "$0")/prepared_run.sh"

# Extreme values are refused before training.
group=optimizers.groups.1
for set in $group.beta1=1 $group.beta2=1 $group.epsilon=0 $group.epsilon=1e-300 $group.beta1=0.99999999 $group.lr=1e999 $group.lr=nan \
    optimizers.groups.0.momentum=1 optimizers.groups.0.polar_epsilon=0 model.head.softcap=1e-45; do
    expect 2 "${set%=*}\|${set##*.}\|groups\[" "$speedrun" train tiny.json --name refused --set "$set"
    [ ! -e logs/refused ] || fail "$set: a folder is left"
done

# A run with an unbounded loss ends as diverged, for any last step.
for steps in 1 2 3 4 5 6 7 8; do
    "$speedrun" train tiny.json --name "wild$steps" --quiet --set schedule.steps=$steps --set $group.lr=1000 --set $group.weight_decay=1000 >out 2>&1
    code=$?
    status=$(sed -n 's/.*"status": "\([a-z]*\)".*/\1/p' "logs/wild$steps/summary.json")
    loss=$(sed -n 's/.*"val_loss": \([^,]*\).*/\1/p' "logs/wild$steps/summary.json")
    case $code,$status,$loss in
    0,done,[0-9]*) ;;
    4,diverged,*) ;;
    *) fail "$steps steps: exit $code, status $status, loss $loss" ;;
    esac
    [ $code -ne 4 ] || [ ! -e "logs/wild$steps/checkpoints/final" ] || fail "$steps steps: weights of a diverged run are called final"
done
[ "$code" -eq 4 ] || fail "8 steps that grow a million times each did not diverge"

# NaN and infinity in final weights.
expect 0 done "$speedrun" train tiny.json --name good --quiet --set schedule.steps=2
for value in '\000\000\300\177' '\000\000\200\177'; do # little-endian f32: NaN, infinity
    rm -rf logs/bad
    cp -r logs/good logs/bad
    rm -r logs/bad/checkpoints/step-*
    weights=logs/bad/checkpoints/final/model.safetensors
    printf '%b' "$value" >word
    size=$(wc -c <$weights)
    dd if=word of=$weights bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
    for command in 'eval logs/bad' 'sample logs/bad --prompt the --tokens 3'; do
        # shellcheck disable=SC2086
        expect 4 "logs/bad: the run has diverged: first bad parameter: .*(1 of [0-9]* values are not finite)" "$speedrun" $command
    done
    head -c 80 /dev/zero >row
    expect 4 "$weights: loss .*nan.* not finite; row.safetensors is not written" \
        "$speedrun" gradients tiny.json --weights $weights --tokens row --length 20 --separator 256 --out row.safetensors
    [ ! -e row.safetensors ] || fail "gradients of bad weights are written"
done
expect 0 'validation loss' "$speedrun" eval logs/good
expect 2 'temperature nan' "$speedrun" sample logs/good --temperature nan
exit $failures
