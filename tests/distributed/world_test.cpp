// The conformance cases on every world that needs no launcher.
// Covers: train/comm/communicator.cpp train/comm/ordered_sum.cpp train/comm/self_world.cpp train/comm/staged_world.cpp
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/conformance.h"
#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "tests/sanitized.h"
#include "train/comm/self_world.h"
#include "train/comm/simulated_world.h"
#include "train/comm/staged_world.h"
#include "train/comm/wrapped_world.h"

namespace speedrun::testing::world_test {

struct WorldKind {
    std::string name;
    std::function<void(const std::function<void(World&)>&)> run;
};

std::vector<WorldKind> world_kinds() {
    std::vector<WorldKind> kinds{{"self", [](const auto& body) { body(*make_self_world()); }}};
    std::vector<int> sizes{1, 2, 3}, simulated{2};
    if (!kSanitized) {
        sizes.insert(sizes.end(), {4, 8});
        simulated.push_back(4);
    }
    for (const int size : sizes)
        kinds.push_back(
            {fmt::format("threads{}", size), [size](const auto& body) { run_ranks(size, body); }});
    for (const int size : simulated) {
        kinds.push_back({fmt::format("simulated{}", size), [size](const auto& body) {
                             run_ranks(size, [&](World& world) {
                                 const SimulatedNetwork network{{50e-6, 10e9}, 200e-6, 3};
                                 body(*make_simulated_world(world, network));
                             });
                         }});
    }
    kinds.push_back({"staged3", [](const auto& body) {
                         run_ranks(3, [&](World& world) {
                             CpuDevice device(1);
                             body(*make_staged_world(world, device));
                         });
                     }});
    return kinds;
}

class WorldTest : public ::testing::TestWithParam<std::tuple<WorldKind, ConformanceCase>> {};

TEST_P(WorldTest, Conforms) {
    const auto& [kind, conformance] = GetParam();
    kind.run(conformance.run);
}

INSTANTIATE_TEST_SUITE_P(Worlds, WorldTest,
                         ::testing::Combine(::testing::ValuesIn(world_kinds()),
                                            ::testing::ValuesIn(conformance_cases())),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
                         });

// Counts the texts that the host gathers.
class CountingWorld final : public WrappedWorld {
  public:
    using WrappedWorld::WrappedWorld;
    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        return inner_.connect(name, group);
    }
    std::vector<std::string> all_gather(const std::string& text) override {
        std::vector<std::string> texts = inner_.all_gather(text);
        for (const std::string& one : texts) gathered += one.size();
        return texts;
    }
    size_t gathered = 0;
};

// Texts of all ranks would be gigabytes per rank for the schedule of a large model on a thousand ranks.
TEST(SameOnAllRanksTest, GathersHashesThenDifferingTexts) {
    constexpr size_t kRanks = 6, kHash = 64;
    const std::vector<std::string> plan(1000, std::string(99, 'x'));
    constexpr size_t kText = 1000 * 100;
    run_ranks(kRanks, [&](World& inner) {
        CountingWorld world(inner);
        expect_same_on_all_ranks(world, "plan", plan);
        EXPECT_EQ(world.gathered, kRanks * kHash);

        // Two ranks differ, each at another line: the error names the first of them with its line.
        std::vector<std::string> other = plan;
        if (world.rank() == 3) other[700] = "third";
        if (world.rank() == 5) other[2] = "fifth";
        world.gathered = 0;
        expect_error(ExitCode::usage,
                     {"plan: rank 3 differs from rank 0 at line 701: 'third' instead of 'xxx"},
                     [&] { expect_same_on_all_ranks(world, "plan", other); });
        EXPECT_EQ(world.gathered, kRanks * kHash + 2 * kText - 100 + 6);
    });
}

}  // namespace speedrun::testing::world_test
