// Plausibility of a record's runs. Values derived from the metrics are computed by evaluate().
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"
#include "train/records/run_lines.h"

namespace speedrun {

// Returns problems, one per line. lines: per run, empty if its metrics cannot be read. Other records of the track are read from
// the parent folder.
std::vector<std::string> implausible(const std::string& folder, const Record& record, const Track& track,
                                     const std::vector<std::vector<RunLine>>& lines);

}  // namespace speedrun
