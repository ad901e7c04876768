#!/bin/sh
# Runs the commands of the root's README.md and of docs/; pages_test.sh checks the other contents.
# Usage: readme_test.sh SPEEDRUN SOURCE_ROOT [MPIEXEC]
#
# A command is a line (or a loop, or lines joined by \) of a fenced block without a language or with sh; output belongs in a
# block of another language, ```text. Code within a sentence counts if it starts with speedrun, mpirun or a script and has
# arguments. The mark "not in this version" in its line excludes it. Every command must be known to runs_here() or elsewhere();
# otherwise the test fails with its name. Each new command must be added to one of them.
#
# Commands run unchanged in a folder like the repository's root. Its build/release/speedrun shortens training to a model of 2
# layers x 64, SPEEDRUN_README_STEPS steps (default: 4; with --trace 12) and few validation tokens. `bench` only has its steps
# reduced to 2. In a pattern (CONFIG, RUN_FOLDER, [--option VALUE] ...) bracketed parts are removed and words replaced by
# fill_in(). Every option in it must be in the command's --help.
# ctest: ARGS SPEEDRUN ROOT MPIEXEC PROPERTIES TIMEOUT 600 COST 100 ENVIRONMENT mpi
# Covers: train/commands/exchange_commands.cpp
set -u
speedrun=$(realpath "$1") root=$2 mpiexec=$(command -v "${3:-no_mpi}")
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }

# runs_here COMMAND: true if this test runs the command.
runs_here() {
    case $1 in
    */usr/share/speedrun/* | *"records attempt configs/fineweb"* | *"records trial "* | *"records counts"* | *"records rerun"* | *"launch "*" --hosts "*) return 1 ;;
    speedrun\ * | build/release/speedrun\ * | scripts/sweep.sh\ * | scripts/quickstart.sh*) ;;
    *.py\ logs/*) ;;
    "for "*"; do"*) ;;
    mpirun\ --hostfile*) return 1 ;;
    mpirun\ -np\ *) ;;
    *) return 1 ;;
    esac
}
# Prints the test that runs another command, with the reason; "by hand" if none can.
elsewhere() {
    case $1 in
    scripts/test.sh*) echo ".ci/run: it runs all tests, this one too" ;;
    data/fineweb10B/download.sh*) echo "tests/data/download_test.sh: it downloads; there from a server of its own" ;;
    *"records attempt configs/fineweb"*) echo "tests/runs/locked_track_test.sh: it needs GPUs; there a tiny model on made-up shards" ;;
    *"records trial "*) echo "tests/runs/trial_test.sh: it needs the track's data; there a tiny track" ;;
    *"records rerun"*) echo "tests/runs/rerun_test.sh: it builds a commit and repeats runs; there a tiny track" ;;
    *"records counts"*) echo "tests/runs/records_counts_test.sh: it needs the track's own shards" ;;
    "curl "*) echo "by hand: it downloads" ;;
    scripts/systems_record.sh*) echo "tests/runs/records_test.sh: it builds commits; there of programs" ;;
    scripts/ablation.py*) echo "tests/runs/ablation_test.sh: hours of runs" ;;
    scripts/overlap_ab.sh*) echo "tests/runs/overlap_ab_test.sh: dozens of runs" ;;
    scripts/gpu_check.sh*) echo "tests/bench/bench_test.sh: many programs" ;;
    scripts/report.py* | scripts/to_tensorboard.py* | scripts/to_wandb.py*) echo "tests/report: they need packages of PyPI" ;;
    scripts/cost_table.sh*) echo "tests/bench/cost_table_test.sh: dozens of runs" ;;
    ops_benchmark* | build/release/ops_benchmark*) echo "tests/bench: each benchmark once" ;;
    scripts/compare_peers.sh*) echo "tests/bench/peers_test.sh: it needs PyTorch" ;;
    *cpack*) echo "tests/bench/install_test.sh: it packs" ;;
    "cmake "* | "ctest "*) echo "scripts/test.sh: it builds" ;;
    scripts/install_dependencies.sh* | data/kjv/prepare.sh*) echo "scripts/quickstart.sh: its first steps" ;;
    *"apt install ./speedrun"* | */usr/share/speedrun/*) echo "tests/bench/install_test.sh: it packs, unpacks and runs what is installed" ;;
    "docker "*) echo "by hand: it needs Docker" ;;
    "git clone "*) echo "by hand: it downloads this repository" ;;
    *"launch "*" --hosts "*) echo "tests/hosts/hosts_test.sh: it needs several hosts" ;;
    "mpirun --hostfile "* | "sbatch "*) echo "by hand: it needs several hosts" ;;
    *) return 1 ;;
    esac
}

# Prints the commands of a page, one per line: LINE_NUMBER, tab, command with $line_end for line ends. Lines of a block are
# joined while the shell expects more.
commands_of() {
    awk -v OFS='\t' '
        /^ *```/ {
            inside = !inside
            language = $0
            sub(/^ *```/, "", language)
            shown = inside && (language == "" || language ~ /^(sh|bash|shell)$/)
            first = 1
            if (!inside) print NR, "```"
            next
        }
        inside && first { first = 0; if (language == "" && /^(logs\/[^ ]*: |result: )/) shown = 0 } # output of a run
        inside && shown && NF && !/^ *#/ { print NR, $0 }' "$1" | while IFS="$tab" read -r number line; do
        if [ "$line" = '```' ]; then
            [ -z "$joined" ] || printf '%s\t%s\n' "$number" "$joined" # never complete: unknown to the lists
            joined=''
            continue
        fi
        case $line in
        *'\') joined="$joined${line%?}" && continue ;;
        esac
        joined="$joined$line"
        if is_pattern "$joined" || sh -n -c "$(printf '%s' "$joined" | tr "$line_end" '\n')" 2>/dev/null; then
            printf '%s\t%s\n' "$number" "$(printf '%s' "$joined" | sed 's/^ *//; s/  *# .*//; s/   */ /g')"
            joined=''
        else
            joined=$joined$line_end
        fi
    done
    # Code within sentences, also across line ends.
    awk -v OFS='\t' '
        /^ *```/ { inside = !inside }
        inside || /^ *```/ || /^ *$/ { open = 0; next }
        {
            n = split($0, piece, "`")
            for (i = 1; i <= n; i++) {
                if (i > 1) {
                    if (open && !/not in this version/) print from, code
                    open = !open; code = ""; from = NR
                }
                code = code (code != "" && i == 1 ? " " : "") piece[i]
            }
        }' "$1" | grep -E "^[0-9]+$tab(speedrun|build/release/[a-z_]+|mpirun|sbatch|scripts/[a-z_]+\.(sh|py)|data/[A-Za-z0-9]+/[a-z]+\.sh) "
}

