// Collects the results of scripts/gpu_check.sh and merges them into one report.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/device/error.h"
#include "tests/bench/check_clocks.h"
#include "tests/bench/check_runs.h"
#include "tests/bench/guarded_main.h"

namespace speedrun::bench {
namespace {

// Content of the whole file; "" if it does not exist.
std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
}

// Replaces the file atomically: on a full disk the previous one stays.
void write(const std::string& path, const std::string& text) {
    const std::string part = path + ".part";
    std::ofstream file(part, std::ios::trunc);
    file << text << std::flush;
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(part, path, error);
    if (file && !error) return;
    std::filesystem::remove(part, error);
    throw_data("{}: cannot be written to", path);
}

// Appends a whole line or nothing: a line truncated by a full disk is removed, and a partial line of a killed
// process is ended first. Bytes that are not UTF-8 (of a log) are replaced.
void append(const std::string& path, const Json& record) {
    std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    const std::string before = content_of(path);
    if (!before.empty() && before.back() != '\n') line = "\n" + line;
    std::ofstream file(path, std::ios::app);
    file << line << std::flush;
    file.close();
    if (file) return;
    std::error_code ignored;
    std::filesystem::resize_file(path, before.size(), ignored);
    throw_data("{}: cannot be written to", path);
}

Json facts_of(const std::vector<std::string>& facts) {
    Json record = {{"kind", "device"}};
    for (const std::string& fact : facts) {
        const size_t equals = fact.find('=');
        if (equals == std::string::npos) throw_usage("'{}' is not key=value", fact);
        record[fact.substr(0, equals)] = fact.substr(equals + 1);
    }
    return record;
}

struct Options {
    std::string results, gtest, log, ops, json, table, states, peers, clocks, pinned;
    double began = 0;
    RunCheck run;
    std::vector<std::string> facts, folders, expected;
    StepEnd step;
};

Json report_of(const std::vector<std::string>& files, const std::vector<std::string>& expected) {
    std::vector<std::string> lines;
    for (const std::string& file : files) {
        std::istringstream content(content_of(file));
        for (std::string line; std::getline(content, line);) lines.push_back(line);
    }
    return merge_records(lines, expected);
}

int merge(const Options& options) {
    std::vector<std::string> files;
    for (const std::string& folder : options.folders) files.push_back(folder + "/results.jsonl");
    Json report = report_of(files, options.expected);
    const Json pinned = Json::parse(content_of(options.pinned), nullptr, false);
    report["decisions"] = decisions_of(report, pinned.is_object() ? pinned : Json());
    const std::string page = print_report(report);
    fmt::print("{}", page);
    std::fflush(stdout);
    if (!options.states.empty()) write(options.states, print_states(report));
    if (!options.json.empty())
        write(options.json, report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (!options.table.empty()) write(options.table, page);
    return report.at("result") == "passed" ? 0 : 1;
}

int append_step(Options& options) {
    StepEnd& step = options.step;
    step.is_gtest = !options.gtest.empty();
    if (step.is_gtest) step.gtest_json = content_of(options.gtest);
    step.is_bench = !options.ops.empty();
    if (step.is_bench) step.bench_lines = content_of(options.ops);
    if (!options.log.empty()) step.log = content_of(options.log);
    if (!options.run.folder.empty()) {
        const Checked checked = check_run(options.run);
        step.run = checked.figures;
        step.failure = checked.failure;
    }
    if (!options.peers.empty()) {
        const Checked checked = check_peers(options.peers);
        step.peers = checked.figures;
        step.failure = checked.failure;
    }
    if (!options.clocks.empty())
        step.clocks =
            clocks_of(content_of(options.clocks), {.began = options.began, .seconds = step.seconds + 1});
    const Json record = step_record(step);
    append(options.results, record);
    fmt::print("{} {}: {} {}\n", step.stage, step.name, record.value("status", ""),
               record.value("message", ""));
    return 0;
}

// Results of two builds or GPUs must not form one report.
int check_origin(const Options& options) {
    const Json report = report_of({options.results}, {});
    if (report.at("device").empty() && report.at("steps").empty()) return 0;
    const std::string difference = other_origin(report.at("device"), facts_of(options.facts));
    if (difference.empty()) return 0;
    throw_usage("{} holds results of another build or card: {}", options.results, difference);
}

void define_step(CLI::App& app, Options& options) {
    CLI::App* step = app.add_subcommand("step", "append the record of a step that has ended");
    step->add_option("--results", options.results, "file of records, one JSON object per line")->required();
    step->add_option("--stage", options.step.stage)->required();
    step->add_option("--step", options.step.name)->required();
    step->add_option("--exit-code", options.step.exit_code, "124, 137: stopped at its limit; 77: skipped");
    step->add_option("--seconds", options.step.seconds, "time of the step");
    step->add_option("--limit", options.step.limit_seconds, "time limit of the step");
    step->add_option("--gtest", options.gtest, "JSON file that gtest writes at its end");
    step->add_option("--log", options.log, "file with the output of the step");
    step->add_option("--status", options.step.status, "overrides the derived status")
        ->check(CLI::IsMember({"passed", "failed", "skipped", "not run"}));
    step->add_option("--message", options.step.message);
    step->add_option("--ops", options.ops, "output file, if the step was op_bench");
    step->add_option("--run", options.run.folder, "run folder, if the step was a run of speedrun");
    step->add_option("--floor-ms", options.run.floor_ms, "roofline bound of one step of that run");
    step->add_option("--losses", options.run.losses,
                     "file of losses that the first losses of the run must match");
    step->add_option("--tolerance", options.run.tolerance, "relative tolerance of a loss");
    step->add_option("--same-as", options.run.same_as,
                     "metrics.jsonl of a run with bitwise equal losses and gradient norms");
    step->add_flag("--target", options.run.must_reach_target, "the run must have reached its target loss");
    step->add_option("--peers", options.peers, "JSON file, if the step was compare_peers.sh");
    step->add_option("--plan", options.run.plan,
                     "output of speedrun plan --gpu --json for a step of that run");
    step->add_option("--clocks", options.clocks, "samples of nvidia-smi (check_clocks.h)");
    step->add_option("--began", options.began, "start of the step in seconds since 1970");
}

int run(int argc, char** argv) {
    CLI::App app("Collects the results of a check on a GPU and merges them into one report.");
    app.footer(
        "Exit codes: 0 done, and all requested stages passed; 1 something failed or did not run;\n"
        "            2 bad usage, another build or card; 3 a file cannot be written.");
    app.require_subcommand(1);
    Options options;
    define_step(app, options);
    CLI::App* device = app.add_subcommand("device", "append facts about machine and build");
    device->add_option("--results", options.results, "file of records")->required();
    device->add_option("facts", options.facts, "key=value")->required();
    CLI::App* again = app.add_subcommand("again", "delete the failed and skipped steps of a stage");
    again->add_option("--results", options.results, "file of records")->required();
    again->add_option("--stage", options.step.stage)->required();
    CLI::App* origin = app.add_subcommand(
        "origin", "fail if the results come from another build (programs) or card than these facts say");
    origin->add_option("--results", options.results, "file of records")->required();
    origin->add_option("facts", options.facts, "key=value: programs, card, git_sha")->required();
    CLI::App* merged = app.add_subcommand(
        "merge", "print one page and write one JSON report of the records in these folders");
    merged->add_option("folders", options.folders, "with results.jsonl, oldest first")->required();
    merged->add_option("--json", options.json, "the report");
    merged->add_option("--table", options.table, "the printed page");
    merged->add_option("--pinned", options.pinned, "an earlier report, to which figures are compared");
    merged->add_option("--states", options.states, "one line per step: stage, step, status");
    merged->add_option("--expect", options.expected, "requested stages, separated by commas")->delimiter(',');
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    if (merged->parsed()) return merge(options);
    if (origin->parsed()) return check_origin(options);
    if (device->parsed()) {
        append(options.results, facts_of(options.facts));
        return 0;
    }
    if (again->parsed()) {
        append(options.results, {{"kind", "again"}, {"stage", options.step.stage}});
        return 0;
    }
    return append_step(options);
}

}  // namespace
}  // namespace speedrun::bench

int main(int argc, char** argv) {
    return speedrun::bench::guarded_main(speedrun::bench::run, argc, argv);
}
