// Overlap: the share of each bucket's reduction and gather that was hidden by computing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/trace/trace_file.h"

namespace speedrun {

// Means per step, in ms. Exchanges within a step (all_to_all, and all of values) count as reductions. Hidden: the part during
// which the compute stream or the optimizer of the same rank worked.
struct CommunicationTimes {
    double reduce_ms = 0, reduce_hidden_ms = 0;
    double gather_ms = 0, gather_hidden_ms = 0;

    double total_ms() const { return reduce_ms + gather_ms; }
    double exposed_ms() const { return total_ms() - reduce_hidden_ms - gather_hidden_ms; }
};

struct BucketOverlap {
    std::string bucket;
    int64_t bytes = 0;  // sent per step; 0: traces do not say it of values and statistics
    CommunicationTimes times;
};

struct OverlapTable {
    int rank = 0;
    std::vector<int64_t> steps;
    // Gathers of the last traced step are left out: the trace ends with it, so nothing could run beside them.
    int64_t gather_steps = 0;
    std::vector<BucketOverlap> buckets;  // in the order of their first reduction, the statistics last
    CommunicationTimes total;
    double step_ms = 0;     // from the first work of a step to that of the next; 0: one step only
    double compute_ms = 0;  // the compute stream was busy
    double stalled_ms =
        0;  // exposed() in train/trace/intervals.h: comm_exposed_ms of metrics.jsonl, by spans
};

// Overlap on one rank, in one step or all of them. Usage errors that list what there is.
OverlapTable measure_overlap(const Trace& trace, int rank, std::optional<int64_t> step);

// The table for people. top > 0: only so many buckets, those with the most exposed time first.
std::string to_text(const OverlapTable& table, int top);
std::string to_json(const OverlapTable& table);

}  // namespace speedrun
