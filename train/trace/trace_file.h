// Reads a trace file: the spans of all ranks with their purposes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedrun {

struct TraceSpan {
    int rank = 0;
    std::string stream, label;
    std::string phase, bucket;  // empty: unknown
    bool communicates = false;  // false: work
    int64_t step = -1;          // -1: unknown
    int64_t bytes = 0;
    double begin_ms = 0, end_ms = 0;  // relative to the trace's origin
};

struct Trace {
    std::map<int, std::string> ranks;            // key: rank; value: "rank 0 (host)"
    std::map<int, double> clock_error_us;        // key: rank; bound on the clock's error
    std::vector<TraceSpan> spans;                // sorted by rank, stream and time
    std::vector<int64_t> steps(int rank) const;  // ascending
};

// Reads a trace of `speedrun train --trace`. Data errors, with the file's name, if it is unreadable, is not JSON, or has no
// spans of this program.
Trace read_trace(const std::string& path);

}  // namespace speedrun
