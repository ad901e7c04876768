#!/bin/sh
# Checks the program's sources with .clang-tidy: prints every finding and exits 1 if there is one. It needs a configured build;
# a unity build (SPEEDRUN_UNITY) is checked in a fraction of the time.
# Usage: scripts/tidy.sh [BUILD_DIR]    default: build/release
# Exit: 0 no findings, 1 findings, or a source that clang does not compile, 2 bad usage, 77 no clang-tidy 14.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}

# Excluded: kernels, as their loops have adjacent parameters of rows, columns and counts, and multiply checked sizes.
left_out='^kernels/(ops|cpu|cuda)/'

if [ $# -gt 1 ] || [ ! -f "$build/compile_commands.json" ]; then
    echo "error: $build has no compile_commands.json: cmake --preset release, or name a build folder" >&2
    exit 2
fi
# Other versions report other findings.
for tidy in clang-tidy-14 clang-tidy none; do
    "$tidy" --version 2>/dev/null | grep -q 'version 14\.' && break
done
if [ "$tidy" = none ]; then
    echo "skipped: there is no clang-tidy 14 (apt install clang-tidy-14)"
    exit 77
fi

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
root=$(pwd -P)
# Sources included by a unity source are treated as headers, as .clang-tidy specifies. Each process writes its own files.
# shellcheck disable=SC2016  # for the inner shell
sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" | sed "s|^$root/||" | sort -u |
    grep -E '^(train|data|kernels)/.*\.cpp$|/((train|data)/CMakeFiles/[a-z_]*|kernels/CMakeFiles/speedrun_kernels)\.dir/Unity/.*\.cxx$' | grep -v -E "$left_out|/tests/" |
    xargs -P "$(nproc)" -n 1 sh -c '"$0" -p "$1" --quiet "$3" >"$2/$$.out" 2>"$2/$$.err" || { cat "$2/$$.err" >&2; exit 1; }' \
        "$tidy" "$build" "$found" && failed=0 || failed=1
cat "$found"/*.out | sed "s|^$root/||" | grep -E '^[^ ]*: (warning|error):' | grep -v -E "$left_out" | sort -u >"$found/all" || true
cat "$found/all"
[ "$failed" = 0 ] && [ ! -s "$found/all" ] || exit 1
echo "clang-tidy finds nothing"
