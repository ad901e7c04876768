# Sourced by gpu_check.sh: lets the loader find what an NVIDIA machine keeps outside its path. CUDA's libraries lie in a
# toolkit folder or in Python's nvidia wheels; the driver's in the loader's path or in /usr/local/nvidia. Adds folders
# behind what LD_LIBRARY_PATH holds, and only those that have a library that is wanted and not found before them.
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
