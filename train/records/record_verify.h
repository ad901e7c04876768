// Whether a record's figures are those of its runs.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

struct RecordCheck {
    std::string folder;
    std::vector<std::string> problems;  // each names the figure with both values
    std::vector<std::string> classes;   // of the track, whose rules it meets
    int64_t num_figures = 0;            // compared
};

// Computes everything in FOLDER/record.json again from the metrics files (losses, times, statistics, verdict,
// hashes, changed keys) and compares; and the tables of its README. Checks that the runs can have happened
// (record_checks.h). Never throws for a fault of the record.
// Also its replications (replication.h). strict: as strict_problems() of machine_checks.h too.
RecordCheck verify_record(const std::string& folder, bool strict = false);

}  // namespace speedrun
