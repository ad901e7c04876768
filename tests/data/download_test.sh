#!/bin/sh
# Tests data/fineweb10B/download.sh against a local server with small fake shards.
#   download_test.sh PATH_OF_DOWNLOAD_SH
# Exit code 77 = skipped, because a program is missing.
# ctest: ARGS ROOT/data/fineweb10B/download.sh PROPERTIES TIMEOUT 120
set -u

script=$1
for program in curl python3; do
    command -v $program >/dev/null 2>&1 || { echo "skipped: $program is missing"; exit 77; }
done

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../expect.sh"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
run() {  # run PATH_PREFIX ARGUMENT...: stores the script's exit code in $code, its output in ./out
    FINEWEB_BASE_URL=http://127.0.0.1:$port/$1
    export FINEWEB_BASE_URL
    shift
    code=0
    sh "$script" "$@" >out 2>&1 || code=$?
}
requests() { wc -l <"$work/log" | tr -d ' '; }

mkdir "$work/served" "$work/data"
python3 - "$work/served" <<'PYTHON'
import struct, sys
def shard(name, magic=20240520, version=1, tokens=3000, cut=0):
    data = struct.pack("<256i", magic, version, tokens, *[0] * 253)
    data += b"".join(struct.pack("<H", (7 * i + len(name)) % 50257) for i in range(tokens))
    open(f"{sys.argv[1]}/{name}", "wb").write(data[:len(data) - cut])
shard("fineweb_val_000000.bin")
shard("fineweb_train_000001.bin")
shard("fineweb_train_000002.bin", tokens=200000)
shard("fineweb_train_000003.bin", magic=12345)
shard("fineweb_train_000004.bin", cut=100)
PYTHON
touch "$work/log"
python3 "$here/range_server.py" "$work/served" "$work/port" "$work/log" &
server=$!
wait_until test -f port
port=$(cat "$work/port")
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
FINEWEB_ATTEMPTS=2 FINEWEB_RETRY_DELAY=0
export FINEWEB_ATTEMPTS FINEWEB_RETRY_DELAY

for argument in '' x -1 104 1.5 0000001; do
    run files "$argument" "$work/data"
    check "N '$argument' is a usage error" [ $code -eq 2 ]
done
check "usage errors fetch nothing" [ "$(requests)" -eq 0 ]

run files 2 "$work/data"
check "two shards arrive" [ $code -eq 0 ]
for name in val_000000 train_000001 train_000002; do
    check "$name is the same file" cmp "$work/served/fineweb_$name.bin" "$work/data/fineweb_$name.bin"
done
check "the broken transfer was resumed with a range" grep -q 'train_000002.bin bytes=[1-9]' "$work/log"
check "no .part is left" [ -z "$(find "$work/data" -name '*.part')" ]

(cd "$work/served" && for name in val_000000 train_000001 train_000002; do
    echo "$(sha256sum <fineweb_$name.bin | cut -d ' ' -f 1) $(wc -c <fineweb_$name.bin) fineweb_$name.bin"
done) >"$work/expected.lock"
check "the lock has hash, bytes and name of each" cmp "$work/expected.lock" "$work/data/shards.lock"

before=$(requests)
run files 2 "$work/data"
check "a second call succeeds" [ $code -eq 0 ]
check "the lock stays as it is" cmp "$work/expected.lock" "$work/data/shards.lock"
check "a second call fetches nothing" [ "$(requests)" -eq "$before" ]

head -c 2000 "$work/served/fineweb_train_000001.bin" >"$work/data/fineweb_train_000001.bin"
run files 1 "$work/data"
check "a truncated file is completed" cmp "$work/served/fineweb_train_000001.bin" "$work/data/fineweb_train_000001.bin"
check "a truncated file is resumed at its end" grep -q 'train_000001.bin bytes=2000-' "$work/log"

echo 'not a shard, but long enough' >"$work/data/fineweb_train_000001.bin"
run files 1 "$work/data"
check "a damaged file is replaced" cmp "$work/served/fineweb_train_000001.bin" "$work/data/fineweb_train_000001.bin"

cp "$work/served/fineweb_train_000001.bin" "$work/data/fineweb_train_000001.bin.part"
rm "$work/data/fineweb_train_000001.bin"
before=$(requests)
run files 1 "$work/data"
check "a complete .part becomes the file" cmp "$work/served/fineweb_train_000001.bin" "$work/data/fineweb_train_000001.bin"
check "a complete .part is not fetched" [ "$(requests)" -eq "$before" ]

mkdir "$work/norange"
head -c 500 "$work/served/fineweb_val_000000.bin" >"$work/norange/fineweb_val_000000.bin.part"
run norange 0 "$work/norange"
check "a server without ranges works" cmp "$work/served/fineweb_val_000000.bin" "$work/norange/fineweb_val_000000.bin"

run files 3 "$work/data"
check "a wrong magic fails" [ $code -eq 3 ]
check "the message has both magics" grep -q 'magic 12345, expected 20240520' out
check "no file of wrong magic is left" [ -z "$(find "$work/data" -name '*000003*')" ]

cp "$work/served/fineweb_train_000001.bin" "$work/served/fineweb_train_000003.bin"
run files 4 "$work/data"
check "a file truncated at the source fails" [ $code -eq 3 ]
check "the message has both sizes" grep -q 'has 6924 bytes, expected 7024' out
check "a truncated file gets no name" [ ! -e "$work/data/fineweb_train_000004.bin" ]

rm -f "$work/served/fineweb_train_000004.bin"
run files 4 "$work/empty"
check "a file that the server lacks fails" [ $code -eq 3 ]
check "the message has the URL" grep -q "127.0.0.1:$port/files/fineweb_train_000004.bin" out

# Files that differ from the lock are refused, here and at the source, until the lock's line is removed. The sizes are right.
cp -r "$work/data" "$work/locked"
file=$work/locked/fineweb_train_000001.bin
printf 'xx' | dd of="$file" bs=1 seek=2000 conv=notrunc 2>/dev/null
before=$(requests)
run files 1 "$work/locked"
check "a changed file is refused" [ $code -eq 3 ]
check "the message has the file's hash" grep -q "SHA-256 is $(sha256sum <"$file" | cut -c 1-64)" out
check "the message has the lock's hash" grep -q "has $(sha256sum <"$work/data/fineweb_train_000001.bin" | cut -c 1-64)" out
check "the message says how to take it" grep -q 'delete the line of fineweb_train_000001.bin' out
check "a changed file is kept" [ -s "$file" ]
check "nothing was fetched for it" [ "$(requests)" -eq "$before" ]
cp "$file" "$work/served/fineweb_train_000001.bin"
rm "$file"
run files 1 "$work/locked"
check "a file that has changed at the source is refused" [ $code -eq 3 ]
check "it gets no name" [ ! -e "$file" ]
sed -i '/train_000001/d' "$work/locked/shards.lock"
run files 1 "$work/locked"
check "without its line it is taken" cmp "$work/served/fineweb_train_000001.bin" "$file"
check "and locked" grep -q "^$(sha256sum <"$file" | cut -c 1-64) 7024 fineweb_train_000001.bin$" "$work/locked/shards.lock"

# A new folder starts with the lock in the script's folder.
mkdir "$work/beside"
cp "$script" "$work/beside/download.sh"
cp "$work/expected.lock" "$work/beside/shards.lock"
script=$work/beside/download.sh
run files 1 "$work/elsewhere"
check "the lock beside the script counts in another folder" [ $code -eq 3 ]

exit $failures
