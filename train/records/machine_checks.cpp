#include "train/records/machine_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/device/gpu_clocks.h"
#include "train/records/timeline_checks.h"

namespace speedrun {

namespace {

// Records of this day and later have wall_s and machine in every run.
constexpr const char* kWatchedFrom = "2026-11-29";
constexpr double kTick = 0.05;            // seconds; process start times have a resolution of 10 ms
constexpr double kSecondsOfStarts = 1.5;  // began_utc has whole seconds, and clocks are adjusted

std::string machine_problem(const MachineState& m) {
    const auto is_share = [](double share) { return share >= 0 && share <= 1; };
    if (!std::isfinite(m.seconds) || m.seconds <= 0) return fmt::format("seconds: {}", m.seconds);
    if (m.cores < 1) return fmt::format("cores: {}", m.cores);
    if (!is_share(m.others)) return fmt::format("others: {}, a share is expected", m.others);
    if (!is_share(m.stolen)) return fmt::format("stolen: {}, a share is expected", m.stolen);
    if (m.throttled < 0 || m.throttled > m.periods)
        return fmt::format("throttled: {} of {} periods", m.throttled, m.periods);
    for (const double value : {m.mhz_begin, m.mhz_end})
        if (!std::isfinite(value) || value < 0) return fmt::format("mhz: {}", value);
    if (!std::isfinite(m.clock_moved_ms) || !std::isfinite(m.clock_rate)) return "clock: not finite";
    for (const std::string& name : m.gpu_throttle.value_or(std::set<std::string>{})) {
        if (std::none_of(kClockReasons.begin(), kClockReasons.end(),
                         [&](const ClockReason& reason) { return name == reason.name; }))
            return fmt::format("gpu_throttle: {} is no reason for reduced clocks", name);
    }
    return "";
}

std::string wall_problem(const Record& record, size_t i) {
    const RecordRun& run = record.runs[i];
    const double wall = *run.wall_s, own = (run.startup_ms + run.train_ms) * 1e-3;
    if (!std::isfinite(wall) || wall <= 0) return fmt::format("{}", wall);
    if (wall + kTick < own) return fmt::format("{:.2f} s, start-up and training take {:.2f} s", wall, own);
    // The first run's wall_s includes the start-up of the attempt.
    const double after_startup = wall - run.startup_ms * 1e-3;
    if (run.machine && run.machine->seconds + kTick < after_startup)
        return fmt::format("{:.2f} s, the machine was watched for {:.2f} s", wall, run.machine->seconds);
    if (i + 1 == record.runs.size()) return "";
    const auto began = seconds_of_utc(run.began_utc), next = seconds_of_utc(record.runs[i + 1].began_utc);
    if (!began || !next) return "";
    const auto passed = static_cast<double>(*next - *began);
    if (passed + kSecondsOfStarts + 0.01 * passed < after_startup)
        return fmt::format("{:.2f} s, but the next run began after {:.0f} s", wall, passed);
    return "";
}

bool is_watched(const Record& record) {
    return record.date >= kWatchedFrom ||
           std::any_of(record.runs.begin(), record.runs.end(),
                       [](const RecordRun& run) { return run.wall_s || run.machine; });
}

// Seeds of a side's runs must be 1 to n in order.
std::string seeds_problem(const Record& record) {
    std::map<std::string, int64_t> last;
    for (size_t i = 0; i < record.runs.size(); ++i) {
        const RecordRun& run = record.runs[i];
        const int64_t expected = ++last[run.side];
        if (run.seed != expected)
            return fmt::format(
                "runs.{}.seed: {}, {} is expected: seeds 1, 2, 3 ... leave no runs to choose from", i,
                run.seed, expected);
    }
    return "";
}

}  // namespace

std::vector<std::string> wall_problems(const Record& record) {
    std::vector<std::string> problems;
    for (size_t i = 0; i < record.runs.size(); ++i) {
        const RecordRun& run = record.runs[i];
        if (run.wall_s) {
            if (const std::string problem = wall_problem(record, i); !problem.empty())
                problems.push_back(fmt::format("runs.{}.wall_s: {}", i, problem));
        }
        if (!run.machine) continue;
        if (const std::string problem = machine_problem(*run.machine); !problem.empty())
            problems.push_back(fmt::format("runs.{}.machine.{}", i, problem));
    }
    return problems;
}

std::vector<std::string> strict_problems(const Record& record) {
    std::vector<std::string> problems;
    for (const RuleResult& rule : record.rules)
        if (!rule.met) problems.push_back(fmt::format("rule {} is not met: {}", rule.rule, rule.why));
    if (const std::string problem = seeds_problem(record); !problem.empty()) problems.push_back(problem);
    const size_t most = std::max<size_t>(1, record.runs.size() / 10);
    if (record.interrupted.size() > most)
        problems.push_back(
            fmt::format("interrupted: {} runs were ended and made again, at most {} of {} may be",
                        record.interrupted.size(), most, record.runs.size()));
    if (!is_watched(record)) return problems;
    const bool two_builds = record.baseline && record.baseline->program;
    for (size_t i = 0; i < record.runs.size(); ++i) {
        const RecordRun& run = record.runs[i];
        // An older build on the other side does not record its wall clock.
        if (!run.wall_s && !(two_builds && run.side == kBaseline))
            problems.push_back(fmt::format("runs.{}.wall_s: missing", i));
        if (!run.machine) problems.push_back(fmt::format("runs.{}.machine: missing", i));
    }
    return problems;
}

}  // namespace speedrun
