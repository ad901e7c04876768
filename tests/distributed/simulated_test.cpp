// The simulated network takes the time of its model, overlaps with other streams, and changes no bit.
// Covers: train/comm/host_task.cpp train/comm/simulated_world.cpp
#include <gtest/gtest.h>

#include <atomic>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_clock.h"
#include "train/comm/host_task.h"
#include "train/comm/simulated_world.h"

namespace speedrun::testing::simulated_test {

// Blocks a stream during its lifetime, so that a wait without effect is detected.
class Gate {
  public:
    explicit Gate(Stream& stream) {
        enqueue_on_host(stream, "gate", [open = open_] { open->wait(false); });
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

// A world of threads on a network in which each collective takes `latency_s` of virtual time.
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

class VirtualTimeTest : public ::testing::Test {
  protected:
    // Streams and events of one rank, in virtual time.
    struct Rank {
        Rank() : device(1) {
            device.set_clock(clock);
            compute->record(*start);
        }
        std::unique_ptr<Event> event() { return device.create_event(EventKind::timed); }
        double ms(const Event& event) const { return event.elapsed_ms_since(*start); }

        VirtualClock clock;
        CpuDevice device;
        const std::unique_ptr<Stream> compute = device.create_stream("compute"),
                                      reduce = device.create_stream("reduce");
        const std::unique_ptr<Event> start = event();
    };
    static void work(Stream& stream, double ms) {
        enqueue_on_host(stream, "work",
                        [ms] { pass_virtual_time(std::chrono::duration<double>(ms * 1e-3)); });
    }
};

// 3 operations of 40 ms on compute, each followed by a collective of 40 ms on another stream: serial 240 ms, and 160
// ms if all collectives but the last overlap with compute.
TEST_F(VirtualTimeTest, CollectivesOverlapWithCompute) {
    run_ranks(2, [](World& threads) {
        VirtualNetwork network(threads, 40e-3);
        const auto communicator = network.connect("gradients");
        Rank rank;
        std::vector<float> values(1000, 1.0f);
        const auto ready = rank.event(), computed = rank.event(), end = rank.event();
        {
            const Gate gate(*rank.compute);
            for (int layer = 0; layer < 3; ++layer) {
                work(*rank.compute, 40);
                rank.compute->record(*ready);
                rank.reduce->wait(*ready);
                communicator->all_reduce(Tensor(values.data(), DType::f32, {1000}), *rank.reduce);
            }
            rank.compute->record(*computed);
            rank.reduce->record(*end);
        }
        rank.reduce->synchronize();
        rank.compute->synchronize();
        EXPECT_EQ(values[0], 8.0f);  // doubled three times
        EXPECT_DOUBLE_EQ(rank.ms(*computed), 120);
        EXPECT_DOUBLE_EQ(rank.ms(*end), 160);
    });
}

TEST_F(VirtualTimeTest, CollectiveStartsWithLastMember) {
    run_ranks(2, [](World& threads) {
        VirtualNetwork network(threads, 5e-3);
        const auto communicator = network.connect("gradients");
        Rank rank;
        const auto end = rank.event();
        work(*rank.reduce, threads.rank() == 0 ? 10 : 30);
        communicator->barrier(*rank.reduce);
        rank.reduce->record(*end);
        rank.reduce->synchronize();
        EXPECT_DOUBLE_EQ(rank.ms(*end), 35);
    });
}

// On the real clock, load can only add time: the measured time is at least the network's.
TEST(SimulatedWorldTest, MeasuresNetworkTimeAsCollectiveTime) {
    run_ranks(2, [](World& threads) {
        const auto world = make_simulated_world(threads, {{10e-3, 0}, 0, 1});
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        CpuDevice device(1);
        const auto stream = device.create_stream("reduce");
        ExposureMeter meter(device);
        communicator->time_by(&meter, ExposureMeter::Kind::collective);
        const auto now = device.create_event(EventKind::timed);
        communicator->barrier(*stream);  // not timed
        meter.turn(true);
        for (int call = 0; call < 2; ++call) communicator->barrier(*stream);
        stream->record(*now);
        stream->synchronize();
        constexpr double kLong = 1e6;
        const double ms = meter.measure(*now, kLong, {{0, kLong}, {0, 0}}).collectives;
        EXPECT_GE(ms, 20);
        EXPECT_DOUBLE_EQ(meter.measure(*now, 2 * kLong, {{kLong, 2 * kLong}, {0, 0}}).collectives, 0)
            << "counted before";
    });
}

// Requested network times are recorded and not waited for, so that load has no effect.
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
        // 8000 bytes of f32 at 100 MB/s after 2 ms of latency: all_reduce sends them once from each of 2 ranks, 0.08
        // ms, and the other collectives half of them.
        const std::vector<double> expected_ms{2.08, 2.04, 2.04, 2.04, 2.04, 2.04, 2.0};
        ASSERT_EQ(waited_ms.size(), expected_ms.size());
        for (size_t i = 0; i < expected_ms.size(); ++i)
            EXPECT_NEAR(waited_ms[i], expected_ms[i], 1e-9) << "call " << i;  // rounding of doubles only
        const CollectiveCounts counts = communicator->counts();
        const auto sent = [&](Collective kind) { return counts[static_cast<size_t>(kind)].bytes_sent; };
        EXPECT_EQ(sent(Collective::all_reduce), 8000 + 4000);
        EXPECT_EQ(sent(Collective::reduce_scatter), 4000);
        EXPECT_EQ(sent(Collective::all_gather), 4000);
        EXPECT_EQ(sent(Collective::all_to_all), 4000);
    });
}

}  // namespace speedrun::testing::simulated_test
