// Comparison of two sets of runs: of records, or of any run folders.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

struct RunSet {
    std::string name;
    std::string config;              // resolved, JSON
    std::string machine;             // host, processor, ranks' devices
    std::vector<RecordRun> runs;     // with began_utc and metrics
    std::vector<std::string> notes;  // skipped runs, with reasons
};

// Reads a record's folder, or run folders: comma-separated patterns. Throws a usage error if nothing is found, or if the runs
// have different configs (except for seeds) or machines.
RunSet read_run_set(const std::string& source);

struct Comparison {
    RunSet a, b;
    Moments time_a, time_b, loss_a, loss_b;
    double ratio = 0;                                // mean time of a / of b
    std::optional<TestResult> time_test, loss_test;  // Welch's; alternative: a's mean is below b's
    std::vector<KeyDifference> differences;
    bool alternating = false, same_machine = false;
    std::vector<std::string> warnings;
};
// If one record was measured against the other, the alternating runs of that attempt are used for both.
Comparison compare_run_sets(const std::string& a, const std::string& b);

std::string comparison_text(const Comparison& comparison);
std::string comparison_json(const Comparison& comparison);

}  // namespace speedrun
