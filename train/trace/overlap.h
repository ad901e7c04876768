// Overlap: the share of each bucket's reduction and gather that is overlapped with compute.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/trace/trace_file.h"

namespace speedrun {

// Means per step, in ms. Exchanges within a step (all_to_all and value all-reduces) count as reductions. Hidden: the part
// during which the compute or optimizer stream of the same rank was busy.
struct CommunicationTimes {
    double reduce_ms = 0, reduce_hidden_ms = 0;
    double gather_ms = 0, gather_hidden_ms = 0;

    double total_ms() const { return reduce_ms + gather_ms; }
    double exposed_ms() const { return total_ms() - reduce_hidden_ms - gather_hidden_ms; }
};

struct BucketOverlap {
    std::string bucket;
    int64_t bytes = 0;  // sent per step; 0: not in the trace (values, statistics)
    CommunicationTimes times;
};

struct OverlapTable {
    int rank = 0;
    std::vector<int64_t> steps;
    // Gathers of the last traced step are excluded: the trace ends with them, so nothing could overlap them.
    int64_t gather_steps = 0;
    std::vector<BucketOverlap> buckets;  // in order of first reduction, statistics last
    CommunicationTimes total;
    double step_ms = 0;     // start to start of consecutive steps; 0: one step only
    double compute_ms = 0;  // compute stream busy
    double stalled_ms =
        0;  // exposed() in train/trace/intervals.h; comm_exposed_ms of metrics.jsonl, from spans
};

// Returns the overlap of one rank, in one step or in all. Usage errors list the ranks or steps of the trace.
OverlapTable measure_overlap(const Trace& trace, int rank, std::optional<int64_t> step);

// Formats the table as text. top > 0: only the `top` buckets with the most exposed time.
std::string to_text(const OverlapTable& table, int top);
std::string to_json(const OverlapTable& table);

}  // namespace speedrun
