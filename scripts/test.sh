#!/bin/sh
# Builds and runs every test that this machine can run: the unit tests under AddressSanitizer +
# UndefinedBehaviorSanitizer and under ThreadSanitizer, then the release build with all tests.
# Usage: scripts/test.sh [PRESET...]    default: asan tsan release
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- asan tsan release

sh scripts/install_dependencies.sh
for preset in "$@"; do
    printf '\n== %s: build\n' "$preset"
    log=build/$preset.log
    mkdir -p build
    if ! { cmake --preset "$preset" && cmake --build --preset "$preset"; } >"$log" 2>&1; then
        grep -E 'error|FAILED' "$log" >&2 || true
        tail -n 30 "$log" >&2
        echo "error: the $preset build failed; the whole output is in $log" >&2
        exit 1
    fi
    if [ "$preset" = release ]; then
        sh data/kjv/prepare.sh build/release/speedrun
    fi
    printf '\n== %s: tests\n' "$preset"
    ctest --test-dir "build/$preset" --parallel 2 --output-on-failure --timeout 600
done
