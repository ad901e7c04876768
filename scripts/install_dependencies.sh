#!/bin/sh
# Installs the missing Debian/Ubuntu packages for building speedrun, and prints their names. Uses sudo unless run as root.
# Installs and downloads no other packages.
# Usage: install_dependencies.sh [tests]
#   tests: also the packages of tests: an emulator of older processors (12 MB to download), xxhsum, clang-tidy 14 if the system
#   has it. With a CUDA toolkit without NVIDIA's disassembler, also that (7 MB by pip, into build/disassembler).
set -eu

packages="g++ cmake ninja-build ccache git libopenmpi-dev openmpi-bin libspdlog-dev libfmt-dev libcli11-dev
nlohmann-json3-dev libutf8proc-dev libxxhash-dev libboost-dev libboost-context-dev libgtest-dev libbenchmark-dev libssl-dev zlib1g-dev libzstd-dev bible-kjv python3 curl"
[ "${1:-}" != tests ] || packages="$packages qemu-user xxhash"

as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo"
missing=""
for package in $packages; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: this script knows apt-get only; install the equivalents of:$missing" >&2
        exit 1
    fi
    echo "installing:$missing"
    $as_root apt-get update -qq
    # shellcheck disable=SC2086  # the list is meant to be split
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

have=$(cmake --version | sed -n '1s/[^0-9]*//p')
oldest=$(printf '3.25\n%s\n' "$have" | sort -V | head -n 1)
if [ "$oldest" != "3.25" ]; then
    echo "error: cmake $have is too old, 3.25 is needed (on Ubuntu 22.04: pip install cmake)" >&2
    exit 1
fi

[ "${1:-}" = tests ] || exit 0
# Exactly this version, which newer systems lack: other versions report other findings.
if ! command -v clang-tidy-14 >/dev/null && apt-cache show clang-tidy-14 >/dev/null 2>&1; then
    echo "installing: clang-tidy-14"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang-tidy-14 >/dev/null ||
        echo "note: that failed; the test that needs it will be skipped"
fi
nvcc=$(command -v nvcc || true)
disassembler=$(dirname "$0")/../build/disassembler
if [ -n "$nvcc" ] && [ -z "$(PATH=$PATH:$(dirname "$nvcc"):$disassembler/nvidia/cu13/bin command -v nvdisasm)" ]; then
    echo "installing: nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm into build/disassembler"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --retries 0 --timeout 10 --target "$disassembler" \
        'nvidia-cuda-cuobjdump==13.*' 'nvidia-cuda-nvdisasm==13.*' 2>/dev/null ||
        echo "note: that failed; the test that needs them will be skipped"
fi
