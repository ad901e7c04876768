// Discrete-event simulation of a graph of streams. A stream runs its items in order. A wait blocks the stream until the awaited
// item ends. Items that run at the same time on one resource share it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace speedrun {

enum class Resource : uint8_t { computing, inside, between };  // the device itself, and its links
constexpr size_t kNumResources = 3;
using ResourceTimes = std::array<double, kNumResources>;  // index: Resource

struct ReplayItem {
    int stream = 0;
    int waits_for = -1;  // an earlier item: this item takes no time and ends no earlier; -1: none
    double delay_s = 0;  // before the item needs any resource
    // Time on each resource if the item has them to itself. Alone, the item takes the longest of these times and needs the
    // corresponding share of each resource.
    ResourceTimes busy_s{};
};

struct ReplaySpan {
    double begin_s = 0, end_s = 0;
    int cause = -1;  // the item that delayed this one's start; -1: none
};

// Items whose shares of a resource exceed its capacity (1; 0: unlimited) are slowed down by the same factor. Internal errors: a
// wait for a later item; a negative time.
std::vector<ReplaySpan> replay(const std::vector<ReplayItem>& items, int num_streams,
                               const ResourceTimes& capacity = {1, 1, 1});

}  // namespace speedrun
