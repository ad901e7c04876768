#include "train/commands/plan_timeline.h"

#include <cstdio>
#include <string>
#include <vector>

#include "train/engine/memory_plan.h"
#include "train/model/build_model.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

constexpr int kMinRanks = 8, kMaxRanks = 4096;
constexpr double kShareWorthWarning = 0.1;
constexpr size_t kMaxParts = 8;

// Returns the share of padding zeros in the bytes of the buckets' collectives in a step.
double padding_share(const Config& config, const Ranks& ranks, DType compute) {
    const ParameterTable table = parameters_of(config.model, config.longest_sequence(), ranks.tensor());
    const BucketLayout layout(table,
                              bucket_rules(ranks, table, config.optimizers, rank_tokens(config, ranks)));
    double padding = 0, payload = 0;
    for (const BucketCollectives& row : step_collectives(layout, ranks, compute)) {
        for (const StepCollective& c : row.collectives) {
            padding += static_cast<double>(c.padding_bytes);
            payload += static_cast<double>(c.payload_bytes);
        }
    }
    return payload > 0 ? padding / payload : 0;
}

std::vector<std::string> warnings_of(const Config& config, const Ranks& ranks, DType compute,
                                     const StepTimeline& step) {
    std::vector<std::string> warnings;
    const auto warn = [&](double share, const std::string& text) {
        if (share >= kShareWorthWarning) warnings.push_back(text);
    };
    const double padding = padding_share(config, ranks, compute);
    warn(padding, fmt::format("padding: {:.0f}% of the bytes of buckets are zeros (fewer, larger buckets: "
                              "parallel.bucket_bytes; or fewer ranks to a bucket: parallel.replicate)",
                              100 * padding));
    const double late = step.reduced_bytes > 0 ? step.late_bytes / step.reduced_bytes : 0;
    warn(late, fmt::format("{:.0f}% of the bytes of gradients are reduced after backward, overlapped only "
                           "with optimizer steps",
                           100 * late));
    const double exposed = step.exposed_ms / step.step_ms;
    warn(exposed, fmt::format("{:.0f}% of the step is exposed communication", 100 * exposed));
    const double latency = step.communication_ms > 0 ? step.latency_ms / step.communication_ms : 0;
    warn(latency - 0.4, fmt::format("{:.0f}% of the communication is latency, not bytes", 100 * latency));
    return warnings;
}

// The config on another number of ranks with the same number of tokens per rank. Empty: not possible with this mesh.
struct Scaled {
    Config config;
    Ranks ranks;
};
std::optional<Scaled> scaled_to(Config config, const Ranks& now, int size) {
    ParallelConfig& parallel = config.parallel;
    const Mesh& mesh = now.mesh();
    const int within = mesh.size({Axis::context, Axis::tensor});
    if (size % within != 0) return std::nullopt;
    if (parallel.shard != "auto") {
        const int shard = mesh.size(Axis::shard);
        if (size % (within * shard) != 0) return std::nullopt;
        parallel.replicate = size / (within * shard);
    } else if (size % (within * parallel.replicate) != 0) {
        return std::nullopt;
    }
    config.batch.tokens_per_step =
        config.batch.tokens_per_step / now.num_data_ranks() * static_cast<int64_t>(size / within);
    Ranks ranks = plan_ranks(config, size);
    return Scaled{std::move(config), std::move(ranks)};
}

void print_step(const StepTimeline& step) {
    std::printf("step %.3f ms: %.3f ms computing, %.3f ms of exposed communication\n\n", step.step_ms,
                step.compute_ms, step.exposed_ms);
    if (!step.regions.empty()) {
        std::printf("%-26s %8s %10s %10s %11s\n", "communication", "calls", "MB sent", "ms", "exposed ms");
        for (const CommunicationRegion& r : step.regions)
            std::printf("%-26s %8g %10.1f %10.3f %11.3f\n", r.name.c_str(), r.calls, r.bytes * 1e-6, r.ms,
                        r.exposed_ms);
        std::printf("\n");
    }
    std::printf("%-50s %10s %8s\n", "critical path", "ms", "pieces");
    double rest = 0, rest_pieces = 0;
    for (size_t i = 0; i < step.critical_path.size(); ++i) {
        const CriticalSegment& part = step.critical_path[i];
        if (i < kMaxParts) {
            std::printf("%-50s %10.3f %8g\n", part.name.c_str(), part.ms, part.pieces);
        } else {
            rest += part.ms;
            rest_pieces += part.pieces;
        }
    }
    if (rest > 0) std::printf("%-50s %10.3f %8g\n", "the rest", rest, rest_pieces);
}

}  // namespace

Network network_of(const PlanOptions& options, const GpuModel& gpu) {
    return options.network.empty() ? default_network(gpu) : read_network(options.network);
}

PlannedGpu::PlannedGpu(const PlanOptions& options, const Config& config)
    : model_(find_gpu_model(options.gpu)) {
    if (options.measured.empty()) return;
    report_.emplace(options.measured, gpu_compute_type(config), kernel_choice(config, model_));
    model_ = report_->with_rates(model_);
}

int print_timeline(const PlanOptions& options, const Config& stage, const Ranks& ranks) {
    const DType compute_dtype = gpu_compute_type(stage);
    const PlannedGpu planned(options, stage);
    const GpuModel& gpu = planned.model();
    const MeasuredKernels* const report = planned.report();
    const Network network = network_of(options, gpu);
    const PredictedStep here = predict_gpu_step(stage, ranks, gpu, report, network);
    std::printf("%s on %d x %s (modelled), %s, %s; rank 0 represents all ranks\n", options.config.c_str(),
                ranks.mesh().world_size(), gpu.title, ranks.mesh().describe().c_str(),
                word_of(ranks.sharing().strategy));
    std::printf("network%s: %s (%s)\n\n", options.network.empty() ? ", the default" : "",
                network.name.c_str(), network.source.c_str());
    print_step(here.timeline);
    std::printf("\n%8s %12s %12s %12s %11s\n", "GPUs", "step ms", "exposed ms", "tokens/s", "efficiency");
    const auto row = [](int size, const Config& config, const StepTimeline& step, double alone) {
        std::printf("%8d %12.3f %12.3f %12.0f %10.0f%%\n", size, step.step_ms, step.exposed_ms,
                    static_cast<double>(config.batch.tokens_per_step) / (step.step_ms * 1e-3),
                    100 * alone / step.step_ms);
    };
    std::optional<double> alone;
    const int fewest = ranks.mesh().size({Axis::context, Axis::tensor});
    for (int size = fewest; size <= kMaxRanks; size = size < kMinRanks ? kMinRanks : 2 * size) {
        const auto scaled = scaled_to(stage, ranks, size);
        if (!scaled) continue;
        const StepTimeline step =
            predict_gpu_step(scaled->config, scaled->ranks, gpu, report, network).timeline;
        if (!alone) alone = step.step_ms;
        row(size, scaled->config, step, *alone);
    }
    std::printf("efficiency: weak scaling, against the step of the smallest possible mesh\n");
    for (const std::string& warning : warnings_of(stage, ranks, compute_dtype, here.timeline))
        std::printf("warning: %s\n", warning.c_str());
    std::printf("note: modelled, not measured; streams that compute at the same time share the GPU; %s\n",
                documents_note(stage).c_str());
    if (!options.trace.empty()) {
        write_predicted_trace(here.steps, here.timeline, options.trace);
        std::printf("written: %s\n", options.trace.c_str());
    }
    return 0;
}

}  // namespace speedrun
