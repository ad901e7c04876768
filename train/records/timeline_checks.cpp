#include "train/records/timeline_checks.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <regex>
#include <set>

#include "data/json_text.h"
#include "train/records/run_checks.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Date of the first commit of this program.
constexpr const char* kFirstDay = "2026-11-21";
// Seconds. began_utc has whole seconds, and clocks are adjusted.
constexpr double kStartError = 1.5;
// Seconds between two runs for other work: freeing the model, saving the last checkpoint, starting the next process.
constexpr double kBetweenRuns = 2;
// Validation computes the forward pass only: 0.23 to 0.41 of a step's time per token in the records of 2026.
constexpr double kForwardShare = 0.5, kForwardShareOfLongerRows = 1.5;
// Number of runs per side below which the least remaining time may be due to a busy machine.
constexpr int kFewRuns = 4;
constexpr int64_t kDay = 86400;

std::string order_problem(const Record& record) {
    for (size_t i = 0; i < record.runs.size(); ++i) {
        const RecordRun& run = record.runs[i];
        if (i > 0 && run.order <= record.runs[i - 1].order)
            return fmt::format("runs.{}.order: {} after {}", i, run.order, record.runs[i - 1].order);
        // A record without a baseline may be one side of an attempt with a baseline.
        if (!record.baseline) continue;
        const size_t round = i / 2;
        const bool is_candidate = (i % 2 == 0) == (round % 2 == 0);
        if (run.order != static_cast<int64_t>(i) || run.side != (is_candidate ? kCandidate : kBaseline))
            return fmt::format("runs.{}: {} with order {}; alternating sides have the {} with order {} here",
                               i, run.side, run.order, is_candidate ? kCandidate : kBaseline, i);
        if (i % 2 == 1 && run.seed != record.runs[i - 1].seed)
            return fmt::format("runs.{}.seed: {}, that of the other side's run in this round is {}", i,
                               run.seed, record.runs[i - 1].seed);
    }
    if (record.baseline && record.runs.size() % 2 == 1) return "runs: the last round has one side only";
    return "";
}

std::string begin_problem(const Record& record, int64_t now) {
    const auto day = seconds_of_utc(record.date + "T00:00:00Z");
    if (!day) return fmt::format("date: '{}', expected YYYY-MM-DD", record.date);
    if (record.date < kFirstDay)
        return fmt::format("date: {}, this program began on {}", record.date, kFirstDay);
    for (size_t i = 0; i < record.runs.size(); ++i) {
        const RecordRun& run = record.runs[i];
        const auto began = seconds_of_utc(run.began_utc);
        if (!began)
            return fmt::format("runs.{}.began_utc: '{}', expected YYYY-MM-DDTHH:MM:SSZ", i, run.began_utc);
        if (*began < *day)
            return fmt::format("runs.{}.began_utc: {}, the attempt began on {}", i, run.began_utc,
                               record.date);
        if (*began > now + kDay)
            return fmt::format("runs.{}.began_utc: {} is in the future", i, run.began_utc);
        if (!std::isfinite(run.startup_ms) || run.startup_ms < 0)
            return fmt::format("runs.{}.startup_ms: {}", i, run.startup_ms);
        if (i == 0) continue;
        const RecordRun& before = record.runs[i - 1];
        const auto passed = static_cast<double>(*began - *seconds_of_utc(before.began_utc));
        if (passed + kStartError + 0.01 * passed < before.train_ms * 1e-3)
            return fmt::format(
                "runs.{}.began_utc: {}, {:.0f} s after the run before it, which trained for {:.3f} s", i,
                run.began_utc, passed, before.train_ms * 1e-3);
    }
    return "";
}

// Reports times that are too short for the attempt's clock. Pauses only lengthen it, so the run with the least remaining time
// is decisive.
std::string left_over_problem(const Record& record, const std::vector<double>& validations_s,
                              const std::string& side) {
    std::string text;
    double least = 0;
    int num_runs = 0;
    for (size_t i = 0; i + 1 < record.runs.size(); ++i) {
        const RecordRun &run = record.runs[i], &next = record.runs[i + 1];
        const auto began = seconds_of_utc(run.began_utc), ended = seconds_of_utc(next.began_utc);
        if (run.side != side || next.order != run.order + 1 || !run.done() || !began || !ended) continue;
        const double own = (run.startup_ms + run.train_ms) * 1e-3;
        const auto passed = static_cast<double>(*ended - *began);
        const double over = passed - own - validations_s[i] - kBetweenRuns;
        if (num_runs++ > 0 && over >= least) continue;
        least = over;
        text = fmt::format(
            "runs.{}.train_ms: start-up and training take {:.2f} s, {} validations {:.2f} s at most, but the next run "
            "began after {:.0f} s; no run of the {} has less time left over",
            i, own, run.validations.size(), validations_s[i], passed, side);
    }
    return num_runs >= kFewRuns && least > 0 ? text : "";
}

