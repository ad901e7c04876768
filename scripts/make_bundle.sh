#!/bin/sh
# Builds a folder that runs scripts/gpu_check.sh on another x86-64 Linux machine. It needs an NVIDIA driver and a glibc at least
# as new as this machine's. Contents: programs, libraries that a plain machine lacks, scripts, configs, and the King James
# text's tokens. packaging.cmake lists them.
# Usage: make_bundle.sh [--cuda on|off] [--mpi on|off] [--architectures LIST] [--archive gz|zst|none] [--build DIR] [OUT_DIR]
#   --cuda           off: a rehearsal without GPU programs (default: on)
#   --mpi            on: for ranks on several GPUs; the machine needs the same MPI (default: off)
#   --architectures  GPU architectures, as for CMake (default: 90a-real)
#   --archive        result: OUT_DIR.tar.gz (default), OUT_DIR.tar.zst or the folder only
#   --build          build folder, kept for later calls (default: build/bundle-build)
#   OUT_DIR          created; an existing bundle is replaced (default: build/bundle)
# JOBS: compile jobs (default: all cores). Fails if the result is larger than 60 MiB.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
limit_mib=60

cuda=on mpi=off architectures=90a-real archive=gz build=$root/build/bundle-build
# shellcheck disable=SC2034  # for options.sh
options='cuda mpi architectures archive build' positionals=1
# shellcheck source=scripts/options.sh
. "$root/scripts/options.sh"
out=${1:-$root/build/bundle}
case $cuda/$mpi in on/on | on/off | off/on | off/off) ;; *) die "--cuda $cuda, --mpi $mpi: on or off" ;; esac
case $archive in gz | zst | none) ;; *) die "--archive $archive: gz, zst or none" ;; esac
for tool in cmake ninja readelf strip ldd objdump tar; do
    command -v "$tool" >/dev/null 2>&1 || die "$tool: not found"
done
if [ -e "$out" ] && [ ! -f "$out/manifest.txt" ] && [ -n "$(ls -A "$out")" ]; then
    die "$out is there and is no bundle; remove it or name another folder"
fi

[ -f "$root/data/kjv/dataset.json" ] || die "no $root/data/kjv/dataset.json: run data/kjv/prepare.sh BINARY first"

programs='speedrun op_bench gpu_report make_tokens kernels_tests'
[ "$cuda" = off ] || programs="$programs gpu_tests"
mkdir -p "$build"
# Compressed machine code of the kernels takes a quarter of the space (CUDA 12.8 and later; drivers since 550 support it).
cuda_flags=''
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ "$cuda" = on ] && "$nvcc" --help 2>/dev/null | grep -q -e --compress-mode; then cuda_flags=--compress-mode=size; fi
upper() { echo "$1" | tr '[:lower:]' '[:upper:]'; }
# shellcheck disable=SC2086  # the list of programs is words
{
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        "-DSPEEDRUN_MPI=$(upper "$mpi")" "-DSPEEDRUN_CUDA=$(upper "$cuda")" \
        "-DSPEEDRUN_CUDA_ARCHITECTURES=$architectures" "-DCMAKE_CUDA_FLAGS=$cuda_flags" >"$build/configure.log" 2>&1 ||
        { tail -n 20 "$build/configure.log" >&2 && die "configuring failed: $build/configure.log"; }
    cmake --build "$build" -j "${JOBS:-$(nproc)}" --target $programs >"$build/build.log" 2>&1 ||
        { grep -E 'error|FAILED' "$build/build.log" >&2 || true; die "the build failed: $build/build.log"; }
}

# packaging.cmake lists the shipped files.
rm -rf "$out"
mkdir -p "$out/lib/fallback"
out=$(CDPATH='' cd -- "$out" && pwd)
for component in runtime libraries check check_libraries; do
    cmake --install "$build" --strip --prefix "$out" --component $component >"$build/install.log" 2>&1 ||
        { tail -n 5 "$build/install.log" >&2 && die "installing the component $component failed: $build/install.log"; }
done
# shellcheck disable=SC2016
for program in $programs; do
    readelf -d "$out/bin/$program" | grep -q 'RPATH.*\$ORIGIN/../lib' || die "$program: no RPATH to ../lib"
done
# A fallback, in a separate folder: tools of the machine that share our process need the machine's C++ library, which is newer
# if it exists.
ldd "$out/bin/speedrun" | awk '/libstdc|libgcc_s/ { print $3 }' | while read -r path; do cp -L "$path" "$out/lib/fallback/"; done
# Regular files: links may not be preserved in transfer.
find "$out/lib" -type l | while read -r link; do
    path=$(readlink -f "$link")
    rm "$link" && mv "$path" "$link"
done
find "$out/lib" -type f -name '*.so*' -exec strip --strip-unneeded {} +

# Highest version of the C library that any file requires.
glibc=$(find "$out/bin" "$out/lib" -type f -exec readelf -V {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
sha=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git -C "$root" status --porcelain --untracked-files=no 2>/dev/null)" ] || sha=$sha-dirty
{
    echo "git_sha=$sha"
    echo "built=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    [ "$cuda" = off ] || echo "gpu_architectures=$architectures"
    [ "$cuda" = off ] || echo "cuda_compiler=$("$nvcc" --version | grep release)"
    echo "needs_glibc=${glibc#GLIBC_}"
    echo "compiler=$("$(sed -n 's/^CMAKE_CXX_COMPILER:[^=]*=//p' "$build/CMakeCache.txt")" --version | head -n 1)"
} >"$out/manifest.txt"

(cd "$out" && find . -type f -exec ls -l {} + | awk '{ printf "%10.1f KiB  %s\n", $5 / 1024, $NF }' | sort -rn)
cat "$out/manifest.txt"
echo "$out: $(($(du -sk "$out" | cut -f 1) / 1024)) MiB"
case $archive in
gz) packed=$out.tar.gz && tar -C "$(dirname "$out")" -czf "$packed" "$(basename "$out")" ;;
zst) packed=$out.tar.zst && tar -C "$(dirname "$out")" --zstd -cf "$packed" "$(basename "$out")" ;;
none) packed=$out ;;
esac
size_kib=$(du -sk "$packed" | cut -f 1)
echo "$packed: $((size_kib / 1024)) MiB"
[ "$size_kib" -le $((limit_mib * 1024)) ] || die "$packed is larger than $limit_mib MiB"
