// Draws a timeline as SVG: one row per stream, coloured by purpose.
#pragma once

#include <optional>
#include <string>

#include "train/trace/trace_file.h"

namespace speedrun {

// Returns the timeline of one rank: one step up to the end of its gathers in the next step, or all steps. The size is at most
// about 200 kB for any number of spans: spans narrower than a pixel are merged with their neighbour. `rank` and `step` must be
// in the trace.
std::string draw_timeline(const Trace& trace, int rank, std::optional<int64_t> step,
                          const std::string& title);

}  // namespace speedrun
