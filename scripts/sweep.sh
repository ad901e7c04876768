#!/bin/sh
# Trains a config for every combination of the given values, and prints a table sorted by time to target.
# Usage: sweep.sh CONFIG [KEY=V1,V2...]... [seeds=1,2,3] [--jobs N] [--out DIR] [--name NAME] [--keep-failed] [--dry-run]
#                 [--speedrun PROGRAM] [-- OPTIONS of speedrun train]
#   KEY=V1,V2...   a key of `speedrun plan --options` and its values. Commas inside brackets, braces or double quotes do not
#                  separate: 'data.train=["a.bin","b.bin"],["c.bin"]' is two lists; "KEY=" is one empty text
#   seeds=1,2,3    every combination with each of these seeds; the table then has mean and standard deviation over the seeds
#   --jobs         parallel runs (default: 1). Each has an equal share of the cores, and of the GPUs if there are any
#   --out          folder of sweeps (default: logs)
#   --name         this sweep's folder in it (default: sweep-CONFIG's name)
#   --keep-failed  keep failed runs; without it, a second call repeats them
#   --dry-run      print the runs without running them
#   --speedrun     the program (default: build/release/speedrun in this repository, else from PATH)
#   after --       for all runs, for example: -- --set checkpoint.last=false --set schedule.steps=100
# OUT/NAME/ has a run folder per run, named by its values; RUN.log, its output; RUN.exit, its exit code; sweep.tsv, the table.
# A repeated call skips finished runs, continues stopped ones and repeats failed ones; values may be added. SIGINT
# (Ctrl-C) and SIGTERM let the runs save a checkpoint and end; a second one kills them.
# Exit: 0 all runs are done, 1 some failed or were stopped, 2 bad usage, 129/130/143 stopped by SIGHUP/SIGINT/SIGTERM.
set -uf
export LC_ALL=C

usage() {
    sed -n '2,/^set -u/{/^set -u/!s/^# \{0,1\}//p;}' "$0"
    exit "$1"
}
die() {
    echo "error: $1" >&2
    exit "${2:-2}"
}

jobs=1 out=logs name='' keep_failed='' dry_run='' speedrun='' config='' seeds='' num_keys=0
work=$(mktemp -d) || die "no temporary folder" 1
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT; trap 'exit 143' TERM
trap '' PIPE # a closed pipe on the output ends no run
separator=$(printf '\037') # between the values of a run: no value may contain it, and IFS keeps empty ones

# Prints the values of $1, one per line. Fails, with a reason, if it cannot be split.
split_values() {
    SWEEP_TEXT=$1 awk 'BEGIN {
        text = ENVIRON["SWEEP_TEXT"]
        if (text ~ /[[:cntrl:]]/) { print "holds a tab, a line end or another control character"; exit 1 }
        for (i = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            if (quoted) {
                if (c == "\\") { value = value c; c = substr(text, ++i, 1) }
                else if (c == "\"") quoted = 0
            } else if (c == "\"") quoted = 1
            else if (c ~ /[[{]/) depth++
            else if (c ~ /[]}]/) depth--
            else if (c == "," && depth == 0) { values[++n] = value; value = ""; continue }
            value = value c
        }
        values[++n] = value
        if (quoted || depth != 0) { print "has a bracket or a quote that is not closed"; exit 1 }
        for (i = 1; i <= n; i++) {
            if (n > 1 && values[i] == "") { print "has an empty value between commas"; exit 1 }
            if (values[i] in seen) { print "has the value " values[i] " twice"; exit 1 }
            seen[values[i]] = 1
        }
        for (i = 1; i <= n; i++) print values[i]
    }'
}

add_key() { # KEY=VALUES
    key=${1%%=*}
    case $key in
    seed | seeds)
        [ -z "$seeds" ] || die "seeds are given twice"
        seeds=$(split_values "${1#*=}") || die "$key $seeds"
        for seed in $seeds; do
            case $seed in *[!0-9]*) die "seeds: '$seed' is not a whole number" ;; esac
        done
        [ -n "$seeds" ] || die "$key: no seed is given"
        ;;
    '' | *[!A-Za-z0-9_.]*) die "'$1': expected KEY=V1,V2..., with a key of speedrun plan --options" ;;
    *)
        ! grep -qxF -e "$key" "$work/keys" 2>/dev/null || die "the key $key is given twice"
        num_keys=$((num_keys + 1))
        echo "$key" >>"$work/keys"
        split_values "${1#*=}" >"$work/values.$num_keys" || die "$key $(cat "$work/values.$num_keys")"
        ;;
    esac
}

