# Sourced by gpu_check.sh: makes libraries of an NVIDIA machine visible to the loader. CUDA's libraries are in a toolkit folder
# or in Python's nvidia wheels; the driver's are in the loader's path or in /usr/local/nvidia. Appends folders to
# LD_LIBRARY_PATH, and only folders with a required library that was not found before.
# shellcheck shell=sh

speedrun_library_folders() {
    for folder in "${CUDA_HOME:+$CUDA_HOME/lib64}" /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64 \
        /usr/local/cuda/targets/x86_64-linux/lib /usr/local/cuda/extras/CUPTI/lib64 /usr/lib/x86_64-linux-gnu /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
        [ -n "$folder" ] && printf '%s\n' "$folder"
    done
    if command -v python3 >/dev/null 2>&1 && command -v timeout >/dev/null 2>&1; then
        timeout 20 python3 -c 'import site, sys, sysconfig
for path in [sysconfig.get_paths()["purelib"]] + site.getsitepackages() + sys.path:
    print(path)' 2>/dev/null | while read -r site; do
            for folder in "$site"/nvidia/*/lib; do [ -d "$folder" ] && printf '%s\n' "$folder"; done
        done
    fi
}

speedrun_find_cuda() {
    folders=$(speedrun_library_folders)
    for library in libcuda.so.1 libcudart.so.13 libcublasLt.so.13 libcudnn.so.9 libnccl.so.2 libcupti.so.13; do
        if ldconfig -p 2>/dev/null | grep -q "$library"; then continue; fi
        found=$(printf '%s\n' "$folders" | while read -r folder; do
            [ -e "$folder/$library" ] && printf '%s\n' "$folder" && break
        done)
        [ -n "$found" ] || continue
        case ":${LD_LIBRARY_PATH:-}:" in
        *":$found:"*) ;;
        *) LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found ;;
        esac
    done
    [ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH
}

PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/sbin:/sbin:/usr/local/cuda/bin:/usr/local/nvidia/bin
export PATH
speedrun_find_cuda
