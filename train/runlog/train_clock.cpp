#include "train/runlog/train_clock.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace speedrun {

double process_age_ms() {
    // Field 22 of /proc/self/stat: start time in clock ticks since boot; the command's name may contain
    // spaces.
    std::ifstream file("/proc/self/stat");
    std::string line;
    std::getline(file, line);
    const size_t after_name = line.rfind(')');
    if (after_name == std::string::npos) return 0;
    std::istringstream fields(line.substr(after_name + 1));
    std::string skipped;
    for (int i = 3; i < 22; ++i) fields >> skipped;
    double ticks = 0;
    timespec now{};
    if (!(fields >> ticks) || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
    const double started = ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) * 1e3;
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6 - started;
}

void StepTimes::add(StepTime time) {
    times_.push_back(time.ms);
    if (time.ms > max_) {
        max_ = time.ms;
        max_step_ = time.step;
    }
}

double StepTimes::percentile(double share) const {
    if (times_.empty()) return 0;
    std::vector<double> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace speedrun
