#!/bin/sh
# Compares the speed of two commits of the engine. It builds both (in build/systems/COMMIT) and trains one config with both,
# alternating, with equal seeds. It writes a systems-only record with the newer one that names both commits. It is a record
# if every loss equals the older build's within the track's margin and the time is lower. Needs an otherwise idle machine;
# one rank.
# Usage: systems_record.sh [--new NEW] OLD CONFIG [OPTION...]
#   OLD, NEW   a commit, or a program (NEW: default HEAD).
#   CONFIG     a config, or a record's folder for its config; to lead its board, the leading record's.
#   OPTION     options of `speedrun records attempt`, such as --runs 5 --name faster --what "what changed" --class open
# The same command continues an interrupted race. Exit: the attempt's exit code; 1 if a build fails, 2 bad usage.
set -eu
# Paths are relative to the caller's folder; programs and worktrees are below the repository.
root=$(cd "$(dirname "$0")/.." && pwd)
new=HEAD
if [ "${1:-}" = --new ] && [ $# -ge 2 ]; then
    new=$2
    shift 2
fi
case ${1:---help} in
-*)
    sed -n '2,/^set -eu/{/^set -eu/!s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
    ;;
esac
[ $# -ge 2 ] || { echo "error: OLD and CONFIG are expected" >&2; exit 2; }
. "$root/scripts/program_of.sh"
old=$1 config=$2
shift 2
old=$(program_of "$old" "$root/build/systems") || exit 1
new=$(program_of "$new" "$root/build/systems") || exit 1
echo "old: $old"
echo "new: $new"
exec "$new" records attempt "$config" --baseline-binary "$old" "$@"
