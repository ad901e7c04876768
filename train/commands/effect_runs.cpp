#include "train/commands/effect_runs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "kernels/device/error.h"
#include "train/records/record_folder.h"
#include "train/records/sample_size.h"
#include "train/runlog/progress.h"

namespace speedrun {

namespace {

constexpr int64_t kMaxRuns = 1000;

// Parses "1%" or "0.01" as 0.01.
double share_of(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool percent = *end == '%';
    const double share = percent ? value / 100 : value;
    if (end == text.c_str() || *(percent ? end + 1 : end) != '\0' || !(share > 0) || !(share < 1))
        throw_usage("--effect {}: a share of the time is expected, such as 1%", text);
    return share;
}

struct SpreadOfRecord {
    Moments train_ms;
    TrackRules rules;
};

SpreadOfRecord spread_of(const RecordAttemptOptions& options) {
    if (!is_record_folder(options.against))
        throw_usage(
            "--effect needs --against a record's folder: the spread of its runs says how many it takes");
    const Record record = read_record(options.against);
    const auto track_folder = std::filesystem::weakly_canonical(options.against).parent_path();
    const Moments& times = record.statistics.candidate.train_ms;
    if (times.count < 2) throw_usage("--against {}: two runs are needed for a spread", options.against);
    return {times, read_track(track_folder.string()).rules};
}

// Returns the mean seconds of a run, from its start to its end if the record has them.
double run_s(const Record& record, const std::string& side) {
    double sum = 0;
    const auto runs = record.done_runs(side);
    for (const RecordRun* run : runs)
        sum += run->wall_s ? *run->wall_s : (run->startup_ms + run->train_ms) * 1e-3;
    return runs.empty() ? 0 : sum / static_cast<double>(runs.size());
}

}  // namespace

int64_t runs_for_effect(const RecordAttemptOptions& options) {
    if (options.runs > 0 || !options.seeds.empty())
        throw_usage("--effect says how many runs: --runs and --seeds are left out");
    const double effect = share_of(options.effect);
    const SpreadOfRecord spread = spread_of(options);
    const double scatter = spread.train_ms.std / spread.train_ms.mean;
    if (!(scatter > 0)) return spread.rules.min_runs;
    const auto runs = runs_per_side({.effect = effect / scatter, .max_p = spread.rules.max_time_p}, kMaxRuns);
    if (!runs)
        throw_usage("--effect {}: times of {} scatter by {:.2f}%, so more than {} runs would have to show it",
                    options.effect, options.against, scatter * 100, kMaxRuns);
    return std::max(*runs, spread.rules.min_runs);
}

std::string plan_of_runs(const RecordAttemptOptions& options, int64_t runs) {
    if (!is_record_folder(options.against)) return "";
    std::string text;
    if (!options.effect.empty()) {
        const SpreadOfRecord spread = spread_of(options);
        text += fmt::format(
            "{} runs of each side: an effect of {} is shown at p < {} with power 0.8, where times scatter by {:.2f}% as in "
            "{} runs of {}\n",
            runs, options.effect, spread.rules.max_time_p, spread.train_ms.std / spread.train_ms.mean * 100,
            spread.train_ms.count, options.against);
    }
    const double each = run_s(read_record(options.against), kCandidate);
    const double sides = 2;
    return text + fmt::format("{} runs take about {}, if both sides take the {:.2f} s of {}\n",
                              runs * static_cast<int64_t>(sides),
                              clock_text(each * sides * static_cast<double>(runs)), each, options.against);
}

}  // namespace speedrun
