// The race check finds planted races and accepts ordered accesses. No kernel has a race, and every barrier is
// necessary: the removal of each one is detected. Compiled like the kernels, so that accesses of the test
// kernels are seen.
// build: in watch_tests
#include "tests/simt/race_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/blocks/launch.h"
#include "tests/simt/bulk_copy_kernel.h"
#include "tests/simt/simt_device.h"
#include "tests/simt/watched_cases.h"

namespace speedrun {
namespace {

using simt::RaceWatch;

// ---- planted races

enum class Fault : uint8_t {
    none,
    no_barrier,
    no_reuse_barrier,
    no_warp_barrier,
    shuffle_only,
    unwritten,
    in_flight,
    no_copy_barrier
};

__global__ void planted_kernel(float* out, const float* in, Fault fault) {
    const auto words = shared_memory<float>(0, 256);
    const auto copies = shared_memory<float4>(1024, 64);
    const int own = static_cast<int>(threadIdx.x), other = 63 - own;  // other: a thread in the other warp
    if (fault != Fault::unwritten || own != 5) words[own] = static_cast<float>(own);
    if (fault != Fault::no_barrier) __syncthreads();
    float sum = words[other];
    if (fault != Fault::no_reuse_barrier) __syncthreads();
    words[own] = sum + 1.0f;
    if (fault == Fault::shuffle_only) sum = __shfl_xor_sync(~0u, sum, 1);
    if (fault != Fault::no_warp_barrier && fault != Fault::shuffle_only) __syncwarp();
    sum += words[own ^ 1];
    __syncthreads();
    simt::copy_async(&copies[own], in + 4 * own, 16, 16);
    simt::copy_async_commit();
    if (fault != Fault::in_flight) simt::copy_async_wait(0);
    if (fault != Fault::no_copy_barrier) __syncthreads();
    out[64 * blockIdx.x + static_cast<unsigned>(own)] = sum + load_word(&copies[own ^ 32]).x;
}

// Two blocks write word 0.
__global__ void shared_word_kernel(float* out) {
    if (threadIdx.x == 0) out[0] = 1.0f;
}

// A block reads values of another block after a count reports them, as finished_rows.cuh does.
enum class HandOver : uint8_t {
    ordered,
    no_barrier,
    no_fence_before,
    no_fence_after,
    no_barrier_after,
    not_counted
};
__global__ void hand_over_kernel(float* out, uint32_t* count, HandOver how) {
    const int thread = static_cast<int>(threadIdx.x);
    if (blockIdx.x == 0) {
        out[thread] = 1.0f;
        if (how != HandOver::no_barrier) __syncthreads();
        if (thread != 0) return;
        if (how != HandOver::no_fence_before) __threadfence();
        if (how != HandOver::not_counted) atomicAdd(count, 1u);
        return;
    }
    const auto said = shared_memory<uint32_t>(0, 1);
    if (thread == 0) {
        *said = atomicAdd(count, 0u);
        if (how != HandOver::no_fence_after) __threadfence();
    }
    if (how != HandOver::no_barrier_after) __syncthreads();
    if (how == HandOver::no_barrier_after && thread == 0) return;
    out[64 + thread] = out[63 - thread];
}

// Message of the watch for a launch; empty: none.
std::string watched(const std::function<void(float* out, const float* in, Stream&)>& launcher) {
    simt::SimtDevice device({});
    RaceWatch watch;
    device.set_watch(&watch);
    const auto stream = device.create_stream("watched");
    const Buffer out(device, "test", MemoryCategory::workspace, 4096),
        in(device, "test", MemoryCategory::workspace, 4096);
    try {
        launcher(static_cast<float*>(out.tensor(DType::f32, {1024}).data),
                 static_cast<const float*>(in.tensor(DType::f32, {1024}).data), *stream);
        stream->synchronize();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(RaceCheck, DetectsPlantedFaults) {
    const std::map<Fault, std::string> messages = {
        {Fault::none, ""},
        {Fault::no_barrier, "reads shared memory that nobody has written"},
        {Fault::no_reuse_barrier, "races with a write (thread"},
        {Fault::no_warp_barrier, "overwrites bytes that others still read"},
        {Fault::shuffle_only, "races with a write (thread"},
        {Fault::unwritten, "reads shared memory that nobody has written"},
        {Fault::in_flight, "touches bytes that an asynchronous copy is writing"},
        {Fault::no_copy_barrier, "nobody has written"}};
    for (const auto& [fault, message] : messages) {
        SCOPED_TRACE(static_cast<int>(fault));
        const std::string said = watched([fault = fault](float* out, const float* in, Stream& stream) {
            launch(planted_kernel, 2, 64, 2048, stream, out, in, fault);
        });
        EXPECT_EQ(said.empty(), message.empty()) << said;
        EXPECT_NE(said.find(message), std::string::npos) << said;
        EXPECT_EQ(said.find("planted_kernel") == std::string::npos, message.empty()) << said;
    }
}

TEST(RaceCheck, DetectsWordSharedByBlocks) {
    const auto run = [](unsigned blocks) {
        return watched([=](float* out, const float*, Stream& stream) {
            launch(shared_word_kernel, blocks, 32, 0, stream, out);
        });
    };
    EXPECT_EQ(run(1), "");
    EXPECT_NE(run(2).find("races with a write (thread 0 of block 0): device memory"), std::string::npos)
        << run(2);
}

TEST(RaceCheck, FencesAndAtomicsOrderBlocks) {
    const std::string write = "races with a write (thread ";
    const std::map<HandOver, std::string> messages = {{HandOver::ordered, ""},
                                                      {HandOver::no_barrier, write},
                                                      {HandOver::no_fence_before, write},
                                                      {HandOver::no_fence_after, write},
                                                      {HandOver::no_barrier_after, write},
                                                      {HandOver::not_counted, write}};
    for (const auto& [how, message] : messages) {
        SCOPED_TRACE(static_cast<int>(how));
        const std::string said = watched([how = how](float* out, const float*, Stream& stream) {
            auto* const count = reinterpret_cast<uint32_t*>(out + 512);
            launch(hand_over_kernel, 2, 64, 16, stream, out, count, how);
        });
        EXPECT_EQ(said.empty(), message.empty()) << said;
        EXPECT_NE(said.find(message), std::string::npos) << said;
    }
}

__global__ void late_kernel(float* out, bool waits) {
    if (waits) wait_for_prior_kernels();
    out[threadIdx.x] = 1.0f;
    if (!waits) wait_for_prior_kernels();
}
__global__ void leaving_kernel(float* out, unsigned waiting) {
    if (threadIdx.x >= waiting) return;
    wait_for_prior_kernels();
    out[threadIdx.x] = 1.0f;
}

// A kernel may begin before earlier kernels have ended.
TEST(RaceCheck, DetectsMissingWaitForPreviousKernel) {
    const auto said = [](auto kernel, auto argument) {
        simt::SimtDevice device({.kernels_wait = true});
        RaceWatch watch;
        device.set_watch(&watch);
        const auto stream = device.create_stream("watched");
        const Buffer out(device, "test", MemoryCategory::workspace, 4096);
        try {
            launch(kernel, 1, 32, 0, *stream, static_cast<float*>(out.tensor(DType::f32, {32}).data),
                   argument);
            stream->synchronize();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(said(late_kernel, true), "");
    EXPECT_NE(said(late_kernel, false).find("touches device memory before it has waited"), std::string::npos);
    EXPECT_EQ(said(leaving_kernel, 32u), "");
    EXPECT_NE(said(leaving_kernel, 31u).find("left the kernel without waiting"), std::string::npos);
}

// ---- bulk copies

// A pipeline of bulk copies has no race. The race check or the executor reports the removal of each call that orders accesses. The race
// check reports a plain write without a fence to a tile that a bulk copy overwrites.
TEST(RaceCheck, DetectsFaultsOfBulkCopies) {
    using Fault = testing::PipelineFault;
    std::vector<uint64_t> storage(2 * 64 * 4 * 64 / 4, 0x3f803f803f803f80);
    std::vector<float> c(64 * 64);
    const auto said = [&](RaceWatch& watch, Fault fault) {
        simt::SimtDevice device({.kernels_wait = true});
        device.set_watch(&watch);
        const auto stream = device.create_stream("watched");
        const auto map = [&](int64_t first) {
            auto* const data = reinterpret_cast<Bf16*>(storage.data()) + first;
            return map_rows(Tensor(data, DType::bf16, {64, 4 * 64}), 64, 64, *stream);
        };
        try {
            launch(testing::pipeline_kernel, 1, testing::kPipelineThreads, testing::kPipelineBytes, *stream,
                   c.data(), map(0), map(64 * 4 * 64), 4, fault);
            stream->synchronize();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    RaceWatch complete;
    EXPECT_EQ(said(complete, Fault::none), "");
    EXPECT_EQ(c.front(), 256.0f);
    EXPECT_EQ(complete.barriers().size(),
              8u);  // __syncthreads, publish, two waits, expect_bytes, arrive, two named barriers
    for (const RaceWatch::Barrier& barrier : complete.barriers()) {
        RaceWatch watch;
        watch.remove(barrier);
        EXPECT_NE(said(watch, Fault::none), "") << barrier.place;
    }
    RaceWatch watch;
    EXPECT_NE(said(watch, Fault::unfenced_write).find("a write without fence.proxy.async"),
              std::string::npos);
}

// ---- the kernels

using Watched = simt::WatchedCase;

std::vector<Watched> tiny_cases() {
    std::vector<Watched> all;
    for (const DType real : {DType::bf16, DType::f32}) {
        for (const Watched& w : simt::watched(bench::all_cases(simt::tiny_shapes()), real)) all.push_back(w);
    }
    return all;
}

// Attention with the shared memory of a large GPU, where warps have two strips of rows; other kernels reach
// both paths with small shapes.
void run_case(const Watched& w, RaceWatch& watch) {
    simt::Options options;
    options.multiprocessors = 1;  // its one block has all items, and uses each stage of its pipeline again
    if (w.c.name.rfind("attention", 0) == 0) options.shared_memory = simt::kSharedMemoryOfH100;
    run_watched(w, watch, options);
}

TEST(RaceCheck, KernelsHaveNoRaceOrSpareBarrier) {
    struct Hit {
        const Watched* watched;
        int64_t accesses;
    };
    const std::vector<Watched> cases = tiny_cases();
    std::map<RaceWatch::Barrier, std::vector<Hit>> hits;
    for (const Watched& w : cases) {
        SCOPED_TRACE(w.title());
        RaceWatch watch;
        ASSERT_NO_THROW(run_case(w, watch));
        for (const RaceWatch::Barrier& barrier : watch.barriers())
            hits[barrier].push_back({&w, watch.num_accesses()});
    }
    EXPECT_GT(hits.size(), 20u);
    // Only some callers of a function may need its barrier.
    std::map<std::string, std::vector<RaceWatch::Barrier>> missed;  // per location: unneeded barriers
    std::set<std::string> needed;
    std::string list;
    for (auto& [barrier, reached] : hits) {
        std::sort(reached.begin(), reached.end(),
                  [](const Hit& a, const Hit& b) { return a.accesses < b.accesses; });
        std::string caught_by;
        for (const Hit& hit : reached) {
            RaceWatch watch;
            watch.remove(barrier);
            try {
                run_case(*hit.watched, watch);
            } catch (const Error& error) {
                // The executor itself reports some removed calls of bulk_copy.h.
                const std::string said = error.what();
                EXPECT_TRUE(said.find("race in ") != std::string::npos ||
                            said.find("kernel of ") != std::string::npos)
                    << said;
                caught_by = hit.watched->title();
                break;
            }
        }
        if (caught_by.empty())
            missed[barrier.place].push_back(barrier);
        else
            needed.insert(barrier.place);
        list += fmt::format(
            "  {:<50} {:<28} {}\n", barrier.kernel, barrier.place,
            caught_by.empty() ? "no race: a shared function's, of use to other kernels" : caught_by);
    }
    for (const auto& [place, barriers] : missed) {
        EXPECT_TRUE(needed.contains(place))
            << "without the barrier of " << barriers[0].kernel << " at " << place
            << " no case shows a race: it is not needed, or a case is missing";
    }
    fmt::print("barriers removed one by one, and the case that showed it:\n{}", list);
}

}  // namespace
}  // namespace speedrun
