#include "train/commands/plan_communication.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "train/comm/simulated_world.h"
#include "train/engine/memory_plan.h"
#include "train/model/build_model.h"
#include "train/model/parts/attention.h"
#include "train/optim/optimizers.h"
#include "train/sharding/matrix_owners.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

// The jitter is counted by its mean.
double network_ms(const SimulatedNetwork& network, const StepCollective& c) {
    return 1e3 * (network.model.seconds({.sent_bytes = c.sent_bytes, .ranks = c.group_size}) +
                  network.jitter_s / 2);
}

void print_owners(const BucketLayout& layout, const OptimizersConfig& optimizers) {
    for (size_t group = 0; group < optimizers.groups.size(); ++group) {
        if (!needs_whole_matrices(optimizers.groups[group])) continue;
        const MatrixOwners owners(layout, static_cast<int>(group));
        if (owners.loads().size() == 1) continue;
        int64_t matrices = 0;
        for (const OwnedMatrix& owned : owners.all()) matrices += owned.matrix.count;
        std::printf(
            "%s of group %zu: %lld matrices on %zu ranks, the largest load %.2f times the lower "
            "bound\n",
            word_of(optimizers.groups[group].type), group, static_cast<long long>(matrices),
            owners.loads().size(), owners.imbalance());
    }
}

void print_whole_attention(const Config& config, const Ranks& ranks) {
    const WholeAttention whole = whole_attention(config.model.parts);
    if (ranks.tensor().size == 1 || whole.layers.empty()) return;
    std::printf("  whole on each of the %d ranks that share matrices: %s\n", ranks.tensor().size,
                whole.describe().c_str());
}

// Equal collectives are merged into one line, in order of first occurrence.
std::vector<std::pair<StepCollective, int>> counted(const BucketCollectives& row) {
    std::vector<std::pair<StepCollective, int>> lines;
    for (const StepCollective& collective : row.collectives) {
        const auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& line) {
            return line.first.describe() == collective.describe();
        });
        if (same == lines.end()) {
            lines.emplace_back(collective, 1);
        } else {
            ++same->second;
        }
    }
    return lines;
}

void print_sent(const std::vector<BucketCollectives>& rows, int microbatches) {
    std::printf("sent per rank and step:");
    const auto bytes = step_wire_bytes(rows, microbatches);
    double total = 0;
    for (size_t kind = 0; kind < bytes.size(); ++kind) {
        total += bytes[kind];
        if (bytes[kind] > 0)
            std::printf(" %s %.3f MiB,", name_of(static_cast<Collective>(kind)), bytes[kind] / kMiB);
    }
    std::printf(" in all %.3f MiB\n", total / kMiB);
    std::vector<std::pair<std::string, double>> by_axes;
    for (const BucketCollectives& row : rows) {
        for (const StepCollective& c : row.collectives) {
            const std::string axes = c.axes.describe();
            auto at = std::find_if(by_axes.begin(), by_axes.end(),
                                   [&](const auto& entry) { return entry.first == axes; });
            if (at == by_axes.end()) at = by_axes.emplace(by_axes.end(), axes, 0.0);
            at->second += c.sent_bytes * times_per_step(c.when, microbatches);
        }
    }
    if (by_axes.size() < 2) return;
    std::printf("  over");
    for (size_t i = 0; i < by_axes.size(); ++i)
        std::printf("%s %s %.3f MiB", i == 0 ? "" : ",", by_axes[i].first.c_str(), by_axes[i].second / kMiB);
    std::printf("\n");
}

// Bytes per step and rank of collectives on an axis between nodes of the model, which wait for them.
struct SentValues {
    double bytes = 0, ms = 0;  // ms: on the simulated network
};
SentValues sent_over(Axis axis, const BucketCollectives& values, int microbatches,
                     const std::optional<SimulatedNetwork>& network) {
    SentValues sum;
    for (const StepCollective& c : values.collectives) {
        if (!c.axes.contains(axis)) continue;
        const int times = times_per_step(c.when, microbatches);
        sum.bytes += c.sent_bytes * times;
        if (network) sum.ms += network_ms(*network, c) * times;
    }
    return sum;
}

// Returns the bytes of gradients, parameters and statistics that a rank sends per step.
double parameter_bytes(const Config& config, const Ranks& ranks, DType compute, int microbatches) {
    const ParameterTable table = parameters_of(config.model, config.longest_sequence(), ranks.tensor());
    const BucketLayout layout(table,
                              bucket_rules(ranks, table, config.optimizers, rank_tokens(config, ranks)));
    double sum = 0;
    for (const double bytes : step_wire_bytes(step_collectives(layout, ranks, compute), microbatches))
        sum += bytes;
    return sum;
}

