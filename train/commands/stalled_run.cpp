#include "train/commands/stalled_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

namespace speedrun {

namespace {

namespace fs = std::filesystem;

constexpr double kLooks = 20;         // checks of the folder within the limit
constexpr double kLongestPeriod = 5;  // s

// Returns a hash of the files' names, sizes and times, independent of their order. 0: no folder.
uint64_t state_of(const std::string& folder) {
    uint64_t state = 0;
    std::error_code error;
    for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end;
         file.increment(error)) {
        std::error_code gone;  // ignored: files may be renamed or deleted meanwhile
        const auto changed = file->last_write_time(gone).time_since_epoch().count();
        const uintmax_t bytes = file->is_regular_file(gone) ? file->file_size(gone) : 0;
        state += std::hash<std::string>()(fmt::format("{} {} {}", file->path().string(), changed, bytes));
    }
    return state;
}

}  // namespace

StalledRun::StalledRun(std::string folder, double limit_s, RunningClock::Source source)
    : folder_(std::move(folder)), limit_s_(limit_s), clock_(limit_s, std::move(source)), silence_(clock_) {}

bool StalledRun::operator()() {
    const RunningClock::Reading now = clock_.read();
    if (now.seconds - looked_.seconds >= std::min(limit_s_ / kLooks, kLongestPeriod)) {
        looked_ = now;
        const uint64_t state = state_of(folder_);
        if (state != state_) silence_.restart();
        state_ = state;
    }
    return silence_.exceeds(limit_s_);
}

}  // namespace speedrun
