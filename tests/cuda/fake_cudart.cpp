#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/cuda/fake_gpu.h"

namespace speedrun::testing {

namespace {

constexpr int64_t kAlignment = 256;           // cudaMalloc's
constexpr int64_t kUnaskedShared = 48 << 10;  // dynamic shared memory that every kernel may have
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1, kMaxGridYZ = 65535, kMaxThreads = 1024;

constexpr int64_t kTouched = 64 << 20;  // larger pieces of memory are left alone: nothing reads them

// What a graph does when it is launched on a stream.
using FakeGraph = std::vector<std::function<void(cudaStream_t)>>;

struct State {
    std::mutex mutex;
    FakeGpu gpu;
    std::map<void*, int64_t> memory;
    int64_t allocations = 0, pieces = 0;
    std::map<const void*, std::string> kernels;
    std::map<const void*, int64_t> allowed_shared;
    std::map<std::string, FakeLaunch> launches;
    std::map<cudaStream_t, FakeGraph> recording;
    FakeEvents events;
    std::atomic<void (*)(const FakeWork&)> listener = nullptr;
};

thread_local const void* graph_under_way = nullptr;

State& state() {
    static State* const all = new State;  // outlives whoever frees memory at exit
    return *all;
}

void tell(const char* kernel, cudaStream_t stream) {
    if (const auto listener = state().listener.load()) listener({kernel, stream, graph_under_way});
}

CpuDevice& host() {
    static CpuDevice* const device = new CpuDevice(1);
    return *device;
}

CpuStream& stream_of(cudaStream_t handle) {
    return *reinterpret_cast<CpuStream*>(handle);
}

// Does it now or, if the stream is being recorded, at every launch of the graph.
void enqueue(cudaStream_t stream, std::function<void(cudaStream_t)> work) {
    {
        std::lock_guard lock(state().mutex);
        const auto graph = state().recording.find(stream);
        if (graph != state().recording.end()) {
            graph->second.push_back(std::move(work));
            return;
        }
    }
    work(stream);
}

bool any_recording() {
    std::lock_guard lock(state().mutex);
    return !state().recording.empty();
}

CpuEvent& event_of(cudaEvent_t handle) {
    return *reinterpret_cast<CpuEvent*>(handle);
}

CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    auto* const word = reinterpret_cast<uint32_t*>(address);
    stream_of(stream).submit(
        "write value", [word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); });
    return CUDA_SUCCESS;
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    auto* const word = reinterpret_cast<uint32_t*>(address);
    stream_of(stream).submit("wait value", [word, value] {
        while (static_cast<int32_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) < 0)
            std::this_thread::yield();
    });
    return CUDA_SUCCESS;
}

}  // namespace

void set_fake_gpu(const FakeGpu& gpu) {
    std::lock_guard lock(state().mutex);
    state().gpu = gpu;
}

int64_t fake_gpu_allocated_bytes() {
    std::lock_guard lock(state().mutex);
    int64_t sum = 0;
    for (const auto& [address, bytes] : state().memory) sum += bytes;
    return sum;
}

int64_t fake_gpu_allocations() {
    std::lock_guard lock(state().mutex);
    return state().allocations;
}

std::map<std::string, FakeLaunch> fake_gpu_launches() {
    std::lock_guard lock(state().mutex);
    return state().launches;
}

void forget_fake_gpu_launches() {
    std::lock_guard lock(state().mutex);
    state().launches.clear();
}

int64_t fake_gpu_allowed_shared(const std::string& kernel) {
    std::lock_guard lock(state().mutex);
    for (const auto& [function, bytes] : state().allowed_shared) {
        if (state().kernels[function].find(kernel) != std::string::npos) return bytes;
    }
    return 0;
}

void set_fake_gpu_listener(void (*listener)(const FakeWork&)) {
    state().listener = listener;
}

void enqueue_on_fake_gpu(void* stream, std::function<void()> work) {
    enqueue(static_cast<cudaStream_t>(stream),
            [work = std::move(work)](cudaStream_t on) { stream_of(on).submit("library", work); });
}

FakeEvents fake_gpu_events() {
    std::lock_guard lock(state().mutex);
    return state().events;
}

int64_t fake_gpu_pieces_of_work() {
    std::lock_guard lock(state().mutex);
    return state().pieces;
}

}  // namespace speedrun::testing

using namespace speedrun;
using namespace speedrun::testing;

