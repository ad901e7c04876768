// What collectives cost among hosts full of GPUs: latency, bandwidth and the library's algorithm. The model is that of
// NCCL's own choice of algorithms (NCCL, src/graph/tuning.cc): a time of start, a latency for each hop of the
// algorithm, and bytes over the slower of the links on the way.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/comm/collective.h"
#include "train/comm/mesh.h"
#include "train/timeline/recorded_step.h"

namespace speedrun {

struct NetworkLink {
    double latency_us = 0;  // of a hop
    double gb_s = 0;        // out of one rank while all ranks of a host send; 0: no limit

    double seconds(double bytes) const { return gb_s > 0 ? bytes / (gb_s * 1e9) : 0; }
};

struct Network {
    std::string name = {}, source = {};
    int64_t ranks_per_host = 8;
    double start_us = 0;  // of a collective
    NetworkLink inside = {}, between = {};
    // Standard deviation of the time that ranks need for the computing of a step, as a share of it.
    double spread = 0;
    bool shared = true;  // collectives at the same time share a link's bandwidth
};

// Eight H100s to a host.
const Network& default_network();
// A JSON object {"name", "source", "ranks_per_host", "start_us", "inside": {"latency_us", "gb_s"}, "between": {...},
// "spread"}: default_network's where it says nothing. Data errors name the file and the key.
Network read_network(const std::string& path);
// Reads such a JSON text; `where` begins messages.
Network parse_network(std::string_view text, const std::string& where);

// How a group lies on hosts that are filled in the order of ranks.
struct HostSpan {
    int ranks = 1, hosts = 1, on_a_host = 1;  // the last: the most that any host has
};
HostSpan span_of(const Group& group, int64_t ranks_per_host);

enum class CommunicationAlgorithm : uint8_t { none, ring, tree, direct };
const char* name_of(CommunicationAlgorithm algorithm);

struct CollectiveTime {
    CommunicationAlgorithm algorithm = CommunicationAlgorithm::none;
    double latency_s = 0;
    double inside_s = 0, between_s = 0;  // of the bytes on each kind of link; at the same time

    double seconds() const { return latency_s + (inside_s > between_s ? inside_s : between_s); }
};

// n ranks on h hosts with m = n / h each; W = wire_bytes(kind, n, payload). Nothing for one rank.
//     ring     s = n - 1 steps (all_reduce: twice), h - 1 (twice) of them between hosts;
//              start + (s - s_between) latency inside + s_between latency between;
//              W / inside, W / (m between): m rings, each with a share of the bytes, leave a host through m ranks
//     tree     all_reduce only, where it is faster: start + 2 (m - 1) latency inside + 2 log2(h) 2 latency between,
//              bytes as in a ring at 0.9 of the bandwidth
//     direct   all_to_all: start + the larger latency on the way; the larger of bytes sent and received, by kind of link
// barrier: an all_reduce of nothing. broadcast: a ring of n - 1 steps.
CollectiveTime collective_time(const Network& network, const RecordedCollective& collective,
                               const Group& group);

// The largest of n ranks' times over their mean, if they are normal: 1 + spread q, q the normal quantile of
// (n - 3/8) / (n + 1/4) (Blom 1958), the expected largest of n. All wait for that one.
double straggler_factor(double spread, int ranks);

}  // namespace speedrun