// Ranks that share rows or matrices have additional communication.
void print_axis_advice(Axis axis, const Config& config, const Ranks& ranks, DType compute,
                       const BucketCollectives& values, const std::optional<SimulatedNetwork>& network) {
    const Mesh& mesh = ranks.mesh();
    const int size = mesh.size(axis), others = ranks.num_data_ranks() * size;
    const int64_t rows = config.batch.tokens_per_step / config.batch.sequence_length;
    if (size == 1 || rows % others != 0) return;
    std::array<int, kNumAxes> sizes{};
    for (const Axis each : kAxes) sizes[static_cast<size_t>(each)] = mesh.size(each);
    sizes[static_cast<size_t>(axis)] = 1;
    sizes[static_cast<size_t>(Axis::shard)] *= size;
    const Ranks alone(Mesh(sizes), ranks.sharing());
    const auto microbatches = static_cast<int>(config.microbatches_per_step(ranks.num_data_ranks()));
    const SentValues sent = sent_over(axis, values, microbatches, network);
    const char* const hidden = axis == Axis::tensor ? "products hide in part" : "nothing hides";
    const double more =
        parameter_bytes(config, alone, compute, 1) - parameter_bytes(config, ranks, compute, microbatches);
    std::printf(
        "advice: a step has %lld rows, enough for %d ranks with rows of their own: --set parallel.%s=1 sends %.1f MiB "
        "less per rank and step%s, which %s, and %.1f MiB %s of gradients and parameters, most of which is hidden; "
        "share %s only where %s too large for a rank\n",
        static_cast<long long>(rows), others, name_of(axis), sent.bytes / kMiB,
        network ? fmt::format(" ({:.1f} ms on the simulated network)", sent.ms).c_str() : "", hidden,
        std::abs(more) / kMiB, more < 0 ? "less" : "more", axis == Axis::context ? "rows" : "matrices",
        axis == Axis::context ? "one is" : "the model is");
}

// If a bucket is too small for n ranks, fewer ranks should shard it, with replicas.
void print_advice(const Ranks& ranks, const ParameterTable& table) {
    const int shard = ranks.mesh().size(Axis::shard), replicate = ranks.mesh().size(Axis::replicate);
    const int fitting = ranks_that_fit(ranks.sharing(), shard, table.numel());
    if (fitting == shard || ranks.sharing().strategy == Strategy::ddp) return;
    std::printf(
        "advice: over %d ranks, buckets of %.1f MiB are mostly latency: --set parallel.replicate=%d cuts "
        "them among %d ranks only, and sums the parts over the copies\n",
        shard,
        static_cast<double>(bucket_target(ranks.sharing(), shard, table.numel()) * size_of(DType::f32)) /
            kMiB,
        replicate * shard / fitting, fitting);
}

}  // namespace

void print_communication(const Config& config, const Ranks& ranks, DType compute,
                         const BucketCollectives& values) {
    if (ranks.mesh().world_size() == 1) {
        std::printf("communication: one rank, none\n");
        return;
    }
    const ParameterTable table = parameters_of(config.model, config.longest_sequence(), ranks.tensor());
    const BucketLayout layout(table,
                              bucket_rules(ranks, table, config.optimizers, rank_tokens(config, ranks)));
    std::vector<BucketCollectives> rows = step_collectives(layout, ranks, compute);
    if (!values.collectives.empty()) rows.insert(rows.begin(), values);
    std::printf("\ncommunication: %d ranks, %s, %s; reductions start when %s\n", ranks.mesh().world_size(),
                ranks.mesh().describe().c_str(), word_of(ranks.sharing().strategy),
                ranks.sharing().launch == Launch::ready ? "a gradient is ready" : "backward has ended");
    print_whole_attention(config, ranks);
    const std::optional<SimulatedNetwork> network = simulated_network(config.parallel);
    const auto microbatches = static_cast<int>(config.microbatches_per_step(ranks.num_data_ranks()));
    double reduce_ms = 0, gather_ms = 0;
    size_t width = 0;
    for (const BucketCollectives& row : rows) width = std::max(width, row.name.size());
    for (const BucketCollectives& row : rows) {
        std::string name = row.name;
        for (const auto& [collective, times] : counted(row)) {
            std::string text = (times > 1 ? fmt::format("{} x ", times) : "") + collective.describe();
            if (network) {
                const double ms = times * network_ms(*network, collective);
                (collective.kind == Collective::all_gather ? gather_ms : reduce_ms) +=
                    ms * times_per_step(collective.when, microbatches);
                text += fmt::format(", {:.3f} ms", ms);
            }
            std::printf("  %-*s  %s\n", static_cast<int>(width), name.c_str(), text.c_str());
            name.clear();
        }
    }
    print_sent(rows, microbatches);
    if (ranks.mesh().size(Axis::context) > 1 && config.data.document_mask)
        std::printf(
            "  keys and values hidden from a rank by documents are not sent: actual traffic is lower\n");
    if (std::any_of(layout.all().begin(), layout.all().end(), [](const Bucket& b) { return b.max_rows > 0; }))
        std::printf(
            "  each row of a table is sent once for any number of tokens: actual traffic is lower; row ids, 4 bytes each, are "
            "all-gathered in addition\n");
    print_owners(layout, config.optimizers);
    print_advice(ranks, table);
    for (const Axis axis : {Axis::context, Axis::tensor})
        print_axis_advice(axis, config, ranks, compute, values, network);
    if (!network) return;
    std::printf(
        "on the simulated network (%g us, %s, jitter up to %g us): %.1f ms of reductions and %.1f ms of "
        "gathers per step, without waits for late ranks\n",
        config.parallel.simulate_latency_us,
        network->model.bytes_per_s > 0 ? fmt::format("{:g} GB/s", network->model.bytes_per_s * 1e-9).c_str()
                                       : "any bandwidth",
        config.parallel.simulate_jitter_us, reduce_ms, gather_ms);
}

}  // namespace speedrun
