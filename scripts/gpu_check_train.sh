# Sourced by gpu_check.sh: its training stages, using due(), run() and finish() of gpu_check_steps.sh.
# shellcheck shell=sh disable=SC2154,SC2034,SC2317
timed_precision=bf16
[ "$device" = cuda ] || timed_precision=auto

# trained MINIMUM LIMIT CONFIG SETTING...: runs speedrun as the current step. `judge` has further requirements on its figures;
# `keep` is the file that stores its metrics for later steps. `trace`: steps whose timeline is kept. `gpu_model` and `plan_stage`:
# the step is also modelled for this GPU with the operations measured so far, at this stage of the schedule.
judge='' launcher='' keep='' trace='' gpu_model='' plan_stage=''
trained() {
    trained_minimum=$1 trained_limit=$2 trained_config=$root/configs/$3
    shift 3
    for setting in "$@"; do
        set -- "$@" --set "$setting"
        shift
    done
    folder=$work/runs/$step_stage-$step_name
    # shellcheck disable=SC2086  # options are words
    run "$trained_minimum" "$trained_limit" $launcher "$bin/speedrun" train "$trained_config" --out "$work/runs" \
        --name "$step_stage-$step_name" --quiet ${trace:+--trace $trace} --set checkpoint.last=false "$@"
    if [ -n "$keep" ] && [ "$rc" != none ]; then cp "$folder/metrics.jsonl" "$keep" 2>/dev/null || rm -f "$keep"; fi
    [ -z "$trace" ] || cp "$folder/trace.json" "$out/kept/$step_name.trace.json" 2>/dev/null
    rm -f "$work/plan.json"
    [ -z "$gpu_model" ] || [ "$rc" != 0 ] ||
        timeout -k 1 20 "$bin/speedrun" plan "$trained_config" --gpu "$gpu_model" ${plan_stage:+--stage $plan_stage} --json \
            --measured "$out/gpu_check.json" "$@" >"$work/plan.json" 2>/dev/null </dev/null
    # shellcheck disable=SC2086  # options are words
    finish --run "$folder" --plan "$work/plan.json" $judge
}
# ended STAGE STEP: true if a step that another one depends on has completed, in this call or an earlier one.
ended() {
    case $(state_of "$1" "$2") in passed | failed) return 0 ;; esac
    record "$step_stage" "$step_name" 'not run' "$2 has not run yet"
    return 1
}
# losses_of METRICS TITLE: prints the input of gpu_report --losses.
losses_of() {
    losses=$(sed -n '/"event":"step"/s/.*"loss":\([^,}]*\).*/\1/p' "$1" | tr '\n' ',')
    printf '{"config": "%s", "losses": [%s]}\n' "$2" "${losses%,}"
}
find_speedrun() {
    [ -x "$bin/speedrun" ] && return 0
    if due "$1" "$1"; then record "$1" "$1" failed "$bin/speedrun: not there"; fi
    return 1
}
# find_data STAGE STEP STATUS: true if the King James text is available; else records STATUS for the step.
find_data() {
    [ -f "$root/data/kjv/dataset.json" ] && return 0
    if due "$1" "$2"; then record "$1" "$2" "$3" "$root/data/kjv: no dataset; run data/kjv/prepare.sh"; fi
    return 1
}
# Both tables of values of 124m_modern.json in a model of two layers.
two_value_layers='model.layers.at={"0":{"attention":{"value_table":"value_embed.0"}},"1":{"attention":{"value_table":"value_embed.1"}}}'
# choose_family: the config of a family, and settings for its size and data; small ones for a rehearsal.
choose_family() {
    config=124m_modern.json sizes='' tokens=$work/tokens
    [ "$1" = modern ] || config=gpt2_124m.json sizes=data.document_mask=false # as its published figures
    vocab=50257
    if [ "$device" = cpu ]; then
        vocab=500
        sizes="$sizes model.layers.count=2 model.model_dim=64 model.layers.each.attention.heads=2 model.vocab_size=512 batch.sequence_length=128"
        [ "$1" != modern ] || sizes="$sizes $two_value_layers"
    fi
    sizes="$sizes device=$device data.train=$tokens/train_*.bin data.val=$tokens/val_*.bin data.val_tokens=16384 eval.every=0"
}
# make_tokens: creates the tokens once per call. Without tokens the current step fails, or waits for a later call.
no_tokens='' documents=''
make_tokens() {
    if [ ! -f "$tokens/dataset.json" ] && [ -z "$no_tokens" ]; then
        # shellcheck disable=SC2086  # options are words
        run 5 60 "$bin/make_tokens" "$tokens" --vocab-size "$vocab" $documents
        case $rc in
        0) ;;
        none) finish && return 1 ;;
        *) no_tokens="make_tokens: exit code $rc: $(tail -n 2 "$log")" ;;
        esac
    fi
    [ -n "$no_tokens" ] || return 0
    record "$step_stage" "$step_name" failed "$no_tokens"
    return 1
}

