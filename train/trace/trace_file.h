// A trace file read back: the spans of all ranks, with what each was for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedrun {

struct TraceSpan {
    int rank = 0;
    std::string stream, label;
    std::string phase, bucket;  // empty: not said
    bool communicates = false;  // else it works
    int64_t step = -1;          // -1: not said
    int64_t bytes = 0;
    double begin_ms = 0, end_ms = 0;  // from the trace's origin
};

struct Trace {
    std::map<int, std::string> ranks;            // by rank: "rank 0 (host)"
    std::map<int, double> clock_error_us;        // by rank: its times are right within this
    std::vector<TraceSpan> spans;                // by rank, stream and time
    std::vector<int64_t> steps(int rank) const;  // ascending
};

// Reads what `speedrun train --trace` wrote. Data errors, with the file's name, for what cannot be read, is
// no JSON, or has no spans of ours.
Trace read_trace(const std::string& path);

}  // namespace speedrun
