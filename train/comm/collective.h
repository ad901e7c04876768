// Names of the collectives and their cost on the wire.
#pragma once

#include <array>
#include <cstdint>

namespace speedrun {

enum class Collective : uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier };
constexpr int kNumCollectives = 6;
// Operator of a reduction. max: the largest value; values must not be negative. The values are compared as integers: unlike a
// floating-point maximum, this keeps NaN.
enum class Reduction : uint8_t { sum, max };

const char* name_of(Collective collective);  // static storage; also the label in traces

// Bytes that a rank sends in one collective over n ranks, averaged over the ranks. `payload` is the size of the whole tensor in
// bytes: the input of reduce_scatter, the output of all_gather.
//     reduce_scatter, all_gather, all_to_all, broadcast   (n-1)/n * payload
//     all_reduce                                        2 (n-1)/n * payload
//     barrier                                             0
// This is the bandwidth optimum, which ring algorithms reach as well: Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 69 (2009).
double wire_bytes(Collective collective, int n, int64_t payload);

struct Traffic {
    double sent_bytes = 0;  // per rank
    int ranks = 1;          // size of the group
};

// A network for estimates and for the simulated communicator: a collective takes latency + wire_bytes /
// bandwidth.
struct NetworkModel {
    double latency_s = 0;
    double bytes_per_s = 0;  // per rank; 0: unlimited

    // Returns the duration of a collective.
    double seconds(Traffic traffic) const;
};

// Counters of one kind of collective.
struct CollectiveCount {
    int64_t calls = 0;       // enqueued
    int64_t bytes_sent = 0;  // counted when sent by this rank
};
using CollectiveCounts = std::array<CollectiveCount, kNumCollectives>;  // index: Collective
CollectiveCounts operator+(const CollectiveCounts& a, const CollectiveCounts& b);
CollectiveCounts operator-(const CollectiveCounts& a, const CollectiveCounts& b);

}  // namespace speedrun
