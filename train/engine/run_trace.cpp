// Trace of a run: each rank records the window of steps of --trace; the result is trace.json.
#include <cstdio>

#include "train/comm/joint_check.h"
#include "train/engine/trainer.h"
#include "train/runlog/environment.h"

namespace speedrun {

std::string Trainer::cut_trace_window() {
    const int64_t steps = config_.schedule.total_steps(), first = options_.trace_first;
    if (first < 0) return "";
    const bool has_steps = first < steps && options_.trace_last >= first_step_;
    options_.trace_first = has_steps ? std::max(first, first_step_) : -1;
    return has_steps
               ? ""
               : fmt::format(
                     "--trace {}:{}: the run begins with step {} and ends before step {}, no trace.json is written",
                     first, options_.trace_last, first_step_, steps);
}

// Switches the timeline on and off between steps, while no step is in flight.
void Trainer::trace(int64_t step) {
    if (step == options_.trace_first || (step == options_.trace_last + 1 && options_.trace_first >= 0)) {
        runtime_.synchronize();
        const bool traced = step == options_.trace_first;
        if (traced) describe_timeline();
        runtime_.device().set_trace(traced ? &timeline_ : nullptr);
        runner_.trace(traced ? &timeline_ : nullptr);
        const std::string limits = runtime_.device().trace_limits();
        if (!limits.empty()) folder_.log(limits);
        runner_.use_graphs(!traced || limits.empty());
    }
}

// Describes this rank's timeline: host, and offset of its clock from rank 0's.
void Trainer::describe_timeline() {
    TracedRank rank{.rank = ranks_.rank(), .host = read_environment().host};
    if (ranks_.world()) {
        const ClockOffset clock = align_clocks(*ranks_.world(), steady_now_ns, boot_id());
        rank.clock_offset_ns = clock.offset_ns;
        rank.clock_error_ns = clock.error_ns;
        rank.origin_ns = clock.origin_ns;
    } else {
        rank.origin_ns = steady_now_ns();
    }
    timeline_.describe(std::move(rank));
    traced_ = true;
}

// Every rank writes its own file into the run's folder; rank 0 merges them. All hosts of a run share the folder.
void Trainer::write_timeline() {
    if (!traced_) {
        if (options_.trace_first >= 0)
            report(fmt::format("--trace {}:{}: the run ended after {} steps, no trace.json is written",
                               options_.trace_first, options_.trace_last, summary_.steps),
                   true);
        return;
    }
    std::vector<std::string> parts;
    for (int rank = 0; rank < ranks_.size(); ++rank)
        parts.push_back(fmt::format("{}/trace_rank{}.json", folder_.path(), rank));
    const auto write = [&] {
        const std::string& part = parts[static_cast<size_t>(ranks_.rank())];
        std::remove(part.c_str());  // a link there could point out of the run's folder
        timeline_.write(part);
    };
    const auto merge = [&] {
        if (ranks_.first()) merge_timelines(parts, folder_.path() + "/trace.json");
    };
    try {
        if (!ranks_.world()) return write(), merge();
        work_together(*ranks_.world(), write);
        work_together(*ranks_.world(), merge);
    } catch (const Error& error) {  // raised on all ranks; the weights are saved nevertheless
        const std::string text = fmt::format("the timeline is not written: {}", error.what());
        folder_.log(text);
        progress_->message(text);
    }
}

}  // namespace speedrun
