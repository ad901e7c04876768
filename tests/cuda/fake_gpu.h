// A CUDA runtime without a GPU: the cudart functions that speedrun calls, with memory from the heap,
// CpuStreams as streams, and kernels that are recorded but not run. Linked in place of cudart, it runs the
// host side of the CUDA backend (order of streams, launch sizes, memory, errors), but no device code.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace speedrun::testing {

// Time at which a graph's external wait selects its record. CUDA, as far as is known: at launch. The others
// are faults.
enum class GraphWaits : uint8_t { at_launch, at_capture, never_end };

struct FakeGpu {
    int count = 1;
    int driver_version = 13000;  // 0: no driver
    int64_t memory_bytes = int64_t{1} << 33;
    bool refuses_launches = false;
    int64_t shared_memory = 227 << 10;  // maximum dynamic shared memory of a block, in bytes
    GraphWaits graph_waits = GraphWaits::at_launch;
    int major = 9, minor = 0;             // compute capability
    bool captures_early_launches = true;  // false: capturing a kernel that may begin early fails
};

struct FakeLaunch {
    int64_t calls = 0;
    int64_t threads = 0;       // threads of the largest block
    int64_t shared_bytes = 0;  // dynamic shared memory of the largest launch, in bytes
    int64_t early = 0;         // launches that may begin before the kernel before them has ended
};

// Sets the GPU of the process.
void set_fake_gpu(const FakeGpu& gpu);
int64_t fake_gpu_allocated_bytes();
int64_t fake_gpu_allocations();  // calls of cudaMalloc so far
// Keyed by mangled kernel name. Every launch was checked against the limits of compute capability 9.0:
// threads, grid, and dynamic shared memory against the kernel's attribute and the GPU. A violation fails the
// launch.
std::map<std::string, FakeLaunch> fake_gpu_launches();
void forget_fake_gpu_launches();

// Tensor maps that the driver has encoded since the launches were forgotten.
struct FakeTensorMap {
    const void* data;
    std::vector<int64_t> sizes, strides, box;  // innermost first; strides in bytes, without the innermost
    bool bf16, swizzled;                       // element type; 128-byte swizzle
    int promoted_bytes;                        // fetched together by the L2 cache
};
std::vector<FakeTensorMap> fake_gpu_tensor_maps();
// Current limit of dynamic shared memory of a kernel, selected by a part of its mangled name; 0: never set.
int64_t fake_gpu_allowed_shared(const std::string& kernel);
// Counts since the process began: records, timed records, captured records, and launches of graphs that were not uploaded.
struct FakeEvents {
    int64_t records = 0, timed_records = 0;
    int64_t captured_records = 0, captured_timed_records = 0, captured_waits = 0;
    int64_t launches_without_upload = 0;
};
FakeEvents fake_gpu_events();
// Priority of a stream (a cudaStream_t): from 0, the lowest, to -5.
int fake_gpu_priority(void* stream);
// Number of copies and launches so far.
int64_t fake_gpu_pieces_of_work();

// Runs `work` on a stream (a cudaStream_t) or, during a capture, at every launch of the graph.
void enqueue_on_fake_gpu(void* stream, std::function<void()> work);

// A copy or a launch, when it happens.
struct FakeWork {
    const char* kernel = nullptr;  // mangled; null: a copy
    const void* stream = nullptr;  // cudaStream_t
    const void* graph = nullptr;   // cudaGraphExec_t; null: launched by itself
};
// Sets the listener for all later work; null: none.
void set_fake_gpu_listener(void (*listener)(const FakeWork&));

}  // namespace speedrun::testing
