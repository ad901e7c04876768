// A picture of a timeline: one row per stream, coloured by what the work was for.
#pragma once

#include <optional>
#include <string>

#include "train/trace/trace_file.h"

namespace speedrun {

// Timeline of one rank: of one step, up to the end of its gathers in the next, or of all. At most about 200
// kB, however many spans there are: what is narrower than a pixel is drawn with its neighbour. `rank` and
// `step` are in the trace.
std::string draw_timeline(const Trace& trace, int rank, std::optional<int64_t> step,
                          const std::string& title);

}  // namespace speedrun
