// Steps of thread ranks in virtual time (virtual_clock.h), and the prediction of the same work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_clock.h"
#include "train/comm/simulated_world.h"
#include "train/engine/step_runner.h"
#include "train/timeline/step_timeline.h"

namespace speedrun::testing {

inline RuntimeOptions virtual_options(DType precision, int ranks) {
    return {.device = DeviceKind::cpu, .precision = precision, .threads = 1, .communicates = ranks > 1};
}

// Operations of one stream take different times, so that their order matters.
inline double cost_ms(const std::string& stream, const char* label) {
    if (is_communication(label)) return 0;
    const double length = 1 + 0.1 * static_cast<double>(std::string(label).size() % 7);
    return stream == "compute" ? length : stream == "optimizer" ? 0.3 * length : 0.0;
}

inline ItemTime time_item(const RecordedSteps& steps, const RecordedItem& item) {
    return {0, 1e-3 * cost_ms(steps.streams[static_cast<size_t>(item.stream)], item.label)};
}

inline Network network_of(const NetworkModel& model) {
    constexpr int kOneHost = 65536;
    return {.ranks_per_host = kOneHost,
            .start_us = model.latency_s * 1e6,
            .inside = {0, model.bytes_per_s * 1e-9},
            .shared = false};  // sleeping ranks do not disturb each other
}

using MakeBatches = std::function<std::unique_ptr<BatchSource>(const Ranks&)>;

// ms of each step of one rank with a running world. clock: of its device; null: the machine's.
inline std::vector<double> steps_ms(const Config& config, const Ranks& ranks, const RuntimeOptions& options,
                                    const MakeBatches& make_batches, CpuClock* clock, int64_t periods) {
    std::vector<double> ms;
    Runtime runtime(options);
    if (clock) static_cast<CpuDevice&>(runtime.device()).set_clock(*clock);
    StepRunner runner(config, runtime, ranks);
    runner.warm_up();
    runner.state().initialize(3);
    const auto batches = make_batches(ranks);
    runner.start_clock();
    for (int64_t step = 0; step < periods * runner.state().period; ++step) {
        runner.enqueue(step, *batches);
        if (runner.uncollected() == 2) ms.push_back(runner.collect().step_ms);
    }
    ms.push_back(runner.collect().step_ms);
    return ms;
}

// ms of a late step of rank 0, when the pipeline is full. ranks: planned, without a world.
inline double virtual_step_ms(const Config& config, const Ranks& ranks, DType precision,
                              const NetworkModel& network, const MakeBatches& make_batches) {
    const int size = ranks.mesh().world_size();
    double ms = 0;
    run_ranks(size, [&](World& threads) {
        const auto clocked = make_clocked_world(threads);
        const auto world = make_simulated_world(*clocked, {network, 0, 1}, pass_virtual_time);
        VirtualClock clock(cost_ms);
        const std::vector<double> all = steps_ms(config, ranks.with_world(*world),
                                                 virtual_options(precision, size), make_batches, &clock, 4);
        if (threads.rank() == 0) ms = all.back();
    });
    return ms;
}

}  // namespace speedrun::testing
