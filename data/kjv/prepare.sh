#!/bin/sh
# Makes the small dataset: the King James Version of the Bible, 1,189 chapters, 4.2 MB of text as byte tokens.
#
#   data/kjv/prepare.sh BINARY [OUT_DIR]
#
# BINARY is the speedrun program, OUT_DIR the folder to fill (default: the folder of this script). The text comes
# from Debian's package bible-kjv. One chapter is one document:
#
#   Genesis 1
#
#   1 In the beginning God created the heaven and the earth.
#   2 And the earth was without form, and void; ...
#
# that is the chapter's name, an empty line, and one verse per line after its number. Chapters 20, 40, ... are the
# validation split. The text is kept in OUT_DIR/kjv.txt. A second call recognizes the dataset by its hashes and does
# nothing. Exit codes: 0 done, 2 usage, 3 the text is missing or not the expected one.
set -eu

fail() {
    code=$1
    shift
    printf 'kjv/prepare.sh: %s\n' "$*" >&2
    exit "$code"
}

# Prints a "hash  file" line for each shard in OUT_DIR/dataset.json (its keys are on separate lines).
listed_hashes() {
    awk -F '"' '$2 == "file" { file = $4 } $2 == "sha256" { print $4 "  " file }' "$1"
}

[ $# -ge 1 ] && [ $# -le 2 ] || fail 2 "usage: $0 BINARY [OUT_DIR]"
binary=$1
out=${2:-$(dirname "$0")}
chapters=1189
verses=31102
marker='%%'

force=
if [ -f "$out/dataset.json" ]; then
    hashes=$(listed_hashes "$out/dataset.json")
    if [ -n "$hashes" ] && printf '%s\n' "$hashes" | (cd "$out" && sha256sum --check --status -) 2>/dev/null; then
        echo "$out: already prepared"
        exit 0
    fi
    # Only a dataset of this script may be replaced without confirmation.
    grep -q '"name": "kjv"' "$out/dataset.json" ||
        fail 3 "$out/dataset.json describes another dataset; give an empty OUT_DIR"
    echo "$out: shards do not match dataset.json, preparing again"
    force=--force
fi

command -v "$binary" >/dev/null 2>&1 || fail 2 "$binary is not a program"
command -v bible >/dev/null 2>&1 ||
    fail 3 "the program 'bible' is missing; install it with: sudo apt install bible-kjv"

mkdir -p "$out"
text=$out/kjv.txt
trap 'rm -f "$text.tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# With -l the program prints a heading per chapter between empty lines, and verses indented by their number. The width
# keeps every verse on one line. The empty lines around a heading are dropped and recreated.
bible -l100000 Gen1:1-Rev22:21 </dev/null |
    awk -v marker="$marker" '
        /^$/ { next }
        /^ / { sub(/^ +/, ""); print; next }
        { if (seen++) print marker; print; print "" }' >"$text.tmp"

counted=$(awk -v marker="$marker" '
    $0 == marker { chapters++ }
    /^[0-9]+ / && !/^[123] [A-Z][a-z]+ [0-9]+$/ { verses++ }
    END { print chapters + 1, verses + 0 }' "$text.tmp")
[ "$counted" = "$chapters $verses" ] ||
    fail 3 "the text of 'bible' has (chapters verses) $counted, expected $chapters $verses"
mv "$text.tmp" "$text"

"$binary" prepare --input "$text" --document-marker "$marker" --tokenizer bytes --out "$out" --name kjv \
    --val-every 20 $force
