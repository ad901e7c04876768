# Sourced by gpu_check.sh: its stages that train. They use its run(), record() and merge(), and bin, device, out, root, work.
# shellcheck shell=sh disable=SC2154,SC2034,SC2317
timed_precision=bf16
[ "$device" = cuda ] || timed_precision=auto

# trained STAGE STEP LIMIT CONFIG SETTING...: a run of speedrun; `judge` says what else its figures must be.
judge='' launcher=''
trained() {
    stage=$1 name=$2 trained_limit=$3 trained_config=$root/configs/$4
    shift 4
    for setting in "$@"; do
        set -- "$@" --set "$setting"
        shift
    done
    folder=$work/runs/$stage-$name
    # shellcheck disable=SC2086  # options are words
    run "$trained_limit" $launcher "$bin/speedrun" train "$trained_config" --out "$work/runs" --name "$stage-$name" --quiet "$@"
    if [ "$rc" = none ]; then record "$stage" "$name" 'not run' 'no time was left' && return 0; fi
    rm -rf "$folder/checkpoints" # hundreds of MB, and of no more use
    # shellcheck disable=SC2086  # options are words
    "$bin/gpu_report" step --results "$out/results.jsonl" --stage "$stage" --step "$name" --exit-code "$rc" \
        --seconds "$took" --limit "$limit" --log "$log" --run "$folder" $judge
    merge
}
# losses_of RUN_FOLDER TITLE: as --losses of gpu_report reads them.
losses_of() {
    losses=$(sed -n '/"event":"step"/s/.*"loss":\([^,}]*\).*/\1/p' "$1/metrics.jsonl" | tr '\n' ',')
    printf '{"config": "%s", "losses": [%s]}\n' "$2" "${losses%,}"
}
find_speedrun() {
    [ -x "$bin/speedrun" ] && return 0
    record "$1" "$1" failed "$bin/speedrun: not there"
    return 1
}
# The config of a family; tokens for it, in $tokens; settings of both, in $sizes: those of the rehearsal are small.
prepare_family() {
    config=124m_modern.json sizes='' tokens=$work/tokens
    [ "$1" = modern ] || config=gpt2_124m.json sizes=data.document_mask=false # as its published figures
    vocab=50257
    if [ "$device" = cpu ]; then
        vocab=500
        sizes="$sizes model.num_layers=2 model.model_dim=64 model.num_heads=2 model.vocab_size=512 batch.sequence_length=128"
    fi
    if [ ! -f "$tokens/dataset.json" ]; then
        run 60 "$bin/make_tokens" "$tokens" --vocab-size "$vocab"
        if [ "$rc" != 0 ]; then record "$2" tokens failed "make_tokens: exit code $rc: $(tail -n 2 "$log")" && return 1; fi
    fi
    sizes="$sizes device=$device data.train=$tokens/train_*.bin data.val=$tokens/val_*.bin data.val_tokens=16384 eval.every=0"
}

# Floor: 43 ms for forward and backward of a microbatch of 32,768 tokens: 24.3 TFLOP of products at 798 TFLOP/s, attention with
# 450 keys on average, pointwise passes and the loss at 3.0 TB/s (an H100's ceilings). The optimizer comes on top.
stage_step() {
    find_speedrun step || return
    for family in modern gpt2; do
        prepare_family "$family" step || return
        for variant in library,true,1 library,false,1 hand,true,1 library,true,8; do
            graph=${variant#*,} count=${variant##*,} products=${variant%%,*}
            graph=${graph%,*}
            microbatch=32768 steps=40
            [ "$count" = 1 ] || steps=12
            judge="--floor-ms $((43 * count))"
            if [ "$device" = cpu ]; then microbatch=1024 steps=8 judge=''; fi
            name=$family,$products
            [ "$graph" = true ] || name=$name,no_graph
            [ "$count" = 1 ] || name=$name,${count}_microbatches
            set -f # the data's patterns are for speedrun
            # shellcheck disable=SC2086  # settings are words
            trained step "$name" 65 "$config" $sizes precision="$timed_precision" cuda.products=$products cuda.graph=$graph \
                batch.microbatch_tokens=$microbatch batch.tokens_per_step=$((count * microbatch)) schedule.steps=$steps \
                schedule.warmup_steps=0
            set +f
        done
    done
    judge=''
}

# In process, where ranks are threads with devices of their own; then as processes of a launcher, through its messages.
stage_ranks() {
    if [ "$device" = cuda ] && find_tests ranks; then
        gtest_step ranks sharing_the_card 240 "$tests" '--gtest_filter=GpuRanksTest.*'
        rm -f "$work/gtest.json"
        run 120 "$tests" "--gtest_output=json:$work/gtest.json" '--gtest_filter=GpuNcclTest.*'
        set -- --message ''
        if [ "$rc" = none ]; then
            rc=0
            set -- --status 'not run' --message 'no time was left'
        elif grep -q 'NCCL not found' "$log"; then
            set -- --status skipped --message "$(grep -m 1 'NCCL not found' "$log")"
        fi
        "$bin/gpu_report" step --results "$out/results.jsonl" --stage ranks --step nccl --exit-code "$rc" --seconds "$took" \
            --limit "$limit" --log "$log" --gtest "$work/gtest.json" "$@"
        merge
    fi
    find_speedrun ranks || return
    if ! command -v mpirun >/dev/null 2>&1 || ! ldd "$bin/speedrun" 2>/dev/null | grep -q libmpi; then
        record ranks mpirun skipped 'no mpirun, or a speedrun without MPI'
        return
    fi
    if [ ! -f "$root/data/kjv/dataset.json" ]; then
        record ranks mpirun skipped "$root/data/kjv: no dataset; run data/kjv/prepare.sh"
        return
    fi
    microbatch=1024 steps=8
    if [ "$device" = cpu ]; then microbatch=512 steps=3; fi
    set -- device="$device" precision=f32 schedule.steps=$steps batch.microbatch_tokens=$microbatch eval.every=0 \
        batch.tokens_per_step=$((4 * microbatch)) record.target_loss=0 data.val_tokens=1024 parallel.strategy=zero1 \
        parallel.communicator=staged
    trained ranks alone 60 kjv.json "$@"
    losses_of "$folder" 'one rank' >"$work/alone.json"
    # Sums in another order, which Muon amplifies.
    judge="--losses $work/alone.json --tolerance 2e-3" launcher='mpirun -np 2 --oversubscribe --bind-to none'
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    trained ranks mpirun 120 kjv.json "$@"
    judge='' launcher=''
}

stage_peer() {
    find_speedrun peer || return
    for family in modern gpt2; do
        prepare_family "$family" peer || return
        microbatch=32768
        set -- --rounds 5
        if [ "$device" = cpu ]; then
            microbatch=512
            set -- --rounds 1 --steps 1 --modes eager-f32
        fi
        set -f
        for setting in $sizes "batch.microbatch_tokens=$microbatch" "batch.tokens_per_step=$microbatch"; do
            case $setting in device=* | data.val_tokens=* | eval.every=*) ;; *) set -- "$@" --set "$setting" ;; esac
        done
        set +f
        rm -f "$out/peer_$family.json"
        run 265 sh "$script_dir/compare_peers.sh" --device "$device" --speedrun "$bin/speedrun" --json "$out/peer_$family.json" \
            "$@" "$root/configs/$config"
        if [ "$rc" = none ]; then record peer "$family" 'not run' 'no time was left' && continue; fi
        set -- --peers "$out/peer_$family.json"
        [ "$rc" != 77 ] || set --
        "$bin/gpu_report" step --results "$out/results.jsonl" --stage peer --step "$family" --exit-code "$rc" \
            --seconds "$took" --limit "$limit" --log "$log" "$@"
        merge
    done
}

