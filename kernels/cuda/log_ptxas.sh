#!/bin/sh
# Runs a compiler command and stores its messages (ptxas -v: registers and spills of each kernel) for the
# tests in OUTPUT.ptxas, next to its output file. Prints them only if the command fails or warns.
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
