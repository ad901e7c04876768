#!/bin/sh
# The command `prepare`: kinds of input through gzip and zstd, the memory of large files, refused inputs, and vocabularies.
# Usage: prepare_cli_test.sh SPEEDRUN ROOT
# ctest: ARGS SPEEDRUN ROOT PROPERTIES TIMEOUT 300
set -u
speedrun=$1 root=$2
. "$root/tests/expect.sh"
prepare() { "$speedrun" prepare --out made --force "$@"; }
# tokens_of FOLDER: the tokens of its shards without their headers.
tokens_of() { for shard in "$1"/train_*.bin; do tail -c +1025 "$shard"; done; }
# same_as_plain DESCRIPTION OPTION...: the tokens of plain/.
same_as_plain() {
    description=$1; shift
    expect 0 "2 documents" prepare "$@"
    [ "$(tokens_of made | cksum)" = "$(tokens_of plain | cksum)" ] || fail "$description has other tokens"
}

# Two documents, in each kind of file.
mkdir parts
printf 'first line\nof \342\202\254 two\n' >parts/a.txt
printf 'second\n' >parts/b.txt
{ cat parts/a.txt; echo %%; cat parts/b.txt; } >marked.txt
printf '{"text": "first line\\nof \\u20ac two\\n", "id": 1}\n{"text": "second\\n"}\n' >lines.jsonl
printf 'parts/a.txt\nparts/b.txt\n' >list
expect 0 "input: 2 files, 2 documents" "$speedrun" prepare --input parts/a.txt parts/b.txt --out plain
same_as_plain "a folder" --input parts
same_as_plain "a pattern" --input 'parts/*.txt'
same_as_plain "a list" --input-list list
same_as_plain "a marker" --input marked.txt --document-marker %%
same_as_plain "JSON Lines" --input lines.jsonl
gzip -k lines.jsonl marked.txt
same_as_plain "compressed JSON Lines" --input lines.jsonl.gz
same_as_plain "gzip" --input marked.txt.gz --document-marker %%
if command -v zstd >/dev/null; then
    zstd -q lines.jsonl
    same_as_plain "Zstandard" --input lines.jsonl.zst
fi
{ printf '\377\376'; sed 's/$/\r/' marked.txt | iconv -f utf-8 -t utf-16le; } >windows.txt
expect 0 "2 documents, 34 tokens" prepare --input windows.txt --document-marker %%

# Documented: the text of the separator is text, and warned of.
printf 'one<|endoftext|>two' >inline.txt
expect 0 "<|endoftext|> occurs 1 times" prepare --input inline.txt
printf 'a text with 1 byte \377\n' >latin.txt
expect 0 "latin.txt: 1 bytes outside UTF-8, the first at byte 19" prepare --input latin.txt

# Refused inputs: one line, exit 3, and the dataset before stays.
expect 0 "train" prepare --input parts
before=$(cat made/* | cksum)
refused() {
    text=$1; shift
    expect 3 "$text" prepare "$@"
    [ "$(wc -l <out)" -eq 1 ] || fail "more than one line"
}
printf 'PAR1\025\004' >data.parquet
refused "data.parquet: Parquet is not read; convert it: python3 -c" --input data.parquet
refused "looks binary" --input "$speedrun"
head -c 60 lines.jsonl.gz >cut.jsonl.gz
refused "cut.jsonl.gz: ends within its compressed data" --input cut.jsonl.gz
refused "lines.jsonl: line 1: key 'body' is missing; the object has id, text" --input lines.jsonl --json-key body
refused "marker '##' is no line of the 1 text file" --input marked.txt --document-marker '##'
refused "no_such.txt: cannot be read: no such file" --input no_such.txt
refused "named twice\|name this file twice" --input parts parts/a.txt
refused "val-fraction 0.1 leaves no text for validation" --input parts/b.txt --val-fraction 0.1
expect 2 "train-bpe is 0, expected 257 to 65536" prepare --input parts --train-bpe 0
expect 2 "'parts/\*\*/\*.txt': \*\* is not supported" prepare --input 'parts/**/*.txt'
refused "read their inputs twice" --input /dev/stdin --train-bpe 300
[ "$(cat made/* | cksum)" = "$before" ] || fail "a refused input changed the dataset"

# Folders without permission: the path and the cause in one line.
if [ "$(id -u)" -ne 0 ]; then as_user=; else as_user="setpriv --reuid 65534 --regid 65534 --clear-groups"; fi
chmod 755 . parts && mkdir -p tree/closed locked && echo text >tree/a.txt && chmod 0 tree/closed && chmod 555 locked
denied() {
    text=$1; shift
    # shellcheck disable=SC2086  # words
    expect 3 "^error: $text: .*Permission denied$" $as_user "$speedrun" prepare "$@"
    [ "$(wc -l <out)" -eq 1 ] || fail "more than one line"
}
# shellcheck disable=SC2086
if $as_user "$speedrun" --version >/dev/null 2>&1; then
    mkdir open && chmod 777 open
    denied "tree/closed: cannot be read" --input tree --out open/made
    denied "tree/closed/x.txt: cannot be read" --input tree/closed/x.txt --out open/made
    denied "prepare: locked: cannot be written" --input parts --out locked
    denied "prepare: locked/new" --input parts --out locked/new
    [ -z "$(ls -A open)" ] || fail "a refused input left a folder"
else
    echo "skipped: no other user can start $speedrun"
fi

# Vocabularies.
small=$root/tests/data/fixtures/small_tokenizer.json
mkdir gpt2 && cp "$small" gpt2/tokenizer.json
expect 0 "tokenizer gpt2, vocabulary 857" prepare --input parts --vocab gpt2
cmp -s made/vocabulary "$small" || fail "the vocabulary is not stored as it was given"
expect 0 "tokenizer gpt2, vocabulary 280" prepare --input "$root/docs" --train-bpe 280
cmp -s made/vocabulary made/tokenizer.json || fail "tokenizer.json is not the dataset's vocabulary"
first=$(cksum <made/vocabulary)
expect 0 "vocabulary 280" prepare --input "$root/docs" --train-bpe 280
[ "$(cksum <made/vocabulary)" = "$first" ] || fail "training is not repeatable"

# Memory: 300 MB of lines, one line of 300 MB, a document of 300 MB without spaces, and one of JSON Lines.
python3 - "$speedrun" "$small" <<'END' >memory 2>&1 || { cp memory out; fail "memory"; }
import resource, subprocess, sys
MB = 1_000_000
line = b"the quick brown fox jumps over the lazy dog, and over 12 more.\n"
with open("lines.txt", "wb") as file:
    for _ in range(300): file.write(line * (MB // len(line)))
with open("spaces.txt", "wb") as file:
    for _ in range(300): file.write(line.replace(b"\n", b" ") * (MB // len(line)))
with open("letters.txt", "wb") as file:
    for _ in range(300): file.write(b"abcdefghij" * (MB // 10))
with open("large.jsonl", "wb") as file:
    for _ in range(30): file.write(b'{"text": "' + line[:-1] * (10 * MB // len(line)) + b'"}\n')
for name, options in (("lines.txt", ("--val-fraction", "0.1")), ("spaces.txt", ()), ("letters.txt", ()), ("large.jsonl", ()),
                      ("lines.txt", ("--train-bpe", "400"))):
    vocabulary = () if "--train-bpe" in options else ("--vocab", sys.argv[2])
    subprocess.run([sys.argv[1], "prepare", "--input", name, "--out", "large", "--force", *vocabulary, *options], check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{name} {options}: {peak:.0f} MiB")
    assert peak < 190, "more than 200 MB"
END
cat memory
exit $failures
