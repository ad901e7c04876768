#include "train/timeline/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/normal_quantile.h"

namespace speedrun {

namespace {

// NCCL's tuning.cc: a hop between hosts takes twice as long in a tree; a tree's bandwidth is 0.9 of a ring's.
constexpr double kTreeHop = 2, kTreeBandwidth = 0.9;

CollectiveTime ring_time(const Network& network, Collective kind, const HostSpan& span, double bytes) {
    const bool twice = kind == Collective::all_reduce || kind == Collective::barrier;
    const int steps = (twice ? 2 : 1) * (span.ranks - 1), between = (twice ? 2 : 1) * (span.hosts - 1);
    CollectiveTime time{.algorithm = CommunicationAlgorithm::ring};
    time.latency_s = 1e-6 * (network.start_us + (steps - between) * network.inside.latency_us +
                             between * network.between.latency_us);
    if (span.on_a_host > 1) time.inside_s = network.inside.seconds(bytes);
    if (span.hosts > 1) time.between_s = network.between.seconds(bytes / span.on_a_host);
    return time;
}

CollectiveTime tree_time(const Network& network, const HostSpan& span, double bytes) {
    CollectiveTime time = ring_time(network, Collective::all_reduce, span, bytes / kTreeBandwidth);
    time.algorithm = CommunicationAlgorithm::tree;
    time.latency_s = 1e-6 * (network.start_us + 2 * (span.on_a_host - 1) * network.inside.latency_us +
                             2 * std::ceil(std::log2(static_cast<double>(span.hosts))) * kTreeHop *
                                 network.between.latency_us);
    return time;
}

CollectiveTime direct_time(const Network& network, const RecordedCollective& collective, const Group& group) {
    const int64_t per_host = network.ranks_per_host;
    const int64_t own = group.ranks[static_cast<size_t>(group.index)] / per_host;
    const auto bytes_to = [&](const std::vector<std::pair<int, int64_t>>& peers, bool same_host) {
        double sum = 0;
        for (const auto& [rank, bytes] : peers)
            if ((rank / per_host == own) == same_host) sum += static_cast<double>(bytes);
        return sum;
    };
    const auto busiest = [&](bool same_host) {
        return std::max(bytes_to(collective.sends, same_host), bytes_to(collective.receives, same_host));
    };
    const bool leaves = span_of(group, per_host).hosts > 1;
    return {.algorithm = CommunicationAlgorithm::direct,
            .latency_s =
                1e-6 * (network.start_us + (leaves ? network.between.latency_us : network.inside.latency_us)),
            .inside_s = network.inside.seconds(busiest(true)),
            .between_s = network.between.seconds(busiest(false))};
}

}  // namespace

Network default_network(const GpuModel& gpu) {
    // NCCL's tuning.cc, LL128, ring: 10 us to start; a hop takes 1.9 us by NVLink, 2.5 by PCIe and 4.0 between hosts.
    constexpr double kNvlinkHop = 1.9, kPcieHop = 2.5;
    // The profile of the record of 31 October 2025: about 20 of an H100's 132 multiprocessors.
    constexpr double kDeviceShare = 20.0 / 132;
    return {.name = fmt::format("8 GPUs to a host by {}, hosts by one 400 Gbit/s adapter a GPU",
                                gpu.has_nvlink ? "NVLink" : "PCIe"),
            .source = fmt::format(
                "{}; 46 GB/s per GPU between hosts, measured by others (nccl-tests, issue 290); latencies by "
                "NCCL's tuning.cc; spread assumed",
                gpu.link_source),
            .ranks_per_host = 8,
            .start_us = 10,
            .inside = {gpu.has_nvlink ? kNvlinkHop : kPcieHop, gpu.link_gb_s},
            .between = {4.0, 46},
            .spread = 0.01,
            .device_share = kDeviceShare};
}

HostSpan span_of(const Group& group, int64_t ranks_per_host) {
    HostSpan span{.ranks = group.size(), .hosts = 0, .on_a_host = 0};
    int64_t host = -1;
    int here = 0;
    for (const int rank : group.ranks) {  // ascending order
        if (rank / ranks_per_host != host) {
            host = rank / ranks_per_host;
            ++span.hosts;
            here = 0;
        }
        span.on_a_host = std::max(span.on_a_host, ++here);
    }
    return span;
}

const char* name_of(CommunicationAlgorithm algorithm) {
    constexpr std::array<const char*, 4> kNames{"none", "ring", "tree", "direct"};
    return kNames[static_cast<size_t>(algorithm)];
}

CollectiveTime collective_time(const Network& network, const RecordedCollective& collective,
                               const Group& group) {
    if (group.size() == 1) return {};
    if (collective.kind == Collective::all_to_all) return direct_time(network, collective, group);
    const HostSpan span = span_of(group, network.ranks_per_host);
    const double bytes = wire_bytes(collective.kind, span.ranks, collective.payload_bytes);
    const CollectiveTime ring = ring_time(network, collective.kind, span, bytes);
    if (collective.kind != Collective::all_reduce && collective.kind != Collective::barrier) return ring;
    const CollectiveTime tree = tree_time(network, span, bytes);
    return tree.seconds() < ring.seconds() ? tree : ring;
}

double straggler_factor(double spread, int ranks) {
    if (ranks == 1 || spread == 0) return 1;
    const double n = ranks;
    return 1 + spread * normal_quantile((n - 0.375) / (n + 0.25));
}

}  // namespace speedrun
