#!/bin/sh
# scripts/regenerate.sh: the committed files are current; a file that differs is reported, and rewritten.
# Usage: regenerate_test.sh BUILD ROOT
# ctest: ARGS BUILD ROOT PROPERTIES TIMEOUT 60
set -u
build=$1 root=$2
command -v python3 >/dev/null || { echo "skipped: python3 is missing"; exit 77; }
. "$root/tests/expect.sh"
expect 0 'current: docs/metrics.md' sh "$root/scripts/regenerate.sh" --check "$build"
expect 0 'Usage' sh "$root/scripts/regenerate.sh" --help
expect 2 'Usage' sh "$root/scripts/regenerate.sh" --unknown
expect 1 'nowhere/speedrun is missing' sh "$root/scripts/regenerate.sh" nowhere

mkdir -p scripts/speedrun_report configs docs/config program
files="configs/schema.json scripts/speedrun_report/metric_fields.json docs/metrics.md docs/config/model.md"
for file in scripts/regenerate.sh $files; do cp "$root/$file" "$file"; done
ln -s "$build/speedrun" program/speedrun # without the tests of kernels, so their tables are skipped
echo '{}' >configs/schema.json
echo '{"step": [{"key": "old"}], "val": [], "summary": []}' >scripts/speedrun_report/metric_fields.json
sed -i '/^| `loss` |/d' docs/metrics.md
sed -i 2d docs/config/model.md
expect 1 'differs: configs/schema.json' sh scripts/regenerate.sh --check program
for file in $files; do
    grep -q "differs: $file" out || fail "$file is not named"
    ! cmp -s "$file" "$root/$file" || fail "--check wrote $file"
done
expect 0 'renewed: docs/metrics.md' sh scripts/regenerate.sh program
for file in $files; do cmp -s "$file" "$root/$file" || fail "$file is not renewed"; done
sed -i 's/^<!-- made by.*: val -->$//' docs/metrics.md
expect 1 'docs/metrics.md has 0 times' sh scripts/regenerate.sh program
exit $failures
