// Verifies a record's values against its runs.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

struct RecordCheck {
    std::string folder;
    std::vector<std::string> problems;  // each names the value with both versions
    std::vector<std::string> classes;   // classes of the track with all rules met
    int64_t num_figures = 0;            // compared values
};

// Recomputes all values in FOLDER/record.json from the metrics files (losses, times, statistics, verdict, hashes, changed keys)
// and compares them, and the tables of the README. Checks the runs' plausibility (record_checks.h) and the replications
// (replication.h). Faults of the record are reported, not thrown. strict: also strict_problems() of machine_checks.h.
RecordCheck verify_record(const std::string& folder, bool strict = false);

}  // namespace speedrun
