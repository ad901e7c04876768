// A step that is predicted takes as long as one that runs. Both in virtual time (tests/distributed/virtual_clock.h): the
// engine on ranks that are threads against the recording of one rank, which is replayed.
#include "train/timeline/step_timeline.h"

#include <gtest/gtest.h>

#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_clock.h"
#include "tests/temp_dir.h"
#include "train/comm/simulated_world.h"
#include "train/trace/overlap.h"

namespace speedrun::testing {
namespace step_timeline_test {

RuntimeOptions options_of(const Mode& mode) {
    return {.device = DeviceKind::cpu,
            .precision = mode.precision,
            .threads = 1,
            .communicates = mode.ranks() > 1};
}

// Relative: sums of thousands of times, of which the clock has whole nanoseconds.
constexpr double kRounding = 1e-5;

// Pieces of one stream take different times, so that their order counts.
double cost_ms(const std::string& stream, const char* label) {
    if (is_communication(label)) return 0;
    const double length = 1 + 0.1 * static_cast<double>(std::string(label).size() % 7);
    return stream == "compute" ? length : stream == "optimizer" ? 0.3 * length : 0.0;
}

ItemTime time_item(const RecordedSteps& steps, const RecordedItem& item) {
    return {0, 1e-3 * cost_ms(steps.streams[static_cast<size_t>(item.stream)], item.label)};
}

Network network_of(const NetworkModel& model) {
    constexpr int kOneHost = 65536;
    return {.ranks_per_host = kOneHost,
            .start_us = model.latency_s * 1e6,
            .inside = {0, model.bytes_per_s * 1e-9},
            .shared = false};  // ranks that are asleep do not disturb each other
}

StepTimeline predict(const Mode& mode, const NetworkModel& network) {
    const Ranks ranks(mesh_of(mode), sharing_of(mode));
    const RecordedSteps steps = record_steps(config_of(mode), options_of(mode), ranks, false);
    return predict_steps(steps, time_item, network_of(network), false);
}

// Steps of rank 0, in a world that threads make; ms of each.
std::vector<double> steps_ms(const Mode& mode, World& world, CpuClock* clock, int64_t periods) {
    std::vector<double> ms;
    const Ranks ranks(mesh_of(mode), sharing_of(mode), &world);
    Runtime runtime(options_of(mode));
    if (clock) static_cast<CpuDevice&>(runtime.device()).set_clock(*clock);
    StepRunner runner(config_of(mode), runtime, ranks);
    runner.warm_up();
    runner.initialize(3);
    const auto batches = batches_of(mode, ranks);
    runner.start_clock();
    for (int64_t step = 0; step < periods * runner.period(); ++step) {
        runner.enqueue(step, *batches);
        if (runner.uncollected() == 2) ms.push_back(runner.collect().step_ms);
    }
    ms.push_back(runner.collect().step_ms);
    return ms;
}

// In virtual time, of a late step: the pipeline is full.
double run_ms(const Mode& mode, const NetworkModel& network) {
    double ms = 0;
    run_ranks(mode.ranks(), [&](World& threads) {
        const auto clocked = make_clocked_world(threads);
        const auto world = make_simulated_world(*clocked, {network, 0, 1}, pass_virtual_time);
        VirtualClock clock(cost_ms);
        const std::vector<double> all = steps_ms(mode, *world, &clock, 4);
        if (threads.rank() == 0) ms = all.back();
    });
    return ms;
}

// On the machine's clock, of the fastest step.
double slept_ms(const Mode& mode, const NetworkModel& network) {
    double ms = 0;
    run_ranks(mode.ranks(), [&](World& threads) {
        const auto world = make_simulated_world(threads, {network, 0, 1});
        const std::vector<double> all = steps_ms(mode, *world, nullptr, 3);
        if (threads.rank() == 0) ms = *std::min_element(all.begin() + 1, all.end());
    });
    return ms;
}

std::vector<Mode> modes() {
    const auto adamw = OptimizerKind::adamw;
    std::vector<Mode> modes;
    for (const int ranks : {2, 4, 8}) {
        for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3})
            modes.push_back({strategy, 1, ranks, 1, adamw, Launch::ready});
        if (ranks > 2) modes.push_back({Strategy::zero3, 2, ranks / 2, 1, adamw, Launch::ready});
    }
    for (const Launch launch : {Launch::ready, Launch::after_backward})
        modes.push_back({Strategy::zero1, 2, 2, 2, adamw, launch});
    Mode tensor{Strategy::zero1, 1, 2, 1, adamw, Launch::ready};
    tensor.family = "modern";
    tensor.tensor = 2;
    tensor.heads = 4;
    modes.push_back(tensor);
    return modes;
}

// Latency or bytes dominate, or neither.
const std::vector<NetworkModel> kNetworks{{2e-3, 20e6}, {20e-3, 0}, {1e-4, 2e6}};

// With shared matrices one network of three differs by a piece of work, 1.4 ms in 177, in every step. Which, is not known yet.
constexpr double kOnePiece = 0.01;

TEST(StepTimelineTest, PredictsWhatRuns) {
    for (const Mode& mode : modes()) {
        for (const NetworkModel& network : kNetworks) {
            SCOPED_TRACE(::testing::PrintToString(mode) + fmt::format(", {} s", network.latency_s));
            const double measured = run_ms(mode, network), predicted = predict(mode, network).step_ms;
            EXPECT_NEAR(predicted, measured, (mode.tensor > 1 ? kOnePiece : kRounding) * measured);
        }
    }
}

