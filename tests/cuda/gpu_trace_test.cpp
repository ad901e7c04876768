// A timeline of a real GPU from CUPTI records. The kernels inside graphs are present, with the names of their
// streams, in sequence, within the traced steps.
// build: in gpu_tests
#include <algorithm>
#include <sstream>

#include "tests/runs/run_fixture.h"

namespace speedrun::testing {
namespace {

class GpuTraceTest : public RunFixture {};

TEST_F(GpuTraceTest, TimelineHasKernelsInsideGraphs) {
    const RunSummary summary =
        run(config({"cuda.products=hand", "batch.tokens_per_step=1536", "schedule.steps=5"}), "traced",
            {.quiet = true, .trace_first = 2, .trace_last = 3});
    const fs::path folder = folder_ / "logs" / "traced";
    std::ostringstream log;
    log << std::ifstream(folder / "run.log").rdbuf();
    if (const size_t at = log.str().find("CUPTI cannot be used"); at != std::string::npos)
        GTEST_SKIP() << log.str().substr(at, log.str().find('\n', at) - at);
    EXPECT_EQ(log.str().find("not complete"), std::string::npos) << log.str();

    std::ifstream trace(folder / "trace.json");
    const Json file = Json::parse(trace);
    std::map<int, std::string> streams;
    std::map<std::string, std::vector<std::pair<double, double>>> spans;  // key: stream; begin and end in us
    int attention = 0;
    for (const Json& event : file["traceEvents"]) {
        if (event["name"] == "thread_name") streams[event["tid"]] = event["args"]["name"];
        if (event["ph"] != "X") continue;
        const double begin = event["ts"], duration = event["dur"];
        spans[streams.at(event["tid"])].emplace_back(begin, begin + duration);
        attention += event["name"].get<std::string>().find("attention_forward") != std::string::npos;
    }
    EXPECT_EQ(attention, 2 * 3 * 2);  // two steps of three microbatches through two layers
    ASSERT_EQ(spans.size(), 2u) << "compute and optimizer: work of a stream without a name";
    double last = 0;
    for (auto& [stream, all] : spans) {
        std::sort(all.begin(), all.end());
        // Kernels of a stream run in sequence; one may start while the previous one drains.
        constexpr double kOverlapUs = 5;
        for (size_t i = 1; i < all.size(); ++i)
            EXPECT_GE(all[i].first, all[i - 1].second - kOverlapUs) << stream << " " << i;
        last = std::max(last, all.back().second);
    }
    EXPECT_LT(last, 1e3 * summary.train_ms) << "two of the five steps";
}

}  // namespace
}  // namespace speedrun::testing
