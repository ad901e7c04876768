// Collects the results of scripts/gpu_check.sh and merges them into one report.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "kernels/device/error.h"
#include "tests/bench/check_runs.h"
#include "tests/bench/guarded_main.h"

namespace speedrun::bench {
namespace {

// The whole file; "" where there is none.
std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
}

void write(const std::string& path, const std::string& text, std::ios::openmode mode) {
    std::ofstream file(path, mode);
    file << text << std::flush;
    if (!file) throw_data("{}: cannot be written to", path);
}

// One line; bytes that are no UTF-8 (of a log) are replaced.
std::string line_of(const Json& record) {
    return record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

struct Options {
    std::string results, gtest, log, json, table, peers;
    RunCheck run;
    std::vector<std::string> facts, folders, expected;
    StepEnd step;
};

int merge(const Options& options) {
    std::vector<std::string> lines;
    for (const std::string& folder : options.folders) {
        for (const char* name : {"/results.jsonl", "/ops.jsonl"}) {
            std::istringstream content(content_of(folder + name));
            for (std::string line; std::getline(content, line);) lines.push_back(line);
        }
    }
    const Json report = merge_records(lines, options.expected);
    const std::string page = print_report(report);
    if (!options.json.empty())
        write(options.json, report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n",
              std::ios::trunc);
    if (!options.table.empty()) write(options.table, page, std::ios::trunc);
    fmt::print("{}", page);
    return report.at("result") == "passed" ? 0 : 1;
}

int run(int argc, char** argv) {
    CLI::App app("Collects the results of a check on a GPU and merges them into one report.");
    app.footer(
        "Exit codes: 0 done, and all that was asked for passed; 1 something failed or did not run;\n"
        "            2 bad usage; 3 a file cannot be written.");
    app.require_subcommand(1);
    Options options;
    CLI::App* step = app.add_subcommand("step", "append the record of a step that has ended");
    step->add_option("--results", options.results, "file of records, one JSON object a line")->required();
    step->add_option("--stage", options.step.stage)->required();
    step->add_option("--step", options.step.name)->required();
    step->add_option("--exit-code", options.step.exit_code, "124 and 137: stopped at its limit; 77: skipped");
    step->add_option("--seconds", options.step.seconds, "that it took");
    step->add_option("--limit", options.step.limit_seconds, "that it was given");
    step->add_option("--gtest", options.gtest,
                     "it ran gtest, which wrote this JSON file if it reached its end");
    step->add_option("--log", options.log, "file of its output");
    step->add_option("--status", options.step.status, "overrules what the rest says")
        ->check(CLI::IsMember({"passed", "failed", "skipped", "not run"}));
    step->add_option("--message", options.step.message);
    step->add_option("--run", options.run.folder, "it was a run of speedrun: its folder");
    step->add_option("--floor-ms", options.run.floor_ms, "of one step of that run");
    step->add_option("--losses", options.run.losses, "file whose losses its first ones must agree with");
    step->add_option("--tolerance", options.run.tolerance, "of a loss, relative");
    step->add_option("--same-as", options.run.same_as,
                     "folder of a run whose curve it must repeat, bit for bit");
    step->add_flag("--target", options.run.must_reach_target, "it must have reached its target loss");
    step->add_option("--peers", options.peers, "it was compare_peers.sh, which wrote this JSON file");
    CLI::App* device = app.add_subcommand("device", "append facts about machine and build");
    device->add_option("--results", options.results, "file of records")->required();
    device->add_option("facts", options.facts, "key=value")->required();
    CLI::App* merged = app.add_subcommand(
        "merge", "print one page and write one JSON report of the records in these folders");
    merged->add_option("folders", options.folders, "with results.jsonl and ops.jsonl, oldest first")
        ->required();
    merged->add_option("--json", options.json, "the report");
    merged->add_option("--table", options.table, "the page, as printed");
    merged->add_option("--expect", options.expected, "stages that were asked for, separated by commas")
        ->delimiter(',');
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    if (merged->parsed()) return merge(options);
    if (device->parsed()) {
        Json record = {{"kind", "device"}};
        for (const std::string& fact : options.facts) {
            const size_t equals = fact.find('=');
            if (equals == std::string::npos) throw_usage("'{}' is not key=value", fact);
            record[fact.substr(0, equals)] = fact.substr(equals + 1);
        }
        write(options.results, line_of(record), std::ios::app);
        return 0;
    }
    options.step.is_gtest = !options.gtest.empty();
    if (options.step.is_gtest) options.step.gtest_json = content_of(options.gtest);
    if (!options.log.empty()) options.step.log = content_of(options.log);
    if (!options.run.folder.empty()) {
        const Checked checked = check_run(options.run);
        options.step.run = checked.figures;
        options.step.failure = checked.failure;
    }
    if (!options.peers.empty()) {
        const Checked checked = check_peers(options.peers);
        options.step.peers = checked.figures;
        options.step.failure = checked.failure;
    }
    const Json record = step_record(options.step);
    write(options.results, line_of(record), std::ios::app);
    fmt::print("{} {}: {} {}\n", options.step.stage, options.step.name, record.value("status", ""),
               record.value("message", ""));
    return 0;
}

}  // namespace
}  // namespace speedrun::bench

int main(int argc, char** argv) {
    return speedrun::bench::guarded_main(speedrun::bench::run, argc, argv);
}
