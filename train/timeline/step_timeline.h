// Predicts the time of recorded steps: one step's time, its exposed communication, and its critical path.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/engine/step_model.h"
#include "train/timeline/network.h"
#include "train/timeline/recorded_step.h"
#include "train/timeline/replay.h"

namespace speedrun {

// Time of an item that is no collective: first a gap without using the device, then exclusive use.
struct ItemTime {
    double gap_s = 0, busy_s = 0;
};
using TimeItem = std::function<ItemTime(const RecordedSteps&, const RecordedItem&)>;
// Returns modelled times of a GPU's operations; other work takes no time. `times` is copied, but not the objects that it refers
// to.
TimeItem gpu_times(const OperationTimes& times);

// Values per step: means over a period.
struct CommunicationRegion {
    std::string name;
    double calls = 0, bytes = 0;  // sent per rank
    double ms = 0, exposed_ms = 0;
};
struct CriticalSegment {
    std::string name;
    double ms = 0, pieces = 0;
};
struct StepTimeline {
    double step_ms = 0;
    double compute_ms = 0;  // device busy
    double exposed_ms = 0;  // communication without compute
    double communication_ms = 0,
           latency_ms = 0;                       // sum over collectives; part of it without bytes
    double reduced_bytes = 0, late_bytes = 0;    // gradients; part of it sent after backward
    std::vector<CommunicationRegion> regions;    // index: Phase
    std::vector<CriticalSegment> critical_path;  // longest first; the sum is the step
    std::vector<ReplaySpan> spans;               // one per recorded item
};

// device_shared: streams that compute at the same time share the device.
StepTimeline predict_steps(const RecordedSteps& steps, const TimeItem& time, const Network& network,
                           bool device_shared = true);

// A step of a config of one stage on these ranks' GPUs. measured: replaces the assumed values; may be null.
struct PredictedStep {
    RecordedSteps steps;
    StepTimeline timeline;
};
PredictedStep predict_gpu_step(const Config& stage, const Ranks& ranks, const GpuModel& gpu,
                               const MeasuredKernels* measured, const Network& network);

// Writes the items of the measured steps that take time, in the format of `train --trace`.
void write_predicted_trace(const RecordedSteps& steps, const StepTimeline& timeline, const std::string& path);

}  // namespace speedrun