is_pattern() {
    case $1 in
    *CONFIG* | *RUN_FOLDER* | *HF_FOLDER* | *" DIR"* | *" FILE"* | *" COMMAND "* | *" TEXT"* | *" RUN"* | *KEY=* | *" ["*"]"*) ;;
    *) return 1 ;;
    esac
}
# Turns a pattern, $1, into a command; the number makes new names unique.
fill_in() {
    printf '%s\n' "$1" | sed -E 's/ \[[^]]*\](\.\.\.)?//g; s/\.\.\.( |$)/\1/g' | awk -v number="$2" '{
        for (i = 1; i <= NF; i++) {
            if ($i == "CONFIG") $i = ($(i - 1) == "attempt") ? "configs/kjv_small_batch.json" : "configs/kjv.json"
            if ($i ~ /^RUN(_FOLDER)?$/) $i = "logs/example"
            if ($i == "HF_FOLDER") $i = ($0 ~ / export /) ? "made/hf" number : "hf"
            if ($i == "DIR") $i = ($(i - 1) == "--verify") ? "data/kjv" : "made/folder" number
            if ($i == "FILE") $i = ($(i - 1) ~ /^--(input|text)$/) ? "book.txt" : "made/file" number
            if ($i == "TEXT") $i = "And"
            if ($i == "NAME") $i = "name" number
            if ($i == "COMMAND") $i = "train"
            if ($i == "N" || $i == "K") $i = 3
            if ($i == "T") $i = 0.5
            if ($i ~ /^KEY=/) $i = "optimizers.groups.0.lr=0.01,0.02"
        }
        print }'
}

