// What device code is written with: the one way to launch a kernel, the one way to shared memory, and
// conversions between element types. The same .cu files compile with nvcc, and, under SPEEDRUN_SIMT, with the
// host compiler for the executor of tests/simt, which runs every thread of every block without a GPU.
//
//   launch(kernel, grid, block, shared_bytes, stream, args...)   kernel: a __global__ function, of templates
//   one case shared_memory<T>(byte_offset, count)                         of the block's dynamic shared
//   memory; no __shared__
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/device/device.h"
#include "kernels/device/dtype.h"

#if SPEEDRUN_SIMT
#include <tuple>

#include SPEEDRUN_SIMT_HEADER  // of the executor
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

namespace speedrun {

#if !SPEEDRUN_SIMT
// The most dynamic shared memory that a block may have on this stream's GPU, in bytes: 227 KiB on an H100,
// 163 on an A100, 99 on a 4090. A kernel may keep more in it where there is more, but must give the same
// bits.
int64_t max_shared_memory(Stream& stream);
#else
using simt::max_shared_memory;
#endif

// The stream of a launch, and where the launch was written: errors name it.
struct LaunchSite {
    Stream& stream;
    const char *function, *file;
    int line;

    LaunchSite(Stream& stream_, const char* function_ = __builtin_FUNCTION(),
               const char* file_ = __builtin_FILE(), int line_ = __builtin_LINE())
        : stream(stream_), function(function_), file(file_), line(line_) {}
};

#if SPEEDRUN_SIMT

template <class T>
simt::SharedPointer<T> shared_memory(int64_t byte_offset, int64_t count = -1,
                                     simt::Where where = simt::Where::current()) {
    return simt::shared_memory<T>(byte_offset, count, where);
}

template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes, LaunchSite site,
            Args&&... args) {
    std::tuple<std::decay_t<Parameters>...> values(std::forward<Args>(args)...);
    simt::submit(site.stream, {site.file, site.function, site.line, grid, block, shared_bytes,
                               [kernel, values = std::move(values)] { std::apply(kernel, values); },
                               reinterpret_cast<const void*>(kernel)});
}

#else

// count: elements that the array has; the executor of tests/simt checks indices against it. It begins where wgmma.h wants
// its tiles: at a multiple of 1024.
template <class T>
__device__ __forceinline__ T* shared_memory(int64_t byte_offset, [[maybe_unused]] int64_t count = -1) {
    extern __shared__ __align__(1024) unsigned char speedrun_shared_memory[];
    return reinterpret_cast<T*>(speedrun_shared_memory + byte_offset);
}

// The CUDA stream behind a Stream, whether nothing is to run because its device is dry, and whether the kernel may begin
// before those that it waits for have ended. begin_launch and end_launch frame the launch for traces.
struct LaunchTarget {
    cudaStream_t stream;
    bool dry, early;
};
LaunchTarget begin_launch(const LaunchSite& site, const void* kernel);
void end_launch(const LaunchSite& site);
// Lets launches of `kernel` take this much dynamic shared memory from here on: never less than before, since
// a captured graph may launch it with more. Throws a usage error where the GPU has less than that.
void allow_shared_memory(const void* kernel, int64_t bytes, const LaunchSite& site);
// Throws an internal error that names kernel, place and cause unless `error` is success.
void check_launch(cudaError_t error, const void* kernel, const LaunchSite& site);

template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes, LaunchSite site,
            Args&&... args) {
    const auto* const address = reinterpret_cast<const void*>(kernel);
    const LaunchTarget target = begin_launch(site, address);
    if (target.dry) return;
    if (shared_bytes > (48 << 10)) allow_shared_memory(address, shared_bytes, site);  // less needs no leave
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = target.stream;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    if (target.early) {
        config.attrs = &early;
        config.numAttrs = 1;
    }
    check_launch(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Args>(args))...),
                 address, site);
    end_launch(site);
}

#endif

// The first statement of every kernel: what kernels before it in its stream have written is there behind it, and what
// they read may be overwritten. Where the device lets kernels begin early (CudaDevice::let_kernels_begin_early), this one
// may have begun before they ended, and the next one may begin once all blocks of this one have come here; elsewhere it
// does nothing. CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
__device__ __forceinline__ void wait_for_kernels_before() {
#if SPEEDRUN_SIMT
    simt::note_waited();
#elif __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// ---- words of 8 or 16 bytes, moved by one instruction
template <class Word>
__device__ __forceinline__ Word load_word(const Word* from) {
#if SPEEDRUN_SIMT
    return simt::load_word(from);
#else
    return *from;
#endif
}
template <class Word>
__device__ __forceinline__ void store_word(Word* to, const Word& word) {
#if SPEEDRUN_SIMT
    simt::store_word(to, word);
#else
    *to = word;
#endif
}

// ---- conversions; Bf16's own are the host's
__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(Bf16 x) {
#if SPEEDRUN_SIMT
    return x;
#else
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#endif
}
// Rounds to nearest even; a NaN stays one.
template <class Real>
__device__ __forceinline__ Real from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
#if SPEEDRUN_SIMT
    return Bf16(x);
#else
    Bf16 result;
    result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return result;
#endif
}

__device__ __forceinline__ float quiet_nan() {
    return __uint_as_float(0x7fffffffu);
}
__device__ __forceinline__ bool is_finite(float x) {
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace speedrun
