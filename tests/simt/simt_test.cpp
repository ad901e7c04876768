// Tests of the executor: each kernel with a planted fault must be detected, correct kernels must pass, in
// every order.
// Covers: kernels/cuda/ops/cuda_ops.cu
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/blocks/launch.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/simt/simt_device.h"

namespace speedrun {
namespace {

using simt::Options;
using simt::Order;

const std::vector<Options> kOrders = {
    {Order::forward}, {Order::reverse}, {Order::random, 1}, {Order::random, 2}, {Order::random, 3}};

using Values = std::vector<float>;
using Launcher = std::function<void(float* out, Stream&)>;

// Runs launcher on a new device; `out` starts as NaN.
Values run(Options options, size_t count, const Launcher& launcher) {
    simt::SimtDevice device(options);
    const auto stream = device.create_stream("compute");
    Values out(count, std::nanf(""));
    launcher(out.data(), *stream);
    stream->synchronize();
    return out;
}

std::vector<Values> run_all(size_t count, const Launcher& launcher) {
    std::vector<Values> all;
    for (const Options& options : kOrders) all.push_back(run(options, count, launcher));
    return all;
}

bool same_bits(const Values& a, const Values& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool all_same(const std::vector<Values>& all) {
    for (const Values& values : all) {
        if (!same_bits(values, all[0])) return false;
    }
    return true;
}
bool has_nan(const Values& values) {
    for (float value : values) {
        if (std::isnan(value)) return true;
    }
    return false;
}

// The launch fails in every order, with all of these parts in its message; the next launch on the stream
// works.
__global__ void one_kernel(float* out) {
    out[threadIdx.x] = 1.0f;
}
void expect_caught(size_t count, const Launcher& launcher, const std::vector<std::string>& parts) {
    for (const Options& options : kOrders) {
        simt::SimtDevice device(options);
        const auto stream = device.create_stream("compute");
        Values out(count, 0.0f);
        launcher(out.data(), *stream);
        try {
            stream->synchronize();
            ADD_FAILURE() << "not caught in order " << static_cast<int>(options.order);
        } catch (const Error& error) {
            for (const std::string& part : parts)
                EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
                    << "'" << error.what() << "' does not mention '" << part << "'";
        }
        launch(one_kernel, 1, static_cast<unsigned>(count), 0, *stream, out.data());
        stream->synchronize();
        for (float value : out) EXPECT_EQ(value, 1.0f);
    }
}

// ---- a missing barrier

template <bool kBarrier>
__global__ void mirror_kernel(float* out) {
    const auto values = shared_memory<float>(0, blockDim.x);
    values[threadIdx.x] = static_cast<float>(threadIdx.x);
    if constexpr (kBarrier) __syncthreads();
    out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

TEST(Simt, DetectsMissingBarrier) {
    const auto good =
        run_all(96, [](float* out, Stream& s) { launch(mirror_kernel<true>, 1, 96, 96 * 4, s, out); });
    EXPECT_TRUE(all_same(good));
    for (int i = 0; i < 96; ++i) EXPECT_EQ(good[0][static_cast<size_t>(i)], static_cast<float>(95 - i));
    const auto bad =
        run_all(96, [](float* out, Stream& s) { launch(mirror_kernel<false>, 1, 96, 96 * 4, s, out); });
    EXPECT_FALSE(all_same(bad));
    for (const Values& values : bad) EXPECT_TRUE(has_nan(values)) << "unwritten memory was read";
}

// Each round overwrites values that slower threads may still have to read.
template <bool kBarrier>
__global__ void rounds_kernel(float* out) {
    const auto value = shared_memory<float>(0, 1);
    float sum = 0.0f;
    for (int round = 1; round <= 3; ++round) {
        if (kBarrier) __syncthreads();
        if (threadIdx.x == 40) value[0] = static_cast<float>(round);
        __syncthreads();
        sum = 10.0f * sum + value[0];
    }
    out[threadIdx.x] = sum;
}

TEST(Simt, DetectsMissingBarrierBeforeReuse) {
    const auto good =
        run_all(64, [](float* out, Stream& s) { launch(rounds_kernel<true>, 1, 64, 4, s, out); });
    EXPECT_TRUE(all_same(good));
    EXPECT_EQ(good[0], Values(64, 123.0f));
    const auto bad =
        run_all(64, [](float* out, Stream& s) { launch(rounds_kernel<false>, 1, 64, 4, s, out); });
    EXPECT_FALSE(all_same(bad)) << "no order showed it";
}

// Lanes of a warp do not run in lockstep.
template <bool kBarrier>
__global__ void neighbour_kernel(float* out) {
    const auto values = shared_memory<float>(0, 32);
    values[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (kBarrier) __syncwarp();
    out[threadIdx.x] = values[threadIdx.x ^ 1];
}

TEST(Simt, DetectsMissingSyncwarp) {
    const auto good =
        run_all(32, [](float* out, Stream& s) { launch(neighbour_kernel<true>, 1, 32, 128, s, out); });
    EXPECT_TRUE(all_same(good));
    EXPECT_FALSE(has_nan(good[0]));
    const auto bad =
        run_all(32, [](float* out, Stream& s) { launch(neighbour_kernel<false>, 1, 32, 128, s, out); });
    EXPECT_FALSE(all_same(bad));
}

// ---- memory

__global__ void index_kernel(float* out, int index) {
    const auto values = shared_memory<float>(0, 32);
    values[threadIdx.x] = 0.0f;
    if (threadIdx.x == 7) values[index] = 1.0f;
    out[threadIdx.x] = values[threadIdx.x];
}

// Only the red zones detect an access through a plain pointer.
__global__ void stray_kernel(float* out, int index) {
    float* values = shared_memory<float>(0);
    values[threadIdx.x] = 0.0f;
    if (threadIdx.x == 7) values[index] = 1.0f;
    out[threadIdx.x] = 0.0f;
}

TEST(Simt, DetectsSharedAccessOutOfBounds) {
    for (int index : {32, 1000000, -1}) {
        expect_caught(32,
                      [=](float* out, Stream& s) { launch(index_kernel, 1, 32, 128 + 64, s, out, index); },
                      {"simt_test.cpp", "thread (7,0,0)", std::to_string(index), "[0, 32)"});
    }
    for (int index : {32, 33, 90}) {
        expect_caught(32, [=](float* out, Stream& s) { launch(stray_kernel, 1, 32, 128, s, out, index); },
                      {"past the end"});
    }
    expect_caught(32, [](float* out, Stream& s) { launch(stray_kernel, 1, 32, 128, s, out, -1); },
                  {"before"});
    // The array ends before the shared memory does; then the launch requests less than the array.
    expect_caught(32, [](float* out, Stream& s) { launch(index_kernel, 1, 32, 124, s, out, 0); },
                  {"beyond the bytes of the launch"});
}

template <class T>
__global__ void unwritten_kernel(float* out) {
    const auto values = shared_memory<T>(0, 64);
    if (threadIdx.x != 5) values[threadIdx.x] = from_float<T>(1.0f);
    __syncthreads();
    out[threadIdx.x] = to_float(values[threadIdx.x]);
}

TEST(Simt, UnwrittenSharedMemoryReadsAsNan) {
    for (int round = 0; round < 2; ++round) {  // also if an earlier block has written there
        for (const auto* name : {"f32", "bf16"}) {
            const bool f32 = std::string(name) == "f32";
            const auto all = run_all(64, [=](float* out, Stream& s) {
                launch(f32 ? unwritten_kernel<float> : unwritten_kernel<Bf16>, 3, 64, 64 * 4, s, out);
            });
            for (const Values& values : all) {
                for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(values[i]), i == 5) << i;
            }
        }
    }
}

__global__ void async_kernel(float* out, const float* in, bool wait) {
    const auto values = shared_memory<float4>(0, 8);
    simt::copy_async(&values[threadIdx.x], in + 4 * threadIdx.x, 16, threadIdx.x == 3 ? 8 : 16);
    simt::copy_async_commit();
    if (wait) simt::copy_async_wait(0);
    __syncthreads();
    const float4 got = values[threadIdx.x ^ 1];
    out[threadIdx.x] = got.x + got.y + got.z + got.w;
}

TEST(Simt, AsynchronousCopiesCompleteAtWait) {
    alignas(16) float in[32];
    for (int i = 0; i < 32; ++i) in[i] = static_cast<float>(i);
    const auto copy = [&](bool wait) {
        return run_all(
            8, [&, wait](float* out, Stream& s) { launch(async_kernel, 1, 8, 128, s, out, in, wait); });
    };
    const auto good = copy(true);
    EXPECT_TRUE(all_same(good));
    EXPECT_EQ(good[0], (Values{22, 6, 12 + 13, 38, 86, 70, 118, 102}));
    for (const Values& values : copy(false)) EXPECT_TRUE(has_nan(values));
}

// ---- barriers and exchanges that threads do not reach together

__global__ void divergent_kernel(float* out, int variant) {
    if (variant == 0 && threadIdx.x < 16) __syncthreads();  // the other threads return
    if (variant == 1) {
        if (threadIdx.x < 16) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    }
    if (variant == 2 && threadIdx.x == 9) return;
    if (variant == 2) __syncthreads();
    if (variant == 3 && threadIdx.x != 9) out[0] = warp_sum(1.0f);
    if (variant == 4) out[0] = __shfl_sync(threadIdx.x % 32 < 16 ? 0xffffu : 0xffffffffu, 1.0f, 0);
    if (variant == 5) out[0] = __shfl_sync(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u, 1.0f, 16);
    if (variant == 6) {  // one warp at the barrier, the other in an exchange that waits for it
        if (threadIdx.x < 32) {
            __syncthreads();
        } else if (threadIdx.x < 48) {
            out[0] = warp_sum(1.0f);
        } else {
            __syncthreads();
        }
    }
    if (variant == 7) {  // half a warp waits for the other half, which waits at the barrier
        if (threadIdx.x >= 32 && threadIdx.x < 48) out[0] = warp_sum(1.0f);
        __syncthreads();
    }
    out[threadIdx.x] = 0.0f;
}

TEST(Simt, DetectsDivergentBarriersAndShuffles) {
    const std::vector<std::string> messages = {
        "left the kernel",  "another barrier", "left the kernel", "left the kernel", "lane",
        "outside the mask", "barrier",         "nobody can go on"};
    for (int variant = 0; variant < static_cast<int>(messages.size()); ++variant) {
        SCOPED_TRACE(variant);
        expect_caught(64, [=](float* out, Stream& s) { launch(divergent_kernel, 2, 64, 0, s, out, variant); },
                      {"simt_test.cpp", "block (", messages[static_cast<size_t>(variant)]});
    }
}

TEST(Simt, RejectsImpossibleLaunches) {
    const auto refused = [](dim3 grid, dim3 block, int64_t shared) {
        expect_caught(1, [=](float* out, Stream& s) { launch(one_kernel, grid, block, shared, s, out); },
                      {"impossible launch"});
    };
    refused(1, 1025, 0);
    refused(1, 0, 0);
    refused(0, 32, 0);
    refused(dim3(1, 65536), 32, 0);
    refused(1, 32, (227 << 10) + 1);
}

// ---- features of a correct kernel

__global__ void everything_kernel(float* out) {
    const int lane = lane_index();
    const float value = static_cast<float>(threadIdx.x);
    const unsigned full = 0xffffffffu;
    float sum = block_max(value);
    sum += block_sum(value);
    sum += __shfl_sync(full, value, 5) + __shfl_xor_sync(full, value, 3) + __shfl_up_sync(full, value, 1) +
           __shfl_down_sync(full, value, 2) + __shfl_xor_sync(full, value, 1, 8) +
           __shfl_sync(full, value, 3, 4);
    sum += static_cast<float>(__popc(__ballot_sync(full, lane % 3 == 0))) +
           static_cast<float>(__any_sync(full, lane == 7)) + static_cast<float>(__all_sync(full, lane == 7));
    if (lane < 8) sum += __shfl_xor_sync(0xffu, value, 1);  // an exchange of a partial warp
    out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

TEST(Simt, ShufflesMatchHardware) {
    const unsigned threads = 1024;
    const auto all = run_all(
        6 * threads, [](float* out, Stream& s) { launch(everything_kernel, dim3(3, 2), 1024, 128, s, out); });
    EXPECT_TRUE(all_same(all));
    for (unsigned block = 0; block < 6; ++block) {
        for (unsigned t = 0; t < threads; ++t) {
            const unsigned lane = t % 32, first = t - lane;
            float expected = 1023.0f * 512.0f + 1023.0f;
            expected += static_cast<float>(first + 5 + (t ^ 3) + (lane ? t - 1 : t) +
                                           (lane < 30 ? t + 2 : t) + (t ^ 1) + (t / 4 * 4 + 3) + 11 + 1 + 0);
            if (lane < 8) expected += static_cast<float>(t ^ 1);
            ASSERT_EQ(all[0][block * threads + t], expected) << block << " " << t;
        }
    }
}

__global__ void order_kernel(float* out, int* next) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<float>(atomicAdd(next, 1));
}

TEST(Simt, OrdersAreAsDocumented) {
    const auto order = [](Options options) {
        int next = 0;
        return run(options, 200,
                   [&](float* out, Stream& s) { launch(order_kernel, 4, 50, 0, s, out, &next); });
    };
    Values rising(200), falling(200);
    for (size_t i = 0; i < 200; ++i) {
        rising[i] = static_cast<float>(i);
        falling[i] = static_cast<float>(199 - i);
    }
    EXPECT_EQ(order({Order::forward}), rising);
    EXPECT_EQ(order({Order::reverse}), falling);
    const Values random = order({Order::random, 1});
    EXPECT_EQ(random, order({Order::random, 1}));
    EXPECT_NE(random, order({Order::random, 2}));
    EXPECT_EQ(std::set<float>(random.begin(), random.end()).size(), 200u);
}

// Without waits there are no switches: one fiber runs all threads of a block.
TEST(Simt, ThreadsSwitchOnlyAtWaits) {
    Values out(512);
    const simt::Launch launch{"file", "function", 1, 4, 512, 0, [&] { one_kernel(out.data()); }};
    simt::execute(launch, {});
    EXPECT_EQ(simt::last_statistics().threads, 4 * 512);
    EXPECT_EQ(simt::last_statistics().switches, 4);
}

}  // namespace
}  // namespace speedrun
