// Tests whether a graph waits for an event recorded again before its launch: on the fake GPU, which can fail
// in two ways, and on a real one. Each test has its own process with a time limit, as an endless wait would
// block all later tests.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cuda/device/cuda_device.h"

#if SPEEDRUN_FAKE_GPU
#include "tests/cuda/fake_gpu.h"
#endif

namespace speedrun::testing {
namespace {

constexpr int kGood = 0, kFault = 1;
constexpr unsigned kLimitSeconds = 60;  // includes the start of CUDA

// Ends the process.
void test_graph_waits() {
    alarm(kLimitSeconds);
    std::vector<std::string> faults;
    {
        CudaDevice device;
        const auto stream = device.create_stream("compute");
        const auto graph = device.capture_graph(*stream, [] {});  // the first one: tests before its capture
        faults = device.notes();
        if (!graph != !faults.empty())
            faults.push_back("a fault was found, but a graph recorded, or neither");
    }
    for (const std::string& fault : faults) std::fprintf(stderr, "%s\n", fault.c_str());
    std::exit(faults.empty() ? kGood : kFault);
}

class GraphWaitsDeathTest : public ::testing::Test {
  protected:
    GraphWaitsDeathTest() { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(GraphWaitsDeathTest, AcceptsWaitsForLatestRecord) {
    EXPECT_EXIT(test_graph_waits(), ::testing::ExitedWithCode(kGood), "");
}

#if SPEEDRUN_FAKE_GPU

TEST_F(GraphWaitsDeathTest, DetectsWaitsForCapturedRecord) {
    EXPECT_EXIT(
        {
            set_fake_gpu({.graph_waits = GraphWaits::at_capture});
            test_graph_waits();
        },
        ::testing::ExitedWithCode(kFault), "does not wait for an event that was recorded after it");
}

TEST_F(GraphWaitsDeathTest, DetectsEndlessWaits) {
    EXPECT_EXIT(
        {
            set_fake_gpu({.graph_waits = GraphWaits::never_end});
            test_graph_waits();
        },
        ::testing::ExitedWithCode(static_cast<int>(ExitCode::usage)), "--set cuda.graph=false");
}

#endif

}  // namespace
}  // namespace speedrun::testing
