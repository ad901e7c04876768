# shellcheck shell=sh disable=SC2154
# Sourced by tests of gpu_check.sh: a bundle of fake programs in bundle/, with faults. Uses source and gpu_report.
export CALLS="$work/calls" HUNG="$work/hung" FAULTS='' SLOW='' TMPDIR="$work"

# shellcheck disable=SC2317  # called by the trap
kill_hung() {
    [ ! -f "$HUNG" ] || while read -r pid; do kill -KILL "$pid" 2>/dev/null; done <"$HUNG"
    rm -f "$HUNG"
}
trap 'kill_hung; rm -rf "$work"' EXIT
# states OUT_DIR: stage, step and status of each step in the report, which must be JSON.
states() {
    if command -v python3 >/dev/null 2>&1; then
        python3 -c 'import json, sys
for step in json.load(open(sys.argv[1], encoding="utf-8"))["steps"]: print(step["stage"], step["step"], step["status"])' \
            "$1/gpu_check.json" >out 2>&1 || fail "$1/gpu_check.json is not whole"
    else
        "$gpu_report" merge --states out "$1" >/dev/null
    fi
}
# expect_states OUT_DIR: its steps must be exactly the ones on standard input.
expect_states() {
    cat >expected
    states "$1"
    diff expected out >difference || { cp difference out && fail "the steps of $1 differ from what is expected"; }
}

# ---- a bundle of fakes. FAULTS: a list of name:fault; SLOW: a name. A name is a run, a group of operations,
# or tests.
mkdir -p bundle/bin bundle/share/speedrun/data/kjv
cp "$source"/scripts/gpu_check*.sh "$source/scripts/cuda_env.sh" "$source/scripts/options.sh" bundle/
ln -s "$source/configs" bundle/share/speedrun/configs
touch bundle/share/speedrun/data/kjv/dataset.json
echo git_sha=first >bundle/manifest.txt
ln -s "$gpu_report" bundle/bin/gpu_report
cat >bundle/bin/fault <<'F'
# fault NAME: runs its fault from FAULTS. Sourced.
fault() {
    echo "$1" >>"$CALLS"
    [ "$SLOW" != "$1" ] || sleep 30
    case " $FAULTS " in
    *" $1:hang "*) # ignores TERM, like its child in a process group of its own
        trap '' TERM
        timeout -k 1 60 sh -c 'trap "" TERM; echo $$ >>"$HUNG"; while :; do sleep 1; done' &
        echo $$ >>"$HUNG"
        for second in $(seq 60); do sleep 1; done
        ;;
    *" $1:crash "*) kill -SEGV $$ ;;
    *" $1:garbage "*)
        printf '[ RUN      ] Some.test\377\376\033[2J\001\n'
        case $1 in step-*) bytes=100000000 ;; *) bytes=5000000 ;; esac
        head -c "$bytes" /dev/zero | tr '\000' '\377'
        printf '\377\001{"kind":"op"}\n{"kind":"op","name":5,"status":[]}\n\000[[[[{\n' >"$2"
        ;;
    *" $1:full_disk "*) cat /dev/zero >"$SPEEDRUN_CACHE_DIR/much" ;;
    *) return 0 ;;
    esac
    exit
}
value_of() { while [ "$1" != "$name" ]; do shift; done; echo "$2"; }
F
cat >bundle/bin/kernels_tests <<'F'
#!/bin/sh
. "${0%/*}/fault"
json=$(printf '%s\n' "$@" | sed -n 's/^--gtest_output=json://p')
case "$*" in
*list_tests*) printf '%s.\n  one\n' ${SUITES:-Good Bad} && exit ;;
*filter=\*AttentionTest*) fault first "$json" ;;
*filter=*wgmma*) fault "${SANITIZED:-wgmma}" "$json" ;;
*filter=*) suite=${*##*filter=} && fault "${suite%.*}" "$json" ;;
*shuffle*) fault shuffled "$json" ;;
*) fault tests "$json" ;;
esac
printf '[ RUN      ] Good.one\n[       OK ] Good.one (0 ms)\n'
printf '{"testsuites":[{"name":"Good","testsuite":[{"name":"one","result":"COMPLETED"}]}' >"$json"
case " $FAULTS " in *" tests:truncated "*) case "$*" in *filter* | *shuffle*) ;; *) exit ;; esac ;; esac
echo ']}' >>"$json"
F
cat >bundle/bin/op_bench <<'F'
#!/bin/sh
. "${0%/*}/fault"
name=--filter group=$(value_of "$@")
name=--json json=$(value_of "$@")
group=${group#^}
case $group in utility.*) exit ;; esac
fault "$group" "$json"
echo '{"kind":"ceilings","gb_per_s":1,"tflops":1}' >>"$json"
case $group in
fp8) echo '{"kind":"op","name":"fp8.recipe.head.forward","status":"passed","tflops":'${FP8_RATE:-2}'}' ;;
cross_entropy)
    echo '{"kind":"op","name":"pointwise.recipe.cross_entropy","status":"passed","share_of_floor":'${LOSS_SHARE:-0.7}'}'
    echo '{"kind":"op","name":"pointwise.recipe.cross_entropy_3_targets_fp8","status":"passed","median_ms":'${LOSS_MS:-3}'}' ;;