# Prints the options of a speedrun line that are not in its --help.
unknown_options() {
    words=$(printf '%s\n' "$1" | sed -n 's/.*speedrun \([a-z]* *[a-z]*\).*/\1/p')
    # shellcheck disable=SC2086 # a command, and a command of its own if it has any
    help=$("$speedrun" $words --help 2>&1) || help=$("$speedrun" "${words%% *}" --help 2>&1)
    for option in $(printf '%s\n' "$1" | sed "s/.*speedrun //; s/'[^']*'//g" | grep -oE -e '(^|[ [])--[a-z][a-z-]*' | tr -d ' ['); do
        printf '%s\n' "$help" | grep -qE -e "$option([ ,=]|\$)" || echo "$option"
    done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
tab=$(printf '\t') line_end=$(printf '\036') joined=''

# The test itself must find commands, and unknown ones.
cat >sample.md <<'J'
`speedrun made up` is code in a sentence, and so is `speedrun bench
--fast`; `kill -9` is not.
`speedrun later on`: not in this version.
```
scripts/quickstart.sh   # with a comment
speedrun train CONFIG [--set key=value]... [--resume auto|DIR]
frobnicate --now
for a in 1 2; do
    speedrun train $a
done
speedrun plan \
    --options
```
```text
output
```
```
result: done
```
J
cat >expected <<'J'
5	scripts/quickstart.sh
6	speedrun train CONFIG [--set key=value]... [--resume auto|DIR]
7	frobnicate --now
10	for a in 1 2; do; speedrun train $a;done
12	speedrun plan --options
1	speedrun made up
1	speedrun bench --fast
J
commands_of sample.md | tr "$line_end" ';' | diff expected - || fail "the commands of a sample are not found"
if runs_here "frobnicate --now" || elsewhere "frobnicate --now"; then fail "a command is known that nobody knows"; fi
[ "$(fill_in "$(sed -n 6p sample.md)" 1)" = "speedrun train configs/kjv.json" ] || fail "a pattern becomes: $(fill_in "$(sed -n 6p sample.md)" 1)"
[ "$(unknown_options "speedrun train CONFIG [--nonsense] --seed 1")" = --nonsense ] || fail "an option is known that nobody knows"

# A folder like the repository's root. If the King James text is not prepared, another text replaces it.
mkdir -p bin build/release data/kjv data/fineweb10B logs made
cp "$root/logs/README.md" logs/ || exit 1
cp -r "$root/configs" "$root/examples" "$root/scripts" "$root/records" . && cp -r "$root/tests/train/fixtures/hf_gpt2" hf || exit 1
cp "$root/data/kjv/prepare.sh" data/kjv/ && cp "$root/tests/data/fixtures/small_tokenizer.json" r50k_base.tiktoken || exit 1
(. "$root/tests/runs/tiny_run.sh") && mv text.txt book.txt && tail -n +50 book.txt >notes.txt || exit 1
if [ -f "$root/data/kjv/dataset.json" ]; then
    cp "$root"/data/kjv/*.bin "$root/data/kjv/dataset.json" data/kjv/ || exit 1
else
    "$speedrun" prepare --input book.txt --out data/kjv --document-marker %% --val-every 10 --force >out 2>&1 || fail "no data: $(cat out)"
fi
cat >build/release/speedrun <<J
#!/bin/sh
# True if the config of a file or of a record has a model in parts.
in_parts() {
    if [ -d "\$1" ]; then sed -n '/^  "config": {/,/^  }/p' "\$1/record.json"; else cat "\$1" 2>/dev/null; fi | grep -q '"preset": *"none"'
}
# small OPTION CONFIG_OR_RECORD: a smaller model; for a model in parts its stages with fewer steps.
small() {
    if in_parts "\$2"; then
        echo "\$1 schedule.stages=[1,2,\$steps]"
    else
        for setting in model.model_dim=64 model.layers.each.attention.heads=4; do echo "\$1 \$setting"; done
    fi
}
value_of() { # OPTION ARGUMENTS...
    option=\$1
    shift
    while [ \$# -gt 1 ]; do
        [ "\$1" != "\$option" ] || echo "\$2"
        shift
    done
}
last() { for setting in schedule.steps=\$steps schedule.warmup_steps=0; do echo "\$1 \$setting"; done; }
steps=\${SPEEDRUN_README_STEPS:-4}
case "\$*" in *--trace*) steps=12 ;; esac
case "\$1 \${2:-}" in
"train --help" | "records "*--help | "bench --help") ;;
bench\ *)
    case "\$*" in
    *--run* | *--steps*) ;;
    *) set -- "\$@" --steps 2 ;;
    esac
    ;;
train\ *)
    shift
    case "\$*" in
    *--name*) ;;
    *) set -- "\$@" --name "\${OMPI_COMM_WORLD_SIZE:+ranks}unnamed-\${OMPI_COMM_WORLD_SIZE:+\$PPID}\${OMPI_COMM_WORLD_SIZE:-\$\$}" ;;
    esac
    ! in_parts "\$1" || steps=24 # the length of its momentum's cooldown
    # The book of docs/your-text.md: checkpoints within the shorter run.
    [ "\$1" != examples/book.json ] || for argument; do
        case \$argument in
        */step-00000180) argument=\${argument%180}002 ;;
        400) argument=8 ;;
        esac
        shift
        set -- "\$@" "\$argument"
    done
    [ "\$1" != examples/book.json ] || set -- "\$@" --set checkpoint.every=2 --set data.val_tokens=256
    set -- train --set data.val_tokens=2048 \$(small --set "\$1") "\$@" \$(last --set)
    ;;