while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage 0 ;;
    --jobs | --out | --name | --speedrun) case ${2-} in '' | --*) die "$1 needs a value; see --help" ;; esac ;;
    esac
    case $1 in
    --jobs) jobs=$2 && shift ;;
    --out) out=$2 && shift ;;
    --name) name=$2 && shift ;;
    --speedrun) speedrun=$2 && shift ;;
    --keep-failed) keep_failed=yes ;;
    --dry-run) dry_run=yes ;;
    --)
        shift
        break
        ;;
    -*) die "unknown option $1; see --help" ;;
    *=*) if [ -z "$config" ] && [ -f "$1" ]; then config=$1; else add_key "$1"; fi ;; # run folders contain '='
    *)
        [ -z "$config" ] || die "$1: there is a config already: $config; values are given as KEY=V1,V2..."
        config=$1
        ;;
    esac
    shift
done
# The remaining $@ is for speedrun train.
for option; do
    case $option in
    --name | --name=* | --out | --out=* | --resume | --resume=* | --seed | --seed=*)
        die "after --: $option is the sweep's own; see --help"
        ;;
    esac
done
[ -n "$config" ] || usage 2 >&2
[ -f "$config" ] || die "$config: no such config"
[ $num_keys -gt 0 ] || [ -n "$seeds" ] || die "nothing to sweep over: give KEY=V1,V2... or seeds=1,2,3; see --help"
case $jobs in '' | *[!0-9]* | 0*) die "--jobs $jobs: expected a number of runs, at least 1" ;; esac
if [ -z "$speedrun" ]; then
    speedrun=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)/build/release/speedrun
    [ -x "$speedrun" ] || speedrun=speedrun
