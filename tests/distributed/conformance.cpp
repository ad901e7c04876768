// build: in distributed_conformance
#include "tests/distributed/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/rank_values.h"
#include "tests/errors.h"
#include "train/comm/host_task.h"
#include "train/comm/mesh.h"

namespace speedrun::testing {

namespace {

using namespace std::chrono_literals;

const AxisSet kEverybody{Axis::replicate, Axis::shard};

// A rank with a stream, and a communicator of all ranks for it.
struct Member {
    explicit Member(World& world)
        : rank(world.rank()),
          n(world.size()),
          group(Mesh({1, n, 1, 1}).group(rank, kEverybody)),
          communicator(world.connect("all", group)) {}

    int64_t bytes_sent(Collective kind) const {
        return communicator->counts()[static_cast<size_t>(kind)].bytes_sent;
    }

    const int rank, n;
    const Group group;
    const std::unique_ptr<Device> device = conformance_device()();
    const std::unique_ptr<Stream> stream = device->create_stream("collectives");
    const std::unique_ptr<Communicator> communicator;
};

// Empty, less than one element per rank, odd, and more than one slice of the message world's pipeline (256 KiB) per
// rank.
const std::vector<int64_t> kSizes{0, 1, 3, 97, 4096, 131075};

template <class T>
void sums(World& world) {
    const Member me(world);
    uint32_t salt = 1;
    for (const int64_t count : kSizes) {
        SCOPED_TRACE(fmt::format("{} elements of {}, rank {}", count, name_of(dtype_of<T>()), me.rank));
        ++salt;
        const std::vector<T> sum = expected_sum<T>(me.group.ranks, count, salt);
        std::vector<T> values = rank_values<T>(me.rank, count, salt);
        me.communicator->all_reduce(view(values), *me.stream);
        me.stream->synchronize();
        EXPECT_EQ(first_difference(values, sum), -1);

        const int64_t first = me.rank * count;
        const std::vector<T> part = expected_sum<T>(me.group.ranks, count, salt, first),
                             own = rank_values<T>(me.rank, me.n * count, salt);
        std::vector<T> input = own, output(static_cast<size_t>(count));
        me.communicator->reduce_scatter(view(output), view(input), *me.stream);
        me.stream->synchronize();
        EXPECT_EQ(first_difference(output, part), -1);
        EXPECT_EQ(first_difference(input, own), -1) << "input changed";
        me.communicator->reduce_scatter(view(input, first, count), view(input), *me.stream);
        me.stream->synchronize();
        EXPECT_EQ(first_difference({input.begin() + first, input.begin() + first + count}, part), -1)
            << "in place";
    }
}

// Maximum of nonnegative values. A NaN or infinity on any rank is the result.
void maxima(World& world) {
    const Member me(world);
    const int n = me.n;
    const auto value = [n](int rank, int64_t e) { return static_cast<float>((e * 7 + rank * 3) % (n + 5)); };
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    for (const int64_t count : kSizes) {
        std::vector<float> values, expected;
        for (int64_t e = 0; e < count; ++e) {
            values.push_back(value(me.rank, e));
            expected.push_back(0);
            for (int rank = 0; rank < n; ++rank) expected.back() = std::max(expected.back(), value(rank, e));
        }
        for (int rank = 0; rank < n && 2 * rank + 1 < count; ++rank) {  // each rank has one of each
            if (rank == me.rank) {
                values[static_cast<size_t>(2 * rank)] = kNan;
                values[static_cast<size_t>(2 * rank + 1)] = HUGE_VALF;
            }
            expected[static_cast<size_t>(2 * rank)] = kNan;
            expected[static_cast<size_t>(2 * rank + 1)] = HUGE_VALF;
        }
        me.communicator->all_reduce(view(values), *me.stream, Reduction::max);
        me.stream->synchronize();
        for (size_t e = 0; e < values.size(); ++e) {
            ASSERT_TRUE(std::isnan(expected[e]) ? std::isnan(values[e]) : values[e] == expected[e])
                << "element " << e << " of " << count << ": " << values[e] << ", not " << expected[e];
        }
    }
}

// Part i of each member's output <- its part of member i's input.
std::shared_ptr<const Exchange> even_exchange(int members, int64_t count) {
    auto exchange = std::make_shared<Exchange>();
    for (int i = 0; i < members; ++i) {
        exchange->sends.push_back({i, i * count, count});
        exchange->receives.push_back({i, i * count, count});
    }
    return exchange;
}

// Member a sends b (a + 1) slices to member b, possibly none. Slice k has a + b + k elements. Buffers hold
// the slices by descending rank. The gaps between received slices stay unchanged.
void uneven_slices(World& world) {
    const Member me(world);
    const int n = me.n, rank = me.rank;
    const auto value = [](int from, int to, int64_t k, int64_t e) {
        return static_cast<float>(((from * 16 + to) * 64 + k) * 64 + e);
    };
    Exchange exchange;
    std::vector<float> input, expected;
    int64_t sent = 0;
    for (int peer = n - 1; peer >= 0; --peer) {
        for (int64_t k = 0; k < peer * (rank + 1); ++k) {
            const int64_t count = rank + peer + k;
            exchange.sends.push_back({peer, static_cast<int64_t>(input.size()), count});
            for (int64_t e = 0; e < count; ++e) input.push_back(value(rank, peer, k, e));
            sent += peer == rank ? 0 : count * 4;
        }
        for (int64_t k = 0; k < rank * (peer + 1); ++k) {
            expected.push_back(-1);  // gap between slices
            const int64_t count = rank + peer + k;
            exchange.receives.push_back({peer, static_cast<int64_t>(expected.size()), count});
            for (int64_t e = 0; e < count; ++e) expected.push_back(value(peer, rank, k, e));
        }
    }
    expected.push_back(-1);
    std::vector<float> output(expected.size(), -1);
    input.push_back(0);
    for (int round = 0; round < 3; ++round)
        me.communicator->all_to_all(view(output), view(input), exchange, *me.stream);
    me.stream->synchronize();
    EXPECT_EQ(first_difference(output, expected), -1);
    EXPECT_EQ(me.bytes_sent(Collective::all_to_all), 3 * sent);
}

template <class T>
void moves(World& world) {
    const Member me(world);
    const int n = me.n, rank = me.rank;
    for (const int64_t count : kSizes) {
        SCOPED_TRACE(fmt::format("{} elements of {}, rank {}", count, name_of(dtype_of<T>()), rank));
        std::vector<T> all, exchanged;
        for (int i = 0; i < n; ++i) {
            const std::vector<T> one = rank_values<T>(i, count, 3),
                                 mine = rank_values<T>(i, count, 4, rank * count);
            all.insert(all.end(), one.begin(), one.end());
            exchanged.insert(exchanged.end(), mine.begin(), mine.end());
        }
        std::vector<T> part = rank_values<T>(rank, count, 3), gathered(all.size()), in_place(all.size());
        me.communicator->all_gather(view(gathered), view(part), *me.stream);
        std::copy(part.begin(), part.end(), in_place.begin() + rank * count);
        me.communicator->all_gather(view(in_place), view(in_place, rank * count, count), *me.stream);
        std::vector<T> row = rank_values<T>(rank, n * count, 4), received(row.size());
        me.communicator->all_to_all(view(received), view(row), even_exchange(n, count), *me.stream);
        me.stream->synchronize();
        EXPECT_EQ(first_difference(gathered, all), -1);
        EXPECT_EQ(first_difference(in_place, all), -1) << "in place";
        EXPECT_EQ(first_difference(received, exchanged), -1);
        for (int root = 0; root < n; ++root) {
            std::vector<T> values = rank_values<T>(rank, count, 5);
            me.communicator->broadcast(view(values), root, *me.stream);
            me.stream->synchronize();
            EXPECT_EQ(first_difference(values, rank_values<T>(root, count, 5)), -1) << "root " << root;
        }
    }
}

void counts_are_the_formulas(World& world) {
    const Member me(world);
    const int n = me.n;
    const int64_t count = 1000;  // per rank: divisible, so that every rank sends exactly the formula
    std::vector<float> part(static_cast<size_t>(count)), whole(static_cast<size_t>(count * n)),
        other(whole.size());
    me.communicator->reduce_scatter(view(part), view(whole), *me.stream);
    me.communicator->all_gather(view(whole), view(part), *me.stream);
    me.communicator->all_reduce(view(whole), *me.stream);
    me.communicator->all_to_all(view(other), view(whole), even_exchange(n, count), *me.stream);
    me.communicator->barrier(*me.stream);
    me.stream->synchronize();
    const CollectiveCounts counts = me.communicator->counts();
    for (const Collective kind : {Collective::reduce_scatter, Collective::all_gather, Collective::all_reduce,
                                  Collective::all_to_all, Collective::barrier}) {
        const CollectiveCount& counted = counts[static_cast<size_t>(kind)];
        EXPECT_EQ(counted.calls, 1) << name_of(kind);
        EXPECT_EQ(static_cast<double>(counted.bytes_sent), wire_bytes(kind, n, count * n * 4))
            << name_of(kind);
    }
    // Uneven counts: ranks send different amounts, and the sum over ranks equals the formula.
    std::vector<Bf16> odd(101, Bf16(1.0f));
    me.communicator->all_reduce(view(odd), *me.stream);
    std::vector<float> some(33);
    me.communicator->broadcast(view(some), n - 1, *me.stream);
    me.stream->synchronize();
    const auto grown = [&](Collective kind) {
        return static_cast<double>(me.bytes_sent(kind) - counts[static_cast<size_t>(kind)].bytes_sent);
    };
    EXPECT_DOUBLE_EQ(world.sum(grown(Collective::all_reduce)),
                     n * wire_bytes(Collective::all_reduce, n, 202));
    EXPECT_DOUBLE_EQ(world.sum(grown(Collective::broadcast)), n * wire_bytes(Collective::broadcast, n, 132));
}

void wrong_sizes_throw(World& world) {
    const Member me(world);
    const int64_t n = me.n;
    std::vector<float> part(4), whole(static_cast<size_t>(4 * n + 1));
    std::vector<int32_t> integers(4);
    std::vector<Bf16> halves(4);
    const Tensor fits = view(whole, 0, 4 * n);
    EXPECT_THROW(me.communicator->reduce_scatter(view(part), view(whole), *me.stream), Error);
    EXPECT_THROW(me.communicator->all_gather(view(whole), view(part), *me.stream), Error);
    EXPECT_THROW(me.communicator->all_gather(fits, view(halves), *me.stream), Error);
    EXPECT_THROW(me.communicator->all_reduce(view(integers), *me.stream), Error);
    EXPECT_THROW(me.communicator->all_reduce(view(halves), *me.stream, Reduction::max), Error);
    EXPECT_THROW(me.communicator->broadcast(view(part), static_cast<int>(n), *me.stream), Error);
    EXPECT_THROW(me.communicator->all_to_all(fits, fits, even_exchange(me.n, 4), *me.stream), Error)
        << "overlap";
    std::vector<float> other(whole.size());
    for (const Slice& wrong : {Slice{0, 4 * n, 2}, Slice{0, -1, 2}, Slice{me.n, 0, 1}}) {
        EXPECT_THROW(me.communicator->all_to_all(view(other), view(whole), {{wrong}, {}}, *me.stream), Error);
        EXPECT_THROW(me.communicator->all_to_all(view(other), view(whole), {{}, {wrong}}, *me.stream), Error);
    }
    EXPECT_THROW(me.communicator->all_gather(fits, view(whole, 4 * ((me.rank + 1) % n) + 1, 4), *me.stream),
                 Error)
        << "overlap";
    Tensor strided(whole.data(), DType::f32, {2, 2});
    strided.row_stride = 3;
    EXPECT_THROW(me.communicator->all_reduce(strided, *me.stream), Error);
    me.stream->synchronize();
    EXPECT_EQ(me.communicator->counts()[static_cast<size_t>(Collective::all_gather)].calls, 0);
}

// Two groups of a mesh and the whole world run concurrently, each on its own stream. Launch order differs by rank,
// and completion order differs from launch order.
void groups_and_streams_at_once(World& world) {
    const Member me(world);
    const int rank = me.rank, replicas = me.n % 2 == 0 ? 2 : 1;
    const Mesh mesh({replicas, me.n / replicas, 1, 1});
    struct Lane {
        Group group;
        std::unique_ptr<Communicator> communicator;
        std::unique_ptr<Stream> stream;
        std::vector<std::vector<float>> buffers;
    };
    constexpr int kRounds = 20;
    const auto salt_of = [](size_t lane, int round) {
        return static_cast<uint32_t>(100 * lane) + static_cast<uint32_t>(round);
    };
    std::vector<Lane> lanes;
    for (const AxisSet& axes : {AxisSet{Axis::shard}, AxisSet{Axis::replicate}, kEverybody}) {
        const size_t l = lanes.size();
        const Group group = mesh.group(rank, axes);
        Lane& lane = lanes.emplace_back();
        lane.group = group;
        lane.communicator = world.connect(fmt::format("lane{}", l), group);
        lane.stream = me.device->create_stream(fmt::format("stream{}", l));
        for (int round = 0; round < kRounds; ++round)
            lane.buffers.push_back(rank_values<float>(rank, 50 + 13 * round, salt_of(l, round)));
    }
    for (int round = 0; round < kRounds; ++round) {
        for (size_t turn = 0; turn < lanes.size(); ++turn) {
            Lane& lane = lanes[(turn + static_cast<size_t>(rank + round)) % lanes.size()];
            const uint32_t draw =
                philox4x32({salt_of(turn, round), static_cast<uint32_t>(rank), 0, 9}, {})[0];
            enqueue_on_host(*lane.stream, "delay", [draw] { std::this_thread::sleep_for(draw % 500 * 1us); });
            lane.communicator->all_reduce(view(lane.buffers[static_cast<size_t>(round)]), *lane.stream);
        }
    }
    for (Lane& lane : lanes) lane.stream->synchronize();
    for (size_t l = 0; l < lanes.size(); ++l) {
        for (int round = 0; round < kRounds; ++round) {
            const std::vector<float> sum =
                expected_sum<float>(lanes[l].group.ranks, 50 + 13 * round, salt_of(l, round));
            EXPECT_EQ(first_difference(lanes[l].buffers[static_cast<size_t>(round)], sum), -1)
                << "lane " << l << " round " << round << " rank " << rank;
        }
    }
}

// A blocked collective on one stream does not delay a later launch on another stream.
void later_launch_completes_first(World& world) {
    const Member slow(world);
    Device& device = *slow.device;
    const auto fast = world.connect("fast", slow.group);
    const auto fast_stream = device.create_stream("fast"), gate = device.create_stream("gate");
    const auto opened = device.create_event(), fast_done = device.create_event(),
               slow_done = device.create_event();
    std::vector<float> a(1000, 1.0f), b(1000, 2.0f);
    std::atomic<bool> open = false;
    if (world.rank() == 0) {
        enqueue_on_host(*gate, "gate", [&] {
            while (!open) std::this_thread::sleep_for(1ms);
        });
        gate->record(*opened);
        slow.stream->wait(*opened);
    }
    slow.communicator->all_reduce(view(a), *slow.stream);
    slow.stream->record(*slow_done);
    fast->all_reduce(view(b), *fast_stream);
    fast_stream->record(*fast_done);
    fast_done->synchronize();
    EXPECT_EQ(b[999], 2.0f * static_cast<float>(world.size()));
    world.barrier();  // the gate opens after all ranks have reached this line
    EXPECT_FALSE(slow_done->complete());
    world.barrier();
    open = true;
    slow.stream->synchronize();
    EXPECT_EQ(a[999], static_cast<float>(world.size()));
}

// No member leaves a barrier before the last has entered: a counter that all increment before it is complete after
// it.
void barrier_waits_for_all(World& world) {
    const Member me(world);
    const auto before = me.device->create_event(EventKind::timed),
               after = me.device->create_event(EventKind::timed);
    me.stream->record(*before);
    me.stream->synchronize();
    world.barrier();
    if (me.rank == me.n - 1) enqueue_on_host(*me.stream, "late", [] { std::this_thread::sleep_for(60ms); });
    me.communicator->barrier(*me.stream);
    me.stream->record(*after);
    me.stream->synchronize();
    EXPECT_GE(after->elapsed_ms_since(*before), 60.0);
}

void host_exchanges(World& world) {
    const int n = world.size(), rank = world.rank();
    const auto text = [](int i, int length) {
        return std::string(static_cast<size_t>(length), static_cast<char>('a' + i % 26));
    };
    std::vector<std::string> all, to_first;
    for (int i = 0; i < n; ++i) {
        all.push_back(text(i, i * i * 1000));
        if (rank == 0) to_first.push_back(text(i, i % 3 * 100));
    }
    EXPECT_EQ(world.all_gather(text(rank, rank * rank * 1000)), all);
    EXPECT_EQ(world.gather(text(rank, rank % 3 * 100)), to_first);
    EXPECT_EQ(world.sum(rank + 0.5), n * (n - 1) / 2.0 + n * 0.5);
    EXPECT_EQ(world.min(10.0 - rank), 10.0 - (n - 1));
    EXPECT_EQ(world.max(-1.0 - rank), -1.0);
    EXPECT_GE(world.local_size(), 1);
    EXPECT_LT(world.local_rank(), world.local_size());

    expect_same_on_all_ranks(world, "plan", {"a", "b"});
    if (n == 1) return;
    std::vector<std::string> plan{"reduce_scatter of w1", "reduce_scatter of w2", "all_gather of w1"};
    if (rank == n - 1) std::swap(plan[1], plan[2]);
    EXPECT_EQ(error_of(ExitCode::usage, [&] { expect_same_on_all_ranks(world, "plan", plan); }),
              fmt::format("plan: rank {} differs from rank 0 at line 2: 'all_gather of w1' instead of "
                          "'reduce_scatter of w2'; all ranks need the same config, data and binary",
                          n - 1));
}

}  // namespace

std::function<std::unique_ptr<Device>()>& conformance_device() {
    static std::function<std::unique_ptr<Device>()> make = [] { return std::make_unique<CpuDevice>(1); };
    return make;
}

std::function<void(const ConformanceCase&, World&)>& run_conformance() {
    static std::function<void(const ConformanceCase&, World&)> run = [](const ConformanceCase& one,
                                                                        World& world) { one.run(world); };
    return run;
}

const std::vector<ConformanceCase>& conformance_cases() {
    static const std::vector<ConformanceCase> kCases{
        {"sums_f32", sums<float>},
        {"sums_bf16", sums<Bf16>},
        {"maxima", maxima},
        {"moves_f32", moves<float>},
        {"moves_bf16", moves<Bf16>},
        {"uneven_slices", uneven_slices},
        {"groups_and_streams_at_once", groups_and_streams_at_once},
        {"later_launch_completes_first", later_launch_completes_first},
        {"barrier_waits_for_all", barrier_waits_for_all},
        {"counts_are_the_formulas", counts_are_the_formulas},
        {"host_exchanges", host_exchanges},
        {"wrong_sizes_throw", wrong_sizes_throw},
    };
    return kCases;
}

}  // namespace speedrun::testing