# step_of FAMILY PRODUCTS GRAPH MICROBATCHES OTHER: a few steps of a model. OTHER: again, wgmma, early, wgmma+early or none.
# Roofline bound: 43 ms for forward and backward of a microbatch of 32,768 tokens: 24.3 TFLOP of matmuls at 798 TFLOP/s,
# attention with 450 keys on average, pointwise passes and the loss at 3.0 TB/s (an H100's peaks). The optimizer is additional.
step_of() {
    family=$1 products=$2 graph=$3 count=$4 other=${5:-} attention=hand early=false
    # GPU only: attention kinds, early kernel launch.
    case $other in *wgmma*) attention=wgmma ;; esac
    case $other in *early*) early=true ;; esac
    [ "$attention$early" = handfalse ] || [ "$device" = cuda ] || return 0
    choose_family "$family"
    microbatch=32768 steps=40
    [ "$count" = 1 ] || steps=12
    judge="--floor-ms $((43 * count))"
    if [ "$device" = cpu ]; then microbatch=1024 steps=8 judge=''; fi
    name=$family,$products
    [ -z "$other" ] || name=$name,$other
    [ "$graph" = true ] || name=$name,no_graph
    [ "$count" = 1 ] || name=$name,${count}_microbatches
    if due step "$name" && make_tokens; then
        set -f # data patterns are expanded by speedrun
        # shellcheck disable=SC2086  # settings are words
        trained 15 65 "$config" $sizes precision="$timed_precision" cuda.products="$products" cuda.graph="$graph" \
            cuda.attention=$attention cuda.dependent_launch=$early batch.microbatch_tokens=$microbatch \
            batch.tokens_per_step=$((count * microbatch)) schedule.steps=$steps schedule.warmup_steps=0
        set +f
    fi
    judge=''
}

stage_step() {
    find_speedrun step || return
    for family in modern gpt2; do
        step_of "$family" library true 1
        step_of "$family" library true 1 wgmma
        step_of "$family" library true 1 early
        step_of "$family" library false 1
        step_of "$family" hand true 1
        step_of "$family" library true 8
    done
}

# In process, with ranks as threads with separate devices.
ranks_in_process() {
    [ "$device" = cuda ] && find_tests ranks || return 0
    if due ranks sharing_the_card; then gtest_step 60 240 "$tests" '--gtest_filter=GpuRanksTest.*'; fi
    if due ranks nccl; then
        rm -f "$work/gtest.json"
        run 30 120 "$tests" "--gtest_output=json:$work/gtest.json" '--gtest_filter=GpuNcclTest.*'
        set --
        if grep -q 'NCCL not found' "$log"; then
            set -- --status skipped --message "$(grep -m 1 'NCCL not found' "$log")"
        fi
        finish --gtest "$work/gtest.json" "$@"
    fi
}
# can_mpirun: true if ranks can be processes of a launcher; else the step mpirun is skipped.
can_mpirun() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    find_speedrun ranks || return
    if ! command -v mpirun >/dev/null 2>&1 || ! ldd "$bin/speedrun" 2>/dev/null | grep -q libmpi; then
        if due ranks mpirun; then record ranks mpirun skipped 'no mpirun, or a speedrun without MPI'; fi
        return 1
    fi
    find_data ranks mpirun skipped
}

stage_ranks() {
    ranks_in_process
    can_mpirun || return
    microbatch=1024 steps=8
    if [ "$device" = cpu ]; then microbatch=512 steps=3; fi
    set -- device="$device" precision=f32 schedule.steps=$steps batch.microbatch_tokens=$microbatch eval.every=0 \
        batch.tokens_per_step=$((4 * microbatch)) record.target_loss=0 data.val_tokens=1024 parallel.strategy=zero1 \
        parallel.communicator=staged
    keep=$out/kept/ranks-alone.jsonl
    if due ranks alone; then trained 20 60 kjv.json "$@"; fi
    keep=''
    if due ranks mpirun && ended ranks alone; then
        losses_of "$out/kept/ranks-alone.jsonl" 'one rank' >"$work/alone.json"
        # Sums in another order; Muon amplifies the difference.
        judge="--losses $work/alone.json --tolerance 2e-3" launcher='mpirun -np 2 --oversubscribe --bind-to none'
        trained 30 120 kjv.json "$@"
        judge='' launcher=''
    fi
}

