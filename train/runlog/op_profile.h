// Where the time of measured steps went, operation by operation, beside the shortest time that the same work
// can take.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops/ceilings.h"
#include "kernels/ops/metered_ops.h"

namespace speedrun {

struct TimedCall {
    OpCost cost;
    int64_t step = 0;                 // that enqueued it; ascending
    double begin_ms = 0, end_ms = 0;  // on one clock
};

// All figures per step. Of calls of the same OpCost::name().
struct OperationRow {
    std::string name;
    double calls = 0, ms = 0, flops = 0, bytes = 0;
    double floor_ms = 0;         // sum over the calls
    bool compute_bound = false;  // most of the floor is
};

struct StepProfile {
    std::vector<OperationRow> operations;  // the longest first
    int64_t steps = 0;                     // that the figures are means of
    double step_ms = 0;                    // from the end of a step's last operation to that of the next step
    double operations_ms = 0;              // sum of the rows
    double overlapped_ms = 0;  // of that, the time that operations of several streams ran beside each other
    double gaps_ms = 0;        // in which no operation ran: step = operations - overlapped + gaps
    double flops = 0, bytes = 0, floor_ms = 0;
};

// The middle half of `count` measured values, as indices: what is left when the smallest and the largest
// quarter (rounded down) are dropped. Their mean moves little with a machine that is disturbed now and then.
std::vector<size_t> middle_half(const std::vector<double>& values);
double mean_of_middle_half(const std::vector<double>& values);

// Profile of the calls of consecutive steps, of which the first does not count: it only says when the second
// begins.
// Steps are taken `period` at a time (the steps after which all optimizer groups have had their turn), and of
// these periods the middle half by time. Throws unless there is at least one whole period behind the first
// step.
StepProfile profile_steps(const std::vector<TimedCall>& calls, int64_t period, const Ceilings& ceilings);

}  // namespace speedrun
