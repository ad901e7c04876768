// Parts of a step: exposed communication, other waits of compute, and computing. In virtual time (virtual_clock.h)
// they equal the parts of the trace. On the machine's clock they differ by thread noise.
// Covers: train/trace/exposure.cpp train/trace/overlap.cpp
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_clock.h"
#include "tests/temp_dir.h"
#include "train/comm/simulated_world.h"
#include "train/trace/overlap.h"
#include "train/trace/timeline.h"

namespace speedrun::testing::exposed_time_test {

// ms; a trace rounds each span to nanoseconds.
constexpr double kRounding = 1e-3;

struct RankTimes {
    std::vector<StepResult> steps;
    std::vector<OverlapTable> traced;  // one per step
};

// clock: null for the machine's.
RankTimes run_rank(const Mode& mode, World& world, CpuClock* clock, const std::string& path) {
    Timeline timeline;
    const auto watch = [&](StepRunner& runner, Runtime& runtime) {
        runner.trace(&timeline);
        runtime.device().set_trace(&timeline);
    };
    RankTimes times{train(mode, &world, watch, clock).steps, {}};
    timeline.write(path);
    const Trace trace = read_trace(path);
    for (const StepResult& step : times.steps) times.traced.push_back(measure_overlap(trace, 0, step.step));
    return times;
}

std::vector<RankTimes> run_all(const Mode& mode, const NetworkModel& network,
                               const VirtualClock::Cost& cost) {
    const TempDir dir;
    std::vector<RankTimes> all(static_cast<size_t>(mode.num_ranks()));
    run_ranks(mode.num_ranks(), [&](World& threads) {
        const auto clocked = make_clocked_world(threads);
        const auto world = cost ? make_simulated_world(*clocked, {network, 0, 1}, pass_virtual_time)
                                : make_simulated_world(threads, {network, 0, 1});
        VirtualClock clock(cost);
        all[static_cast<size_t>(threads.rank())] =
            run_rank(mode, *world, cost ? &clock : nullptr, dir.file(std::to_string(threads.rank())));
    });
    return all;
}

// Operations take different times, which depend on stream and label and are far longer than a launch. Communication,
// copies and the host tasks `count` and `arrive` take none.
double cost_ms(const std::string& stream, const char* label) {
    const std::string name(label);
    if (is_communication(name) || name == "count" || name == "arrive" || name == "copy") return 0;
    const double length = 100 + 10 * static_cast<double>(name.size() % 7);
    return stream == "compute" ? length : stream == "optimizer" ? 0.3 * length : 0.05 * length;
}
constexpr NetworkModel kNetwork{0.2, 0.2e6};

// Checks a step on any clock.
void expect_parts(const StepResult& step) {
    SCOPED_TRACE(fmt::format("step {}", step.step));
    EXPECT_GE(step.comm_exposed_ms, 0);
    EXPECT_GE(step.optimizer_ms, -1e-9);
    EXPECT_LE(step.comm_exposed_ms, step.comm_ms + 1e-9);
    EXPECT_LE(step.comm_exposed_ms + step.optimizer_ms, step.step_ms + 1e-9);
}

std::vector<Mode> strategies() {
    return modes_of(kStrategies, {"1x2", "1x3", "1x4", "1x2 clip=0.2", "1x3 clip=0.2", "1x4 clip=0.2"});
}

// Modes with other waits: of launch, accumulation, order, owners of matrices, and ranks that share rows or matrices.
std::vector<Mode> other_modes() {
    std::vector<Mode> modes = modes_of(kStrategies, {"1x2 /2 muon", "1x2 /2 muon clip=0.2", "1x2 in_backward",
                                                     "2x2 /2 muon every=2 reduce_bf16"});
    for (const std::string strategy : {"ddp accumulate=local", "zero1 accumulate=local",
                                       "zero2 accumulate=reduce_scatter", "zero3 accumulate=local"})
        for (const char* clip : {"", " clip=0.2"})
            modes.push_back(mode_of(strategy + " 1x2 /2 after_backward forward" + clip));
    for (const char* words : {"zero1 model=modern context=2", "zero1 1x2 muon model=modern heads=6 tensor=2",
                              "zero1 1x2 muon model=modern heads=6 tensor=2 sequence",
                              "ddp 1x2 model=scales"})  // compute waits for scales that all ranks reduce
        modes.push_back(mode_of(words));
    return modes;
}

void expect_times_of_trace(const Mode& mode) {
    SCOPED_TRACE(::testing::PrintToString(mode));
    for (const RankTimes& rank : run_all(mode, kNetwork, cost_ms)) {
        double computing = 0, traced_computing = 0;
        for (size_t i = 0; i < rank.steps.size(); ++i) {
            const StepResult& step = rank.steps[i];
            expect_parts(step);
            EXPECT_NEAR(step.comm_exposed_ms, rank.traced[i].stalled_ms, kRounding) << "step " << i;
            computing += step.step_ms - step.optimizer_ms - step.comm_exposed_ms;
            traced_computing += rank.traced[i].compute_ms;
        }
        EXPECT_NEAR(computing, traced_computing, kRounding);
    }
}

TEST(ExposedTimeTest, MatchesTrace) {
    for (const Mode& mode : strategies()) expect_times_of_trace(mode);
}

TEST(ExposedTimeTest, MatchesTraceInOtherModes) {
    for (const Mode& mode : other_modes()) expect_times_of_trace(mode);
}

// Without clipping, no stream waits for the sum of the statistics before the next step ends. With clipping, every
// step does.
TEST(ExposedTimeTest, UnawaitedStatisticsAreNotExposed) {
    constexpr double kLatency = 3;  // ms
    const auto computes_long = [](const std::string& stream, const char* label) {
        return stream == "compute" && !is_communication(label) && std::string(label) != "copy" ? 10.0 : 0.0;
    };
    std::array<double, 2> exposed{};  // without clipping, with it
    for (const bool clips : {false, true}) {
        const Mode mode = mode_of(clips ? "ddp 1x2 clip=0.2" : "ddp 1x2");
        for (const RankTimes& rank : run_all(mode, {kLatency * 1e-3, 0}, computes_long)) {
            exposed[clips] = rank.steps[1].comm_exposed_ms;
            for (size_t i = 1; i + 1 < rank.steps.size();
                 ++i)  // nothing overlaps the statistics of the last step
                EXPECT_NEAR(rank.steps[i].comm_exposed_ms, exposed[clips], kRounding);
        }
    }
    EXPECT_NEAR(exposed[0], 0, kRounding) << "the last reduction overlaps with the copy of the loss";
    EXPECT_NEAR(exposed[1], kLatency, kRounding);
}

// Waits within graphs are not timed. Exposed communication is then at most the trace's.
TEST(ExposedTimeTest, TimesWithGraphsAddUp) {
    for (const Mode& mode : modes_of(kStrategies, {"1x2 /2 graphs"})) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        for (const RankTimes& rank : run_all(mode, kNetwork, cost_ms)) {
            double exposed = 0, traced = 0;
            for (size_t i = 0; i < rank.steps.size(); ++i) {
                expect_parts(rank.steps[i]);
                exposed += rank.steps[i].comm_exposed_ms;
                traced += rank.traced[i].stalled_ms;
            }
            EXPECT_GT(exposed, 0);
            EXPECT_LE(exposed, traced + kRounding);
        }
    }
}