# The 124M modern model on bytes, 4096 tokens a step; the rehearsal's is small. Random projections: with those of zero the first
# gradients would be zero and nothing but rounding would turn Muon's first updates. Gentle rates: at the config's the loss leaps
# up and down in the first steps, which multiplies every rounding.
first_steps=6
kjv_settings() {
    sizes='batch.microbatch_tokens=4096 batch.tokens_per_step=4096 data.val_tokens=4096 record.target_loss=0'
    sizes="$sizes model.zero_init_projections=false"
    sizes="$sizes data.train=$root/data/kjv/train_*.bin data.val=$root/data/kjv/val_*.bin eval.every=0 schedule.cooldown_fraction=0"
    sizes="$sizes optimizers.groups.0.lr=0.003 optimizers.groups.1.lr=0.003 optimizers.groups.2.lr=0.001"
    [ "$device" = cuda ] || [ -n "$first_losses" ] ||
        sizes="$sizes model.num_layers=2 model.model_dim=64 model.num_heads=2 model.vocab_size=257"
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
    "$bin/speedrun" train "$root/configs/124m_modern.json" --out "$work/cpu" --name first --quiet "$@" >"$work/first.log" 2>&1 ||
        { tail -n 3 "$work/first.log" >&2 && return 1; }
    losses_of "$work/cpu/first" '124m_modern.json on the King James text, 4096 tokens a step, f32 on the CPU' >"$file"
    rm -rf "$work/cpu"
}

stage_train() {
    find_speedrun train || return
    if [ ! -f "$root/data/kjv/dataset.json" ]; then
        record train kjv failed "$root/data/kjv: no dataset; run data/kjv/prepare.sh"
        return
    fi
    set -- device="$device"
    [ "$device" = cuda ] || set -- device=cpu schedule.steps=8 batch.tokens_per_step=1024 batch.microbatch_tokens=1024 \
        record.target_loss=50 data.val_tokens=4096
    judge=--target
    trained train kjv 120 kjv.json "$@"
    judge="--target --same-as $work/runs/train-kjv"
    trained train kjv_again 120 kjv.json "$@"

    expected_losses=$root/tests/bench/first_losses.json
    if [ "$device" = cpu ]; then
        expected_losses=$work/first_losses.json
        write_first_losses "$expected_losses" || { record train first_losses failed 'the run for comparison failed' && return; }
    fi
    kjv_settings
    set -f
    # f32: other orders of summation. bf16: its roundings, which move the first loss by 5e-5 of it and the sixth by 3e-3 on a CPU.
    judge="--losses $expected_losses --tolerance 1e-4"
    # shellcheck disable=SC2086
    trained train 124m_first_steps_f32 120 124m_modern.json $sizes device="$device" precision=f32 schedule.steps=$first_steps
    steps=300
    [ "$device" = cuda ] || steps=20
    judge="--losses $expected_losses --tolerance 1e-2"
    # shellcheck disable=SC2086
    trained train 124m_$steps 180 124m_modern.json $sizes device="$device" precision="$timed_precision" schedule.steps=$steps
    set +f
    judge=''
}
