// The collectives by name, and what they cost on the wire.
#pragma once

#include <array>
#include <cstdint>

namespace speedrun {

enum class Collective : uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier };
constexpr int kNumCollectives = 6;
// What a reduction does with the values of the members. max: of values that are not negative, the largest;
// NaN where there is one, which a library's maximum may lose (their bits, compared as integers, do not).
enum class Reduction : uint8_t { sum, max };

const char* name_of(Collective collective);  // lives for ever: also the label in traces

// Bytes that a rank sends in one collective over n ranks, mean over the ranks. `payload` is the size of the
// whole tensor in bytes: the input of reduce_scatter, the output of all_gather.
//     reduce_scatter, all_gather, all_to_all, broadcast   (n-1)/n * payload
//     all_reduce                                        2 (n-1)/n * payload
//     barrier                                             0
// This is the bandwidth optimum, which rings reach too: Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 69 (2009).
double wire_bytes(Collective collective, int n, int64_t payload);

struct Traffic {
    double sent_bytes = 0;  // by one rank
    int ranks = 1;          // in the group
};

// A network for estimates and for the simulated communicator: a collective takes latency + wire_bytes /
// bandwidth.
struct NetworkModel {
    double latency_s = 0;
    double bytes_per_s = 0;  // out of one rank; 0: no limit

    // How long a collective takes.
    double seconds(Traffic traffic) const;
};

// What a communicator has done so far.
struct CollectiveCount {
    int64_t calls = 0;       // enqueued
    int64_t bytes_sent = 0;  // by this rank, counted where they are sent
};
using CollectiveCounts = std::array<CollectiveCount, kNumCollectives>;  // by Collective
CollectiveCounts operator+(const CollectiveCounts& a, const CollectiveCounts& b);
CollectiveCounts operator-(const CollectiveCounts& a, const CollectiveCounts& b);

}  // namespace speedrun
