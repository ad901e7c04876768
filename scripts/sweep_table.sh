# shellcheck shell=sh disable=SC2154
# Sourced by sweep.sh: the result of each run, and tables of results. Uses its folder, work, num_keys, num_runs, seeds, load and
# die.

# measure RUN: sets code, status, loss (nats per token), train_s, target_s (seconds of training; all "-": none) and message.
measure() {
    code=$(code_of "$1") loss=- train_s=- target_s=- message=''
    case $code in
    0) if has_no_loss "$1"; then status=diverged; else status='done'; fi ;;
    4) status=diverged ;;
    129 | 130 | 138 | 143) status=stopped ;;
    '') if is_done "$1"; then status='done'; else status=waiting; fi ;;
    *) if [ "$code" -gt 128 ]; then status=killed; else status=failed; fi ;;
    esac
    case $status in
    done | stopped)
        of_summary() { sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$folder/$1/summary.json" 2>/dev/null | head -n 1; }
        loss=$(of_summary "$1" val_loss )
        train_s=$(of_summary "$1" train_ms | awk '{ printf "%.3f", $1 / 1000 }')
        target_s=$(awk '
            FNR == NR { if ($1 == "\"target_loss\":") target = $2 + 0; next }
            /^\{"event":"val".*\}$/ && target > 0 {
                match($0, /"loss":[^,}]*/); loss = substr($0, RSTART + 7, RLENGTH - 7)
                match($0, /"train_ms":[^,}]*/); ms = substr($0, RSTART + 11, RLENGTH - 11)
                if (loss != "null" && loss + 0 <= target) { printf "%.3f", ms / 1000; exit }
            }' "$folder/$1/config.json" "$folder/$1/metrics.jsonl" 2>/dev/null)
        : "${loss:=-}" "${train_s:=-}" "${target_s:=-}"
        ;;
    killed) message="signal $((code - 128))" ;;
    diverged | failed)
        message=$(sed -n 's/^error: //p' "$folder/$1.log" | tail -n 1)
        [ -n "$message" ] || [ "$code" != 0 ] || message='the validation loss is not a number'
        [ -n "$message" ] || message=$(grep -a . "$folder/$1.log" | tail -n 1)
        message=$(printf '%s' "${message:-it printed nothing}" | tr '\t' ' ')
        ;;
    esac
}

# Aligns the columns of tab-separated lines.
align() {
    awk -F '\t' '
        function width(s) { return length(s) - gsub(/±/, "±", s) } # two bytes, one character
        { for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (width($i) > wide[i]) wide[i] = width($i) }; fields[NR] = NF }
        END {
            for (r = 1; r <= NR; r++) {
                line = ""
                for (i = 1; i <= fields[r]; i++) line = line sprintf("%s%*s  ", cell[r, i], wide[i] - width(cell[r, i]), "")
                sub(/ +$/, "", line)
                print line
            }
        }'
}
# Sorts lines by their first two cells, numbers or "-" (last), keeping the order of equal lines; removes the two cells.
by_time_and_loss() {
    awk -F '\t' -v OFS='\t' '{ for (i = 1; i <= 2; i++) if ($i == "-") $i = 1e300; print NR, $0 }' |
        sort -t "$(printf '\t')" -k2,2g -k3,3g -k1,1n | cut -f 4-
}

write_tables() {
    tab=$(printf '\t')
    for number in $(seq "$num_runs"); do
        load "$number"
        measure "$run"
        # Without seeds on the command line, the run has its config's.
        [ -n "$seed" ] || seed=$(sed -n 's/^  "seed": \([0-9]*\).*/\1/p' "$folder/$run/config.json" 2>/dev/null)
        printf '%s\n' "$target_s$tab$loss$tab$run$tab$(printf '%s' "$values" | tr '\037' '\t')${seed:--}$tab$loss$tab$train_s$tab$target_s$tab$status$tab${code:--}$tab$message"
    done | by_time_and_loss >"$work/rows"
    {
        printf 'run\t%sseed\tval_loss\ttrain_s\ttime_to_target_s\tstatus\texit\tmessage\n' "$(tr '\n' '\t' <"$work/keys")"
        cat "$work/rows"
    } >"$folder/sweep.tsv.part"
    mv "$folder/sweep.tsv.part" "$folder/sweep.tsv" || die "$folder/sweep.tsv cannot be written" 1
    echo
    {
        printf '%sseed\tval_loss\ttrain_s\ttime_to_target_s\tstatus\tmessage\n' "$(tr '\n' '\t' <"$work/short")"
        awk -F '\t' -v OFS='\t' -v keys="$num_keys" '
            function rounded(x, format) { return x == "-" ? x : sprintf(format, x) }
            {
                for (i = 2; i <= keys + 2; i++) printf "%s\t", $i
                print rounded($(keys + 3), "%.4f"), rounded($(keys + 4), "%.2f"), rounded($(keys + 5), "%.2f"),
                    $(keys + 6) ($(keys + 6) == "failed" ? " (exit " $(keys + 7) ")" : ""), $(keys + 8)
            }' "$work/rows"
    } | align
    [ "$(count "$seeds")" -gt 1 ] || return 0
    echo
    echo "over the seeds of each combination, mean ± standard deviation:"
    {
        printf '%sdone\treached\tval_loss\ttrain_s\ttime_to_target_s\n' "$(tr '\n' '\t' <"$work/short")"
        awk -F '\t' -v keys="$num_keys" '
            function spread(what, n,    mean, deviation) { # "-" unless all runs of the point have a value
                if (n == 0 || number[point, what] < n) return "-"
                mean = sum[point, what] / n
                for (i = 1; i <= n; i++) deviation += (value[point, what, i] - mean) ^ 2
                if (n == 1) return sprintf("%.4g", mean)
                return sprintf(what == 1 ? "%.4f ± %.4f" : "%.2f ± %.2f", mean, sqrt(deviation / (n - 1)))
            }
            function first(text) { sub(/ .*/, "", text); return text }
            {
                point = ""
                for (i = 2; i <= keys + 1; i++) point = point $i "\t"
                if (!(point in runs)) order[++points] = point
                runs[point]++
                if ($(keys + 6) != "done") next
                finished[point]++
                for (what = 1; what <= 3; what++) {
                    x = $(keys + 2 + what)
                    if (x == "-") continue
                    value[point, what, ++number[point, what]] = x
                    sum[point, what] += x
                }
            }
            END {
                for (p = 1; p <= points; p++) {
                    point = order[p]
                    n = finished[point] + 0
                    loss = spread(1, n); train = spread(2, n); target = spread(3, n)
                    if (n < runs[point]) target = "-"
                    print first(target) "\t" first(loss) "\t" point n "/" runs[point] "\t" number[point, 3] + 0 "/" runs[point] "\t" loss "\t" train "\t" target
                }
            }' "$work/rows" | by_time_and_loss
    } | align
}
