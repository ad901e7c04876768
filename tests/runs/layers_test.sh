#!/bin/sh
# scripts/check_layers.py: this tree passes, and each fault planted in a small one is named.
# Usage: layers_test.sh ROOT
# ctest: ARGS ROOT PROPERTIES TIMEOUT 60
root=$1
command -v python3 >/dev/null || {
    echo "skipped: there is no python3"
    exit 77
}
# shellcheck source=tests/expect.sh
. "$root/tests/expect.sh"
check=$root/scripts/check_layers.py

expect 0 'as they should be' python3 "$check" "$root"

expect 2 'has no ARCHITECTURE.md' python3 "$check" .
expect 2 'Usage' python3 "$check" --unknown
mkdir -p train/top train/low kernels data tests scripts
# shellcheck disable=SC2016  # not for the shell
printf '```\ntrain/top/   uses\ntrain/low/   is used\n             by others\nkernels/\ndata/\n```\n' >ARCHITECTURE.md
printf '#include "train/low/b.h"\n' >train/top/a.cpp
printf '#include <vector>\n' >train/low/b.h
: >tests/a_test.cpp
expect 0 'as they should be' python3 "$check" .
printf '#include "train/top/a.h"\n' >train/low/b.h
expect 1 'train/low/b.h:1: includes train/top/a.h, but train/low/ lies below train/top/' python3 "$check" .
# shellcheck disable=SC2016  # not for the shell
printf '```\ntrain/top/,train/low/*.h   headers of both\ntrain/low/\nkernels/\ndata/\n```\n' >joined.md
cp ARCHITECTURE.md folders.md && mv joined.md ARCHITECTURE.md
expect 0 'as they should be' python3 "$check" .
mv folders.md ARCHITECTURE.md
printf '#include "tests/a.h"\n' >train/low/b.h
expect 1 'train/low/b.h:1: includes tests/a.h, which lies in no layer' python3 "$check" .
: >train/low/b.h
mkdir train/new && : >train/new/c.h
expect 1 'train/new/c.h: lies in no layer' python3 "$check" .
rm -r train/new
for parse in 'auto j = nlohmann::json::parse(text);' 'Json j = Json::parse(file, nullptr, false);' 'file >> json;' 'SortedJson::sax_parse(text, &sax);'; do
    echo "$parse" >train/low/b.h
    expect 1 'train/low/b.h:1: parses JSON by itself' python3 "$check" .
done
echo 'auto j = parse_json<Json>(text);  // not Json::parse(text)' >train/low/b.h
expect 0 'as they should be' python3 "$check" .
: >train/low/b.h
: >train/low/b.cpp
expect 1 'train/low/b.cpp: no test is named b_test' python3 "$check" .
echo '// Covers: train/low/*.cpp' >tests/a_test.cpp
expect 0 'as they should be' python3 "$check" .
printf '// Covers: train/low/b.cpp train/low/d.cpp\n' >tests/a_test.cpp
expect 1 'tests/a_test.cpp:1: covers train/low/d.cpp: no source' python3 "$check" .
echo '// Covers: train/low/b.cpp' >tests/a_test.cpp
yes 'true' | head -401 >scripts/long.sh
expect 1 'scripts/long.sh: 401 lines, at most 400' python3 "$check" .
exit $failures
