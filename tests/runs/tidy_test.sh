#!/bin/sh
# scripts/tidy.sh: this tree passes, and a fault of each kind planted in a small one is named.
# Usage: tidy_test.sh ROOT BUILD_DIR
# ctest: ARGS ROOT BUILD PROPERTIES TIMEOUT 1800 PROCESSORS 2
root=$1 build=$2
# shellcheck source=tests/expect.sh
. "$root/tests/expect.sh"

sh "$root/scripts/tidy.sh" "$build"
status=$?
[ $status -ne 77 ] || exit 77
[ $status -eq 0 ] || { echo "FAILED: clang-tidy finds something"; failures=$((failures + 1)); }

mkdir -p scripts train kernels/cpu build
cp "$root/scripts/tidy.sh" scripts/
cp "$root/.clang-tidy" .
list() {
    : >build/entries
    for source in "$@"; do
        printf '%s{\n"directory": "%s",\n"command": "c++ -std=c++20 -c %s",\n"file": "%s"\n}' "$comma" "$(pwd -P)" "$source" \
            "$(pwd -P)/$source" >>build/entries
        comma=,
    done
    { echo '['; cat build/entries; echo ']'; } >build/compile_commands.json
    comma=
}
comma=
planted() { # WHAT TEXT_OF_SOURCE: tidy.sh names the fault
    printf '%s\n' "$2" >train/a.cpp
    expect 1 "train/a.cpp:.*$1" sh scripts/tidy.sh build
}
swappable='long padded(long rows, long ranks) { if (ranks == 1) return 0; return rows; }'
expect 2 'has no compile_commands.json' sh scripts/tidy.sh build
list train/a.cpp
echo 'int half(int whole) { return whole / 2; }' >train/a.cpp
expect 0 'finds nothing' sh scripts/tidy.sh build
planted easily-swappable "$swappable"
planted easily-swappable 'double seconds(double bytes, int ranks) { if (ranks == 1) return 0; return bytes; }'
planted implicit-widening 'long bytes(const int* shape) { return shape[0] * shape[1]; }'
planted use-after-move '#include <string>
#include <utility>
std::string twice(std::string text) { std::string moved = std::move(text); return moved + text; }'
planted 'expected' 'int half(int whole) { return whole / 2'
# What .clang-tidy and the script let pass.
echo 'int parse(const char* text, const char* origin) { return text[0] - origin[0]; }' >train/a.cpp
expect 0 'finds nothing' sh scripts/tidy.sh build
echo "$swappable" >kernels/cpu/b.cpp
list train/a.cpp kernels/cpu/b.cpp
expect 0 'finds nothing' sh scripts/tidy.sh build
exit $failures
