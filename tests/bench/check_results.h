// The results of a check on a GPU: one record per step, collected while it runs and merged into one report.
// Rule: what did not run is "not run" and what proved nothing is "skipped" or "failed", never "passed".
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace speedrun::bench {

using Json = nlohmann::ordered_json;

// What is known of a step that has ended.
struct StepEnd {
    std::string stage, name;
    int exit_code = 0;  // 124 and 137: stopped at its time limit; 77: skipped
    double seconds = 0, limit_seconds = 0;
    bool is_gtest = false;
    std::string gtest_json;       // content of the file that gtest writes at its end; empty: none
    std::string log;              // stdout and stderr
    std::string status, message;  // given by the caller: overrules what the rest says
    Json run, peers;              // figures of a run, of a comparison; null: it was none
    std::string failure;          // what is wrong with them
};

// {"kind":"step","stage","step","status","exit_code","seconds","message","tests":{…},"failures":[…],"run":{…},"peers":{…}}
Json step_record(const StepEnd& end);

// The report of these record lines (of results.jsonl and ops.jsonl files, in order of time). A step or case
// that comes again replaces the earlier one, the ceilings of each group of cases are kept. `expected`: stages
// that were asked for; each that has no record is "not run" and makes the report incomplete.
Json merge_records(const std::vector<std::string>& lines, const std::vector<std::string>& expected);

// One page: device, stages, failures, runs, peers, operations.
std::string print_report(const Json& report);

}  // namespace speedrun::bench
