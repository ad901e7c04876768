// The simulated network: takes the time that its model says, hides behind other streams, and changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/rank_threads.h"
#include "train/distributed/host_task.h"
#include "train/distributed/simulated_world.h"

namespace speedrun::testing {
namespace {

using namespace std::chrono_literals;

// Milliseconds of 3 pieces of compute of 40 ms, each followed by a collective of 40 ms on another stream.
// Work that sleeps, so that the machine's cores do not matter.
double overlapped_ms(World& world, Communicator& communicator) {
    CpuDevice device(1);
    const auto compute = device.create_stream("compute"), reduce = device.create_stream("reduce");
    const auto begin = device.create_event(), end = device.create_event(), ready = device.create_event();
    std::vector<float> values(1000, 1.0f);
    world.barrier();
    compute->record(*begin);
    for (int layer = 0; layer < 3; ++layer) {
        enqueue_on_host(*compute, "backward", [] { std::this_thread::sleep_for(40ms); });
        compute->record(*ready);
        reduce->wait(*ready);
        communicator.all_reduce(Tensor(values.data(), DType::f32, {1000}), *reduce);
    }
    reduce->record(*end);
    reduce->synchronize();
    compute->synchronize();
    EXPECT_EQ(values[0], 8.0f);  // doubled three times
    return end->elapsed_ms_since(*begin);
}

// Serial 240 ms, ideal overlap 160 ms; no run can be faster, and the fastest of a few comes within 10% even
// where something else keeps the machine busy now and then.
TEST(SimulatedWorldTest, HidesBehindAnotherStream) {
    run_ranks(2, [](World& threads) {
        const auto world = make_simulated_world(threads, {{40e-3, 0}, 0, 1});
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        double fastest = 1e9;
        for (int attempt = 0; attempt < 10 && fastest >= 176.0; ++attempt)
            fastest = world->max(std::min(fastest, overlapped_ms(*world, *communicator)));
        EXPECT_GE(fastest, 160.0);
        EXPECT_LT(fastest, 176.0);
    });
}

TEST(SimulatedWorldTest, BandwidthCountsWireBytes) {
    run_ranks(2, [](World& threads) {
        // 4 MB of all_reduce between 2 ranks: 4 MB out of each, at 100 MB/s 40 ms.
        const auto world = make_simulated_world(threads, {{0, 100e6}, 0, 1});
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        CpuDevice device(1);
        const auto stream = device.create_stream("reduce");
        const auto begin = device.create_event(), end = device.create_event();
        std::vector<float> values(1000000, 1.0f);
        double fastest = 1e9;  // the summing itself takes time too, more of it where the machine is busy
        int64_t attempts = 0;
        for (; attempts < 10 && fastest >= 80.0; ++attempts) {
            world->barrier();
            stream->record(*begin);
            communicator->all_reduce(Tensor(values.data(), DType::f32, {1000000}), *stream);
            stream->record(*end);
            stream->synchronize();
            EXPECT_GE(end->elapsed_ms_since(*begin), 40.0);
            fastest = world->max(std::min(fastest, end->elapsed_ms_since(*begin)));
        }
        EXPECT_LT(fastest, 80.0);
        EXPECT_EQ(communicator->counts()[static_cast<size_t>(Collective::all_reduce)].bytes_sent,
                  attempts * 4000000);
    });
}

}  // namespace
}  // namespace speedrun::testing
