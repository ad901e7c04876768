#!/bin/sh
# Runs a command with the CPU's operations at one instruction set level. Exit code 77 ("skipped" for ctest) if the processor
# lacks it. Usage: at_isa.sh avx2|avx512|avx512_bf16|amx_bf16 COMMAND...
set -eu
isa=$1
shift
case $isa in
avx2) needed="avx2 fma" ;;
avx512) needed="avx512f avx512bw avx512cd avx512dq avx512vl" ;;
*) needed=$isa ;;
esac
for flag in $needed; do
    if ! grep -qw "$flag" /proc/cpuinfo; then
        echo "skipped: this processor has no $flag"
        exit 77
    fi
done
SPEEDRUN_ISA=$isa exec "$@"