fi
command -v "$speedrun" >/dev/null || die "$speedrun is not there: build it, or name it with --speedrun"
if [ -z "$name" ]; then
    name=${config##*/}
    name=sweep-${name%.json}
fi
case $name in . | .. | */*) die "--name $name: expected one folder name without '/'" ;; esac
folder=$out/$name

# ---- the runs: work/runs has a line for each: name, seed, values

: >>"$work/keys"
# A key's name in a run's name: the fewest last parts that distinguish it from the other keys.
awk -F . '{ key[NR] = $0 } END {
    for (i = 1; i <= NR; i++) {
        n = split(key[i], part, ".")
        short = part[n]
        for (p = n - 1; p >= 1; p--) {
            same = 0
            for (j = 1; j <= NR; j++) {
                at = length(key[j]) - length(short)
                if (j != i && substr(key[j], at + 1) == short && (at == 0 || substr(key[j], at, 1) == ".")) same = 1
            }
            if (!same) break
            short = part[p] "." short
        }
        print short
    }
}' "$work/keys" >"$work/short"

# A value in a run's name. Values with characters that are unsuitable for folder names are replaced by a checksum.
in_name() {
    plain=$(printf '%s' "$1" | tr -c 'A-Za-z0-9.+-' '_' | cut -c 1-40)
    [ "$plain" = "$1" ] || plain=$plain-$(printf '%s' "$1" | cksum | cut -d ' ' -f 1)
    printf '%s' "$plain"
}

print_run() { # NAME SEED VALUES
    run=$1
    [ ${#run} -le 200 ] || run=$(printf '%s' "$run" | cut -c 1-180)-$(printf '%s' "$run" | cksum | cut -d ' ' -f 1)
    printf '%s\n' "$run$separator$2$separator$3"
}

# expand KEY_NUMBER NAME VALUES: prints the runs of all values of this key and later ones.
expand() {
    if [ "$1" -gt "$num_keys" ]; then
        [ -n "$seeds" ] || print_run "$2" '' "$3"
        for seed in $seeds; do print_run "${2:+$2,}seed=$seed" "$seed" "$3"; done
        return
    fi
    while IFS= read -r value; do
        expand $(($1 + 1)) "${2:+$2,}$(sed -n "$1p" "$work/short")=$(in_name "$value")" "$3$value$separator"
    done <"$work/values.$1"
}
expand 1 '' '' >"$work/runs"
num_runs=$(wc -l <"$work/runs" | tr -d ' ')

# load INDEX: sets run, seed and values, a list with the separator after each value.
load() {
    line=$(sed -n "$1p" "$work/runs")
    run=${line%%"$separator"*}
    line=${line#*"$separator"}
    seed=${line%%"$separator"*}
    values=${line#*"$separator"}
}

# ---- completed runs

code_of() { cat "$folder/$1.exit" 2>/dev/null; }
has_no_loss() { grep -q '"val_loss": null' "$folder/$1/summary.json" 2>/dev/null; } # NaN; older programs report "done"
is_done() {
    if has_no_loss "$1" || ! grep -q '"status": "done"' "$folder/$1/summary.json" 2>/dev/null; then return 1; fi
    case $(code_of "$1") in 0 | '') return 0 ;; *) return 1 ;; esac
}
is_left() { # true if this call must not run it
    is_done "$1" && return 0
    [ -n "$keep_failed" ] || return 1
    case $(code_of "$1") in '' | 129 | 130 | 138 | 140 | 143 | 152) return 1 ;; *) return 0 ;; esac
}

# ---- cores and GPUs of each slot

# cores_of SLOT: prints its share of this process's cores, in taskset's format. Empty: too few cores.
all_cores=$(taskset -cp $$ 2>/dev/null | sed 's/.*: //' | tr ',' '\n' | awk -F - '{ for (i = $1; i <= $NF; i++) print i }')
share() { # LIST SLOT: the SLOT-th of $jobs parts
    printf '%s\n' "$1" | awk -v slot="$2" -v jobs="$jobs" '{ line[NR] = $0 } END {
        for (i = int(slot * NR / jobs); i < int((slot + 1) * NR / jobs); i++) printf "%s%s", (n++ ? "," : ""), line[i + 1] }'
}
count() { printf '%s' "$1" | grep -c .; }
num_cores=$(count "$all_cores")
gpus=''
if [ "$jobs" -gt 1 ]; then
    [ "$num_cores" -gt 0 ] || num_cores=$(nproc)
    threads=$((num_cores / jobs))
    if [ "$threads" -lt 1 ]; then
        threads=1 all_cores=''
        echo "note: $jobs runs at once share $num_cores cores: their times are not those of a run alone" >&2
    fi
    num_gpus=$("$speedrun" doctor --json 2>/dev/null | grep -c '"value": ".*compute capability')
    if [ "$num_gpus" -gt 0 ]; then
        gpus=$(printf '%s' "${CUDA_VISIBLE_DEVICES:-}" | tr ',' '\n')
        [ -n "$gpus" ] || gpus=$(seq 0 $((num_gpus - 1)))
        [ "$num_gpus" -ge "$jobs" ] || echo "note: $jobs runs at once share $num_gpus GPUs" >&2
    fi
fi
gpus_of() {
    mine=$(share "$gpus" "$1")
    [ -n "$mine" ] || mine=$(printf '%s\n' "$gpus" | sed -n "$(($1 % num_gpus + 1))p")
    printf '%s' "$mine"
}

# command_of SLOT OPTIONS...: passes the loaded run's command to the function $then. Its own settings are last and have
# precedence.
command_of() {
    slot=$1 rest=$values index=1
    shift
    while [ -n "$rest" ]; do
        set -- "$@" --set "$(sed -n "${index}p" "$work/keys")=${rest%%"$separator"*}"
        rest=${rest#*"$separator"} index=$((index + 1))
    done
    [ -z "$seed" ] || set -- "$@" --seed "$seed"
    if [ "$jobs" -gt 1 ]; then set -- --set "threads=$threads" "$@"; fi
    set -- "$speedrun" train "$config" --quiet --out "$folder" --name "$run" "$@"
    if [ "$jobs" -gt 1 ] && [ -n "$all_cores" ]; then set -- taskset -c "$(share "$all_cores" "$slot")" "$@"; fi
    if [ -n "$gpus" ]; then set -- env CUDA_VISIBLE_DEVICES="$(gpus_of "$slot")" "$@"; fi
    $then "$@"
}

if [ -n "$dry_run" ]; then
    quoted() {
        line=''
        for word; do
            case $word in
            *[!A-Za-z0-9_./=,:+-]* | '') word=\'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")\' ;;
            esac
            line="$line $word"
        done
        printf '%s\n' "${line# }"
    }
    then=quoted
    for number in $(seq "$num_runs"); do
        load "$number"
        if is_left "$run"; then
            echo "[$number/$num_runs] $run: left as it is"
        else
            echo "[$number/$num_runs] $run"
            command_of $(((number - 1) % jobs)) "$@"
        fi
    done
    exit 0
fi

# ---- the sweep's folder: one config, fixed keys (runs are named by their short names) and options, one sweep at a time

mkdir -p "$folder" || die "$folder cannot be made" 1
exec 9>>"$folder/.lock" || die "$folder cannot be written to" 1
# The file is written after the lock is taken.
flock -n 9 || die "$folder is in use by another sweep, or by a run that a killed sweep left behind: $(sleep 0.2; cat "$folder/.lock")"
echo "process $$ on $(uname -n) since $(date -u '+%Y-%m-%d %H:%M:%S') UTC" >"$folder/.lock"
{
    sed 's/^/key /' "$work/keys"
    for option; do printf 'option %s\n' "$option"; done
} >"$work/options"
if [ -f "$folder/base.json" ]; then
    cmp -s "$config" "$folder/base.json" || die "$folder has runs of another config than $config: see $folder/base.json, or give another --name"
    cmp -s "$work/options" "$folder/options" || die "$folder has runs of other keys, or with other options after --: see $folder/options, or give another --name"
else
    if ! { cp "$work/options" "$folder/options" && cp "$config" "$folder/base.json"; }; then die "$folder cannot be written to" 1; fi
fi

# shellcheck source=scripts/sweep_table.sh
. "$(dirname -- "$0")/sweep_table.sh"

# ---- running

stopped='' stopped_at=0 active=0 settled=0 next=1
mkfifo "$work/ended" || die "no pipe in $work" 1
exec 3<>"$work/ended"
for slot in $(seq 0 $((jobs - 1))); do eval "index_$slot='' pid_$slot=''"; done

# Starts the loaded run's command in the background, in its own session, so that Ctrl-C does not reach it. A second shell waits
# for it, forwards a stop (USR1 to this shell), stores the exit code, and writes the slot's number to fd 3.
launch() {
    (
        trap : HUP INT TERM
        pid=''
        trap '[ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null' USR1
        setsid "$@" >"$folder/$run.log" 2>&1 </dev/null 3>&- &
        pid=$!
        [ ! -e "$work/stop" ] || kill -TERM "$pid" 2>/dev/null
        wait "$pid"
        code=$?
        # A signal to this shell interrupts its wait, not the run.
        while kill -0 "$pid" 2>/dev/null; do
            wait "$pid"
            code=$?
        done
        echo "$code" >"$folder/$run.exit.part" && mv "$folder/$run.exit.part" "$folder/$run.exit"
        echo "$slot" >&3
    ) &
    eval "index_$slot=$started pid_$slot=$!"
}

start() { # OPTIONS...: starts the loaded run in a free slot; removes the files of a failed run unless it can be continued
    slot=0
    while eval "[ -n \"\$index_$slot\" ]"; do slot=$((slot + 1)); done
    if [ -d "$folder/$run" ]; then
        saved=$(find "$folder/$run/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null)
        if [ -n "$saved" ] && [ "$(code_of "$run")" != 4 ] && ! has_no_loss "$run"; then
            set -- "$@" --resume auto
        else
            rm -rf "${folder:?}/${run:?}"
        fi
    fi
    rm -f "$folder/$run.exit"
    then=launch
    command_of "$slot" "$@"
    active=$((active + 1))
}

say_settled() { # reports the result of the loaded run
    settled=$((settled + 1))
    measure "$run"
    line="[$settled/$num_runs] $run: $status"
    case $status in
    done)
        line="$line, loss $(printf '%.4f' "$loss"), $train_s s"
        [ "$target_s" = - ] || line="$line, target after $target_s s"
        ;;
    failed) line="$line (exit $code): $message" ;;
    diverged | killed) line="$line: $message" ;;
    esac
    echo "$line${1:-}"
}

# The first signal lets the runs save and end; a second one kills them, unless it repeats the first within 2 s (as timeout does).
on_signal() {
    [ "$(date +%s)" -gt $((stopped_at + 1)) ] || return 0
    stopped_at=$(date +%s)
    [ -n "$stopped" ] || echo "stopping: $active runs save a checkpoint and end; again to end them at once" >&2
    stopped=$1
    : >"$work/stop"
    for slot in $(seq 0 $((jobs - 1))); do
        eval "[ -z \"\$index_$slot\" ] || kill -USR1 \"\$pid_$slot\"" 2>/dev/null
    done
}
trap '' USR1 # a waiting shell without its trap yet uses the file
trap 'on_signal 129' HUP
trap 'on_signal 130' INT
trap 'on_signal 143' TERM

echo "$folder: $num_runs runs, $jobs at once$([ "$jobs" -eq 1 ] || echo ", threads each: $threads")"
while :; do
    while [ -z "$stopped" ] && [ "$active" -lt "$jobs" ] && [ "$next" -le "$num_runs" ]; do
        load "$next"
        started=$next next=$((next + 1))
        if is_left "$run"; then say_settled " (before)"; else start "$@"; fi
    done
    [ "$active" -gt 0 ] || break
    read -r slot <&3 || continue # interrupted by a signal
    eval "load \"\$index_$slot\"; wait \"\$pid_$slot\"; index_$slot=''"
    active=$((active - 1))
    say_settled
done

write_tables
num_done=$(awk -F '\t' -v keys="$num_keys" '$(keys + 6) == "done"' "$work/rows" | wc -l)
echo
echo "$folder/sweep.tsv: $((num_done)) of $num_runs runs are done"
if [ -n "$stopped" ]; then
    echo "stopped; the same command again goes on from here"
    exit "$stopped"
fi
[ "$num_done" -eq "$num_runs" ]
