// build: in distributed_conformance
#include "tests/distributed/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/conformance_cases.h"
#include "tests/distributed/rank_values.h"

namespace speedrun::testing {

namespace {

// Empty, less than one element per rank, odd, and more than one slice of the message world's pipeline (256 KiB) per
// rank.
const std::vector<int64_t> kSizes{0, 1, 3, 97, 4096, 131075};

template <class T>
void sums_of(World& world) {
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    const auto stream = device.create_stream("reduce");
    const Group group = flat_mesh(world).group(world.rank(), kEverybody);
    const auto communicator = world.connect("sums", group);
    const int64_t n = world.size();
    uint32_t salt = 1;
    for (const int64_t count : kSizes) {
        SCOPED_TRACE(fmt::format("{} elements of {}, rank {}", count, name_of(dtype_of<T>()), world.rank()));
        ++salt;
        const std::vector<T> sum = expected_sum<T>(group.ranks, count, salt);
        std::vector<T> values = rank_values<T>(world.rank(), count, salt);
        communicator->all_reduce(view(values), *stream);
        stream->synchronize();
        EXPECT_EQ(first_difference(values, sum), -1);

        const std::vector<T> part = expected_sum<T>(group.ranks, count, salt, world.rank() * count);
        std::vector<T> input = rank_values<T>(world.rank(), n * count, salt),
                       output(static_cast<size_t>(count));
        communicator->reduce_scatter(view(output), view(input), *stream);
        stream->synchronize();
        EXPECT_EQ(first_difference(output, part), -1);
        EXPECT_EQ(first_difference(input, rank_values<T>(world.rank(), n * count, salt)), -1)
            << "input changed";
        communicator->reduce_scatter(view(input, world.rank() * count, count), view(input), *stream);
        stream->synchronize();
        EXPECT_EQ(first_difference(std::vector<T>(input.begin() + world.rank() * count,
                                                  input.begin() + (world.rank() + 1) * count),
                                   part),
                  -1)
            << "in place";
    }
}

// Maximum of nonnegative values. A NaN or infinity on any rank is the result.
void maxima(World& world) {
    const auto device = conformance_device()();
    const auto stream = device->create_stream("reduce");
    const auto communicator = world.connect("maxima", flat_mesh(world).group(world.rank(), kEverybody));
    const int n = world.size();
    const auto value = [n](int rank, int64_t e) { return static_cast<float>((e * 7 + rank * 3) % (n + 5)); };
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    for (const int64_t count : kSizes) {
        std::vector<float> values, expected;
        for (int64_t e = 0; e < count; ++e) {
            values.push_back(value(world.rank(), e));
            expected.push_back(0);
            for (int rank = 0; rank < n; ++rank) expected.back() = std::max(expected.back(), value(rank, e));
        }
        for (int rank = 0; rank < n && 2 * rank + 1 < count; ++rank) {  // each rank has one of each
            if (rank == world.rank()) {
                values[static_cast<size_t>(2 * rank)] = kNan;
                values[static_cast<size_t>(2 * rank + 1)] = HUGE_VALF;
            }
            expected[static_cast<size_t>(2 * rank)] = kNan;
            expected[static_cast<size_t>(2 * rank + 1)] = HUGE_VALF;
        }
        communicator->all_reduce(view(values), *stream, Reduction::max);
        stream->synchronize();
        for (size_t e = 0; e < values.size(); ++e) {
            if (std::isnan(expected[e]) ? std::isnan(values[e]) : values[e] == expected[e]) continue;
            ADD_FAILURE() << "element " << e << " of " << count << ": " << values[e] << ", not "
                          << expected[e];
            break;
        }
    }
}

void sums_f32(World& world) {
    sums_of<float>(world);
}
void sums_bf16(World& world) {
    sums_of<Bf16>(world);
}

// Part i of each member's output <- its part of member i's input.
Exchange even_exchange(int members, int64_t count) {
    Exchange exchange;
    for (int i = 0; i < members; ++i) {
        exchange.sends.push_back({i, i * count, count});
        exchange.receives.push_back({i, i * count, count});
    }
    return exchange;
}

// Member a sends b (a + 1) slices to member b, possibly none. Slice k has a + b + k elements. Buffers hold
// the slices by descending rank. The gaps between received slices stay unchanged.
void uneven_slices(World& world) {
    const auto device = conformance_device()();
    const auto stream = device->create_stream("exchange");
    const auto communicator = world.connect("slices", flat_mesh(world).group(world.rank(), kEverybody));
    const int n = world.size(), rank = world.rank();
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
        communicator->all_to_all(view(output), view(input), exchange, *stream);
    stream->synchronize();
    EXPECT_EQ(first_difference(output, expected), -1);
    EXPECT_EQ(communicator->counts()[static_cast<size_t>(Collective::all_to_all)].bytes_sent, 3 * sent);
}

template <class T>
void moves_of(World& world) {
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    const auto stream = device.create_stream("gather");
    const auto communicator = world.connect("moves", flat_mesh(world).group(world.rank(), kEverybody));
    const int n = world.size(), rank = world.rank();
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
        communicator->all_gather(view(gathered), view(part), *stream);
        std::copy(part.begin(), part.end(), in_place.begin() + rank * count);
        communicator->all_gather(view(in_place), view(in_place, rank * count, count), *stream);
        std::vector<T> row = rank_values<T>(rank, n * count, 4), received(row.size());
        const Exchange even = even_exchange(n, count);
        communicator->all_to_all(view(received), view(row), even, *stream);
        stream->synchronize();
        EXPECT_EQ(first_difference(gathered, all), -1);
        EXPECT_EQ(first_difference(in_place, all), -1) << "in place";
        EXPECT_EQ(first_difference(received, exchanged), -1);
        for (int root = 0; root < n; ++root) {
            std::vector<T> values = rank_values<T>(rank, count, 5);
            communicator->broadcast(view(values), root, *stream);
            stream->synchronize();
            EXPECT_EQ(first_difference(values, rank_values<T>(root, count, 5)), -1) << "root " << root;
        }
    }
}

void moves_f32(World& world) {
    moves_of<float>(world);
}
void moves_bf16(World& world) {
    moves_of<Bf16>(world);
}

void counts_are_the_formulas(World& world) {
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    const auto stream = device.create_stream("reduce");
    const auto communicator = world.connect("counts", flat_mesh(world).group(world.rank(), kEverybody));
    const int n = world.size();
    const int64_t count = 1000;  // per rank: divisible, so that every rank sends exactly the formula
    std::vector<float> part(static_cast<size_t>(count)), whole(static_cast<size_t>(count * n)),
        other(whole.size());
    communicator->reduce_scatter(view(part), view(whole), *stream);
    communicator->all_gather(view(whole), view(part), *stream);
    communicator->all_reduce(view(whole), *stream);
    const Exchange even = even_exchange(n, count);
    communicator->all_to_all(view(other), view(whole), even, *stream);
    communicator->barrier(*stream);
    stream->synchronize();
    const CollectiveCounts counts = communicator->counts();
    for (const Collective kind : {Collective::reduce_scatter, Collective::all_gather, Collective::all_reduce,
                                  Collective::all_to_all, Collective::barrier}) {
        const CollectiveCount& counted = counts[static_cast<size_t>(kind)];
        EXPECT_EQ(counted.calls, 1) << name_of(kind);
        EXPECT_EQ(static_cast<double>(counted.bytes_sent), wire_bytes(kind, n, count * n * 4))
            << name_of(kind);
    }
    // Uneven counts: ranks send different amounts, and the sum over ranks equals the formula.
    std::vector<Bf16> odd(101, Bf16(1.0f));
    communicator->all_reduce(view(odd), *stream);
    std::vector<float> some(33);
    communicator->broadcast(view(some), n - 1, *stream);
    stream->synchronize();
    const CollectiveCounts after = communicator->counts();
    const auto grown = [&](Collective kind) {
        return static_cast<double>(after[static_cast<size_t>(kind)].bytes_sent -
                                   counts[static_cast<size_t>(kind)].bytes_sent);
    };
    EXPECT_DOUBLE_EQ(world.sum(grown(Collective::all_reduce)),
                     n * wire_bytes(Collective::all_reduce, n, 202));
    EXPECT_DOUBLE_EQ(world.sum(grown(Collective::broadcast)), n * wire_bytes(Collective::broadcast, n, 132));
}

void wrong_sizes_throw(World& world) {
    const std::unique_ptr<Device> own_device = conformance_device()();
    Device& device = *own_device;
    const auto stream = device.create_stream("reduce");
    const auto communicator = world.connect("sizes", flat_mesh(world).group(world.rank(), kEverybody));
    const int64_t n = world.size();
    std::vector<float> part(4), whole(static_cast<size_t>(4 * n + 1));
    std::vector<int32_t> integers(4);
    std::vector<Bf16> halves(4);
    const Tensor fits = view(whole, 0, 4 * n);
    EXPECT_THROW(communicator->reduce_scatter(view(part), view(whole), *stream), Error);
    EXPECT_THROW(communicator->all_gather(view(whole), view(part), *stream), Error);
    EXPECT_THROW(communicator->all_gather(fits, view(halves), *stream), Error);
    EXPECT_THROW(communicator->all_reduce(view(integers), *stream), Error);
    EXPECT_THROW(communicator->all_reduce(view(halves), *stream, Reduction::max), Error);
    EXPECT_THROW(communicator->broadcast(view(part), static_cast<int>(n), *stream), Error);
    EXPECT_THROW(communicator->all_to_all(fits, fits, even_exchange(world.size(), 4), *stream), Error)
        << "overlap";
    std::vector<float> other(whole.size());
    for (const Slice& wrong : {Slice{0, 4 * n, 2}, Slice{0, -1, 2}, Slice{world.size(), 0, 1}}) {
        EXPECT_THROW(communicator->all_to_all(view(other), view(whole), {{wrong}, {}}, *stream), Error);
        EXPECT_THROW(communicator->all_to_all(view(other), view(whole), {{}, {wrong}}, *stream), Error);
    }
    EXPECT_THROW(communicator->all_gather(fits, view(whole, 4 * ((world.rank() + 1) % n) + 1, 4), *stream),
                 Error)
        << "overlap";
    Tensor strided(whole.data(), DType::f32, {2, 2});
    strided.row_stride = 3;
    EXPECT_THROW(communicator->all_reduce(strided, *stream), Error);
    stream->synchronize();
    EXPECT_EQ(communicator->counts()[static_cast<size_t>(Collective::all_gather)].calls, 0);
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
        {"sums_f32", sums_f32},
        {"sums_bf16", sums_bf16},
        {"maxima", maxima},
        {"moves_f32", moves_f32},
        {"moves_bf16", moves_bf16},
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
