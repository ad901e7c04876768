// The conformance cases on every world that needs no launcher.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/conformance.h"
#include "tests/distributed/rank_threads.h"
#include "train/distributed/self_world.h"
#include "train/distributed/simulated_world.h"
#include "train/distributed/staged_world.h"

namespace speedrun::testing {
namespace {

struct WorldKind {
    std::string name;
    std::function<void(const std::function<void(World&)>&)> run;
};

std::vector<WorldKind> world_kinds() {
    std::vector<WorldKind> kinds{{"self", [](const auto& body) { body(*make_self_world()); }}};
#ifdef SPEEDRUN_FEWER_MODES  // sanitizers: what more ranks would find, three do
    const std::vector<int> sizes{1, 2, 3}, simulated{2};
#else
    const std::vector<int> sizes{1, 2, 3, 4, 8}, simulated{2, 4};
#endif
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

TEST(ThreadWorldTest, HsdpExampleOn32Ranks) {
    for (const ConformanceCase& conformance : conformance_cases()) {
        if (conformance.name == "hsdp_example") run_ranks(32, conformance.run);
    }
}

}  // namespace
}  // namespace speedrun::testing
