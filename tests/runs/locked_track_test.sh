#!/bin/sh
# The fineweb track from download to a record, with made-up shards and a local server: the first download's lock remains
# authoritative. Usage: locked_track_test.sh SPEEDRUN SOURCE_ROOT
# Exit code 77 = skipped, because a program is missing.
# ctest: ARGS SPEEDRUN ROOT PROPERTIES TIMEOUT 120
set -u
speedrun=$1 root=$2
for program in curl python3; do
    command -v $program >/dev/null 2>&1 || { echo "skipped: $program is missing"; exit 77; }
done
. "$root/tests/expect.sh"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

# The track with a target that a tiny model reaches on few tokens.
mkdir -p data/fineweb10B records served
cp "$root/data/fineweb10B/download.sh" data/fineweb10B
cp -r "$root/records/fineweb" records
rm -rf records/fineweb/2*
sed -i 's/"target_loss": 3.28/"target_loss": 50/; s/"tokens": 10485760/"tokens": 2000/; s/"min_runs": 5/"min_runs": 2/' records/fineweb/track.json
cat >tiny.json <<'J'
{
  "model": {"preset": "modern", "model_dim": 8, "vocab_size": 50257, "layers": {"count": 1, "each": {"attention": {"heads": 1}}}},
  "data": {"train": ["data/fineweb10B/fineweb_train_*.bin"], "val": ["data/fineweb10B/fineweb_val_*.bin"], "val_tokens": 2000},
  "batch": {"sequence_length": 50, "microbatch_tokens": 100, "tokens_per_step": 100},
  "optimizers": {"groups": [{"params": ["*"], "lr": 0.01}]},
  "schedule": {"steps": 4},
  "record": {"track": "fineweb", "target_loss": 50}
}
J
python3 - <<'PYTHON'
import struct
for kind, (name, tokens) in enumerate((("val_000000", 2500), ("train_000001", 3000), ("train_000002", 3000))):
    numbers = [50256 if i % 97 == 0 else (7 * i + kind) % 500 for i in range(tokens)]
    with open(f"served/fineweb_{name}.bin", "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, tokens, *[0] * 253) + struct.pack(f"<{tokens}H", *numbers))
PYTHON
touch log out
python3 "$root/tests/data/range_server.py" served port log &
server=$!
wait_until test -f port
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
FINEWEB_BASE_URL=http://127.0.0.1:$(cat port)/files FINEWEB_RETRY_DELAY=0
export FINEWEB_BASE_URL FINEWEB_RETRY_DELAY
download() { sh data/fineweb10B/download.sh 2; }
hash_of() { sha256sum <"$1" | cut -d ' ' -f 1; }

# Download, attempt, verify.
shard=data/fineweb10B/fineweb_train_000001.bin lock=data/fineweb10B/shards.lock
attempt() { "$speedrun" records attempt tiny.json --runs 2 "$@"; }
expect 0 "validation and 2 training shards" download
expect 2 "breaks a rule of class eight of track fineweb: made with 0 GPUs, 8 wanted" attempt
sed -i 's/"gpus": 8, "gpu": "H100"/"gpus": 0/' records/fineweb/track.json # a class for the test's machine
mv $lock kept.lock
expect 3 "data/fineweb10B/shards.lock is missing .* track fineweb: data/fineweb10B/download.sh makes it" attempt
mv kept.lock $lock
[ ! -e logs ] || fail "a refused attempt left a folder"
expect 0 "data  met" attempt --name tiny
record=$(echo records/fineweb/*_tiny)
for file in val_000000 train_000001 train_000002; do
    grep -q "$(hash_of data/fineweb10B/fineweb_$file.bin)" "$record/record.json" || fail "the record lacks the hash of $file"
done
expect 0 "figures are those of its runs" "$speedrun" records verify
expect 0 "^tiny " "$speedrun" records list fineweb
expect 0 "3 shards with 8500 tokens, as first fetched" "$speedrun" prepare --verify data/fineweb10B

# Another shard of the same size is refused.
was=$(hash_of $shard)
printf '\001' | dd of=$shard bs=1 seek=2000 conv=notrunc 2>/dev/null
is=$(hash_of $shard)
[ "$was" != "$is" ] || fail "the shard was not changed"
expect 3 "$shard: SHA-256 $is is no training shard of track fineweb, whose fineweb_train_000001.bin has $was" attempt --name again
expect 3 "SHA-256 is $is, expected $was" "$speedrun" train tiny.json --name again
expect 3 "SHA-256 is $is, expected $was" "$speedrun" prepare --verify data/fineweb10B
expect 3 "SHA-256 is $is, but data/fineweb10B/shards.lock has $was for fineweb_train_000001.bin" download
expect 0 "figures are those of its runs" "$speedrun" records verify

# If it is accepted explicitly, it is another dataset, and the record does not match.
sed -i '/train_000001/d' $lock
expect 0 "fineweb_train_000001.bin: its hash is now in" download
expect 3 "SHA-256 $was is no training shard of track fineweb, whose fineweb_train_000001.bin has $is" "$speedrun" records verify
mv $lock kept.lock
expect 3 "shards.lock is missing .* makes it" "$speedrun" records verify

exit $failures
