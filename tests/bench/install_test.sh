#!/bin/sh
# What is installed works from where it is: speedrun with its libraries, in a prefix that is moved, prepares a text, trains two
# steps of an installed config, and says what it has. Usage: install_test.sh BUILD_DIR
set -eu
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $1"
    exit 1
}

for component in runtime libraries; do
    cmake --install "$build" --prefix "$work/first" --component $component >"$work/log" || fail "$(tail -n 3 "$work/log")"
done
mv "$work/first" "$work/prefix"
cd "$work"
for file in bin/speedrun share/doc/speedrun/README.md share/doc/speedrun/docs/training.md share/doc/speedrun/LICENSE \
    share/speedrun/configs/kjv.json share/speedrun/data/kjv/prepare.sh; do
    [ -s "prefix/$file" ] || fail "no $file"
done
[ ! -e prefix/bin/kernels_tests ] || fail "tests are installed"
# The prefix's libraries are used, not the machine's.
ldd prefix/bin/speedrun | grep libspdlog | grep -q "$work/prefix/" || fail "$(ldd prefix/bin/speedrun)"
prefix/bin/speedrun --help | grep -q prepare || fail "no help"

yes 'the quick brown fox jumps over the lazy dog.' | head -n 2000 >text.txt
cp text.txt other.txt
prefix/bin/speedrun prepare --input text.txt other.txt --tokenizer bytes --out tiny --val-every 2 >log || fail "preparing: $(cat log)"
prefix/bin/speedrun train prefix/share/speedrun/configs/kjv.json --name two --set schedule.steps=2 --set 'data.train=tiny/train_*.bin' \
    --set 'data.val=tiny/val_*.bin' --set model.num_layers=2 --set model.model_dim=64 --set batch.tokens_per_step=1024 \
    --set batch.microbatch_tokens=1024 --set device=cpu | grep -q '^result: done' || fail "training"
[ "$(grep -c '"event":"step"' logs/two/metrics.jsonl)" = 2 ] || fail "not two steps"
echo "the installed speedrun has trained two steps"
