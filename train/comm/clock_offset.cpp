#include "train/comm/clock_offset.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <sstream>

namespace speedrun {

namespace {

constexpr int kRounds = 16;

struct RankTimes {
    std::array<int64_t, kRounds> enter{}, leave{};
    std::string kernel;

    std::string to_text() const {
        std::string text;
        for (int i = 0; i < kRounds; ++i) text += fmt::format("{} {} ", enter[i], leave[i]);
        return text + kernel;
    }
    static RankTimes from_text(const std::string& text) {
        std::istringstream words(text);
        RankTimes times;
        for (int i = 0; i < kRounds; ++i) words >> times.enter[i] >> times.leave[i];
        std::getline(words >> std::ws, times.kernel);
        return times;
    }
};

}  // namespace

int64_t steady_now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

ClockOffset align_clocks(World& world, const std::function<int64_t()>& now, const std::string& kernel) {
    RankTimes own;
    own.kernel = kernel;
    for (int i = 0; i < kRounds; ++i) {
        own.enter[i] = now();
        world.barrier();
        own.leave[i] = now();
    }
    const RankTimes first = RankTimes::from_text(world.all_gather(own.to_text()).front());
    ClockOffset result;
    result.origin_ns = first.enter.back();
    if (world.rank() == 0 || (!kernel.empty() && kernel == first.kernel)) return result;
    int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < kRounds; ++i) {
        low = std::max(low, own.enter[i] - first.leave[i]);
        high = std::min(high, own.leave[i] - first.enter[i]);
    }
    result.offset_ns = low + (high - low) / 2;
    result.error_ns = (high - low + 1) / 2;
    return result;
}

std::string boot_id() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    file >> id;
    return id;
}

}  // namespace speedrun
