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
    int exit_code = 0;  // 124 and 137 after limit_seconds: stopped at its time limit; 77: skipped
    double seconds = 0, limit_seconds = 0;
    bool is_gtest = false;
    std::string gtest_json;  // content of the file that gtest writes at its end; empty: none
    std::string log;         // stdout and stderr
    bool is_bench = false;
    std::string bench_lines;      // what op_bench has written, one JSON object a line
    std::string status, message;  // given by the caller: overrules what the rest says
    Json run, peers;              // figures of a run, of a comparison; null: it was none
    std::string failure;          // what is wrong with them
};

// {"kind":"step","stage","step","status","exit_code","seconds","message","tests":{…},"failures":[…],
// "ceilings":[…],"ops":[…],"run":{…},"peers":{…}}
Json step_record(const StepEnd& end);

// The report of these record lines (of results.jsonl files, in order of time):
//   step     replaces the earlier record of the same step, with all its operations and ceilings
//   again    {"kind","stage"}: forgets the steps of the stage that failed or were skipped
//   device   facts of one call; later ones replace earlier ones, date and card of each call are kept
// `expected`: stages that were asked for; each that has no record is "not run" and makes the report
// incomplete.
Json merge_records(const std::vector<std::string>& lines, const std::vector<std::string>& expected);

// How the results in a report (its `device`) come from another build or card than `facts` say; "" if they do
// not. The programs must be the same; cards are compared where both are known.
std::string other_origin(const Json& device, const Json& facts);

// Whether print_report can print this record of a step, an operation or ceilings.
bool is_printable(const Json& record);

// One page: device, stages, failures, runs, peers, operations.
std::string print_report(const Json& report);

// One line for each step: stage, step, status. For scripts.
std::string print_states(const Json& report);

}  // namespace speedrun::bench
