# shellcheck shell=sh disable=SC2154
# Sourced by scripts to read their command line, "$@". Before that a script sets
#   options      names of options with a value, which is assigned to the variable of the name ("-" becomes "_")
#   flags        names of options without a value: the variable becomes 1
#   positionals  most arguments that are no options; they remain in "$@". Options after them are read too, unless it is "any"
# --set KEY=VALUE adds to the variable settings, --again STAGE to again. usage CODE prints the comment at the script's head.
usage() {
    sed -n '2,/^[^#]/{/^# shellcheck/d;/^#/s/^# \{0,1\}//p;}' "$0"
    exit "$1"
}
die() {
    echo "error: $1" >&2
    exit "${2:-1}"
}

seen=0
while [ $seen -lt $# ]; do
    case $1 in
    -h | --help) usage 0 ;;
    -*)
        option=${1#--}
        variable=$(printf '%s' "$option" | tr - _)
        case " ${flags:-} " in
        *" $option "*)
            eval "$variable=1"
            shift
            continue
            ;;
        esac
        case " $options " in *" $option "*) ;; *) die "unknown option $1; see --help" 2 ;; esac
        [ $(($# - seen)) -gt 1 ] || die "$1 needs a value; see --help" 2
        case $option in
        set)
            case $2 in *[[:space:]]*) die "--set $2: no blanks here" 2 ;; esac
            settings="$settings --set $2"
            ;;
        again) again="$again $2" ;;
        *) eval "$variable=\$2" ;;
        esac
        shift 2
        ;;
    *)
        [ "$positionals" != any ] || break
        [ $seen -lt "$positionals" ] || die "$1: one argument too many; see --help" 2
        seen=$((seen + 1))
        set -- "$@" "$1"
        shift
        ;;
    esac
done
