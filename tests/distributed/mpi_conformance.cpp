// The conformance cases on real processes, one per rank under mpirun. Each rank prints its own failures.
// build: in mpi_conformance
// Covers: train/comm/mpi_transport.cpp
#include <gtest/gtest.h>

#include "tests/distributed/conformance.h"
#include "train/comm/world.h"

namespace {

speedrun::World* g_world = nullptr;

using speedrun::testing::run_conformance;

class MpiTest : public ::testing::TestWithParam<speedrun::testing::ConformanceCase> {};

TEST_P(MpiTest, Conforms) {
    run_conformance()(GetParam(), *g_world);
}

INSTANTIATE_TEST_SUITE_P(Mpi, MpiTest, ::testing::ValuesIn(speedrun::testing::conformance_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    const auto world = speedrun::make_world({.timeout_s = 30});
    g_world = world.get();
    if (argc != 2 || std::to_string(world->size()) != argv[1]) {
        fprintf(stderr, "usage: mpirun -np N mpi_conformance N (the world has %d ranks)\n", world->size());
        return speedrun::run_rank(*world, [] { return 2; });
    }
    if (world->rank() != 0)
        delete ::testing::UnitTest::GetInstance()->listeners().Release(
            ::testing::UnitTest::GetInstance()->listeners().default_result_printer());
    class Failures : public ::testing::EmptyTestEventListener {
        void OnTestPartResult(const ::testing::TestPartResult& result) override {
            if (result.failed())
                fprintf(stderr, "rank %d: %s:%d: %s\n", g_world->rank(), result.file_name(),
                        result.line_number(), result.summary());
        }
    };
    ::testing::UnitTest::GetInstance()->listeners().Append(new Failures);
    return speedrun::run_rank(*world, [] { return RUN_ALL_TESTS(); });
}
