# Sourced by gpu_check.sh: the steps of --first, in order of importance, and the samples of clocks and power.
# shellcheck shell=sh disable=SC2154,SC2034,SC2317
own_step_seconds=$step_seconds
# until_second N: limits the following step to second N of the 530 s before the report, in proportion for other limits. It
# inherits the time that earlier steps left; after a step that hung it has 3 s at least.
until_second() {
    [ "$planning" = 0 ] || return 0
    step_seconds=$((call_start + $1 * (call_end - call_start) / 530 - $(date +%s)))
    [ "$step_seconds" -ge 3 ] || step_seconds=3
    [ "$step_seconds" -le "$own_step_seconds" ] || step_seconds=$own_step_seconds
}

# begin_first: counts the GPUs, and samples their clocks in OUT_DIR/clocks.csv until the end of the script; timeout ends it if the
# script is killed.
begin_first() {
    gpus=1
    until_second 40
    [ "$device" = cuda ] || return 0
    expected=$expected,ranks
    command -v nvidia-smi >/dev/null 2>&1 && gpus=$(call_smi -L | grep -c '^GPU [0-9]*:')
    [ "$gpus" -gt 1 ] || expected=$expected,sanitize
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    trap 'end_session "$work/sampler"; rm -rf "$work"; rm -f "$out/reserve"' EXIT
    # shellcheck disable=SC2016  # for the inner shell
    setsid sh -c 'echo $$ >"$1" && exec timeout -k 1 "$2" sh -c "$3 -lms 100 || $3 -l 1"' sh "$work/sampler" "$((seconds + 1))" \
        'nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu --format=csv' >>"$out/clocks.csv" 2>&1 </dev/null &
}

# gpu_model_of CARD: the name of plan --gpu; a rehearsal takes h100.
gpu_model_of() {
    case $device$1 in *H100* | cpu*) echo h100 ;; *H200*) echo h200 ;; *A100*) echo a100 ;; *4090*) echo 4090 ;; esac
}

# recipe_step NAME CONFIG LENGTH SETTING...: 12 steps of one microbatch, six of them or more at the shape of stage 3.
recipe_step() {
    due step "$1" || return 0
    recipe=$2 length=$3 tokens=$work/documents documents='--median-document 403 --mean-document 690 --val-tokens 262144' vocab=50257
    shift 3
    if [ "$device" = cpu ]; then
        length=512 vocab=500
        set -- "$@" model.model_dim=96 model.vocab_size=512 data.max_document_tokens=256
    fi
    # Made tokens do not need the vocabulary, which the loss of prefixes needs.
    [ "$device$(find data/fineweb10B/r50k_base.tiktoken 2>/dev/null)" = cudadata/fineweb10B/r50k_base.tiktoken ] ||
        set -- "$@" model.loss.prefix_weight=0 data.vocabulary=
    for group in 0 1 2; do set -- "$@" "optimizers.groups.$group.momentum_cooldown_steps=0"; done
    make_tokens && trained 20 60 "$recipe" "$@" device="$device" precision="$timed_precision" \
        "data.train=$tokens/train_*.bin" "data.val=$tokens/val_*.bin" data.val_tokens="$length" eval.every=0 record.track= \
        eval.sequence_length="$length" batch.sequence_length="$length" batch.microbatch_tokens="$length" \
        batch.tokens_per_step="$length"
    documents=''
}

# Ranks as processes on several GPUs, with and without an order of NCCL's kernels: without it, communicators that run at the same
# time may wait for each other.
nccl_steps() {
    can_mpirun || return
    end=$1
    for count in $(printf '2\n%s\n' "$gpus" | sort -nu); do
        for order in 1 0; do
            until_second "$end"
            end=$((end + 27))
            due ranks "nccl,order_$order,$count" || continue
            launcher="env NCCL_LAUNCH_ORDER_IMPLICIT=$order NCCL_DEBUG=WARN mpirun -np $count --bind-to none"
            trained 8 60 kjv.json device=cuda parallel.strategy=zero1 parallel.communicator=nccl parallel.timeout_s=20 \
                parallel.start_timeout_s=20 batch.microbatch_tokens=1024 batch.tokens_per_step=$((2048 * count)) \
                schedule.steps=40 eval.every=0 data.val_tokens=1024 record.track= record.target_loss=0
            launcher=''
        done
    done
}

# Steps of models. The 124M model alternates between kernels, so that a change of the clock affects both.
first_runs() {
    find_speedrun step || return
    gpu_model=$(gpu_model_of "$(sed -n 's/^card=//p' "$work/facts")")
    end=150
    for other in '' wgmma wgmma+early again; do
        until_second $end
        step_of modern library true 8 "$other"
        end=$((end + 12))
    done
    plan_stage=3 trace=8:10
    until_second 231
    recipe_step r44 fineweb_r44_8xh100.json 32768 schedule.steps=6 schedule.final_steps=6 'schedule.stages=[2,4,6,12]'
    until_second 276
    recipe_step newest fineweb_newest_8xh100.json 49152 schedule.steps=12 'schedule.stages=[2,4,6,11,12]' \
        model.layers.each.mlp.down_fp8.x.exact_steps=0 model.layers.each.mlp.down_fp8.weight.exact_steps=0
    gpu_model='' plan_stage='' trace=20:23
    [ "$device" = cuda ] || trace=4:6
    until_second 300
    step_of modern library true 1 traced
    trace=''
}

stage_first() {
    if [ "$device" = cuda ] && due device nvidia_smi; then
        until_second 20
        run 2 10 sh -c 'nvidia-smi topo -m; nvidia-smi -q'
        case $rc in 127) record device nvidia_smi skipped 'nvidia-smi: not found' ;; *) finish ;; esac
    fi
    until_second 80
    find_tests tests && due tests first && sharded_gtest_step 20 75 "$tests" \
        '--gtest_filter=*AttentionTest*:*Fp8*:*CrossEntropy*:GpuRunTest.*:GraphWaits*'
    until_second 93
    ops_step attention '^attention'
    until_second 105
    [ "$device" = cpu ] || ops_step attention_wgmma '^attention' --attention wgmma
    until_second 114
    ops_step fp8 '^fp8'
    until_second 123
    ops_step optimizer '^optimizer'
    until_second 129
    ops_step utility '^utility'
    until_second 138
    ops_step cross_entropy cross_entropy
    first_runs
    if [ "$gpus" -gt 1 ]; then
        nccl_steps 327
    elif [ "$device" = cuda ] && find_tests sanitize; then
        small='Backends/AttentionTest.*wgmma*:Backends/CrossEntropyFp8Test.*:Backends/Fp8Test.*'
        until_second 345
        sanitizer_step first,memcheck memcheck "$small"
        until_second 385
        sanitizer_step first,synccheck synccheck "$small"
    fi
    until_second 495
    peer_step modern,1_round modern 1
    until_second 528
    ranks_in_process
}