esac >>"$json"
case " $FAULTS " in *" $group:truncated "*) printf '{"kind":"op","na' >>"$json" && exit ;; esac
printf '{"kind":"op","name":"%s.case","dtype":"bf16","status":"passed","median_ms":1}\n' "$group" >>"$json"
F
cat >bundle/bin/speedrun <<'F'
#!/bin/sh
. "${0%/*}/fault"
case $1 in plan) echo '{"step":{"ms":'${MODELLED_MS:-1}'},"operations":[{"name":"muon_apply","ms":'${MODELLED_MS:-1}'}]}' && exit ;; esac
name=--out folder=$(value_of "$@")
name=--name run=$(value_of "$@")
mkdir -p "$folder/$run"
ms=1
case ${FAST:-none} in *" $run "*) ms=0.5 ;; esac
fault "$run" "$folder/$run/summary.json"
for step in 0 1 2 3 4 5 6 7; do
    echo '{"event":"step","step":'$step',"loss":'$((9 - step))',"grad_norm":1,"step_ms":'$ms',"optimizer_ms":1,"tokens":64}'
done >"$folder/$run/metrics.jsonl"
echo '{"status":"done","steps":8,"train_ms":8,"startup_ms":1,"step_ms":{"p99":1},"flops_per_s":1,"ceiling_flops_per_s":1,
    "memory_bytes":1,"val_loss":1,"target_loss":2,"target_reached":true,"time_to_target_ms":5}' >"$folder/$run/summary.json"
F
cat >bundle/bin/make_tokens <<'F'
#!/bin/sh
mkdir -p "$1" && touch "$1/dataset.json"
F
cat >bundle/compare_peers.sh <<'F'
#!/bin/sh
for config in "$@"; do :; done
name=--json
. "${0%/*}/bin/fault"
json=$(value_of "$@")
fault "peer-${config##*/}" "$json"
echo '{"result":"passed","peers":[{"name":"x","speedrun_is_faster_by":'${RATIO:-1.1}'}],"failures":[]}' >"$json"
F
chmod +x bundle/bin/*
check="$work/bundle/gpu_check.sh"

# ---- calls that are stopped, and read-only copies of their output
copy() { rm -rf "$2" && cp -R "$1" "$2" && chmod -R a-w "$2"; }
# interrupt SIGNAL COMMAND...: sends it the signal once a fake hangs; sets got.
interrupt() {
    signal=$1
    shift
    rm -f "$HUNG"
    "$@" >out 2>&1 </dev/null &
    command=$!
    for tenths in $(seq 300); do
        [ ! -s "$HUNG" ] || break
        sleep 0.1
    done
    kill "-$signal" "$command" && wait "$command"
    got=$?
    echo "after $tenths tenths of a second" >>out
}

# ---- a full disk: a small file system, if one can be mounted; isolate is the command that allows it, or empty.
# on_small_disk OPTION...: gpu_check.sh on it; leaves page and a copy of its folder in copied.
mkdir small
cat >on_small_disk <<'F'
mount -t tmpfs -o size=3m none small || exit 77
sh "$CHECK" "$@" >page 2>&1
code=$?
rm -rf copied && cp -R small copied
exit $code
F
export CHECK="$check"
find_isolation() {
    for isolate in 'unshare -m' 'unshare -Urm' ''; do
        # shellcheck disable=SC2086  # a command of words
        [ -n "$isolate" ] && $isolate sh -c 'mount -t tmpfs -o size=1m none small' >/dev/null 2>&1 && break
    done
}
