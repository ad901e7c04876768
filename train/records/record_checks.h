// Whether the runs of a record can have happened: beside figures that follow from its metrics, which evaluate() computes.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"
#include "train/records/run_lines.h"

namespace speedrun {

// Problems, each in one line. lines: of each run, none where its metrics cannot be read. Other records of the track are
// read from beside the folder.
std::vector<std::string> implausible(const std::string& folder, const Record& record, const Track& track,
                                     const std::vector<std::vector<RunLine>>& lines);

}  // namespace speedrun
