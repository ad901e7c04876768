#!/bin/sh
# From a fresh clone to a trained model: installs what is missing, builds, prepares the King James text, trains
# configs/kjv.json (about 6 seconds) and prints the result and a sample. Without a GPU driver the GPU code is left out.
# Usage: scripts/quickstart.sh [NAME]    NAME: of the run folder in logs/, default quickstart-<time>
set -eu
cd "$(dirname "$0")/.."
name=${1:-quickstart-$(date +%Y%m%d-%H%M%S)}

step() { printf '\n== %s\n' "$1"; }
has_gpu_driver() {
    nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidiactl ] || PATH=$PATH:/sbin ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '
}

step "1/5 packages"
sh scripts/install_dependencies.sh
step "2/5 build (preset release)"
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
step "3/5 data"
sh data/kjv/prepare.sh build/release/speedrun
step "4/5 training: configs/kjv.json"
build/release/speedrun train configs/kjv.json --name "$name"
step "5/5 a sample"
build/release/speedrun sample "logs/$name" --tokens 400 --prompt "And the LORD said unto "
