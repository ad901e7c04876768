// Ranks as threads: if one fails, all others must end in time and name it. Also the return values of run_rank.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "train/comm/joint_check.h"
#include "train/comm/world.h"

namespace speedrun::testing::failure_test {

using namespace std::chrono_literals;

constexpr WorldOptions kImpatient{.timeout_s = 1};

void all_reduce(Communicator& communicator, int64_t count = 100) {
    CpuDevice device(1);
    const auto stream = device.create_stream("reduce");
    std::vector<float> values(static_cast<size_t>(count), 1.0f);
    communicator.all_reduce(Tensor(values.data(), DType::f32, {count}), *stream);
    stream->synchronize();
}

// Error of each rank; empty reason: none.
struct Outcome {
    int code = 0;
    std::string reason;
};

std::vector<Outcome> outcomes(int size, const std::function<void(World&)>& body) {
    std::vector<Outcome> all(static_cast<size_t>(size));
    run_ranks(
        size,
        [&](World& world) {
            try {
                body(world);
            } catch (const Error& error) {
                all[static_cast<size_t>(world.rank())] = {static_cast<int>(error.code()), error.what()};
            }
        },
        kImpatient);
    return all;
}

std::unique_ptr<Communicator> connect(World& world, const std::string& name, const Mesh& mesh, AxisSet axes) {
    return world.connect(name, mesh.group(world.rank(), axes));
}

const AxisSet kEverybody{Axis::replicate, Axis::shard};

TEST(FailureTest, AllRanksNameHangingRank) {
    const auto all = outcomes(4, [](World& world) {
        const auto communicator = connect(world, "gradients", Mesh({1, 4, 1, 1}), kEverybody);
        all_reduce(*communicator);
        if (world.rank() == 1) std::this_thread::sleep_for(2s);
        all_reduce(*communicator);
    });
    for (const Outcome& outcome : all) {
        EXPECT_EQ(outcome.code, 5);
        EXPECT_THAT(outcome.reason,
                    HasSubstr("rank 1 did not come to all_reduce of f32[100] on 'gradients' within 1 s"));
    }
}

TEST(FailureTest, NamesRootCauseOfWaits) {
    const Mesh mesh({2, 2, 1, 1});
    const auto all = outcomes(4, [&](World& world) {
        const auto shard = connect(world, "shard", mesh, {Axis::shard}),
                   replicate = connect(world, "replicate", mesh, {Axis::replicate});
        if (world.rank() == 3) std::this_thread::sleep_for(2s);
        if (world.rank() == 2) std::this_thread::sleep_for(500ms);
        all_reduce(world.rank() < 2 ? *replicate : *shard);  // 0 waits for 2, which waits for 3
    });
    for (const Outcome& outcome : all) {
        EXPECT_EQ(outcome.code, 5);
        EXPECT_THAT(outcome.reason, HasSubstr("rank 3 did not come"));
    }
}

TEST(FailureTest, MismatchedCollectiveOrderFails) {
    const auto all = outcomes(2, [](World& world) {
        const auto first = connect(world, "first", Mesh({1, 2, 1, 1}), kEverybody),
                   second = connect(world, "second", Mesh({1, 2, 1, 1}), kEverybody);
        all_reduce(world.rank() == 0 ? *first : *second);
    });
    for (const Outcome& outcome : all) {
        EXPECT_EQ(outcome.code, 5);
        EXPECT_THAT(outcome.reason, HasSubstr("ranks wait for each other"));
    }
}

TEST(FailureTest, MismatchedSizeIsReportedByBothRanks) {
    const auto all = outcomes(2, [](World& world) {
        const auto communicator = connect(world, "gradients", Mesh({1, 2, 1, 1}), kEverybody);
        all_reduce(*communicator, world.rank() == 0 ? 100 : 101);
    });
    for (int rank : {0, 1}) {
        EXPECT_EQ(all[static_cast<size_t>(rank)].code, 5);
        EXPECT_EQ(
            all[static_cast<size_t>(rank)].reason,
            fmt::format(
                "'gradients': rank {} runs all_reduce of f32[{}], but rank {} runs all_reduce of f32[{}]",
                rank, 100 + rank, 1 - rank, 101 - rank));
    }
}

TEST(FailureTest, MismatchedCommunicatorFails) {
    const auto all = outcomes(2, [](World& world) {
        connect(world, world.rank() == 0 ? "reduce" : "gather", Mesh({1, 2, 1, 1}), kEverybody);
    });
    for (const Outcome& outcome : all) {
        EXPECT_EQ(outcome.code, 2);
        EXPECT_THAT(outcome.reason, HasSubstr("'gather' instead of 'reduce'"));
    }
}

TEST(FailureTest, ErrorOfOneRankEndsAll) {
    const auto worlds = make_thread_worlds(3, kImpatient);
    std::vector<int> codes(3);
    {
        std::vector<std::jthread> threads;
        for (size_t rank = 0; rank < 3; ++rank) {
            threads.emplace_back([&, rank] {
                codes[rank] = run_rank(*worlds[rank], [&]() -> int {
                    worlds[rank]->barrier();
                    if (rank == 2) throw_data("shard 7 is damaged");
                    worlds[rank]->barrier();
                    return 0;
                });
            });
        }
    }
    EXPECT_EQ(codes, std::vector<int>({3, 3, 3}));
}

TEST(FailureTest, NonzeroResultIsNoError) {
    const auto worlds = make_thread_worlds(2);
    int other = 0;
    std::jthread thread([&] { other = run_rank(*worlds[1], [] { return 143; }); });
    EXPECT_EQ(run_rank(*worlds[0], [] { return 143; }), 143);
    thread.join();
    EXPECT_EQ(other, 143);
}

TEST(FailureTest, TimeoutMustBePositive) {
    for (const double seconds : {0.0, -1.0, std::nan("")}) {
        expect_error(ExitCode::usage, {"timeout"}, [&] { make_world({.timeout_s = seconds}); });
    }
}

// One rank works longer than the timeout of lost peers. The others wait, and all receive its error.
TEST(FailureTest, SlowRankIsNotTreatedAsLost) {
    for (const int slow : {0, 2}) {
        const auto all = outcomes(3, [&](World& world) {
            work_together(world, [&] {
                if (world.rank() == slow) std::this_thread::sleep_for(1500ms);
            });
            work_together(world, [&] {
                if (world.rank() == slow) throw_data("its disk is full");
            });
        });
        for (const Outcome& outcome : all) {
            EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::data));
            EXPECT_EQ(outcome.reason, fmt::format("rank {}: its disk is full", slow));
        }
    }
}

}  // namespace speedrun::testing::failure_test
