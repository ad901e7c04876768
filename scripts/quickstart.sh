#!/bin/sh
# Trains a model from a fresh clone. It installs missing packages, builds, prepares the King James text, measures for two
# seconds how long training takes here, and trains. It prints the result, and samples from before and after. It trains the
# leading config of the track's class dense; if that would take more than a minute, a smaller model with a table of hashed
# n-grams. Without a GPU driver it builds without GPU code.
# Usage: scripts/quickstart.sh [NAME]    NAME: of the run folder in logs/, default quickstart-<time>
set -eu
cd "$(dirname "$0")/.."
name=${1:-quickstart-$(date +%Y%m%d-%H%M%S)}

step() { printf '\n== %s\n' "$1"; }
has_gpu_driver() {
    nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidiactl ] || PATH=$PATH:/sbin ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '
}

step "1/7 packages"
sh scripts/install_dependencies.sh
step "2/7 build (preset release)"
cuda=AUTO
if ! has_gpu_driver; then
    cuda=OFF
    echo "no GPU driver found: building for the CPU alone (with the GPU code: cmake --preset release -DSPEEDRUN_CUDA=ON && cmake --build --preset release)"
fi
log=build/quickstart.log
mkdir -p build
if ! { cmake --preset release -DSPEEDRUN_CUDA=$cuda -DSPEEDRUN_UNITY=ON && cmake --build --preset release --target speedrun; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "error: the build failed; the whole output is in $log" >&2
    exit 1
fi
echo "build/release/speedrun"
step "3/7 data"
sh data/kjv/prepare.sh build/release/speedrun
step "4/7 how long training takes here"
dense=configs/kjv_dense.json fastest=configs/kjv_narrow.json most=60 # seconds; FrontPageTest compares the config with the board
config=$dense
seconds_of() {
    build/release/speedrun bench "$1" --run 2 --json >build/bench.json
    echo $(($(sed -n 's/^ *"train_ms": \([0-9]*\).*/\1/p' build/bench.json) / 1000))
}
seconds=$(seconds_of "$config")
echo "$config: about $seconds s"
if [ "$seconds" -gt $most ]; then
    config=$fastest
    seconds=$(seconds_of "$config")
    echo "$config: about $seconds s; taken, since the other would need more than $most s"
fi
prompt="And the LORD said unto "
step "5/7 a sample before training"
build/release/speedrun sample "$config" --tokens 80 --prompt "$prompt" | LC_ALL=C tr -c '[:print:]\n' '.' # any bytes
step "6/7 training: $config, about $seconds s"
build/release/speedrun train "$config" --name "$name"
step "7/7 a sample after training"
build/release/speedrun sample "logs/$name" --tokens 400 --prompt "$prompt"
cat <<TEXT

The run is in logs/$name: metrics.jsonl has every step, summary.json the result, config.json what was trained.
Its curve, and where the time went, as a page for the browser: pip install -r scripts/requirements.txt && scripts/report.py logs/$name
TEXT
