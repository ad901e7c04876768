#!/bin/sh
# An option without a value is an error that names it, for every option of every command: --name=$RUN --quiet with empty RUN.
# Usage: option_values_test.sh SPEEDRUN
# ctest: ARGS SPEEDRUN PROPERTIES TIMEOUT 120
set -u
speedrun=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../expect.sh"
. "$here/tiny_run.sh"

commands() { "$speedrun" "$@" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]\{1,\}\)  *.*/\1/p'; }
commands >names
commands records | sed 's/^/records /' >>names
[ "$(wc -l <names)" -ge 16 ] || fail "these commands were found: $(cat names)"
tried=0
while read -r command; do
    # shellcheck disable=SC2086  # words
    "$speedrun" $command --help | grep -o '^  \(-h,\)\{0,1\}--[a-z-]*\( [A-Z].*\)\{0,1\}' | sed 's/-h,//' >options
    while read -r option type; do
        tried=$((tried + 1))
        # shellcheck disable=SC2086
        expect 2 "^error: $option=: nothing after '='" "$speedrun" $command "$option=" --help
        [ -n "$type" ] || continue
        # shellcheck disable=SC2086
        {
            expect 2 "^error: $option: the value is empty" "$speedrun" $command "$option" "" --help
            expect 2 "^error: $option: the value is missing before --help" "$speedrun" $command "$option" --help
            expect 2 "^error: $option: the value is missing before -- (" "$speedrun" $command "$option" --
        }
    done <options
done <names
[ $tried -ge 80 ] || fail "only $tried options were tried"
[ "$(ls)" = "$(printf 'names\noptions\nout\ntext.txt\ntiny.json')" ] || fail "something was written: $(ls)"

# Values that look like options are accepted, and arguments after --.
expect 0 "train" "$speedrun" prepare --input text.txt --out=tiny --document-marker %% --val-every 10
expect 0 '"track": ""' "$speedrun" plan tiny.json --set record.track= --set=record.track=
expect 0 "done" "$speedrun" train tiny.json --name=--quiet --set schedule.steps=1
[ -s logs/--quiet/summary.json ] || fail "a name that looks like an option is not taken where it is meant"
expect 2 "temperature.*-1 not in range" "$speedrun" sample logs/--quiet --temperature -1
expect 0 "a=b= --name" "$speedrun" sample logs/--quiet --prompt "a=b= --name" --tokens 0
printf '#!/bin/sh\necho "$*"\n' >speedrun-says
chmod +x speedrun-says
expect 0 "train tiny.json --name a --seed= --set --quiet --resume auto" "$speedrun" launch -- ./speedrun-says train tiny.json --name a --seed= --set --quiet
exit $failures
