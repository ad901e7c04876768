// A predicted step takes as long as a real one. Both run in virtual time (tests/distributed/virtual_steps.h): the
// engine on thread ranks, and a replay of one rank's recording.
// Covers: train/timeline/recorded_*.cpp
#include "train/timeline/step_timeline.h"

#include <gtest/gtest.h>

#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_steps.h"
#include "tests/temp_dir.h"
#include "train/trace/overlap.h"

namespace speedrun::testing::step_timeline_test {

RuntimeOptions options_of(const Mode& mode) {
    return virtual_options(*mode.config.precision, mode.num_ranks());
}

// Relative: sums of thousands of times, each rounded to nanoseconds.
constexpr double kRounding = 1e-5;

StepTimeline predict(const Mode& mode, const NetworkModel& network) {
    const RecordedSteps steps = record_steps(mode.config, options_of(mode), mode.ranks(), false);
    return predict_steps(steps, time_item, network_of(network), false);
}

MakeBatches batches_of(const Mode& mode) {
    return [&mode](const Ranks& ranks) { return testing::batches_of(mode, ranks); };
}

double run_ms(const Mode& mode, const NetworkModel& network) {
    return virtual_step_ms(mode.config, mode.ranks(), *mode.config.precision, network, batches_of(mode));
}

// Fastest step on the machine's clock, ms.
double slept_ms(const Mode& mode, const NetworkModel& network) {
    double ms = 0;
    run_ranks(mode.num_ranks(), [&](World& threads) {
        const auto world = make_simulated_world(threads, {network, 0, 1});
        const std::vector<double> all =
            steps_ms(mode.config, mode.ranks(world.get()), options_of(mode), batches_of(mode), nullptr, 3);
        if (threads.rank() == 0) ms = *std::min_element(all.begin() + 1, all.end());
    });
    return ms;
}

std::vector<Mode> modes() {
    std::vector<Mode> modes = modes_of(kStrategies, {"1x2", "1x4", "1x8"});
    for (const char* words : {"zero3 2x2", "zero3 2x4", "zero1 2x2 /2", "zero1 2x2 /2 after_backward",
                              "zero1 1x2 model=modern tensor=2 heads=4"})
        modes.push_back(mode_of(words));
    return modes;
}

// Latency dominates, bytes dominate, or neither.
const std::vector<NetworkModel> kNetworks{{2e-3, 20e6}, {20e-3, 0}, {1e-4, 2e6}};

// With shared matrices, one network of three differs by one operation, 1.4 ms in 177, in every step. The operation is
// not known yet.
constexpr double kOnePiece = 0.01;

TEST(StepTimelineTest, PredictsMeasuredSteps) {
    for (const Mode& mode : modes()) {
        for (const NetworkModel& network : kNetworks) {
            SCOPED_TRACE(::testing::PrintToString(mode) + fmt::format(", {} s", network.latency_s));
            const double measured = run_ms(mode, network), predicted = predict(mode, network).step_ms;
            EXPECT_NEAR(predicted, measured, (mode.has("tensor=2") ? kOnePiece : kRounding) * measured);
        }
    }
}

// Only rank 0 is predicted: other ranks own other matrices and exchange other bytes. The tolerance allows for them.
TEST(StepTimelineTest, PredictsMuonWithinTolerance) {
    constexpr double kOwners = 0.1;
    for (const Mode& mode : modes_of({"zero1"}, {"1x2 muon", "1x4 muon", "1x8 muon"})) {
        for (const NetworkModel& network : kNetworks) {
            SCOPED_TRACE(::testing::PrintToString(mode) + fmt::format(", {} s", network.latency_s));
            const double measured = run_ms(mode, network), predicted = predict(mode, network).step_ms;
            EXPECT_NEAR(predicted, measured, kOwners * measured);
        }
    }
}

// The recorded bytes equal the bytes derived from the placements.
TEST(StepTimelineTest, RecordedBytesMatchPlan) {
    for (const Mode& mode : modes()) {
        if (mode.has("tensor=2"))
            continue;  // exchanges between parts of matrices are not collectives of buckets
        SCOPED_TRACE(::testing::PrintToString(mode));
        const Layout layout(mode);
        double counted = 0;
        for (const double bytes :
             step_wire_bytes(step_collectives(layout.buckets, layout.ranks, *mode.config.precision),
                             static_cast<int>(mode.accumulation())))
            counted += bytes;
        double recorded = 0;
        for (const CommunicationRegion& region : predict(mode, kNetworks[0]).regions)
            recorded += region.bytes;
        EXPECT_NEAR(recorded, counted, kRounding * counted);
    }
}

TEST(StepTimelineTest, CriticalPathAddsUp) {
    for (const Mode& mode : modes()) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        const StepTimeline step = predict(mode, kNetworks[0]);
        double path = 0, exposed = 0;
        for (const CriticalSegment& part : step.critical_path) path += part.ms;
        for (const CommunicationRegion& region : step.regions) {
            EXPECT_LE(region.exposed_ms, region.ms + kRounding);
            exposed += region.exposed_ms;
        }
        EXPECT_NEAR(path, step.step_ms, kRounding * step.step_ms);
        EXPECT_NEAR(exposed, step.exposed_ms, kRounding * step.step_ms);
        // Only computing and communication take time here.
        EXPECT_NEAR(step.compute_ms + step.exposed_ms, step.step_ms, kRounding * step.step_ms);
        EXPECT_LE(step.late_bytes, step.reduced_bytes);
    }
}

