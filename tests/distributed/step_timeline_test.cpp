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

// ms of a late step of rank 0, when the pipeline is full.
double run_ms(const Mode& mode, const NetworkModel& network) {
    double ms = 0;
    run_ranks(mode.ranks(), [&](World& threads) {
        const auto clocked = make_clocked_world(threads);
        const auto world = make_simulated_world(*clocked, {network, 0, 1}, pass_virtual_time);
        VirtualClock clock(cost_ms);
        const Ranks ranks(mesh_of(mode), sharing_of(mode), world.get());
        Runtime runtime(options_of(mode));
        static_cast<CpuDevice&>(runtime.device()).set_clock(clock);
        StepRunner runner(config_of(mode), runtime, ranks);
        runner.warm_up();
        runner.initialize(3);
        const auto batches = batches_of(mode, ranks);
        runner.start_clock();
        constexpr int64_t kPeriods = 3;
        double last = 0;
        const auto collect = [&] {
            const StepResult result = runner.collect();
            if (result.step >= (kPeriods - 1) * runner.period()) last += result.step_ms;
        };
        for (int64_t step = 0; step < kPeriods * runner.period(); ++step) {
            runner.enqueue(step, *batches);
            if (runner.uncollected() == 2) collect();
        }
        collect();
        if (threads.rank() == 0) ms = last / static_cast<double>(runner.period());
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
    modes.push_back(tensor);
    return modes;
}

// Latency or bytes dominate, or neither.
const std::vector<NetworkModel> kNetworks{{2e-3, 20e6}, {20e-3, 0}, {1e-4, 2e6}};

TEST(StepTimelineTest, PredictsWhatRuns) {
    for (const Mode& mode : modes()) {
        for (const NetworkModel& network : kNetworks) {
            SCOPED_TRACE(::testing::PrintToString(mode) + fmt::format(", {} s", network.latency_s));
            const double measured = run_ms(mode, network), predicted = predict(mode, network).step_ms;
            EXPECT_NEAR(predicted, measured, 0.1 * measured);
            std::printf("%-60s %8.3f %8.3f %6.2f%%\n", name_of(mode).c_str(), measured, predicted,
                        100 * (predicted / measured - 1));
        }
    }
}

}  // namespace step_timeline_test
}  // namespace speedrun::testing
