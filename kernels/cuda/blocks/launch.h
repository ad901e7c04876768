// Basis of device code: kernel launch, shared memory, and conversions between element types. The same .cu
// files compile with nvcc and, with SPEEDRUN_SIMT, with the host compiler for the executor of tests/simt. The
// executor runs every thread of every block without a GPU.
//
//   launch(kernel, grid, block, shared_bytes, stream, args...): kernel is a __global__ function or an instance of a template
//   shared_memory<T>(byte_offset, count): part of the block's dynamic shared memory; __shared__ is not used
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/device/device.h"
#include "kernels/device/dtype.h"

#if SPEEDRUN_SIMT
#include <tuple>

#include SPEEDRUN_SIMT_HEADER  // header of the executor
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

namespace speedrun {

#if !SPEEDRUN_SIMT
// Maximum dynamic shared memory of a block on this stream's GPU, in bytes: 227 KiB on an H100, 163 on an
// A100, 99 on a 4090. A kernel may use it all, but must return the same bits on each GPU.
int64_t max_shared_memory(Stream& stream);
// Multiprocessors of this stream's GPU, for persistent blocks; results do not depend on it.
int64_t multiprocessors(Stream& stream);
#else
using simt::max_shared_memory;
using simt::multiprocessors;
#endif

// Stream and source location of a launch, for error messages.
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

// count: elements of the array; the executor of tests/simt checks indices against it. The base is aligned to
// 1024 bytes, as the tiles of wgmma.h require.
template <class T>
__device__ __forceinline__ T* shared_memory(int64_t byte_offset, [[maybe_unused]] int64_t count = -1) {
    extern __shared__ __align__(1024) unsigned char speedrun_shared_memory[];
    return reinterpret_cast<T*>(speedrun_shared_memory + byte_offset);
}

// Target of a launch: the CUDA stream, whether the device is dry (nothing runs), and whether the kernel may
// begin before earlier kernels end. begin_launch and end_launch frame the launch for traces.
struct LaunchTarget {
    cudaStream_t stream;
    bool dry, early;
};
LaunchTarget begin_launch(const LaunchSite& site, const void* kernel);
void end_launch(const LaunchSite& site);
// Raises the limit of dynamic shared memory of `kernel`. Never lowers it, since a captured graph may launch
// it with more. Throws a usage error if the GPU has less.
void allow_shared_memory(const void* kernel, int64_t bytes, const LaunchSite& site);
// Throws an internal error that names kernel, place and cause unless `error` is success.
void check_launch(cudaError_t error, const void* kernel, const LaunchSite& site);

template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes, LaunchSite site,
            Args&&... args) {
    const auto* const address = reinterpret_cast<const void*>(kernel);
    const LaunchTarget target = begin_launch(site, address);
    if (target.dry) return;
    if (shared_bytes > (48 << 10)) allow_shared_memory(address, shared_bytes, site);  // the default limit
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

// First statement of every kernel. Waits until earlier kernels of its stream have ended: their writes are
// visible, and their inputs may be overwritten. With CudaDevice::enable_dependent_launch, this kernel may
// have begun before they end. The next one may begin once all blocks of this one have called it. Otherwise a
// no-op. See CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
__device__ __forceinline__ void wait_for_prior_kernels() {
#if SPEEDRUN_SIMT
    simt::note_waited();
#elif __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// ---- words of 8 or 16 bytes, accessed by one instruction
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

// ---- conversions; those of Bf16 itself are host code
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
// Rounds to nearest even; NaN stays NaN.
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
