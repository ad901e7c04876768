// Recorded steps in time: what one step takes, what of its communication computing does not hide, and what it waits
// for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/engine/step_model.h"
#include "train/timeline/network.h"
#include "train/timeline/recorded_step.h"
#include "train/timeline/replay.h"

namespace speedrun {

// What an item takes that is no collective: first nothing of the device, then all of it.
struct ItemTime {
    double gap_s = 0, busy_s = 0;
};
using TimeItem = std::function<ItemTime(const RecordedSteps&, const RecordedItem&)>;
// Operations as modelled for a GPU; other work takes no time. `times` is copied, what it refers to is not.
TimeItem gpu_times(const OperationTimes& times);

// Figures are of one step: means over a period.
struct CommunicationRegion {
    std::string name;
    double calls = 0, bytes = 0;  // sent by a rank
    double ms = 0, exposed_ms = 0;
};
struct CriticalPart {
    std::string name;
    double ms = 0, pieces = 0;
};
struct StepTimeline {
    double step_ms = 0;
    double compute_ms = 0;  // the device works
    double exposed_ms = 0;  // ranks talk and the device does not work
    double communication_ms = 0,
           latency_ms = 0;                     // of collectives, one after the other; of that without bytes
    double reduced_bytes = 0, late_bytes = 0;  // of gradients; of that, begun when backward had ended
    std::vector<CommunicationRegion> regions;  // by Phase
    std::vector<CriticalPart> critical_path;   // the longest first; together the step
    std::vector<ReplaySpan> spans;             // of all recorded items
};

// device_shared: streams that compute at the same time share the device.
StepTimeline predict_steps(const RecordedSteps& steps, const TimeItem& time, const Network& network,
                           bool device_shared = true);

// A step of a config of one stage on these ranks' GPUs. measured: in place of what is assumed; may be null.
struct PredictedStep {
    RecordedSteps steps;
    StepTimeline timeline;
};
PredictedStep predict_gpu_step(const Config& stage, const Ranks& ranks, const GpuModel& gpu,
                               const MeasuredKernels* measured, const Network& network);

// What takes time of the measured steps, as `train --trace` writes it of a run.
void write_predicted_trace(const RecordedSteps& steps, const StepTimeline& timeline, const std::string& path);

}  // namespace speedrun
