// Whole runs on ranks that are threads.
#pragma once

#include <atomic>

#include "tests/distributed/rank_threads.h"
#include "tests/runs/run_fixture.h"
#include "tests/sanitized.h"
#include "train/checkpoint/resume.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing {

using Settings = std::vector<std::string>;

// Relative tolerance of losses between several ranks and one: f32 sums in another order, amplified by twelve steps; as in the
// tests of the engine.
constexpr double kRanksTolerance = 1e-5;

class RankRunFixture : public RunFixture {
  protected:
    // from: a checkpoint to continue; empty: from the first step. stop: a signal is pending from the start, and several ranks
    // end after two steps.
    void run_on(int num_ranks, const Config& c, const std::string& name, const std::string& from = "",
                bool stop = false) {
        const std::atomic<int> signal = stop ? 1 : 0;
        const std::string out = (folder_ / "logs").string(), path = out + "/" + name;
        run_ranks(num_ranks, [&](World& world) {
            const Ranks ranks = resolve_ranks(c, world);
            Runtime runtime(runtime_options(c, ranks));
            const ResumePoint point = find_resume_point(world, from, path, c);
            RunFolder run_folder = ranks.first() ? RunFolder(out, name) : RunFolder::silent(path);
            Trainer(c, runtime, ranks, run_folder,
                    {.quiet = true, .stop_signal = &signal, .resume = point.reader.get()})
                .run();
        });
    }
    // Returns the training and validation losses in a run's metrics, from this step on.
    std::vector<double> curve_behind(const std::string& name, int64_t steps) const {
        std::vector<double> values;
        for (const Json& line : metrics(name))
            if (line["step"].get<int64_t>() >= steps) values.push_back(line["loss"]);
        return values;
    }
    std::string checkpoint_of(const std::string& name, int64_t step) const {
        return (folder_ / "logs" / name / "checkpoints" / checkpoint_name(step)).string();
    }
    static void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                            double tolerance, const std::string& what) {
        ASSERT_EQ(actual.size(), expected.size()) << what;
        for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_NEAR(actual[i], expected[i], tolerance * std::abs(expected[i]))
                << what << ", number " << i;
    }
};

}  // namespace speedrun::testing