# peer_step NAME FAMILY ROUNDS
peer_step() {
    find_speedrun peer || return
    choose_family "$2"
    if ! due peer "$1" || ! make_tokens; then return; fi
    microbatch=32768
    set -- --rounds "$3" --modes compiled-bf16
    if [ "$device" = cpu ]; then
        microbatch=512
        set -- --rounds 1 --steps 1 --modes eager-f32
    fi
    set -f
    for setting in $sizes "batch.microbatch_tokens=$microbatch" "batch.tokens_per_step=$microbatch"; do
        case $setting in device=* | data.val_tokens=* | eval.every=*) ;; *) set -- "$@" --set "$setting" ;; esac
    done
    set +f
    rm -f "$work/peers.json"
    run 100 265 sh "$script_dir/compare_peers.sh" --device "$device" --speedrun "$bin/speedrun" --json "$work/peers.json" \
        "$@" "$root/configs/$config"
    set -- --peers "$work/peers.json"
    [ "$rc" != 77 ] || set --
    finish "$@"
}

stage_peer() {
    peer_step modern modern 3
    peer_step gpt2 gpt2 3
}

# The 124M modern model on bytes, 4096 tokens a step; a rehearsal uses a small model. Random projections: with zero projections
# the first gradients would be zero, and rounding alone would determine Muon's first updates. Low rates: at the config's rates
# the loss fluctuates in the first steps, which amplifies every rounding.
first_steps=6
kjv_settings() {
    sizes='batch.microbatch_tokens=4096 batch.tokens_per_step=4096 data.val_tokens=4096 record.target_loss=0'
    for matrix in head.init layers.each.attention.out_init layers.each.mlp.down_init; do
        sizes="$sizes model.$matrix={\"type\":\"uniform\",\"value\":0.5,\"by_fan_in\":true}"
    done
    sizes="$sizes data.train=$root/data/kjv/train_*.bin data.val=$root/data/kjv/val_*.bin eval.every=0 schedule.cooldown_fraction=0"
    sizes="$sizes optimizers.groups.0.lr=0.003 optimizers.groups.1.lr=0.003 optimizers.groups.2.lr=0.001"
    [ "$device" = cuda ] || [ -n "$first_losses" ] ||
        sizes="$sizes model.layers.count=2 model.model_dim=64 model.layers.each.attention.heads=2 model.vocab_size=257 $two_value_layers"
}
# write_first_losses FILE: runs the first steps on the CPU.
write_first_losses() {
    kjv_settings
    set -f
    # shellcheck disable=SC2086
    for setting in $sizes device=cpu precision=f32 schedule.steps=$first_steps; do set -- "$@" --set "$setting"; done
    set +f
    file=$1
    shift
    run 5 7200 "$bin/speedrun" train "$root/configs/124m_modern.json" --out "$work/cpu" --name first --quiet "$@"
    [ "$rc" = 0 ] || { tail -n 3 "$log" >&2 && return 1; }
    losses_of "$work/cpu/first/metrics.jsonl" '124m_modern.json on the King James text, 4096 tokens a step, f32 on the CPU' >"$file"
    rm -rf "$work/cpu"
}

# first_losses_step MINIMUM LIMIT TOLERANCE SETTING...: as the current step, compares a run's first losses with the CPU's.
first_losses_step() {
    step_minimum=$1 step_limit=$2 tolerance=$3
    shift 3
    expected_losses=$root/tests/bench/first_losses.json
    if [ "$device" = cpu ]; then
        expected_losses=$out/kept/first_losses.json
        if [ ! -s "$expected_losses" ] && ! write_first_losses "$expected_losses"; then
            if [ "$rc" = none ]; then finish; else record train "$step_name" failed 'the run for comparison failed'; fi
            return
        fi
    fi
    kjv_settings
    judge="--losses $expected_losses --tolerance $tolerance"
    set -f
    # shellcheck disable=SC2086
    trained "$step_minimum" "$step_limit" 124m_modern.json $sizes device="$device" "$@"
    set +f
    judge=''
}

stage_train() {
    find_speedrun train || return
    find_data train kjv failed || return
    set -- device="$device"
    [ "$device" = cuda ] || set -- device=cpu schedule.steps=8 batch.tokens_per_step=1024 batch.microbatch_tokens=1024 \
        record.target_loss=50 data.val_tokens=4096
    keep=$out/kept/train-kjv.jsonl judge=--target
    if due train kjv; then trained 20 120 kjv.json "$@"; fi
    keep='' judge="--target --same-as $out/kept/train-kjv.jsonl"
    if due train kjv_again && ended train kjv; then trained 20 120 kjv.json "$@"; fi
    judge=''
    # f32: other orders of summation. bf16: rounding, which changes the first loss by 5e-5 of it and the sixth by 3e-3 on a CPU.
    if due train 124m_first_steps_f32; then
        first_losses_step 25 120 1e-4 precision=f32 schedule.steps=$first_steps
    fi
    steps=300
    [ "$device" = cuda ] || steps=20
    if due train "124m_$steps"; then
        first_losses_step 30 180 1e-2 precision="$timed_precision" schedule.steps=$steps
    fi
}
