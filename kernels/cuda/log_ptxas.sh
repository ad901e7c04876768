#!/bin/sh
# Runs a compiler command and keeps what it says (ptxas -v: registers and spills of each kernel) beside its output
# file, OUTPUT.ptxas, for the tests; shows it only where the command fails or warns.
output=""
previous=""
for argument in "$@"; do
    [ "$previous" = "-o" ] && output=$argument
    previous=$argument
done
[ -n "$output" ] || exec "$@"
"$@" 2>"$output.ptxas"
code=$?
if [ $code -ne 0 ]; then
    cat "$output.ptxas" >&2
else
    grep -i 'warning' "$output.ptxas" >&2
fi
exit $code
