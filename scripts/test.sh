#!/bin/sh
# Builds and runs every test that this machine supports: the unit tests under AddressSanitizer + UndefinedBehaviorSanitizer and
# under ThreadSanitizer, the parsers under libFuzzer if clang has it, then the release build with all tests.
# Usage: scripts/test.sh [PRESET...]    default: asan tsan fuzz release
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- asan tsan fuzz release

sh scripts/install_dependencies.sh tests
has_libfuzzer() {
    probe=$(mktemp -d)
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/probe.cpp"
    clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cpp" -o "$probe/probe" >/dev/null 2>&1 && found=0 || found=1
    rm -rf "$probe"
    return $found
}

# failures_of FOLDER: repeats the last lines of every failed test after the summary, so that a truncated log still has them.
failures_of() {
    [ -s "$1/LastTestsFailed.log" ] || return 0
    sed 's/^[0-9]*://' "$1/LastTestsFailed.log" | while read -r name; do
        printf '\n== failed: %s\n' "$name"
        awk -v name="$name" '
            $0 ~ "^[0-9]+/[0-9]+ Test(ing)?: " { inside = ($NF == name); next }
            inside && /^Test time = / { inside = 0 }
            inside && /FAILED|Failure|rror|expected|Expected|xit/ { print }' "$1/LastTest.log" | tail -n 20 | cut -c 1-300
    done
}

# One job more than cores, because tests often wait; at most 8, to limit memory.
jobs=$(nproc)
jobs=$((jobs < 8 ? jobs + 1 : 8))
for preset in "$@"; do
    if [ "$preset" = fuzz ] && ! has_libfuzzer; then
        printf '\n== fuzz: skipped, clang++ with libFuzzer is missing (apt install clang libclang-rt-14-dev)\n'
        continue
    fi
    printf '\n== %s: build\n' "$preset"
    log=build/$preset.log
    mkdir -p build
    if ! { cmake --preset "$preset" -DSPEEDRUN_UNITY=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=ON &&
        cmake --build --preset "$preset"; } >"$log" 2>&1; then
        grep -E 'error|FAILED' "$log" >&2 || true
        tail -n 30 "$log" >&2
        echo "error: the $preset build failed; the whole output is in $log" >&2
        exit 1
    fi
    if [ "$preset" = release ]; then
        sh data/kjv/prepare.sh build/release/speedrun
    fi
    printf '\n== %s: tests\n' "$preset"
    code=0
    ctest --test-dir "build/$preset" --parallel $jobs --output-on-failure --timeout 600 || code=$?
    [ $code -eq 0 ] || { failures_of "build/$preset/Testing/Temporary"; exit $code; }
done
