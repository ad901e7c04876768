#!/bin/sh
# One binary at every instruction set level of this processor. In f32 losses and weights are bitwise equal, in bf16 up to the
# order of sums; an unknown level is refused. Usage: isa_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN
set -u
speedrun=$(realpath "$1")
. "$(dirname "$0")/prepared_run.sh"

expect 2 'SPEEDRUN_ISA=mmx: this processor and build can use avx2' env SPEEDRUN_ISA=mmx "$speedrun" train tiny.json
isas=""
for isa in avx2 avx512 avx512_bf16 amx_bf16; do
    if sh "$here/../at_isa.sh" $isa true >/dev/null; then isas="$isas $isa"; fi
done
[ -n "$isas" ] || { echo "FAILED: no level at all"; exit 1; }

# A model with all operations that round intermediate values: norms, rotary, attention over documents and windows, both
# activations.
for isa in $isas; do
    for precision in f32 bf16; do
        for family in modern gpt2; do
            run=$isa-$precision-$family
            expect 0 '^result: done' env SPEEDRUN_ISA=$isa "$speedrun" train tiny.json --name "$run" --set precision=$precision \
                --set model.preset=$family --set schedule.steps=6 --set model.model_dim=48 --set model.layers.count=2 \
                --set batch.sequence_length=80 --set batch.microbatch_tokens=240 --set batch.tokens_per_step=480
            grep -q "\"isa\": \"$isa\"" "logs/$run/environment.json" || fail "environment.json does not name $isa"
            grep -o '"loss":[^,]*' "logs/$run/metrics.jsonl" >"losses-$run"
            [ "$(wc -l <"losses-$run")" -ge 7 ] || fail "$run: not 6 steps and a validation"
        done
    done
    for family in modern gpt2; do
        cmp -s "losses-avx2-f32-$family" "losses-$isa-f32-$family" || fail "$family f32: losses at $isa are not those at avx2"
        cmp -s "logs/avx2-f32-$family/checkpoints/final/model.safetensors" "logs/$isa-f32-$family/checkpoints/final/model.safetensors" ||
            fail "$family f32: weights at $isa are not those at avx2"
        # Sums in another order, with intermediate rounding to 8 bits: measured up to 1e-3 of the loss. A changed or missing
        # rounding step has no larger effect on single losses; a wrong value has a much larger one.
        paste -d' ' "losses-avx2-bf16-$family" "losses-$isa-bf16-$family" | sed 's/"loss"://g' |
            awk '{d = $1 - $2; if (d < 0) d = -d; if (d > 5e-3 * $1) bad = 1} END {exit bad}' ||
            fail "$family bf16: losses at $isa are not near those at avx2"
    done
done
[ "$failures" -eq 0 ] || exit 1
echo "levels$isas agree"
