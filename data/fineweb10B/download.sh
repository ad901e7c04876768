#!/bin/sh
# Downloads FineWeb-10B as GPT-2 tokens from the Hugging Face dataset kjj0/fineweb10B-gpt2: the validation shard and the
# first N training shards (0 to 103; about 100 million tokens and 200 MB each).
#
#   data/fineweb10B/download.sh N [DIR]
#
# DIR defaults to the folder of this script. A download is written to FILE.part, is resumed where it stopped, and is renamed
# to FILE once header, size and hash are correct. Good files are kept, so the call can be repeated.
#
# No list of hashes is published. DIR/shards.lock stores a line "SHA-256 bytes name" from the first download of each file.
# Later calls, runs and attempts at a record check against it. The lock of a new DIR starts as a copy of the one in this
# script's folder. To accept another file under a name, delete its line.
#
# Exit codes: 0 all files exist; 2 bad usage; 3 a file could not be downloaded, is damaged, or differs from the lock.
#
#   FINEWEB_BASE_URL     address of the files (a mirror, or a test server)
#   FINEWEB_ATTEMPTS     tries per file, default 5
#   FINEWEB_RETRY_DELAY  seconds before the second try, default 2; before try n + 1: n times as long
set -eu

base_url=${FINEWEB_BASE_URL:-https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main}
attempts=${FINEWEB_ATTEMPTS:-5}
retry_delay=${FINEWEB_RETRY_DELAY:-2}
last_shard=103
magic=20240520
version=1
header_bytes=1024

fail() {
    code=$1
    shift
    printf 'fineweb10B/download.sh: %s\n' "$*" >&2
    exit "$code"
}

# Sets verdict to good, partial (can be resumed) or bad, and reason to the cause. The header is 256 little-endian int32,
# which start with magic, version and token count; tokens are uint16.
inspect() {
    verdict=partial
    reason='no data'
    [ -f "$1" ] || return 0
    size=$(wc -c <"$1" | tr -d ' ')
    reason="has $size bytes, the header alone needs $header_bytes"
    [ "$size" -ge 12 ] || return 0
    set -- $(od -A n -t d4 -N 12 "$1")
    verdict=bad
    reason="is not a token shard: magic $1, expected $magic"
    [ "$1" -eq $magic ] || return 0
    reason="has version $2, expected $version"
    [ "$2" -eq $version ] || return 0
    reason="has a token count of $3"
    [ "$3" -ge 0 ] || return 0
    expected=$((header_bytes + 2 * $3))
    reason="has $size bytes, expected $expected for $3 tokens"
    [ "$size" -le $expected ] || return 0
    verdict=partial
    [ "$size" -eq $expected ] || return 0
    verdict=good
    reason="is complete: $3 tokens"
}

# check_lock FILE NAME: compares the hash of a good file with the lock's line of that name, or adds the line.
check_lock() {
    hash=$(sha256sum <"$1" | cut -d ' ' -f 1)
    bytes=$(wc -c <"$1" | tr -d ' ')
    known=$(awk -v name="$2" '$3 == name { print $1; exit }' "$lock")
    if [ -z "$known" ]; then
        { cat "$lock"; echo "$hash $bytes $2"; } >"$lock.tmp"
        mv "$lock.tmp" "$lock"
        echo "$2: its hash is now in $lock"
        return 0
    fi
    [ "$hash" = "$known" ] || fail 3 "$1: SHA-256 is $hash, but $lock has $known for $2. Delete the file to fetch it" \
        "again; to take it as it is, delete the line of $2 in $lock. Then repeat the call."
}

fetch() {
    file=$dir/$1
    part=$file.part
    if [ -f "$file" ]; then
        inspect "$file"
        if [ "$verdict" = good ]; then
            check_lock "$file" "$1"
            echo "$1: already there"
            return 0
        fi
        echo "$1: $reason; fetching it again"
        if [ "$verdict" = partial ]; then mv "$file" "$part"; else rm -f "$file"; fi
    fi

    try=1
    while :; do
        inspect "$part"
        [ "$verdict" != bad ] || rm -f "$part"
        status=0
        # A complete .part is not requested again: servers answer a range at the end of a file with an error.
        if [ "$verdict" != good ]; then
            curl --fail --location $meter --show-error --connect-timeout 20 --speed-limit 1024 --speed-time 60 \
                --continue-at - --output "$part" "$base_url/$1" || status=$?
            # 33: the server cannot resume, so download from the start.
            if [ $status -eq 33 ]; then rm -f "$part"; fi
            inspect "$part"
        fi
        if [ "$verdict" = good ]; then
            check_lock "$part" "$1"
            mv "$part" "$file"
            echo "$1: $reason"
            return 0
        fi
        problem="$reason"
        if [ $status -ne 0 ]; then problem="curl failed with code $status; so far the file $reason"; fi
        echo "$1: try $try of $attempts: $problem" >&2
        if [ "$try" -ge "$attempts" ]; then break; fi
        sleep $((retry_delay * try))
        try=$((try + 1))
    done
    [ "$verdict" != bad ] || rm -f "$part"
    fail 3 "$1: gave up after $attempts tries of $base_url/$1: $problem"
}

[ $# -ge 1 ] && [ $# -le 2 ] || fail 2 "usage: $0 N [DIR], N = training shards, 0 to $last_shard"
case $1 in
    '' | *[!0-9]* | ????*) fail 2 "N is '$1', expected a number from 0 to $last_shard" ;;
esac
count=$1
[ "$count" -le $last_shard ] || fail 2 "N is $count, expected 0 to $last_shard"
here=$(dirname "$0")
dir=${2:-$here}
command -v curl >/dev/null 2>&1 || fail 2 "the program 'curl' is missing; install it with: sudo apt install curl"
mkdir -p "$dir"
lock=$dir/shards.lock
if [ ! -f "$lock" ]; then
    if [ -f "$here/shards.lock" ]; then cp "$here/shards.lock" "$lock"; else : >"$lock"; fi
fi
meter=--silent
if [ -t 2 ]; then meter=--progress-bar; fi

fetch fineweb_val_000000.bin
shard=1
while [ "$shard" -le "$count" ]; do
    fetch "$(printf 'fineweb_train_%06d.bin' "$shard")"
    shard=$((shard + 1))
done
echo "$dir: validation and $count training shards"
