// Results of a check on a GPU: one record per step, collected during the check and merged into one report. A
// step that did not run is "not run". A step that proved nothing is "skipped" or "failed", never "passed".
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace speedrun::bench {

using Json = nlohmann::ordered_json;

// Outputs of a step that has ended.
struct StepEnd {
    std::string stage, name;
    int exit_code = 0;  // 124 and 137 after limit_seconds: timeout; 77: skipped
    double seconds = 0, limit_seconds = 0;
    bool is_gtest = false;
    std::string gtest_json;  // content of the file that gtest writes at its end; empty: none
    std::string log;         // stdout and stderr
    bool is_bench = false;
    std::string bench_lines;      // output of op_bench, one JSON object per line
    std::string status, message;  // set by the caller: override the derived ones
    Json run, peers, clocks;      // figures of a run, of a comparison, of clocks_of(); null: none
    std::string failure;          // fault of these figures
};

// {"kind":"step","stage","step","status","exit_code","seconds","message","tests":{…},"failures":[…],
// "ceilings":[…],"ops":[…],"run":{…},"peers":{…},"clocks":{…}}
Json step_record(const StepEnd& end);

// Merges record lines (of results.jsonl files, in order of time) into a report:
//   step     replaces the earlier record of the same step, with all its operations and ceilings
//   again    {"kind","stage"}: deletes the failed and skipped steps of the stage
//   device   facts of one call; later ones replace earlier ones; date and GPU of each call are kept
// `expected`: requested stages. A stage without a record is "not run" and makes the report incomplete.
Json merge_records(const std::vector<std::string>& lines, const std::vector<std::string>& expected);

// Describes how the build or GPU of a report (its `device`) differs from `facts`; "" if it does not. The
// programs must be equal; GPUs are compared if both are known.
std::string other_origin(const Json& device, const Json& facts);

// True if print_report can print this record of a step, an operation or ceilings.
bool is_printable(const Json& record);

// Returns the decisions of a report of merge_records: [{"question","measured","rule","decision"}]. `pinned`:
// an earlier report, compared if it is of the same GPU model; null: none.
Json decisions_of(const Json& report, const Json& pinned);
// Returns the table report.decisions as text; "" if nothing was measured.
std::string print_decisions(const Json& report);

// One page: device, stages, failures, runs, peers, operations, decisions.
std::string print_report(const Json& report);

// Return the value of a key as text and as a number; "" and 0 without one.
std::string text_of(const Json& object, const char* key);
double number_of(const Json& object, const char* key);

// One line per step: stage, step, status. For scripts.
std::string print_states(const Json& report);

}  // namespace speedrun::bench
