// Intervals of time, and the definition of exposed communication for metrics and traces.
#pragma once

#include <vector>

namespace speedrun {

struct Interval {
    double begin, end;  // ms
};

// Disjoint and ascending intervals.
using Intervals = std::vector<Interval>;

Intervals merged_intervals(std::vector<Interval> all);
Intervals common(const Intervals& a, const Intervals& b);
Intervals without(const Intervals& a, const Intervals& b);
double length(const Intervals& all);

// Spans of one rank's streams, in any order; they may overlap.
struct StreamTimes {
    std::vector<Interval> idle;         // compute waits or has no work
    std::vector<Interval> collectives;  // on any stream, from the first instant of waiting for other ranks
    std::vector<Interval> optimizer;    // spans of the optimizer's stream, with or without its collectives
    std::vector<Interval> exchanges;    // collectives on the optimizer's stream
};

// Returns the exposed communication: compute is idle, a collective of this rank runs, and the optimizer's stream is idle. An
// infinitely fast network would shorten a step by about this time.
Intervals exposed(const StreamTimes& times);

}  // namespace speedrun
