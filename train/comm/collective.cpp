#include "train/comm/collective.h"

#include <cstddef>

namespace speedrun {

const char* name_of(Collective collective) {
    constexpr std::array<const char*, kNumCollectives> kNames{"all_reduce", "reduce_scatter", "all_gather",
                                                              "all_to_all", "broadcast",      "barrier"};
    return kNames[static_cast<size_t>(collective)];
}

double wire_bytes(Collective collective, int n, int64_t payload) {
    if (collective == Collective::barrier) return 0;
    const double once = static_cast<double>(payload) * (n - 1) / n;
    return collective == Collective::all_reduce ? 2 * once : once;
}

CollectiveCounts operator+(const CollectiveCounts& a, const CollectiveCounts& b) {
    CollectiveCounts sum = a;
    for (size_t i = 0; i < sum.size(); ++i) {
        sum[i].calls += b[i].calls;
        sum[i].bytes_sent += b[i].bytes_sent;
    }
    return sum;
}

CollectiveCounts operator-(const CollectiveCounts& a, const CollectiveCounts& b) {
    CollectiveCounts difference = a;
    for (size_t i = 0; i < difference.size(); ++i) {
        difference[i].calls -= b[i].calls;
        difference[i].bytes_sent -= b[i].bytes_sent;
    }
    return difference;
}

double NetworkModel::seconds(Traffic traffic) const {
    if (traffic.ranks == 1) return 0;
    return latency_s + (bytes_per_s > 0 ? traffic.sent_bytes / bytes_per_s : 0);
}

}  // namespace speedrun
