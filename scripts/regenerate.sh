#!/bin/sh
# Writes every generated file. Committed: the tables of metrics in docs/metrics.md and the tables of kernels. Written by each
# build too: the schema of configs, the pages of their options and the list of metrics. Run it after a change of a metric or a kernel.
# Usage: regenerate.sh [--check] [BUILD]
#   --check   write nothing; name each file that differs
#   BUILD     build folder (default: build/release). Tables of kernels are skipped without its CUDA and simt tests.
# Exit: 0 all files are current, 1 a file differs (--check) or cannot be made, 2 bad usage.
set -u
cd "$(dirname "$0")/.." || exit 1
usage() {
    sed -n '2,/^set -u/{/^set -u/!s/^# \{0,1\}//p;}' scripts/regenerate.sh
    exit "$1"
}
check=false
build=build/release
while [ $# -gt 0 ]; do
    case $1 in
    --check) check=true ;;
    -h | --help) usage 0 ;;
    -*) usage 2 >&2 ;;
    *) build=$1 ;;
    esac
    shift
done
speedrun=$build/speedrun
[ -x "$speedrun" ] || { echo "error: $speedrun is missing: cmake --build $build --target speedrun" >&2; exit 1; }
made=$(mktemp)
trap 'rm -f "$made"' EXIT
code=0

# current FILE: compares the file with $made, and replaces it unless --check is given.
current() {
    cmp -s "$made" "$1" && { echo "current: $1"; return; }
    if $check; then
        echo "differs: $1 (run scripts/regenerate.sh $build)"
        code=1
    else
        cat "$made" >"$1" && echo "renewed: $1"
    fi
}
# from_program FILE COMMAND...: compares the file with the command's output.
from_program() {
    file=$1
    shift
    if "$@" >"$made"; then current "$file"; else echo "error: $*: failed, $file is unchanged" >&2; code=1; fi
}

from_program configs/schema.json "$speedrun" plan --schema
from_program scripts/speedrun_report/metric_fields.json "$speedrun" plan --metrics
pages=$(mktemp -d)
trap 'rm -rf "$made" "$pages"' EXIT
"$speedrun" plan --option-pages "$pages" >/dev/null || code=1
mkdir -p docs/config
for page in "$pages"/*.md; do from_program "docs/config/${page##*/}" cat "$page"; done
# Tables of docs/metrics.md: rows after the heads that are marked with the name of a list of metrics.
if command -v python3 >/dev/null; then
    from_program docs/metrics.md python3 - docs/metrics.md scripts/speedrun_report/metric_fields.json <<'P'
import json, pathlib, re, sys
page, fields = pathlib.Path(sys.argv[1]).read_text(), json.loads(pathlib.Path(sys.argv[2]).read_text())
def row(name, field):
    meaning = "sum over the steps" if name == "summary" and field.get("roll_up") == "sum" else field.get("meaning", "")
    return f"| `{field['key']}` | {field.get('unit', '')} | {meaning}{'; or null' if field.get('optional') else ''} |\n"
for name in ("step", "val", "summary"):
    head = f"<!-- made by scripts/regenerate.sh: {name} -->\n| key | unit | meaning |\n|---|---|---|\n"
    if page.count(head) != 1:
        sys.exit(f"docs/metrics.md has {page.count(head)} times: {head.splitlines()[0]}")
    start = page.index(head) + len(head)
    end = start + re.match(r"(\|.*\n)*", page[start:]).end()
    page = page[:start] + "".join(row(name, field) for field in fields[name]) + page[end:]
sys.stdout.write(page)
P
else
    echo "not made: tables of docs/metrics.md need python3"
fi
# Tests compare the tables of kernels with the build; with an environment variable they write them instead.
tables=kernels/cuda/tables.txt
table_of_kernels() { # VARIABLE TEST FILTER
    [ -x "$build/$2" ] || { echo "not made: a section of $tables needs $build/$2"; return; }
    before=$(cksum <$tables)
    env "$1=1" "$build/$2" --gtest_brief=1 "--gtest_filter=$3" >"$made" 2>&1 || { cat "$made" >&2; code=1; return; }
    [ "$before" = "$(cksum <$tables)" ] || echo "renewed: $3 of $tables"
}
if ! $check; then
    table_of_kernels SPEEDRUN_UPDATE_SASS cuda_code_tests Sass.MatchesCommittedTable
    table_of_kernels SPEEDRUN_UPDATE_RESOURCES cuda_host_tests Resources.MatchCommittedTable
    table_of_kernels SPEEDRUN_UPDATE_TRAFFIC watch_tests 'TrafficTable.*'
fi
exit $code