// Rank 0 stands for all: other ranks own other matrices, and what they exchange differs.
TEST(StepTimelineTest, PredictsMatricesOnOwnersNearly) {
    constexpr double kOwners = 0.1;
    for (const int ranks : {2, 4, 8}) {
        const Mode mode{Strategy::zero1, 1, ranks, 1, OptimizerKind::muon, Launch::ready};
        for (const NetworkModel& network : kNetworks) {
            SCOPED_TRACE(::testing::PrintToString(mode) + fmt::format(", {} s", network.latency_s));
            const double measured = run_ms(mode, network), predicted = predict(mode, network).step_ms;
            EXPECT_NEAR(predicted, measured, kOwners * measured);
        }
    }
}

// What is recorded is what the placements say that a step sends.
TEST(StepTimelineTest, RecordsTheBytesThatAreCounted) {
    for (const Mode& mode : modes()) {
        if (mode.tensor > 1) continue;  // values between matrices are no collectives of buckets
        SCOPED_TRACE(::testing::PrintToString(mode));
        const Layout layout(mode);
        double counted = 0;
        for (const double bytes :
             step_wire_bytes(step_collectives(layout.buckets, layout.ranks, mode.precision),
                             static_cast<int>(mode.accumulation)))
            counted += bytes;
        double recorded = 0;
        for (const CommunicationRegion& region : predict(mode, kNetworks[0]).regions)
            recorded += region.bytes;
        EXPECT_NEAR(recorded, counted, kRounding * counted);
    }
}

TEST(StepTimelineTest, PathAndExposureAddUp) {
    for (const Mode& mode : modes()) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        const StepTimeline step = predict(mode, kNetworks[0]);
        double path = 0, exposed = 0;
        for (const CriticalPart& part : step.critical_path) path += part.ms;
        for (const CommunicationRegion& region : step.regions) {
            EXPECT_LE(region.exposed_ms, region.ms + kRounding);
            exposed += region.exposed_ms;
        }
        EXPECT_NEAR(path, step.step_ms, kRounding * step.step_ms);
        EXPECT_NEAR(exposed, step.exposed_ms, kRounding * step.step_ms);
        // Nothing but computing and communication takes time here.
        EXPECT_NEAR(step.compute_ms + step.exposed_ms, step.step_ms, kRounding * step.step_ms);
        EXPECT_LE(step.late_bytes, step.reduced_bytes);
    }
}

TEST(StepTimelineTest, SaysWhatLaunchesAfterBackward) {
    Mode mode{Strategy::zero1, 1, 4, 1, OptimizerKind::adamw, Launch::after_backward};
    const StepTimeline late = predict(mode, kNetworks[0]);
    EXPECT_EQ(late.late_bytes, late.reduced_bytes);
    mode.launch = Launch::ready;
    const StepTimeline early = predict(mode, kNetworks[0]);
    EXPECT_LT(early.late_bytes, early.reduced_bytes);
    EXPECT_LT(early.step_ms, late.step_ms);
}

// The trace is one that `speedrun trace` reads, and says the same.
TEST(StepTimelineTest, WritesATrace) {
    const Mode mode{Strategy::zero3, 1, 4, 1, OptimizerKind::adamw, Launch::ready};
    const Ranks ranks(mesh_of(mode), sharing_of(mode));
    const RecordedSteps steps = record_steps(config_of(mode), options_of(mode), ranks, false);
    const StepTimeline step = predict_steps(steps, time_item, network_of(kNetworks[0]), false);
    const TempDir dir;
    write_predicted_trace(steps, step, dir.file("trace.json"));
    const Trace trace = read_trace(dir.file("trace.json"));
    double ms = 0;
    for (const TraceSpan& span : trace.spans)
        if (span.communicates) ms += span.end_ms - span.begin_ms;
    EXPECT_NEAR(ms, step.communication_ms, 1e-3 * step.communication_ms);  // the file has nanoseconds
}

// On the machine's own clock: sleeping on the network takes nearly all of a step, so that a loaded machine does not count for
// much, and the fastest of some steps counts. Computing is left out of the prediction.
TEST(StepTimelineSleepTest, PredictsWhatSleepsOnTheNetwork) {
    constexpr double kNear = 0.9;
    const NetworkModel network{40e-3, 0};
    const struct {
        Strategy strategy;
        int replicate, shard;
    } kinds[] = {
        {Strategy::ddp, 1, 2}, {Strategy::zero1, 2, 2}, {Strategy::zero3, 1, 2}, {Strategy::zero3, 1, 8}};
    for (const auto& kind : kinds) {
        const Mode mode{kind.strategy, kind.replicate, kind.shard, 1, OptimizerKind::adamw, Launch::ready};
        SCOPED_TRACE(::testing::PrintToString(mode));
        const Ranks planned(mesh_of(mode), sharing_of(mode));
        const RecordedSteps steps = record_steps(config_of(mode), options_of(mode), planned, false);
        const auto nothing = [](const RecordedSteps&, const RecordedItem&) { return ItemTime{}; };
        const double predicted = predict_steps(steps, nothing, network_of(network), false).step_ms;
        double measured = slept_ms(mode, network);
        for (int more = 0; more < 3 && measured > predicted / kNear; ++more)
            measured = std::min(measured, slept_ms(mode, network));
        std::printf("%-40s measured %8.3f ms, predicted %8.3f ms, %+.1f%%\n", name_of(mode).c_str(), measured,
                    predicted, 100 * (predicted / measured - 1));
        EXPECT_LE(kNear * predicted, measured);
        EXPECT_LE(kNear * measured, predicted);
    }
}

}  // namespace step_timeline_test
}  // namespace speedrun::testing
