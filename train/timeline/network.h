// Cost of collectives between multi-GPU hosts: latency, bandwidth and the library's algorithm. The model is NCCL's own for
// selecting algorithms (NCCL, src/graph/tuning.cc): a start time, a latency per hop of the algorithm, and bytes divided by the
// bandwidth of the slowest link.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/gpu_models.h"
#include "train/comm/collective.h"
#include "train/comm/mesh.h"
#include "train/timeline/recorded_step.h"

namespace speedrun {

struct NetworkLink {
    double latency_us = 0;  // per hop
    double gb_s = 0;        // out of one rank while all ranks of a host send; 0: unlimited

    double seconds(double bytes) const { return gb_s > 0 ? bytes / (gb_s * 1e9) : 0; }
};

struct Network {
    std::string name = {}, source = {};
    int64_t ranks_per_host = 8;
    double start_us = 0;  // per collective
    NetworkLink inside = {}, between = {};
    // Standard deviation of the ranks' compute time per step, as a share of it.
    double spread = 0;
    // Multiprocessors that a collective occupies while it transfers bytes, as a share of the device's.
    double device_share = 0;
    bool shared = true;  // concurrent collectives share a link's bandwidth
};

// Eight GPUs per host, by NVLink or PCIe.
Network default_network(const GpuModel& gpu = gpu_models().front());
// Reads a JSON object {"name", "source", "ranks_per_host", "start_us", "inside": {"latency_us", "gb_s"}, "between": {...},
// "spread", "device_share"}. Missing keys have default_network()'s values. Data errors name the file and the key.
Network read_network(const std::string& path);
// Parses the same JSON; `where` is the prefix of messages.
Network parse_network(std::string_view text, const std::string& where);

// Number of hosts of a group, when ranks fill hosts in order.
struct HostSpan {
    int ranks = 1, hosts = 1, on_a_host = 1;  // on_a_host: maximum over the hosts
};
HostSpan span_of(const Group& group, int64_t ranks_per_host);

enum class CommunicationAlgorithm : uint8_t { none, ring, tree, direct };
const char* name_of(CommunicationAlgorithm algorithm);

struct CollectiveTime {
    CommunicationAlgorithm algorithm = CommunicationAlgorithm::none;
    double latency_s = 0;
    double inside_s = 0, between_s = 0;  // transfer time per kind of link; the two overlap

    double seconds() const { return latency_s + (inside_s > between_s ? inside_s : between_s); }
};

// n ranks on h hosts with m = n / h each; W = wire_bytes(kind, n, payload). Zero for one rank.
//     ring     s = n - 1 steps (all_reduce: twice), h - 1 (twice) of them between hosts;
//              start + (s - s_between) latency inside + s_between latency between;
//              W / inside, W / (m between): m rings with equal shares of the bytes leave a host through m ranks
//     tree     all_reduce only, if faster: start + 2 (m - 1) latency inside + 2 log2(h) 2 latency between;
//              bytes as in a ring at 0.9 of the bandwidth
//     direct   all_to_all: start + the largest latency of the path; the larger of bytes sent and received, by kind of link
// barrier: an all_reduce of 0 bytes. broadcast: a ring of n - 1 steps.
CollectiveTime collective_time(const Network& network, const RecordedCollective& collective,
                               const Group& group);

// Returns the expected maximum of n normally distributed ranks' times over their mean: 1 + spread q, where q is the normal
// quantile of (n - 3/8) / (n + 1/4) (Blom 1958). All ranks wait for the slowest.
double straggler_factor(double spread, int ranks);

}  // namespace speedrun
