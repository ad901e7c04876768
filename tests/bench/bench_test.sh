#!/bin/sh
# op_bench, gpu_report and gpu_check.sh as on a GPU machine, on the CPU with small shapes. Every operation has
# a case, and results are JSON. Failures, crashes and steps that did not run appear in the report and in the
# exit code.
# Usage: bench_test.sh BUILD_DIR SOURCE_DIR
# ctest: ARGS BUILD ROOT PROPERTIES LABELS bench
set -u
bin=$1
check=$2/scripts/gpu_check.sh
. "$2/tests/expect.sh"

# Usage.
expect 0 'Exit codes' "$bin/op_bench" --help
expect 2 'selects none' "$bin/op_bench" --filter no_such_case
expect 2 'filter' "$bin/op_bench" --filter '('
expect 2 'dtype' "$bin/op_bench" --dtype f64
expect 3 'cannot be written' "$bin/op_bench" --scale small --json no/such/folder/ops.jsonl
expect 0 'Exit codes' "$bin/gpu_report" --help
expect 2 'timed alternately' sh "$2/scripts/compare_peers.sh"
expect 2 'modes turbo' sh "$2/scripts/compare_peers.sh" --speedrun "$bin/speedrun" --modes turbo "$2/configs/kjv.json"
expect 2 'cannot be read' sh "$2/scripts/compare_peers.sh" no_such.json
expect 2 'unknown stage' sh "$check" --bin "$bin" results no_such_stage

# Every operation, and a report of it.
mkdir results
for dtype in bf16 f32; do
    expect 0 'of .* operations' "$bin/op_bench" --scale small --seconds 0.002 --dtype "$dtype" --json "$dtype.jsonl"
    expect 0 "ops $dtype: passed" "$bin/gpu_report" step --results results/results.jsonl --stage ops --step "$dtype" \
        --ops "$dtype.jsonl"
done
expect 0 'product.recipe.qkv.forward' "$bin/gpu_report" merge --expect ops --json report.json results
grep -q '"damaged_lines": 0' report.json || fail 'a line of the results is no JSON'
[ "$(grep -c '"kind": "op"' report.json)" -ge 100 ] || fail 'operations are missing in the report'
expect 1 'result: incomplete' "$bin/gpu_report" merge --expect ops,tests results

# A test that fails, and one that crashes.
mkdir fake
ln -s "$bin/op_bench" "$bin/gpu_report" fake/
cat >fake/kernels_tests <<'T'
#!/bin/sh
case "$*" in
*list_tests*) printf 'Good.\n  one\nBad.\n  two\n' && exit ;;
*filter=Good.*) bad='' ;;
*) bad=1 ;;
esac
json=$(printf '%s\n' "$@" | sed -n 's/^--gtest_output=json://p')
printf '[ RUN      ] Good.one\n[       OK ] Good.one (0 ms)\n'
[ -z "$bad" ] || printf '[ RUN      ] Bad.two\nwrong by 3\n'
case "$*$bad" in *filter=Bad.**) kill -SEGV $$ ;; esac
{
    printf '{"testsuites":[{"name":"Good","testsuite":[{"name":"one","result":"COMPLETED"}]}'
    [ -z "$bad" ] || printf ',{"name":"Bad","testsuite":[{"name":"two","result":"COMPLETED","failures":[{"failure":"wrong by 3"}]}]}'
    printf ']}'
} >"$json"
[ -z "$bad" ] || { printf '[  FAILED  ] Bad.two (0 ms)\n' && exit 1; }
T
chmod +x fake/kernels_tests
expect 1 'FAILED Bad.two' sh "$check" --bin fake --device cpu checked tests
expect 0 'wrong by 3' cat checked/report.txt
expect 0 'alone:Good *passed' cat checked/report.txt
expect 0 'it ended inside Bad.two; exit code 139' cat checked/report.txt
expect 0 'ops *not run' cat checked/report.txt
expect 0 '"result": "failed"' cat checked/gpu_check.json
expect 1 'no time was left' sh "$check" --bin fake --device cpu --seconds 0 late tests ops

# The GPU stages, with fakes for GPU, tests and compute-sanitizer: errors that it reports, a device that it
# does not support, and a run that it did not check.
mkdir gpu tools
ln -s "$bin/gpu_report" gpu/
printf '#!/bin/sh\nexit 0\n' >gpu/op_bench
sed 's/bad=1/bad=/' fake/kernels_tests >gpu/gpu_tests
cat >tools/compute-sanitizer <<'T'
#!/bin/sh
tool=$2
while [ "${1##*/}" != gpu_tests ]; do shift; done
echo '========= COMPUTE-SANITIZER'
case $tool in synccheck) echo '========= Error: Device not supported' && exit 1 ;; esac
"$@"
case $tool in
memcheck) echo '========= ERROR SUMMARY: 0 errors' ;;
racecheck) printf '========= Error: Race reported in some_kernel\n========= ERROR SUMMARY: 1 error\n' && exit 86 ;;
esac
T
chmod +x gpu/op_bench gpu/gpu_tests tools/compute-sanitizer
expect 1 'result: failed' env "PATH=$work/tools:$PATH" sh "$check" --bin gpu card tests sanitize
expect 0 'all  *passed' cat card/report.txt
expect 0 'memcheck  *passed' cat card/report.txt
expect 0 'racecheck  *failed' cat card/report.txt
expect 0 'Race reported in some_kernel' cat card/report.txt
expect 0 'synccheck  *not run' cat card/report.txt
expect 0 'initcheck printed no summary' cat card/report.txt

# The training stages, small: on this machine's CPU, without PyTorch, and with a speedrun that fails.
if [ -f "$2/data/kjv/dataset.json" ]; then
    expect 0 'result: passed' sh "$check" --bin "$bin" --device cpu trained step ranks train
    for step in modern,library gpt2,library,no_graph modern,hand gpt2,library,8_microbatches; do
        expect 0 "step $step  *[0-9]" cat trained/report.txt
    done
    expect 0 'train kjv_again .* same bits again, target after' cat trained/report.txt
    expect 0 "train 124m_first_steps_f32 .* from those it is held to" cat trained/report.txt
fi
# The steps of --first, with their configs.
mkdir first
ln -s "$bin/op_bench" "$bin/gpu_report" "$bin/make_tokens" "$bin/speedrun" first/
cp gpu/gpu_tests first/kernels_tests
expect 1 'result: incomplete' env PEER_PYTHON=false sh "$check" --first --bin first --device cpu rehearsed
expect 0 '^modelled step .* modern .* r44 .* newest ' cat rehearsed/report.txt
expect 0 'rehearsed/kept/newest.trace.json' ls rehearsed/kept/newest.trace.json
expect 1 'modern  *skipped' env PEER_PYTHON=false sh "$check" --bin "$bin" --device cpu alone peer
ln -s "$bin/make_tokens" fake/
printf '#!/bin/sh\necho "error: no such thing" && exit 2\n' >fake/speedrun
chmod +x fake/speedrun
expect 1 'exit code 2; last lines: error: no such thing' sh "$check" --bin fake --device cpu broken step
expect 0 'modern,hand  *failed' cat broken/report.txt

# Without a GPU the whole check fails, reports the reason, and writes its report.
if ! "$bin/op_bench" --device cuda --scale small --seconds 0 --filter utility.fill >/dev/null 2>&1; then
    expect 1 'no NVIDIA GPU/driver found' sh "$check" --bin "$bin" none
    expect 0 '"tests": "not run"' cat none/gpu_check.json
fi

[ "$failures" -eq 0 ] || { echo "$failures failed" && exit 1; }
echo "all passed"
