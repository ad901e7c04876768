// Shared state of the fake CUDA functions.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/cuda/fake_gpu.h"

namespace speedrun::testing::fake_cuda {

// Work of a graph at a launch on a stream.
using FakeGraph = std::vector<std::function<void(cudaStream_t)>>;

struct State {
    std::mutex mutex;
    FakeGpu gpu;
    std::map<void*, int64_t> memory;
    int64_t allocations = 0, pieces = 0;
    std::map<const void*, std::string> kernels;
    std::map<const void*, int64_t> allowed_shared;
    std::map<std::string, FakeLaunch> launches;
    std::vector<FakeTensorMap> tensor_maps;
    std::map<cudaStream_t, int> priorities;
    std::map<cudaStream_t, FakeGraph> recording;
    std::multiset<std::thread::id> recorders;  // threads that began captures
    FakeEvents events;
    std::set<const void*> uploaded;  // cudaGraphExec_t
    std::atomic<void (*)(const FakeWork&)> listener = nullptr;
};

State& state();

inline CpuStream& stream_of(cudaStream_t handle) {
    return *reinterpret_cast<CpuStream*>(handle);
}

inline CpuEvent& event_of(cudaEvent_t handle) {
    return *reinterpret_cast<CpuEvent*>(handle);
}

// Runs `work` on the stream or, during a capture, at every launch of the graph.
void enqueue(cudaStream_t stream, std::function<void(cudaStream_t)> work);
// True if this thread captures. Ranks that are threads share this GPU: other threads may make calls that a
// capturing thread may not.
bool this_thread_records();
// Reports a launch, or without a kernel a copy, to the listener, if there is one.
void notify(const char* kernel, cudaStream_t stream);

extern thread_local const void* graph_under_way;  // graph that this thread is launching; null: none

}  // namespace speedrun::testing::fake_cuda