double median_of(const std::vector<double>& values) {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
}

// Parts add up in every step. Medians are compared in several attempts, because load on the machine disturbs both.
TEST(ExposedTimeSleepTest, IsCloseToTrace) {
    constexpr double kNear = 0.1, kNoiseMs = 0.15;
    constexpr int kAttempts = 6;
    const std::vector<Mode> all = strategies();
    // Each strategy: two and four ranks without clipping, and three ranks with it.
    for (size_t i = 0; i < all.size(); i += 2) {
        const Mode& mode = all[i];
        SCOPED_TRACE(::testing::PrintToString(mode));
        double worst = 0;
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            worst = 0;
            for (const RankTimes& rank : run_all(mode, {1e-3, 0}, {})) {
                std::vector<double> exposed, traced;
                for (size_t i = 0; i < rank.steps.size(); ++i) {
                    expect_parts(rank.steps[i]);
                    exposed.push_back(rank.steps[i].comm_exposed_ms);
                    traced.push_back(rank.traced[i].stalled_ms);
                }
                const double difference = std::abs(median_of(exposed) - median_of(traced));
                worst = std::max(worst, (difference - kNoiseMs) / std::max(kNoiseMs, median_of(traced)));
            }
            if (worst <= kNear) break;
        }
        EXPECT_LE(worst, kNear);
    }
}

}  // namespace speedrun::testing::exposed_time_test
