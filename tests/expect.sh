# shellcheck shell=sh
# Sourced by scripts that test commands: creates an empty folder $work, which is removed when the script ends, and changes into
# it. Provides checks of commands. The script must end with `exit $failures`.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$work" || exit 1
failures=0

fail() { echo "FAILED: $1"; sed 's/^/    /' out; failures=$((failures + 1)); }
# expect CODE TEXT COMMAND...: the command must exit with CODE and print TEXT (a grep pattern).
expect() {
    code=$1; text=$2; shift 2
    "$@" >out 2>&1 </dev/null
    got=$?
    if [ "$got" -ne "$code" ]; then fail "exit $got instead of $code: $*"; return; fi
    grep -q -e "$text" out || fail "no '$text' in the output of: $*"
}
# check DESCRIPTION COMMAND...: the command must succeed.
check() {
    description=$1; shift
    "$@" >/dev/null 2>&1 || fail "$description: $*"
}
# has FILE TEXT...: the file has each text (a grep pattern). printed TEXT...: the last output has each.
has() {
    of=$1; shift
    for each; do grep -q -e "$each" "$of" || fail "no '$each' in $of"; done
}
printed() { has out "$@"; }
# start RUN COMMAND...: runs in the background as $pid, and waits for the first line of logs/RUN/metrics.jsonl.
start() {
    run=$1; shift
    "$@" >out 2>&1 </dev/null &
    pid=$!
    wait_until test -s "logs/$run/metrics.jsonl"
}
# ended CODE: the process $pid ends with CODE.
ended() {
    wait "$pid"
    got=$?
    [ $got -eq "$1" ] || fail "exit $got instead of $1${run:+ of $run}"
}
steps_of() { grep -c '"event":"step"' "logs/$1/metrics.jsonl"; }
# is_saved RUN [FILE]: the checkpoint of its last step has the file (default: checkpoint.json).
is_saved() {
    [ -s "logs/$1/checkpoints/$(printf 'step-%08d' "$(steps_of "$1")")/${2:-checkpoint.json}" ] || fail "$1 left no checkpoint of its last step"
}
# wait_until COMMAND...: repeats it until it succeeds; a failure after a minute, which a busy machine may need.
wait_until() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        if [ $tries -ge 600 ]; then fail "waited a minute for: $*"; return; fi
        tries=$((tries + 1))
        sleep 0.1
    done
}