bool is_hash(const std::string& text, size_t digits) {
    if (text.size() != digits || text.find_first_not_of("0123456789abcdef") != std::string::npos)
        return false;
    return std::set<char>(text.begin(), text.end()).size() > 2;
}

void check_program(const std::string& name, const std::string& git_sha, const std::string& binary_sha256,
                   std::vector<std::string>& problems) {
    // A build outside a repository has "unknown", which the rule `build` refuses.
    if (git_sha != "unknown" && !is_hash(git_sha, 40))
        problems.push_back(fmt::format("{}git_sha: '{}' is no commit's name of 40 digits", name, git_sha));
    if (!is_hash(binary_sha256, 64))
        problems.push_back(fmt::format("{}binary_sha256: '{}' is no SHA-256 of a file", name, binary_sha256));
}

std::string build_type(const std::string& build) {
    return parse_json<Json>(build).value("type", "");
}

void check_machine(const Record& record, std::vector<std::string>& problems) {
    static const std::regex with_level("(.*) on ([0-9]+) threads, ([a-z0-9_]+)");
    const Json hardware = parse_json<Json>(record.hardware), build = parse_json<Json>(record.build);
    const std::string level = record.hardware_class.level;
    const Json levels = hardware.value("cpu", Json::object()).value("isas", Json::array());
    if (!levels.empty() && std::find(levels.begin(), levels.end(), Json(level)) == levels.end() &&
        !level.empty())
        problems.push_back(
            fmt::format("hardware.cpu.isa: {}, not one of the processor's, {}", level, levels.dump()));
    for (const Json& rank : hardware.value("ranks", Json::array())) {
        const std::string device = rank.value("device", "");
        std::smatch match;
        if (std::regex_match(device, match, with_level) && !level.empty() && match[3] != level)
            problems.push_back(fmt::format("hardware.cpu.isa: {}, a rank ran '{}'", level, device));
    }
    if (record.hardware_class.gpus > 0 && !build.value("cuda", false))
        problems.push_back(fmt::format("build.cuda: false, the runs used {}", record.hardware_class.text()));
}

}  // namespace

std::optional<int64_t> seconds_of_utc(const std::string& text) {
    std::tm time{};
    const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
    if (!end || *end != 0) return std::nullopt;
    const std::time_t seconds = ::timegm(&time);
    if (fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds)) != text)
        return std::nullopt;  // 30 February
    return seconds;
}

double longest_validations_s(const RecordRun& run, const Config& config, int64_t tokens_per_validation) {
    const auto trained = static_cast<double>(config.tokens_before(run.steps));
    if (trained <= 0) return 0;
    const double share = validates_as_it_trains(config) ? kForwardShare : kForwardShareOfLongerRows;
    const double scored =
        static_cast<double>(tokens_per_validation) * static_cast<double>(run.validations.size());
    return share * run.train_ms * 1e-3 * scored / trained;
}

std::vector<std::string> timeline_problems(const Record& record, const std::vector<double>& validations_s,
                                           int64_t now) {
    std::vector<std::string> problems;
    for (const std::string& problem : {order_problem(record), begin_problem(record, now),
                                       left_over_problem(record, validations_s, kCandidate),
                                       left_over_problem(record, validations_s, kBaseline)}) {
        if (!problem.empty()) problems.push_back(problem);
    }
    return problems;
}

std::vector<std::string> program_problems(const Record& record) {
    std::vector<std::string> problems;
    check_program("", record.git_sha, record.binary_sha256, problems);
    if (record.baseline && record.baseline->program) {
        const ProgramOfRecord& other = *record.baseline->program;
        check_program("baseline.program.", other.git_sha, other.binary_sha256, problems);
        if (other.binary_sha256 == record.binary_sha256)
            problems.push_back(fmt::format("baseline.program.binary_sha256: {} is the candidate's program",
                                           other.binary_sha256));
        const std::string ours = build_type(record.build), theirs = build_type(other.build);
        if (ours != theirs)
            problems.push_back(
                fmt::format("baseline.program.build.type: {}, the candidate's is {}", theirs, ours));
    }
    check_machine(record, problems);
    return problems;
}

}  // namespace speedrun
