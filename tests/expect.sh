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
# wait_until COMMAND...: repeats it until it succeeds; a failure after a minute, which a busy machine may need.
wait_until() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        if [ $tries -ge 600 ]; then fail "waited a minute for: $*"; return; fi
        tries=$((tries + 1))
        sleep 0.1
    done
}