"records attempt")
    shift 2
    config=\$1
    against=\$(value_of --against "\$@")
    ! in_parts "\$config" && ! in_parts "\$against" || steps=24
    case "\$*" in *"--against "*) set -- \$(small --against-set "\$against") "\$@" \$(last --against-set) ;; esac
    set -- records attempt \$(small --set "\$config") "\$@" \$(last --set)
    ;;
esac
exec "$speedrun" "\$@"
J
# For scripts/quickstart.sh: the packages are installed, and the program is built.
printf '#!/bin/sh\necho "install ok installed"\n' >bin/dpkg-query
printf '#!/bin/sh\necho "cmake version 3.25.1"\n' >bin/cmake
printf '#!/bin/sh\nexec "%s" --oversubscribe --bind-to none "$@"\n' "$mpiexec" >bin/mpirun
chmod +x build/release/speedrun bin/*
[ -n "$mpiexec" ] || rm bin/mpirun
PATH=$work/build/release:$work/bin:$PATH
speedrun train configs/kjv_baseline.json --name example --trace 2:3 >out 2>&1 || fail "logs/example cannot be trained: $(cat out)"
num_run=0 num_elsewhere=0
for page in "$root/README.md" "$root"/docs/*.md; do
    commands_of "$page" | sed "s|^|${page#"$root/"}:|"
done >commands
[ "$(wc -l <commands)" -ge 30 ] || fail "there are only these commands: $(cat commands)"
exec 4<commands
while IFS="$tab" read -r place command <&4; do
    case $command in
    *speedrun\ [a-z]*)
        bad=$(unknown_options "$command")
        [ -z "$bad" ] || fail "$place: no such option: $bad, in: $command"
        ;;
    esac
    if runs_here "$command"; then
        num_run=$((num_run + 1))
        case $command in
        mpirun*) [ -n "$mpiexec" ] || { echo "skipped, no MPI: $command" && continue; } ;;
        esac
        ! is_pattern "$command" || command=$(fill_in "$command" $num_run)
        printf '%s' "$command" | tr "$line_end" '\n' >command.sh
        timeout 120 sh command.sh >out 2>&1 </dev/null
        code=$?
        # tests/report runs these with their packages; without packages, the folders are read before the error.
        case $command in *.py\ *) ! grep -q 'install the packages of' out || code=0 ;; esac
        [ $code -eq 0 ] || fail "$place: exit $code: $(cat command.sh)
$(tail -n 5 out | sed 's/^/    /')"
    elif reason=$(elsewhere "$command"); then
        num_elsewhere=$((num_elsewhere + 1))
        file=${reason%%:*}
        [ "$file" = "by hand" ] || [ -f "$root/$file" ] || fail "$command should be run by $file, which is not there"
        echo "not run here: $command ($reason)"
    else
        fail "$place: no test runs this command: $command
    Run it here (runs_here), say which test does (elsewhere, both in tests/runs/readme_test.sh), or mark output with \`\`\`text"
    fi
done

[ $failures -eq 0 ] && echo "all commands of README.md and docs/: $num_run run here, $num_elsewhere elsewhere"
exit $failures
