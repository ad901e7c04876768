#!/bin/sh
# Disturbs runs at random moments and continues them until each has completed. The result must be bitwise equal to the
# undisturbed run, and a run stopped by a signal must have saved a checkpoint. Two ranks under every strategy and a mesh, and
# one rank.
# Usage: kill_campaign.sh [--kills N] [--seed S] [--speedrun PATH] [--mpiexec PATH] [--out TABLE.md]
#   --kills N   total number of disturbances (120)
# Disturbances: kill -9 of a rank (or of its supervisor), of mpirun, of a rank while a checkpoint is being written; SIGTERM and
# SIGUSR1; a temporarily full disk and then a kill, if a file system can be mounted on the folder of runs (root).
# Ctrl-C: no further disturbances; running ones complete.
# Exit code 0: every run had the expected result. The folder of a failed run is kept, and named.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
kills=120 seed=1 out="" speedrun="" mpiexec=mpirun
# shellcheck disable=SC2034  # for options.sh
options='kills seed speedrun mpiexec out' positionals=0
# shellcheck source=scripts/options.sh
. "$root/scripts/options.sh"
[ -n "$speedrun" ] || speedrun=$root/build/release/speedrun
[ -x "$speedrun" ] || { echo "error: $speedrun is not there; build it, or say --speedrun" >&2; exit 2; }
speedrun=$(cd "$(dirname "$speedrun")" && pwd)/$(basename "$speedrun")
case $out in "" | /*) ;; *) out=$PWD/$out ;; esac
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1

work=$(mktemp -d)
disk=no
cleanup() {
    pkill -9 -f "$work/" 2>/dev/null
    [ $disk = no ] || umount "$work/logs"
    if [ "$wrong" -eq 0 ]; then rm -rf "$work"; else echo "kept: $work"; fi
}
wrong=0
trap cleanup EXIT
trap 'kills=0' INT
trap 'exit 143' TERM
cd "$work" || exit 1
. "$root/tests/runs/tiny_run.sh"
"$speedrun" prepare --input text.txt --out tiny --document-marker %% --val-every 10 >prepare.out 2>&1 || { cat prepare.out; exit 1; }
mkdir logs
if mount -t tmpfs -o size=24m tmpfs logs 2>/dev/null; then disk=yes; fi

modes="one ddp zero1 zero2 zero3 tensor"
harms="rank watcher save term usr1 mpirun"
[ $disk = no ] || harms="$harms disk"
num_steps=80
# run_words MODE: prints the command of its runs, without --name.
run_words() {
    words="train $work/tiny.json --quiet --set schedule.steps=$num_steps --set eval.every=20 --set checkpoint.every=2 --set batch.microbatch_tokens=128"
    case $1 in
    one) echo "$speedrun $words" ;;
    tensor) echo "$mpiexec -n 2 --oversubscribe --bind-to none $speedrun $words --set parallel.tensor=2" ;;
    *) echo "$mpiexec -n 2 --oversubscribe --bind-to none $speedrun $words --set parallel.strategy=$1" ;;
    esac
}
losses() { grep -o '"step":[0-9]*,"loss":[0-9.e-]*' "logs/$1/metrics.jsonl"; }
# Prints the processes of a run's ranks, supervisors first: each rank has two.
processes_of() { pgrep -f "^$speedrun train .*--name $1( |\$)" | sort -n; }
draw() { # BELOW -> drawn
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}
draw_of() { # NUMBERS OR WORDS… -> drawn
    if [ $# -eq 0 ]; then
        drawn=
        return
    fi
    draw $#
    shift "$drawn"
    drawn=$1
}
num_steps_of() { grep -c '"event":"step"' "logs/$1/metrics.jsonl" 2>/dev/null || true; }
saving() { ls -d "logs/$1"/checkpoints/.step-* >/dev/null 2>&1; }
is_wrong() {
    echo "WRONG: $1"
    wrong=$((wrong + 1))
}

# harm MODE HOW PID: disturbs run $1, started by process PID.
harm() {
    draw 8
    if [ "$drawn" -eq 0 ]; then # during start-up
        draw 600
        sleep "0.$(printf '%03d' "$drawn")"
    else
        draw 20
        have=$(num_steps_of "$1")
        target=$((${have:-0} + 1 + drawn))
        while have=$(num_steps_of "$1") && [ "${have:-0}" -lt $target ] && kill -0 "$3" 2>/dev/null; do sleep 0.01; done
    fi
    drawn=$3
    # shellcheck disable=SC2046  # numbers
    case $2 in
    rank) draw_of $(processes_of "$1" | tail -n "$([ "$1" = one ] && echo 1 || echo 2)") ;;
    watcher) drawn=$(processes_of "$1" | head -n 1) ;;
    save)
        tries=0
        until saving "$1" || [ $tries -ge 200 ]; do tries=$((tries + 1)); done
        draw_of $(processes_of "$1")
        ;;
    disk)
        dd if=/dev/zero of=logs/filler bs=64k >/dev/null 2>&1
        draw 300
        sleep "0.$(printf '%03d' "$drawn")"
        draw_of $(processes_of "$1")
        ;;
    esac
    case $2 in
    term) kill -TERM "$3" 2>/dev/null ;;
    usr1) kill -USR1 "$3" 2>/dev/null ;;
    *) [ -z "$drawn" ] || kill -KILL "$drawn" 2>/dev/null ;;
    esac
    if saving "$1"; then during=$((during + 1)); fi
}

# ended MODE: compares the completed run with the undisturbed one.
ended() {
    losses "$1" >"$1.loss"
    cmp -s "whole-$1.loss" "$1.loss" || is_wrong "$1: other losses ($work/logs/$1)"
    last=checkpoints/$(printf 'step-%08d' $num_steps)
    for file in "$work/whole-$1/$last"/*.safetensors; do
        cmp -s "$file" "logs/$1/$last/$(basename "$file")" || is_wrong "$1: another $(basename "$file") ($work/logs/$1)"
    done
    [ $wrong -ne 0 ] || rm -r "logs/$1"
    echo "$1 ended" >>tally
}

for mode in $modes; do
    # shellcheck disable=SC2046  # words
    $(run_words "$mode") --name "whole-$mode" >whole.out 2>&1 || { cat whole.out; exit 1; }
    losses "whole-$mode" >"whole-$mode.loss"
    mv "logs/whole-$mode" .
done
done_kills=0 during=0
began=$(date +%s)
while [ $done_kills -lt "$kills" ] && [ $wrong -eq 0 ]; do
    for mode in $modes; do
        # shellcheck disable=SC2086  # a list
        draw_of $harms
        how=$drawn
        [ "$mode $how" != "one mpirun" ] || how=rank
        # shellcheck disable=SC2046
        $(run_words "$mode") --name "$mode" --resume auto >out 2>&1 &
        pid=$!
        during_before=$during
        harm "$mode" "$how" $pid
        wait $pid 2>/dev/null
        code=$?
        # Ranks exit by themselves after their launcher was killed.
        tries=0
        while [ -n "$(processes_of "$mode")" ] && [ $tries -lt 600 ]; do
            sleep 0.05
            tries=$((tries + 1))
        done
        [ -z "$(processes_of "$mode")" ] || is_wrong "$mode: ranks are still there after $how"
        rm -f logs/filler
        case $how.$code in
        *.0) ended "$mode" ;;
        *.2 | *.3 | *.4) is_wrong "$mode: refused or diverged ($code) after $how: $(cat out)" ;;
        esac
        [ "$code" -eq 0 ] || done_kills=$((done_kills + 1))
        [ $((done_kills % 50)) -ne 0 ] || [ "$code" -eq 0 ] || echo "$done_kills of $kills harms, $(($(date +%s) - began)) s"
        [ "$code" -eq 0 ] || echo "$mode $how $((during - during_before))" >>tally
        [ $wrong -eq 0 ] || break
    done
done
for mode in $modes; do
    [ $wrong -eq 0 ] || break
    # shellcheck disable=SC2046
    $(run_words "$mode") --name "$mode" --resume auto >out 2>&1 || is_wrong "$mode: does not come to its end: $(cat out)"
    ended "$mode"
done

table() {
    echo "| | $(echo "$harms" | sed 's/ / | /g') | while saving | runs that ended as if unharmed |"
    echo "|---|$(echo "$harms" | sed 's/[a-z0-9]*/---|/g; s/ //g')---|---|"
    for mode in $modes; do
        line="| $mode"
        for how in $harms; do line="$line | $(grep -c "^$mode $how " tally)"; done
        echo "$line | $(grep -c "^$mode .* 1\$" tally) | $(grep -c "^$mode ended" tally) |"
    done
}
summary="$done_kills harms, $during of them while a checkpoint was being written, $(grep -c ' ended$' tally) runs; $wrong wrong; $(($(date +%s) - began)) s"
echo "$summary"
table
if [ -n "$out" ] && [ $wrong -eq 0 ]; then
    { echo "$summary"; echo; table; } >"$out"
fi
[ $wrong -eq 0 ]
