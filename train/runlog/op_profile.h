// Time of measured steps per operation, compared with its roofline bound.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops/metered_ops.h"
#include "kernels/ops/peaks.h"

namespace speedrun {

struct TimedCall {
    OpCost cost;
    int64_t step = 0;                 // step that enqueued it; ascending
    double begin_ms = 0, end_ms = 0;  // both on the same clock
};

// Values per step, of all calls with the same OpCost::name().
struct OperationStats {
    std::string name;
    double calls = 0, ms = 0, flops = 0, bytes = 0;
    double bound_ms = 0;         // roofline bound, summed over the calls
    bool compute_bound = false;  // most of the bound is compute
};

struct StepProfile {
    std::vector<OperationStats> operations;  // longest first
    int64_t steps = 0;                       // steps in the means
    double step_ms = 0;                      // time from the end of one step to the end of the next
    double operations_ms = 0;                // sum of the rows
    double overlapped_ms = 0;                // part of it in which operations of several streams overlap
    double gaps_ms = 0;                      // no operation runs: step = operations - overlapped + gaps
    double flops = 0, bytes = 0, bound_ms = 0;
};

// Returns the indices of the middle half of `count` measured values: all but the smallest and largest quarter (rounded down).
// Their mean is robust against occasional disturbances.
std::vector<size_t> middle_half(const std::vector<double>& values);
double mean_of_middle_half(const std::vector<double>& values);

// Returns the profile of the calls of consecutive steps. The first step is not counted: it only defines the start of the
// second. Steps are grouped into periods of `period` steps (after which every optimizer group has stepped). The middle half of
// the periods by time is used. Throws unless at least one whole period follows the first step.
StepProfile profile_steps(const std::vector<TimedCall>& calls, int64_t period, const Peaks& peaks);

}  // namespace speedrun
