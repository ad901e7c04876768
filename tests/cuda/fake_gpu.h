// A CUDA runtime without a GPU: the functions of cudart that speedrun calls, with memory from the heap,
// streams that are CpuStreams, and kernels that are noted but not run. Linked in place of cudart, it lets the
// host side of the CUDA backend run (order of streams, sizes of launches, memory, errors), nothing of the
// device side.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace speedrun::testing {

// When a graph's wait for an event from outside looks which record it is for. CUDA, as far as is known: at
// launch. The others are faults.
enum class GraphWaits : uint8_t { at_launch, at_capture, never_end };

struct FakeGpu {
    int count = 1;
    int driver_version = 13000;  // 0: no driver
    int64_t memory_bytes = int64_t{1} << 33;
    bool refuses_launches = false;
    int64_t shared_memory = 227 << 10;  // dynamic, that a block may have
    GraphWaits graph_waits = GraphWaits::at_launch;
    int major = 9, minor = 0;  // compute capability
};

struct FakeLaunch {
    int64_t calls = 0;
    int64_t threads = 0;       // of the largest block
    int64_t shared_bytes = 0;  // dynamic, of the largest launch
    int64_t early = 0;         // calls that may begin before the kernel before them has ended
};

// The GPU that the process sees from here on.
void set_fake_gpu(const FakeGpu& gpu);
int64_t fake_gpu_allocated_bytes();
int64_t fake_gpu_allocations();  // calls of cudaMalloc so far
// By mangled name of the kernel. Every launch was checked against the limits of compute capability 9.0:
// threads, grid, and dynamic shared memory against what the kernel's attribute and the GPU allow; a breach
// fails the launch.
std::map<std::string, FakeLaunch> fake_gpu_launches();
void forget_fake_gpu_launches();
// Dynamic shared memory that launches of a kernel, by part of its mangled name, may take now; 0: none asked.
int64_t fake_gpu_allowed_shared(const std::string& kernel);
// Counts since the process began: records, those of them that take the time, and what was captured for
// graphs.
struct FakeEvents {
    int64_t records = 0, timed_records = 0;
    int64_t captured_records = 0, captured_timed_records = 0, captured_waits = 0;
};
FakeEvents fake_gpu_events();
// With which a stream (a cudaStream_t) was made: from 0, the lowest, to -5.
int fake_gpu_priority(void* stream);
// Copies and launches so far.
int64_t fake_gpu_pieces_of_work();

// Runs `work` on a stream (a cudaStream_t) or, if the stream is being recorded, at every launch of the graph.
void enqueue_on_fake_gpu(void* stream, std::function<void()> work);

// A copy or a launch as it happens.
struct FakeWork {
    const char* kernel = nullptr;  // mangled; null: a copy
    const void* stream = nullptr;  // cudaStream_t
    const void* graph = nullptr;   // cudaGraphExec_t; null: launched by itself
};
// Told of all work from here on; null: nobody.
void set_fake_gpu_listener(void (*listener)(const FakeWork&));

}  // namespace speedrun::testing
