// The simulated network: takes the time that its model says, hides behind other streams, and changes no bit.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_clock.h"
#include "train/comm/host_task.h"
#include "train/comm/simulated_world.h"

namespace speedrun::testing {
namespace {

// Keeps a stream from running what is enqueued while this lives, so that a wait that orders nothing is seen.
class Gate {
  public:
    explicit Gate(ClockedStream& stream) {
        enqueue_on_host(*stream, "gate", [open = open_] { open->wait(false); });
    }
    ~Gate() {
        *open_ = true;
        open_->notify_all();
    }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

  private:
    const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

// A world of threads behind a network whose collectives each take `latency_s` of virtual time.
class VirtualNetwork {
  public:
    VirtualNetwork(World& threads, double latency_s)
        : clocked_(make_clocked_world(threads)),
          world_(make_simulated_world(*clocked_, {{latency_s, 0}, 0, 1}, pass_virtual_time)) {}

    std::unique_ptr<Communicator> connect(const char* name) {
        return world_->connect(name, Mesh({1, 2, 1, 1}).group(world_->rank(), {Axis::shard}));
    }

  private:
    const std::unique_ptr<World> clocked_, world_;
};

// 3 pieces of compute of 40 ms, each followed by a collective of 40 ms on another stream: serial 240 ms, and
// 160 ms when all collectives but the last hide behind compute.
TEST(SimulatedWorldTest, HidesBehindAnotherStream) {
    run_ranks(2, [](World& threads) {
        VirtualNetwork network(threads, 40e-3);
        const auto communicator = network.connect("gradients");
        CpuDevice device(1);
        std::vector<float> values(1000, 1.0f);
        ClockedStream compute(device, "compute"), reduce(device, "reduce");
        ClockedEvent ready(device), computed(device), end(device);
        {
            const Gate gate(compute);
            for (int layer = 0; layer < 3; ++layer) {
                compute.work(40);
                compute.record(ready);
                reduce.wait(ready);
                communicator->all_reduce(Tensor(values.data(), DType::f32, {1000}), *reduce);
            }
            compute.record(computed);
            reduce.record(end);
        }
        reduce.synchronize();
        compute.synchronize();
        EXPECT_EQ(values[0], 8.0f);  // doubled three times
        EXPECT_DOUBLE_EQ(computed.ms(), 120);
        EXPECT_DOUBLE_EQ(end.ms(), 160);
    });
}

TEST(SimulatedWorldTest, CollectiveBeginsWithItsLastMember) {
    run_ranks(2, [](World& threads) {
        VirtualNetwork network(threads, 5e-3);
        const auto communicator = network.connect("gradients");
        CpuDevice device(1);
        ClockedStream stream(device, "reduce");
        ClockedEvent end(device);
        stream.work(threads.rank() == 0 ? 10 : 30);
        communicator->barrier(*stream);
        stream.record(end);
        stream.synchronize();
        EXPECT_DOUBLE_EQ(end.ms(), 35);
    });
}

// One step of 3 layers: 25 ms of compute per layer forward and again backward, 10 ms for each reduction and
// each gather, on the streams of the engine and ordered like its buckets.
struct StepTimes {
    double reduced_ms;  // forward, backward and the last reduction
    double next_ms;     // and until the next forward may begin
};

StepTimes scheduled_step(Communicator& reducing, Communicator& gathering, bool when_ready) {
    constexpr int kLayers = 3;
    CpuDevice device(1);
    std::vector<float> gradients(200, 1.0f), values(200, 1.0f);
    ClockedStream compute(device, "compute"), reduce(device, "reduce"), gather(device, "gather");
    ClockedEvent reduced(device), next(device);
    const auto part = [&](std::vector<float>& of) {
        return Tensor(of.data() + 100 * reducing.index(), DType::f32, {100});
    };
    const auto whole = [](std::vector<float>& of) { return Tensor(of.data(), DType::f32, {200}); };
    std::array<ClockedEvent, kLayers> raw{ClockedEvent(device), ClockedEvent(device), ClockedEvent(device)},
        stepped{ClockedEvent(device), ClockedEvent(device), ClockedEvent(device)};
    const auto communicate = [&](size_t layer) {
        reduce.wait(raw[layer]);
        reducing.reduce_scatter(part(gradients), whole(gradients), *reduce);
        reduce.record(stepped[layer]);  // a step that takes no time
        gather.wait(stepped[layer]);
        gathering.all_gather(whole(values), part(values), *gather);
    };
    {
        const Gate gate(compute);
        for (size_t layer = 0; layer < kLayers; ++layer) compute.work(25);
        for (size_t layer = kLayers; layer-- > 0;) {
            compute.work(25);
            compute.record(raw[layer]);
            if (when_ready) communicate(layer);
        }
        if (!when_ready) {  // all of them behind the end of backward
            reduce.wait(raw[0]);
            for (size_t layer = kLayers; layer-- > 0;) communicate(layer);
        }
        reduce.record(reduced);
        gather.record(next);
    }
    for (ClockedStream* stream : {&compute, &reduce, &gather}) stream->synchronize();
    return {reduced.ms(), next.ms()};
}

// 6 x 25 ms of compute, and behind it the last layer's reduction alone, 160 ms; then its gather, 170. Serial:
// 180 with all reductions, 210 with all gathers. When reductions wait for the end of backward, their 30 ms
// are all exposed, and the last gather: 190.
TEST(SimulatedWorldTest, ThreeLayersOverlapIdeally) {
    run_ranks(2, [](World& threads) {
        VirtualNetwork network(threads, 10e-3);
        const auto reducing = network.connect("gradients"), gathering = network.connect("values");
        const StepTimes times = scheduled_step(*reducing, *gathering, true);
        EXPECT_DOUBLE_EQ(times.reduced_ms, 160);
        EXPECT_DOUBLE_EQ(times.next_ms, 170);
        const StepTimes late = scheduled_step(*reducing, *gathering, false);
        EXPECT_DOUBLE_EQ(late.reduced_ms, 180);
        EXPECT_DOUBLE_EQ(late.next_ms, 190);
    });
}

// On the real clock, which load can only make longer: what a communicator says of its time is at least what
// the network took.
TEST(SimulatedWorldTest, NetworkTimeIsBusyTime) {
    run_ranks(2, [](World& threads) {
        const auto world = make_simulated_world(threads, {{10e-3, 0}, 0, 1});
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        CpuDevice device(1);
        const auto stream = device.create_stream("reduce");
        for (int call = 0; call < 2; ++call) communicator->barrier(*stream);
        stream->synchronize();
        EXPECT_GE(communicator->counts()[static_cast<size_t>(Collective::barrier)].busy_ns, 20'000'000);
    });
}

// The time that the network is asked for is noted instead of waited for, so that a busy machine changes
// nothing.
TEST(SimulatedWorldTest, BandwidthCountsWireBytes) {
    run_ranks(2, [](World& threads) {
        std::vector<double> waited_ms;
        const auto world = make_simulated_world(
            threads, {{2e-3, 100e6}, 0, 1},
            [&](std::chrono::duration<double> time) { waited_ms.push_back(time.count() * 1e3); });
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        CpuDevice device(1);
        const auto stream = device.create_stream("reduce");
        constexpr int64_t kPart = 1000, kWhole = 2 * kPart;
        std::vector<float> whole(kWhole, 1.0f), part(kPart, 1.0f), other(kWhole);
        const Tensor whole_f32(whole.data(), DType::f32, {kWhole}),
            part_f32(part.data(), DType::f32, {kPart});
        const Tensor other_f32(other.data(), DType::f32, {kWhole});
        const Tensor whole_bf16(whole.data(), DType::bf16, {kWhole});
        communicator->all_reduce(whole_f32, *stream);
        communicator->all_reduce(whole_bf16, *stream);
        communicator->reduce_scatter(part_f32, whole_f32, *stream);
        communicator->all_gather(whole_f32, part_f32, *stream);
        const Exchange halves{{{0, 0, kPart}, {1, kPart, kPart}}, {{0, 0, kPart}, {1, kPart, kPart}}};
        communicator->all_to_all(other_f32, whole_f32, halves, *stream);
        communicator->broadcast(whole_f32, 0, *stream);
        communicator->barrier(*stream);
        stream->synchronize();
        // 8000 bytes of f32 at 100 MB/s behind 2 ms of latency: all_reduce sends them once from each of 2
        // ranks, 0.08 ms, the others half of them.
        const std::vector<double> expected_ms{2.08, 2.04, 2.04, 2.04, 2.04, 2.04, 2.0};
        ASSERT_EQ(waited_ms.size(), expected_ms.size());
        for (size_t i = 0; i < expected_ms.size(); ++i)
            EXPECT_NEAR(waited_ms[i], expected_ms[i], 1e-9) << "call " << i;  // rounding of doubles alone
        const CollectiveCounts counts = communicator->counts();
        const auto sent = [&](Collective kind) { return counts[static_cast<size_t>(kind)].bytes_sent; };
        EXPECT_EQ(sent(Collective::all_reduce), 8000 + 4000);
        EXPECT_EQ(sent(Collective::reduce_scatter), 4000);
        EXPECT_EQ(sent(Collective::all_gather), 4000);
        EXPECT_EQ(sent(Collective::all_to_all), 4000);
    });
}

}  // namespace
}  // namespace speedrun::testing
