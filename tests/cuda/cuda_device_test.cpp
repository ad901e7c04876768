// Host side of the CUDA device with the fake runtime: all checks that need no GPU.
// Covers: kernels/cuda/device/gpu_interop.cpp
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_info.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "kernels/cuda/device/gpu_interop.h"
#include "kernels/cuda/device/stream_memory.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/errors.h"

namespace speedrun::testing {
namespace {

class CudaDeviceTest : public ::testing::Test {
  protected:
    ~CudaDeviceTest() override { set_fake_gpu({}); }
};

TEST_F(CudaDeviceTest, QueryReportsMissingGpu) {
    EXPECT_EQ(query_cuda().unavailable, "");
    ASSERT_EQ(query_cuda().gpus.size(), 1u);
    EXPECT_EQ(query_cuda().gpus[0].major, 9);
    set_fake_gpu({.driver_version = 0});
    EXPECT_EQ(query_cuda().unavailable, "no NVIDIA driver is installed");
    set_fake_gpu({.count = 0});
    EXPECT_THAT(query_cuda().unavailable, HasSubstr("no CUDA-capable device"));
}

TEST_F(CudaDeviceTest, RejectsMissingGpu) {
    set_fake_gpu({.count = 2});
    CudaDevice(1);
    EXPECT_THAT(error_of(ExitCode::usage, [] { CudaDevice(2); }),
                HasSubstr("GPU 2 was asked for, but there are 2"));
    set_fake_gpu({.driver_version = 0});
    EXPECT_THAT(error_of(ExitCode::usage, [] { CudaDevice(0); }), HasSubstr("no NVIDIA driver"));
}

TEST_F(CudaDeviceTest, IdentityIsPciBusId) {
    set_fake_gpu({.count = 2});
    EXPECT_EQ(gpu_identity(1), "00000000:01:00");
    EXPECT_EQ(gpu_identity(CudaDevice(1)), "00000000:01:00");
}

TEST_F(CudaDeviceTest, DryDeviceNeedsNoDriver) {
    set_fake_gpu({.count = 0, .driver_version = 0});
    const int64_t before = fake_gpu_allocations(), pieces = fake_gpu_pieces_of_work();
    CudaDevice device(0, true);
    CudaOps ops(device);
    const auto stream = device.create_stream("compute");
    const Buffer buffer(device, "x", MemoryCategory::activations, int64_t{1} << 50);
    ops.fill({.x = buffer.tensor(DType::f32, {1 << 20}), .value = 1.0f}, *stream);
    stream->synchronize();
    EXPECT_EQ(fake_gpu_allocations(), before);
    EXPECT_EQ(fake_gpu_pieces_of_work(), pieces);
}

TEST_F(CudaDeviceTest, OutOfMemoryErrorListsBuffers) {
    set_fake_gpu({.memory_bytes = 64 << 20});
    CudaDevice device;
    const Buffer held(device, "weights", MemoryCategory::parameters, 48 << 20);
    const std::string message =
        error_of(ExitCode::usage, [&] { Buffer(device, "logits", MemoryCategory::activations, 32 << 20); });
    EXPECT_THAT(message, HasSubstr("32.0 MiB more do not fit, 16.0 of 64.0 MiB are free"));
    EXPECT_THAT(message, HasSubstr("batch.microbatch_tokens"));
    EXPECT_THAT(message, HasSubstr("weights (48.0)"));
    EXPECT_EQ(device.memory().total(), 48 << 20) << "a failed allocation is not counted";
    EXPECT_NO_THROW(Buffer(device, "small", MemoryCategory::data, 8 << 20));
}

TEST_F(CudaDeviceTest, FreesBuffers) {
    const int64_t before = fake_gpu_allocated_bytes();
    {
        CudaDevice device;
        CudaOps ops(device);
        const auto stream = device.create_stream("compute");
        const Buffer x(device, "x", MemoryCategory::activations, 1 << 20);
        const Buffer out(device, "out", MemoryCategory::activations, 4);
        ops.norm_term({.pieces = {{.out = out.tensor(DType::f32, {1}), .x = x.tensor(DType::f32, {1 << 18})}},
                       .norm = VectorNorm::two},
                      *stream);
        stream->synchronize();
        EXPECT_GT(fake_gpu_allocated_bytes(), before);
    }
    EXPECT_EQ(fake_gpu_allocated_bytes(), before);
}

// Freeing waits for all streams of the process, including streams of a rank that waits for this one.
TEST_F(CudaDeviceTest, DefersFreeWhileOtherRanksExist) {
    const int64_t before = fake_gpu_allocated_bytes();
    {
        CudaDevice device;
        auto other = std::make_unique<CudaDevice>();
        Buffer(device, "x", MemoryCategory::data, 1 << 20);
        EXPECT_GE(fake_gpu_allocated_bytes(), before + (1 << 20));
        EXPECT_EQ(device.memory().total(), 0);
        other.reset();
        const int64_t held = fake_gpu_allocated_bytes();
        Buffer(device, "y", MemoryCategory::data, 1 << 20);
        EXPECT_EQ(fake_gpu_allocated_bytes(), held) << "without other ranks, memory is freed immediately";
    }
    EXPECT_EQ(fake_gpu_allocated_bytes(), before);
}

// The captured part runs at each launch and only then, and its events order other streams each time.
TEST_F(CudaDeviceTest, GraphRepeatsWorkAndEvents) {
    CudaDevice device;
    const auto compute = device.create_stream("compute"), other = device.create_stream("optimizer");
    const auto ready = device.create_event(), stepped = device.create_event();
    std::vector<int> source(4, 7), copied(4, 0), seen(4, 0);
    other->record(*stepped);
    bool ran = false;
    const auto graph = device.capture_graph(*compute, [&] {
        ran = true;
        compute->wait(*stepped);
        device.copy(copied.data(), source.data(), 16, *compute);
        compute->record(*ready);
    });
    ASSERT_TRUE(graph);
    EXPECT_TRUE(ran);
    compute->synchronize();
    EXPECT_EQ(copied, std::vector<int>(4, 0)) << "recording executes nothing";
    for (int value : {8, 9}) {
        source.assign(4, value);
        graph->launch(*compute);
        other->wait(*ready);
        device.copy(seen.data(), copied.data(), 16, *other);
        other->record(*stepped);
        other->synchronize();
        EXPECT_EQ(seen, std::vector<int>(4, value));
    }
    EXPECT_THROW(device.capture_graph(*compute, [&] { compute->synchronize(); }), Error);
    EXPECT_THROW(device.capture_graph(*compute, [&] { Buffer(device, "x", MemoryCategory::data, 8); }),
                 Error);
    compute->synchronize();  // a failed capture leaves the stream usable
    CudaDevice dry(0, true);
    EXPECT_FALSE(dry.capture_graph(*dry.create_stream("compute"), [] { FAIL(); }));
}

TEST_F(CudaDeviceTest, OnlyTimedEventsHaveTiming) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    const auto order = device.create_event(), timed = device.create_event(EventKind::timed);
    const FakeEvents before = fake_gpu_events();
    stream->record(*order);
    stream->record(*timed);
    stream->synchronize();
    EXPECT_EQ(fake_gpu_events().records - before.records, 2);
    EXPECT_EQ(fake_gpu_events().timed_records - before.timed_records, 1);
    const std::string message = error_of(ExitCode::failure, [&] { timed->elapsed_ms_since(*order); });
    EXPECT_THAT(message, HasSubstr("EventKind::order"));
}

// A graph holds the address of its scratch memory: growing must not free it.
TEST_F(CudaDeviceTest, GraphScratchMemoryIsNotFreed) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    StreamMemory memory(device, "test");
    constexpr int64_t kSmall = 1024, kMore = 2048, kMax = 4096;
    const int64_t none = fake_gpu_allocated_bytes();
    const void* const first = memory.at(*stream, kSmall).data();
    EXPECT_EQ(memory.at(*stream, kSmall - 1).data(), first);
    const void* recorded = memory.at(*stream, kMore).data();
    EXPECT_EQ(fake_gpu_allocated_bytes(), none + kMore) << "grown before a graph knows it: freed";
    const auto graph =
        device.capture_graph(*stream, [&] { EXPECT_EQ(memory.at(*stream, kMore).data(), recorded); });
    EXPECT_NE(memory.at(*stream, kMax).data(), recorded);
    EXPECT_EQ(fake_gpu_allocated_bytes(), none + kMore + kMax);
}

