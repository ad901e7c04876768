// A graph of streams in time: discrete events. A stream runs its items in order; a wait lets nothing pass before
// the item that it waits for; whatever runs at the same time on one resource shares it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace speedrun {

enum class Resource : uint8_t { computing, inside, between };  // the device itself, and its links
constexpr size_t kNumResources = 3;
using ResourceTimes = std::array<double, kNumResources>;  // by Resource

struct ReplayItem {
    int stream = 0;
    int waits_for = -1;  // an earlier item: this one takes no time and ends no earlier; -1: none
    double delay_s = 0;  // alone, before it needs anything
    // Then so long on each resource, at the same time, if it has them for itself: alone it takes the longest of
    // these, and needs that share of each meanwhile.
    ResourceTimes busy_s{};
};

struct ReplaySpan {
    double begin_s = 0, end_s = 0;
    int cause = -1;  // the item whose end let this one begin; -1: nothing
};

// Items whose shares of a resource add up to more than its capacity (1; 0: any number) are slowed down alike.
// Internal errors: a wait for an item behind it; a negative time.
std::vector<ReplaySpan> replay(const std::vector<ReplayItem>& items, int num_streams,
                               const ResourceTimes& capacity = {1, 1, 1});

}  // namespace speedrun
