#!/bin/sh
# Tests data/kjv/prepare.sh with a stand-in for the binary, which makes a one-shard dataset of its input.
#   kjv_test.sh PATH_OF_PREPARE_SH
# Exit code 77 = skipped, because a program is missing.
# ctest: ARGS ROOT/data/kjv/prepare.sh PROPERTIES TIMEOUT 120
set -u

script=$1
command -v bible >/dev/null 2>&1 || { echo "skipped: bible is missing (sudo apt install bible-kjv)"; exit 77; }

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../expect.sh"
run() {  # run ARGUMENT...: stores the script's exit code in $code, its output in ./out
    code=0
    sh "$script" "$@" >out 2>&1 || code=$?
}

cat >"$work/binary" <<'BINARY'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
while [ $# -gt 0 ]; do
    case $1 in --input) input=$2 ;; --out) out=$2 ;; esac
    shift
done
cp "$input" "$out/train_000000.bin"
hash=$(sha256sum <"$input" | cut -d ' ' -f 1)
printf '{\n  "name": "kjv",\n  "shards": [\n    {\n      "file": "train_000000.bin",\n      "sha256": "%s"\n' "$hash" \
    >"$out/dataset.json"
printf '    }\n  ]\n}\n' >>"$out/dataset.json"
BINARY
chmod +x "$work/binary"
calls() { wc -l <"$work/calls" | tr -d ' '; }

run
check "no argument is a usage error" [ $code -eq 2 ]
run "$work/no-such-binary" "$work/data"
check "a missing binary is a usage error" [ $code -eq 2 ]

run "$work/binary" "$work/data"
text=$work/data/kjv.txt
check "the dataset is made" [ $code -eq 0 ]
check "the command has its options" grep -q 'prepare --input .*/kjv.txt --document-marker %% --tokenizer bytes --out .* --name kjv --val-every 20 *$' "$work/calls"
check "1,188 markers stand between 1,189 chapters" [ "$(grep -c '^%%$' "$text")" -eq 1188 ]
size=$(wc -c <"$text")
check "the text has 4.2 to 4.4 MB ($size)" [ "$size" -ge 4200000 -a "$size" -le 4400000 ]
check "the first lines are as documented" [ "$(head -n 3 "$text")" = "Genesis 1

1 In the beginning God created the heaven and the earth." ]
check "the last verse is there" [ "$(tail -n 1 "$text" | cut -c 1-23)" = "21 The grace of our Lor" ]

run "$work/binary" "$work/data"
check "a second call succeeds" [ $code -eq 0 ]
check "a second call says why it does nothing" grep -q 'already prepared' out
check "a second call does not run the binary" [ "$(calls)" -eq 1 ]

echo damage >>"$work/data/train_000000.bin"
run "$work/binary" "$work/data"
check "a damaged shard is made again" [ $code -eq 0 -a "$(calls)" -eq 2 ]
check "and replaced by force" grep -q -e '--val-every 20 --force$' "$work/calls"

sed -i 's/"kjv"/"other"/' "$work/data/dataset.json"
echo damage >>"$work/data/train_000000.bin"
run "$work/binary" "$work/data"
check "another dataset is not replaced" [ $code -eq 3 -a "$(calls)" -eq 2 ]

# A PATH with all programs except bible.
mkdir "$work/bin"
for program in sh awk dirname grep mkdir rm mv sha256sum; do ln -s "$(command -v $program)" "$work/bin/$program"; done
code=0
PATH=$work/bin sh "$script" "$work/binary" "$work/new" >out 2>&1 || code=$?
check "a missing bible fails" [ $code -eq 3 ]
check "and names the package" grep -q 'sudo apt install bible-kjv' out
printf '#!/bin/sh\necho\necho Genesis 1\necho\necho "  1 In the beginning"\n' >"$work/bin/bible"
chmod +x "$work/bin/bible"
PATH=$work/bin sh "$script" "$work/binary" "$work/new" >out 2>&1
check "a short text fails with both counts" grep -q 'has (chapters verses) 1 1, expected 1189 31102' out
check "a short text is not kept" [ -z "$(ls -A "$work/new")" ]

exit $failures
