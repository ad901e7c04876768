// `speedrun records trial`: one measurement, for programs that search configs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace speedrun {

struct RecordTrialOptions {
    std::string config;
    std::vector<std::string> settings;
    std::string track_class;  // empty: the track's first
    int64_t seeds = 1;        // number of runs; the program draws a seed for each
    std::string tracks = "records", out = "logs/trials";
    bool keep_weights = false;
};

// Declares `trial` in the app of `speedrun records`; the options must outlive the app's parsing.
CLI::App* add_record_trial(CLI::App& records, RecordTrialOptions& options);
// Trains with drawn seeds, checks the runs as `records verify` does, and prints one JSON object on stdout, also for a refusal.
// Returns 4 if a run diverged, 3 if the checks found a problem, 2 if the runs broke a rule of the class, else 0. An error that
// makes the runs impossible is printed, then thrown.
int run_record_trial(const RecordTrialOptions& options);

}  // namespace speedrun
