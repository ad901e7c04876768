// Streams, events and graphs of the fake CUDA runtime.
// build: in fake_cudart
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/cuda/fake_cuda_state.h"

using namespace speedrun;
using namespace speedrun::testing;
using namespace speedrun::testing::fake_cuda;

namespace {

CpuDevice& host() {
    static CpuDevice* const device = new CpuDevice(1);
    return *device;
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

// Kernels do not run on the fake GPU: a map stays empty, and its arguments are kept for tests.
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill) {
    *map = {};
    if (rank == 0 || reinterpret_cast<uintptr_t>(data) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(state().mutex);
    state().tensor_maps.push_back({data,
                                   {sizes, sizes + rank},
                                   {strides, strides + rank - 1},
                                   {box, box + rank},
                                   type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                   swizzle == CU_TENSOR_MAP_SWIZZLE_128B,
                                   promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B ? 256 : 128});
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
    *function = nullptr;
    if (std::strcmp(name, "cuStreamWaitValue32") == 0) *function = reinterpret_cast<void*>(&wait_value);
    if (std::strcmp(name, "cuStreamWriteValue32") == 0) *function = reinterpret_cast<void*>(&write_value);
    if (std::strcmp(name, "cuTensorMapEncodeTiled") == 0) *function = reinterpret_cast<void*>(&encode_tiled);
    const bool known = *function != nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int priority) {
    *stream = reinterpret_cast<cudaStream_t>(new CpuStream("fake GPU", host()));
    std::lock_guard lock(state().mutex);
    state().priorities[*stream] = priority;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    {
        std::lock_guard lock(state().mutex);
        state().priorities.erase(stream);
    }
    delete &stream_of(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream != cudaStreamLegacy)
        stream_of(stream).synchronize();  // work on the legacy stream runs immediately
    return cudaSuccess;
}
// Checks the flag of an event's wait or record: external inside a capture, default outside.
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
    if (!state().recording.emplace(stream, FakeGraph{}).second) return cudaErrorIllegalState;
    state().recorders.insert(std::this_thread::get_id());
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    std::lock_guard lock(state().mutex);
    auto node = state().recording.extract(stream);
    if (node.empty()) return cudaErrorIllegalState;
    state().recorders.extract(state().recorders.find(std::this_thread::get_id()));
    *graph = reinterpret_cast<cudaGraph_t>(new FakeGraph(std::move(node.mapped())));
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(new FakeGraph(*reinterpret_cast<FakeGraph*>(graph)));
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
    std::lock_guard lock(state().mutex);
    state().uploaded.insert(executable);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<FakeGraph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    {
        std::lock_guard lock(state().mutex);
        state().uploaded.erase(executable);
    }
    delete reinterpret_cast<FakeGraph*>(executable);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    {
        std::lock_guard lock(state().mutex);
        state().events.launches_without_upload += state().uploaded.count(executable) == 0;
    }
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
