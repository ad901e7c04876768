// Conformance beyond a single collective: concurrent groups and streams, sharding with replicas, and exchanges of the
// host.
// build: in distributed_conformance
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/distributed/conformance.h"
#include "tests/distributed/conformance_cases.h"
#include "tests/distributed/rank_values.h"
#include "train/comm/host_task.h"

namespace speedrun::testing {

// Two groups of a mesh and the whole world run concurrently, each on its own stream. Launch order differs by rank,
// and completion order differs from launch order.
void groups_and_streams_at_once(World& world) {
    const Mesh mesh = square_mesh(world);
    const int rank = world.rank();
    struct Lane {
        AxisSet axes;
        Group group;
        std::unique_ptr<Communicator> communicator;
        std::unique_ptr<Stream> stream;
        std::vector<std::vector<float>> buffers;
    };
    constexpr int kRounds = 20;
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    std::vector<Lane> lanes(3);
    lanes[0].axes = {Axis::shard};
    lanes[1].axes = {Axis::replicate};
    lanes[2].axes = kEverybody;
    for (size_t l = 0; l < lanes.size(); ++l) {
        Lane& lane = lanes[l];
        lane.group = mesh.group(rank, lane.axes);
        lane.communicator = world.connect(fmt::format("lane{}", l), lane.group);
        lane.stream = device.create_stream(fmt::format("stream{}", l));
        for (int round = 0; round < kRounds; ++round)
            lane.buffers.push_back(rank_values<float>(
                rank, 50 + 13 * round, static_cast<uint32_t>(100 * l) + static_cast<uint32_t>(round)));
    }
    for (int round = 0; round < kRounds; ++round) {
        for (size_t turn = 0; turn < lanes.size(); ++turn) {
            Lane& lane = lanes[(turn + static_cast<size_t>(rank + round)) % lanes.size()];
            const auto delay = std::chrono::microseconds(
                philox4x32({static_cast<uint32_t>(round), static_cast<uint32_t>(turn),
                            static_cast<uint32_t>(rank), 9},
                           {})[0] %
                500);
            enqueue_on_host(*lane.stream, "delay", [delay] { std::this_thread::sleep_for(delay); });
            lane.communicator->all_reduce(view(lane.buffers[static_cast<size_t>(round)]), *lane.stream);
        }
    }
    for (Lane& lane : lanes) lane.stream->synchronize();
    for (size_t l = 0; l < lanes.size(); ++l) {
        for (int round = 0; round < kRounds; ++round) {
            EXPECT_EQ(first_difference(
                          lanes[l].buffers[static_cast<size_t>(round)],
                          expected_sum<float>(lanes[l].group.ranks, 50 + 13 * round,
                                              static_cast<uint32_t>(100 * l) + static_cast<uint32_t>(round))),
                      -1)
                << "lane " << l << " round " << round << " rank " << rank;
        }
    }
}

// A blocked collective on one stream does not delay a later launch on another stream.
void later_launch_completes_first(World& world) {
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    const Group group = flat_mesh(world).group(world.rank(), kEverybody);
    const auto slow = world.connect("slow", group), fast = world.connect("fast", group);
    const auto slow_stream = device.create_stream("slow"), fast_stream = device.create_stream("fast"),
               gate = device.create_stream("gate");
    const auto opened = device.create_event(), fast_done = device.create_event(),
               slow_done = device.create_event();
    std::vector<float> a(1000, 1.0f), b(1000, 2.0f);
    std::atomic<bool> open = false;
    if (world.rank() == 0) {
        enqueue_on_host(*gate, "gate", [&] {
            while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
        gate->record(*opened);
        slow_stream->wait(*opened);
    }
    slow->all_reduce(view(a), *slow_stream);
    slow_stream->record(*slow_done);
    fast->all_reduce(view(b), *fast_stream);
    fast_stream->record(*fast_done);
    fast_done->synchronize();
    EXPECT_EQ(b[999], 2.0f * static_cast<float>(world.size()));
    world.barrier();  // the gate opens after all ranks have reached this line
    EXPECT_FALSE(slow_done->complete());
    world.barrier();
    open = true;
    slow_stream->synchronize();
    EXPECT_EQ(a[999], static_cast<float>(world.size()));
}

// No member leaves a barrier before the last has entered: a counter that all increment before it is complete after
// it.
void barrier_waits_for_all(World& world) {
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    const auto stream = device.create_stream("reduce");
    const auto communicator = world.connect("barrier", flat_mesh(world).group(world.rank(), kEverybody));
    const auto before = device.create_event(EventKind::timed), after = device.create_event(EventKind::timed);
    stream->record(*before);
    stream->synchronize();
    world.barrier();
    if (world.rank() == world.size() - 1)
        enqueue_on_host(*stream, "late", [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
    communicator->barrier(*stream);
    stream->record(*after);
    stream->synchronize();
    EXPECT_GE(after->elapsed_ms_since(*before), 60.0);
}

void host_exchanges(World& world) {
    const int n = world.size(), rank = world.rank();
    const std::vector<std::string> texts = world.all_gather(
        std::string(static_cast<size_t>(rank * rank * 1000), static_cast<char>('a' + rank % 26)));
    ASSERT_EQ(texts.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i)
        EXPECT_EQ(texts[static_cast<size_t>(i)],
                  std::string(static_cast<size_t>(i * i * 1000), static_cast<char>('a' + i % 26)));
    const auto own = [](int i) {
        return std::string(static_cast<size_t>(i % 3 * 100), static_cast<char>('a' + i % 26));
    };
    const std::vector<std::string> gathered = world.gather(own(rank));
    ASSERT_EQ(gathered.size(), rank == 0 ? static_cast<size_t>(n) : 0u);
    for (size_t i = 0; i < gathered.size(); ++i) EXPECT_EQ(gathered[i], own(static_cast<int>(i)));
    EXPECT_EQ(world.sum(rank + 0.5), n * (n - 1) / 2.0 + n * 0.5);
    EXPECT_EQ(world.min(10.0 - rank), 10.0 - (n - 1));
    EXPECT_EQ(world.max(-1.0 - rank), -1.0);
    EXPECT_GE(world.local_size(), 1);
    EXPECT_LT(world.local_rank(), world.local_size());

    expect_same_on_all_ranks(world, "plan", {"a", "b"});
    if (n == 1) return;
    std::vector<std::string> plan{"reduce_scatter of w1", "reduce_scatter of w2", "all_gather of w1"};
    if (rank == n - 1) std::swap(plan[1], plan[2]);
    try {
        expect_same_on_all_ranks(world, "plan", plan);
        ADD_FAILURE() << "rank " << rank << " saw no difference";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        EXPECT_EQ(std::string(error.what()),
                  fmt::format("plan: rank {} differs from rank 0 at line 2: 'all_gather of w1' instead of "
                              "'reduce_scatter of w2'; all ranks need the same config, data and binary",
                              n - 1));
    }
}

}  // namespace speedrun::testing
