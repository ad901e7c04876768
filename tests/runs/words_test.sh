#!/bin/sh
# scripts/check_words.py: every folder of this tree is below the limits, and each fault planted in a small tree is reported.
# Usage: words_test.sh ROOT
# ctest: ARGS ROOT PROPERTIES TIMEOUT 60
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is missing"; exit 77; }
git -C "$root" rev-parse 2>/dev/null || { echo "skipped: $root is no git checkout"; exit 77; }
# shellcheck source=tests/expect.sh
. "$root/tests/expect.sh"
check=$root/scripts/check_words.py

expect 2 'nowhere: no such file or folder' python3 "$check" nowhere
expect 2 'unrecognized arguments' python3 "$check" --unknown
expect 0 'Limits\?\|limit by folder' python3 "$check" --help

git init -q . && git config user.email a@b && git config user.name a
mkdir -p code pages build records
reset() { printf '// Returns the sum.\nint sum();\n' >code/a.h; printf '# Title\nA page.\n' >pages/a.md; }
reset
git add code pages && git commit -qm base
expect 0 'code .*1 .*3 .*0' python3 "$check"

# planted MESSAGE FILE LINE: the line, twice and apart, is reported with the message.
planted() {
    printf '%s\nint x;\n%s\n' "$3" "$3" >>"$2"
    expect 1 "$1" python3 "$check"
    git add --intent-to-add .
    expect 1 'exceeds a limit' python3 "$check" --change HEAD
    reset
}
planted 'code/a.h:3: headless: starts without a noun: Of the order' code/a.h '// Of the order.'
planted 'code/a.h:3: headless: .*: Whose ranks' code/a.h 'int y;  // Whose ranks wait'
planted 'code/a.h:3: headless: .*: by a rank' code/a.h 'throw_usage("by a rank that is {}", rank);'
planted 'code/a.h:3: relative: "what"' code/a.h '// Returns what is read.'
planted 'code/a.sh:1: relative: "those"' code/a.sh '# Copies those files.'
rm code/a.sh
planted 'code/a.h:3: private: "at once": together' code/a.h '// Frees the memory at once.'
planted 'pages/a.md:.*: relative: "who"' pages/a.md '| the user who starts it | 2 |'
words='a b c d e f g h i j k l m n o p q r s t u v w x'
planted 'code/a.h:3: long: 26 words' code/a.h "// $words y z."
# Allowed: one finding, 25 words, a page's paragraph with any start, code in a page, build output and records.
printf '// Of the order. %s y.\n' "$words" >>code/a.h
printf 'By default:\n```\nwhat what what\n```\n' >>pages/a.md
printf '// what what what\n' | tee build/a.h >records/a.h
git add -f build records
expect 0 'code  *2  *31  *1  *0  *0  *0' python3 "$check" --list 0
# A comment of two lines is one text; a quoted comment is a string.
printf '// Returns the\n// what of\nchar b[] = "// Of a file of rows";\n' >code/a.h
expect 0 'code  *2  *10  *1  *1 ' python3 "$check"

in_root() { (cd "$root" && python3 "$check"); }
expect 0 'train/engine' in_root
exit $failures
