#!/bin/sh
# What the pages for people say beside commands (those are readme_test.sh's): README.md and docs/ keep to their sizes, every
# link leads to a file and a heading that are there, also those in comments and messages, and the figures of the race are those
# of the records. Usage: pages_test.sh SPEEDRUN SOURCE_ROOT
# ctest: ARGS SPEEDRUN ROOT PROPERTIES TIMEOUT 60
set -u
speedrun=$(realpath "$1") root=$2
max_lines=100 max_words=900 # of README.md
max_page_words=1500 max_cell_words=25
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }

# Text of a page without blocks of code.
prose_of() {
    awk '/^ *```/ { inside = !inside; next } !inside' "$1"
}
# Anchors of a page's headings, as GitHub makes them: lower case, without punctuation, a hyphen for each blank.
anchors_of() {
    prose_of "$1" | sed -n 's/^##* *//p' | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}
# Targets of a page's links and pictures that are no addresses of the web.
links_of() {
    prose_of "$1" | sed 's/`[^`]*`//g' | grep -o '\]([^)]*)' | sed 's/^](//; s/)$//' | grep -vE '^(https?|mailto):'
}
# Links of the page $1, a line each, that lead nowhere.
broken_links() {
    links_of "$1" | while IFS= read -r link; do
        case $link in
        \#*) target=$1 ;;
        *) target=$(dirname "$1")/${link%%#*} ;;
        esac
        if [ ! -e "$target" ]; then
            echo "$link"
        else
            case $link in *\#*) anchors_of "$target" | grep -qxF -- "${link#*\#}" || echo "$link" ;; esac
        fi
    done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# That it finds what is wrong.
cat >"$work/sample.md" <<'J'
# A page, with a heading
[a](sample.md), [b](missing.md) and ![c](#a-page-with-a-heading); `[d](not_a_link.md)`
[e](sample.md#no-such-heading) [f](https://example.org/x) [g](sample.md#a-page-with-a-heading)
```
[h](nor_this.md)
# Nor is this a heading
```
[i](#nor-is-this-a-heading)
J
[ "$(broken_links "$work/sample.md" | tr '\n' ' ')" = 'missing.md sample.md#no-such-heading #nor-is-this-a-heading ' ] ||
    fail "the broken links of a sample are said to be: $(broken_links "$work/sample.md" | tr '\n' ' ')"

# Cells of tables with too many words: LINE_NUMBER: the cell's first words.
long_cells() {
    awk -v most=$max_cell_words -F '|' '/^ *```/ { inside = !inside }
        !inside && /^[|]/ { for (i = 2; i < NF; ++i) if (split($i, word, " ") > most) print NR ": " substr($i, 1, 60) }' "$1"
}
awk 'BEGIN { for (i = 0; i < 26; ++i) long = long " word"; print "| a | b |\n| short |" long " |" }' >"$work/sample.md"
[ "$(long_cells "$work/sample.md" | cut -d ' ' -f 1)" = 2: ] || fail "the long cell of a sample is not found"

[ "$(wc -l <"$root/README.md")" -le $max_lines ] || fail "README.md has more than $max_lines lines: move some of it to docs/"
[ "$(wc -w <"$root/README.md")" -le $max_words ] || fail "README.md has more than $max_words words (wc -w): move some of it to docs/"

find "$root" -name '*.md' -not -path "$root/build/*" -not -path "$root/logs/*" -not -path "$root/.git/*" >"$work/pages"
[ "$(wc -l <"$work/pages")" -ge 40 ] || fail "only $(wc -l <"$work/pages") pages are found"
while IFS= read -r page; do
    for link in $(broken_links "$page"); do fail "${page#"$root/"}: the link $link leads nowhere"; done
done <"$work/pages"
for page in "$root"/docs/*.md; do
    name=${page#"$root/"}
    long_cells "$page" >"$work/cells"
    [ ! -s "$work/cells" ] || fail "$name has cells of more than $max_cell_words words:
$(cat "$work/cells")"
    case $name in
    docs/leaderboard.md | docs/history.md) ;; # boards as they are printed
    *) [ "$(wc -w <"$page")" -le $max_page_words ] || fail "$name has more than $max_page_words words (wc -w): split it by purpose" ;;
    esac
    grep -qF "](docs/${page##*/})" "$root/README.md" || fail "README.md does not lead to docs/${page##*/}"
done
# What comments, scripts and messages call docs/<page>.md.
grep -rhoE 'docs/[a-z_-]+\.md' "$root/train" "$root/kernels" "$root/data" "$root/scripts" "$root/tests" "$root/configs" | sort -u >"$work/named"
while IFS= read -r page; do
    [ -f "$root/$page" ] || fail "$page is named in the code or in a script, and is not there: grep -rn $page"
done <"$work/named"

# docs/leaderboard.md and docs/history.md show the boards as they are printed, README.md seconds and factors.
cd "$root" || exit 1
if "$speedrun" records list records/kjv --markdown >"$work/board" 2>&1; then
    sed 's|](records/|](../records/|' "$work/board" >"$work/lines"
    while IFS= read -r line; do
        grep -qxF -- "$line" docs/leaderboard.md docs/history.md || fail "docs/leaderboard.md and docs/history.md lack the line (see: speedrun records list records/kjv --markdown)
    $line"
    done <"$work/lines"
    # README.md has one or two tables of records: the first boards of the first class, the rows in any order. Of each row the class,
    # the record, its seconds and its factor.
    awk -F ' *[|] *' '/^\*\*/ { split($0, part, "*"); name = part[3]; if (first == "") first = name; if (name == first) ++boards }
        /^\| record / { for (i = 2; i <= NF; ++i) column[$i] = i }
        /^\| \[/ && name == first && boards <= 2 {
            split($column["training s"], seconds, " "); split($column["against its predecessor"], factor, " ")
            print name, $2, seconds[1], factor[1] }' \
        "$work/board" | sort >"$work/rows"
    [ "$(wc -l <"$work/rows")" -ge 4 ] || fail "the leaderboard cannot be read: $(cat "$work/board")"
    awk -F ' *[|] *' '/^\*\*/ { split($0, part, "*"); name = part[3] }
        /^\| \[[^]]*\]\(records/ { print name, $2, $3, $4 }' README.md | sort >"$work/front"
    diff "$work/rows" "$work/front" >"$work/differences" || fail "README.md has other rows than the boards of the first class (<: boards, class record seconds factor):
$(cat "$work/differences")"
    tables=$(grep -c '^| record |' README.md)
    [ "$tables" -ge 1 ] && [ "$tables" -le 2 ] || fail "README.md has $tables tables of records, one or two are expected"
else
    fail "records cannot be listed: $(cat "$work/board")"
fi

[ $failures -eq 0 ] && echo "$(wc -l <"$work/pages") pages: links, figures and the size of README.md are right"
exit $failures
