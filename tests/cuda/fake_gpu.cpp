// build: in fake_cudart
#include "tests/cuda/fake_gpu.h"

#include <utility>

#include "tests/cuda/fake_cuda_state.h"

namespace speedrun::testing {

namespace fake_cuda {

thread_local const void* graph_under_way = nullptr;

State& state() {
    static State* const all = new State;  // leaked: memory may be freed at exit
    return *all;
}

void notify(const char* kernel, cudaStream_t stream) {
    if (const auto listener = state().listener.load()) listener({kernel, stream, graph_under_way});
}

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

bool this_thread_records() {
    std::lock_guard lock(state().mutex);
    return state().recorders.count(std::this_thread::get_id()) > 0;
}

}  // namespace fake_cuda

using namespace fake_cuda;

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
    state().tensor_maps.clear();
}

std::vector<FakeTensorMap> fake_gpu_tensor_maps() {
    std::lock_guard lock(state().mutex);
    return state().tensor_maps;
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

int fake_gpu_priority(void* stream) {
    std::lock_guard lock(state().mutex);
    return state().priorities.at(static_cast<cudaStream_t>(stream));
}

int64_t fake_gpu_pieces_of_work() {
    std::lock_guard lock(state().mutex);
    return state().pieces;
}

}  // namespace speedrun::testing