extern "C" {

// ---- what nvcc's host code calls before main and for every launch
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
// Only the <<<>>> syntax comes here, and launch() does not use it.
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
        const auto asked = all.allowed_shared.find(function);
        const int64_t allowed = asked == all.allowed_shared.end() ? kUnaskedShared : asked->second;
        if (all.gpu.refuses_launches) return cudaErrorInvalidConfiguration;
        if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) return cudaErrorInvalidConfiguration;
        if (threads > kMaxThreads || block.z > 64 || grid.x > kMaxGridX || grid.y > kMaxGridYZ ||
            grid.z > kMaxGridYZ)
            return cudaErrorInvalidConfiguration;
        if (shared > allowed) return cudaErrorInvalidValue;
    }
    enqueue(config->stream, [&all, name, threads, shared](cudaStream_t on) {
        tell(name.c_str(), on);
        std::lock_guard lock(all.mutex);
        FakeLaunch& launch = all.launches[name];
        ++launch.calls;
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
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = 132;
    properties->totalGlobalMem = static_cast<size_t>(state().gpu.memory_bytes);
    properties->l2CacheSize = 50 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return cudaErrorInvalidValue;
    std::lock_guard lock(state().mutex);
    *value = static_cast<int>(state().gpu.shared_memory);
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    std::lock_guard lock(state().mutex);
    return device < state().gpu.count ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
    *function = nullptr;
    if (std::strcmp(name, "cuStreamWaitValue32") == 0) *function = reinterpret_cast<void*>(&wait_value);
    if (std::strcmp(name, "cuStreamWriteValue32") == 0) *function = reinterpret_cast<void*>(&write_value);
    const bool known = *function != nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// ---- memory
cudaError_t cudaMalloc(void** data, size_t bytes) {
    if (any_recording()) return cudaErrorStreamCaptureUnsupported;
    const int64_t size = (static_cast<int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t held = fake_gpu_allocated_bytes();
    std::lock_guard lock(state().mutex);
    if (held + size > state().gpu.memory_bytes) return cudaErrorMemoryAllocation;
    *data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (!*data) return cudaErrorMemoryAllocation;
    // Not zeros: the caller has to ask for them.
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
        tell(nullptr, on);
        stream_of(on).submit("copy", [=] { std::memcpy(destination, source, bytes); });
    });
    return cudaSuccess;
}

// ---- streams and events
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
    *stream = reinterpret_cast<cudaStream_t>(new CpuStream("fake GPU", host()));
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete &stream_of(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream != cudaStreamLegacy)
        stream_of(stream).synchronize();  // what goes to the legacy one is done at once
    return cudaSuccess;
}
// The flag of an event's wait and record has to fit: inside a recording external, outside not.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    bool recording = false;
    GraphWaits graph_waits{};
    {
        std::lock_guard lock(state().mutex);
        recording = state().recording.count(stream) > 0;
        graph_waits = state().gpu.graph_waits;
        state().events.captured_waits += recording;
    }
    if (recording != (flags == cudaEventWaitExternal)) return cudaErrorStreamCaptureIsolation;
    if (recording && graph_waits == GraphWaits::at_capture) {
        enqueue(stream, [then = event_of(event)](cudaStream_t on) { stream_of(on).wait(then); });
    } else if (recording && graph_waits == GraphWaits::never_end) {
        enqueue(stream, [](cudaStream_t on) {
            stream_of(on).submit("wait", [] {
                for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
            });
        });
    } else {
        enqueue(stream, [event](cudaStream_t on) { stream_of(on).wait(event_of(event)); });
    }
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    std::lock_guard lock(state().mutex);
    return state().recording.emplace(stream, FakeGraph{}).second ? cudaSuccess : cudaErrorIllegalState;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    std::lock_guard lock(state().mutex);
    auto node = state().recording.extract(stream);
    if (node.empty()) return cudaErrorIllegalState;
    *graph = reinterpret_cast<cudaGraph_t>(new FakeGraph(std::move(node.mapped())));
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(new FakeGraph(*reinterpret_cast<FakeGraph*>(graph)));
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<FakeGraph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete reinterpret_cast<FakeGraph*>(executable);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    graph_under_way = executable;
    for (const auto& work : *reinterpret_cast<FakeGraph*>(executable)) work(stream);
    graph_under_way = nullptr;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
    *event = reinterpret_cast<cudaEvent_t>(
        new CpuEvent((flags & cudaEventDisableTiming) != 0 ? EventKind::order : EventKind::timed));
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete &event_of(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    bool recording = false;
    {
        std::lock_guard lock(state().mutex);
        recording = state().recording.count(stream) > 0;
        FakeEvents& events = state().events;
        const bool timed = event_of(event).timed();
        ++(recording ? events.captured_records : events.records);
        if (timed) ++(recording ? events.captured_timed_records : events.timed_records);
    }
    if (recording != (flags == cudaEventRecordExternal)) return cudaErrorStreamCaptureIsolation;
    enqueue(stream, [event](cudaStream_t on) { stream_of(on).record(event_of(event)); });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return event_of(event).complete() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    event_of(event).synchronize();
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    if (!event_of(begin).timed() || !event_of(end).timed()) return cudaErrorInvalidResourceHandle;
    *ms = static_cast<float>(event_of(end).elapsed_ms_since(event_of(begin)));
    return cudaSuccess;
}

}  // extern "C"