TEST(StepTimelineTest, ReportsBytesReducedAfterBackward) {
    const StepTimeline late = predict(mode_of("zero1 1x4 after_backward"), kNetworks[0]);
    EXPECT_EQ(late.late_bytes, late.reduced_bytes);
    const StepTimeline early = predict(mode_of("zero1 1x4"), kNetworks[0]);
    EXPECT_LT(early.late_bytes, early.reduced_bytes);
    EXPECT_LT(early.step_ms, late.step_ms);
}

// `speedrun trace` reads the trace and prints the same times.
TEST(StepTimelineTest, WritesATrace) {
    const Mode mode = mode_of("zero3 1x4");
    const RecordedSteps steps = record_steps(mode.config, options_of(mode), mode.ranks(), false);
    const StepTimeline step = predict_steps(steps, time_item, network_of(kNetworks[0]), false);
    const TempDir dir;
    write_predicted_trace(steps, step, dir.file("trace.json"));
    const Trace trace = read_trace(dir.file("trace.json"));
    double ms = 0;
    for (const TraceSpan& span : trace.spans)
        if (span.communicates) ms += span.end_ms - span.begin_ms;
    EXPECT_NEAR(ms, step.communication_ms, 1e-3 * step.communication_ms);  // rounded to nanoseconds
}

// On the machine's clock. Network sleeps take nearly all of a step, and the fastest step counts, so that load has
// little effect. The prediction leaves out computing.
TEST(StepTimelineSleepTest, PredictsNetworkBoundSteps) {
    constexpr double kNear = 0.9;
    const NetworkModel network{40e-3, 0};
    for (const char* words : {"ddp 1x2", "zero1 2x2", "zero3 1x2", "zero3 1x8"}) {
        const Mode mode = mode_of(words);
        SCOPED_TRACE(::testing::PrintToString(mode));
        const RecordedSteps steps = record_steps(mode.config, options_of(mode), mode.ranks(), false);
        const auto nothing = [](const RecordedSteps&, const RecordedItem&) { return ItemTime{}; };
        const double predicted = predict_steps(steps, nothing, network_of(network), false).step_ms;
        double measured = slept_ms(mode, network);
        for (int more = 0; more < 3 && measured > predicted / kNear; ++more)
            measured = std::min(measured, slept_ms(mode, network));
        std::printf("%-40s measured %8.3f ms, predicted %8.3f ms, %+.1f%%\n", words, measured, predicted,
                    100 * (predicted / measured - 1));
        EXPECT_LE(kNear * predicted, measured);
        EXPECT_LE(kNear * measured, predicted);
    }
}

}  // namespace speedrun::testing::step_timeline_test
