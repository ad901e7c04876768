// Launches, errors, devices and memory of the fake CUDA runtime.
// build: in fake_cudart
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "tests/cuda/fake_cuda_state.h"

using namespace speedrun;
using namespace speedrun::testing;
using namespace speedrun::testing::fake_cuda;

namespace {

constexpr int64_t kAlignment = 256;           // alignment of cudaMalloc
constexpr int64_t kDefaultShared = 48 << 10;  // default limit of dynamic shared memory
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1, kMaxGridYZ = 65535, kMaxThreads = 1024;

constexpr int64_t kTouched = 64 << 20;  // larger allocations are not filled: they are never read

}  // namespace

extern "C" {

// ---- functions that nvcc's host code calls before main and for every launch
void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
    std::lock_guard lock(state().mutex);
    state().kernels[host_function] = name;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host_function));
    return cudaSuccess;
}
// Only the <<<>>> syntax calls this; launch() does not use it.
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
    return cudaErrorNotSupported;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
    return cudaErrorNotSupported;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
    const dim3 grid = config->gridDim, block = config->blockDim;
    const int64_t threads = int64_t{block.x} * block.y * block.z;
    const auto shared = static_cast<int64_t>(config->dynamicSmemBytes);
    State& all = state();
    std::string name;
    {
        std::lock_guard lock(all.mutex);
        const auto kernel = all.kernels.find(function);
        if (kernel == all.kernels.end()) return cudaErrorInvalidDeviceFunction;
        name = kernel->second;
        const auto requested = all.allowed_shared.find(function);
        const int64_t allowed = requested == all.allowed_shared.end() ? kDefaultShared : requested->second;
        if (all.gpu.refuses_launches) return cudaErrorInvalidConfiguration;
        if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) return cudaErrorInvalidConfiguration;
        if (threads > kMaxThreads || block.z > 64 || grid.x > kMaxGridX || grid.y > kMaxGridYZ ||
            grid.z > kMaxGridYZ)
            return cudaErrorInvalidConfiguration;
        if (shared > allowed) return cudaErrorInvalidValue;
    }
    bool early = false;
    for (unsigned i = 0; i < config->numAttrs; ++i)
        early = early || (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                          config->attrs[i].val.programmaticStreamSerializationAllowed);
    {
        std::lock_guard lock(all.mutex);
        if (early && !all.gpu.captures_early_launches && all.recording.count(config->stream) > 0)
            return cudaErrorInvalidResourceHandle;
    }
    enqueue(config->stream, [&all, name, threads, shared, early](cudaStream_t on) {
        notify(name.c_str(), on);
        std::lock_guard lock(all.mutex);
        FakeLaunch& launch = all.launches[name];
        ++launch.calls;
        launch.early += early;
        ++all.pieces;
        launch.threads = std::max(launch.threads, threads);
        launch.shared_bytes = std::max(launch.shared_bytes, shared);
    });
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    std::lock_guard lock(state().mutex);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > state().gpu.shared_memory)
        return cudaErrorInvalidValue;
    state().allowed_shared[function] = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
    std::lock_guard lock(state().mutex);
    const auto kernel = state().kernels.find(function);
    if (kernel == state().kernels.end()) return cudaErrorInvalidDeviceFunction;
    *name = kernel->second.c_str();
    return cudaSuccess;
}

// ---- errors and devices
const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration"
                                                  : "cudaError of the fake GPU";
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "see the fake GPU's limits";
}
cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    std::lock_guard lock(state().mutex);
    *version = state().gpu.driver_version;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
    std::lock_guard lock(state().mutex);
    *count = state().gpu.count;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    std::lock_guard lock(state().mutex);
    std::strcpy(properties->name, "fake GPU");
    properties->pciBusID = device;
    properties->major = state().gpu.major;
    properties->minor = state().gpu.minor;
    properties->multiProcessorCount = 132;
    properties->totalGlobalMem = static_cast<size_t>(state().gpu.memory_bytes);
    properties->l2CacheSize = 50 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    std::lock_guard lock(state().mutex);
    switch (attribute) {
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(state().gpu.shared_memory);
            break;
        case cudaDevAttrMultiProcessorCount:
            *value = 132;
            break;
        default:
            return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    std::lock_guard lock(state().mutex);
    return device < state().gpu.count ? cudaSuccess : cudaErrorInvalidDevice;
}
// ---- memory
cudaError_t cudaMalloc(void** data, size_t bytes) {
    if (this_thread_records()) return cudaErrorStreamCaptureUnsupported;
    const int64_t size = (static_cast<int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t held = fake_gpu_allocated_bytes();
    std::lock_guard lock(state().mutex);
    if (held + size > state().gpu.memory_bytes) return cudaErrorMemoryAllocation;
    *data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (!*data) return cudaErrorMemoryAllocation;
    // Not zeros: the caller must request them.
    if (size <= kTouched) std::memset(*data, 0xff, static_cast<size_t>(size));
    state().memory[*data] = size;
    ++state().allocations;
    return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
    std::lock_guard lock(state().mutex);
    if (state().memory.erase(data) == 0) return cudaErrorInvalidValue;
    std::free(data);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
    if (static_cast<int64_t>(bytes) <= kTouched) std::memset(data, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    const int64_t held = fake_gpu_allocated_bytes();
    std::lock_guard lock(state().mutex);
    *total = static_cast<size_t>(state().gpu.memory_bytes);
    *free_bytes = static_cast<size_t>(state().gpu.memory_bytes - held);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
    *data = std::malloc(bytes);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* data) {
    std::free(data);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    enqueue(stream, [=](cudaStream_t on) {
        {
            std::lock_guard lock(state().mutex);
            ++state().pieces;
        }
        notify(nullptr, on);
        stream_of(on).submit("copy", [=] { std::memcpy(destination, source, bytes); });
    });
    return cudaSuccess;
}

}  // extern "C"