TEST_F(CudaDeviceTest, StreamsHaveRequestedPriority) {
    CudaDevice device;
    const auto normal = device.create_stream("reduce"),
               high = device.create_stream("copy", StreamPriority::high);
    EXPECT_EQ(fake_gpu_priority(static_cast<CudaStream&>(*normal).handle()), 0);
    EXPECT_EQ(fake_gpu_priority(static_cast<CudaStream&>(*high).handle()), -5);
}

TEST_F(CudaDeviceTest, SetsHardwareQueuePerStream) {
    query_cuda();
    EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
    EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS"), "32");
}

// Host work of two streams waits for each other: a single thread for all streams would deadlock.
TEST_F(CudaDeviceTest, HostWorkOfStreamsRunsConcurrently) {
    CudaDevice device;
    const auto a = device.create_stream("reduce"), b = device.create_stream("gather");
    std::atomic<int> reached = 0;
    const auto meet = [&] {
        ++reached;
        while (reached < 2) std::this_thread::yield();
    };
    static_cast<CudaStream&>(*a).submit("meet", meet);
    static_cast<CudaStream&>(*b).submit("meet", meet);
    a->synchronize();
    b->synchronize();
    EXPECT_EQ(reached, 2);
}

}  // namespace
}  // namespace speedrun::testing
