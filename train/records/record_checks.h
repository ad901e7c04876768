// Whether the runs of a record can have happened. Figures that follow from its metrics are computed by evaluate().
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"
#include "train/records/run_lines.h"

namespace speedrun {

// Problems, each in one line. lines: of each run, empty if its metrics cannot be read. Other records of
// the track are read from the folder above.
std::vector<std::string> implausible(const std::string& folder, const Record& record, const Track& track,
                                     const std::vector<std::vector<RunLine>>& lines);

}  // namespace speedrun
