#include "train/engine/step_model.h"

#include <algorithm>

#include "kernels/ops/epilogue_model.h"
#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"

namespace speedrun {

DryStep dry_gpu_step(Config config, DType compute_dtype, const KernelChoice& kernels) {
    RuntimeOptions options = dry_runtime_options(config);
    options.device = DeviceKind::cpu;  // the device determines only this default:
    config.memory.logits_at_once = config.memory.logits_on(DeviceKind::cuda);
    options.precision = compute_dtype;
    options.wgmma_attention = kernels.wgmma_attention;
    return {std::move(config), options};
}

KernelChoice kernel_choice(const Config& config, const GpuModel& gpu) {
    const bool wgmma = gpu.has_wgmma && gpu_compute_type(config) == DType::bf16;
    return {.native_matmul = config.cuda.products == MatmulKind::native,
            .wgmma_attention = wgmma && config.cuda.attention == AttentionKind::wgmma,
            .wgmma_matmul = wgmma && config.cuda.products == MatmulKind::wgmma};
}

OperationTimes::OperationTimes(const Config& stage, const GpuModel& gpu, const MeasuredKernels* report,
                               const DocumentLengths& documents)
    : gpu_(gpu),
      measured_(report),
      compute_dtype_(gpu_compute_type(stage)),
      choice_(kernel_choice(stage, gpu)),
      first_keys_(std::make_shared<std::vector<int32_t>>(packed_first_keys(stage, documents))),
      row_length_(stage.batch.sequence_length),
      works_(std::make_shared<std::map<std::pair<AttentionShape, std::string>, AttentionWork>>()) {}

AttentionWork OperationTimes::work_of(const OpCost& cost, const KernelModel& kernel) const {
    if (!cost.attention.present()) return {};
    const auto [found, fresh] = works_->try_emplace({cost.attention, cost.op});
    if (fresh) {
        const AttentionTiming* const timing = attention_timing(cost, compute_dtype_, kernel);
        const bool packed = cost.attention.keys == row_length_;  // false: a case of a report
        found->second =
            attention_work(cost.attention, timing ? timing->tiling : AttentionTiling{kAttentionOwned, 0},
                           packed ? *first_keys_ : std::vector<int32_t>());
        if (!timing) found->second.blocks = 0;
    }
    return found->second;
}

KernelModel OperationTimes::kernel_of(const OpCost& cost) const {
    KernelChoice choice = choice_;
    choice.wgmma_attention = choice_.wgmma_attention && wgmma_serves(cost.attention);
    choice.portable_attention = compute_dtype_ == DType::bf16 && cost.attention.present() &&
                                !choice.wgmma_attention && !has_mma_kernels(widths_of(cost.attention));
    return kernel_model(cost.op, choice);
}

ModelledCall OperationTimes::modelled(const OpCost& cost, double share_of_bound) const {
    const KernelModel kernel = kernel_of(cost);
    return model_call(cost, compute_dtype_, gpu_, kernel, share_of_bound, work_of(cost, kernel));
}

ModelledCall OperationTimes::of(const OpCost& cost) const {
    const MeasuredKernels::Case* const found = measured_ ? measured_->nearest(cost) : nullptr;
    if (!found) return modelled(cost, 0);
    if (found->cost.product.epilogue != op::EpilogueKind::none) {
        ModelledCall call = modelled(cost, 0);
        call.ms = call.bound_ms / found->share_of_bound + call.gap_ms;
        return call;
    }
    if (!found->cost.attention.present() || found->ms == 0) return modelled(cost, found->share_of_bound);
    // Tiles of a causal case are known, so its time corrects the model of a tile.
    OpCost timed = found->cost;
    timed.op = cost.op;
    ModelledCall call = modelled(cost, 0);
    call.ms *= found->ms / modelled(timed, 0).ms;
    return call;
}

std::string OperationTimes::source_of(const OpCost& cost) const {
    const MeasuredKernels::Case* const found = measured_ ? measured_->nearest(cost) : nullptr;
    if (found) return "measured: " + found->name;
    const KernelModel kernel = kernel_of(cost);
    const DType operands = std::string_view(cost.op) == "scaled_matmul" ? DType::e4m3 : compute_dtype_;
    if (kernel.wgmma_epilogue && wgmma_matmul_wins(cost.product, operands)) return kWgmmaMatmulSource;
    const AttentionTiming* const timing = attention_timing(cost, compute_dtype_, kernel);
    return timing ? timing->source : kernel.source;
}

std::vector<OpCost> step_operations(const Config& of, const Ranks& ranks, const OperationTimes& times,
                                    int64_t& period) {
    const auto [config, options] = dry_gpu_step(of, times.compute_dtype(), times.kernels());
    Runtime runtime(options);
    MeteredOps& meter = runtime.meter();
    StepRunner runner(config, runtime, ranks.without_world());
    SyntheticBatches batches(config, ranks);
    runner.warm_up();
    period = runner.state().period;
    const int64_t first = runner.first_steady_step();
    meter.start();
    for (int64_t step = first; step < first + period; ++step) {
        runner.enqueue(step, batches);
        runner.collect();
    }
    meter.stop();
    std::vector<OpCost> costs;
    for (const MeteredOps::Call& call : meter.calls()) costs.push_back(call.cost);
    return costs;
}

DType gpu_compute_type(const Config& config) {
    return config.precision.value_or(DType::bf16);
}

StepModel model_step(const Config& config, const Ranks& ranks, const GpuModel& gpu,
                     const MeasuredKernels* measured) {
    return model_step(config, ranks, OperationTimes(config, gpu, measured));
}

StepModel model_step(const Config& config, const Ranks& ranks, const OperationTimes& times) {
    StepModel model;
    model.compute_dtype = times.compute_dtype();
    model.microbatches = config.microbatches_per_step(ranks.num_data_ranks());
    int64_t period = 1;
    const std::vector<OpCost> costs = step_operations(config, ranks, times, period);
    const double per_step = 1.0 / static_cast<double>(period);
    std::map<std::string, ModelledOperation> rows;
    std::map<std::string, double> compute_ms;  // share of a row's bound set by matmuls
    for (const OpCost& cost : costs) {
        const ModelledCall call = times.of(cost);
        ModelledOperation& row = rows[cost.name()];
        row.source = times.source_of(cost);
        row.calls += per_step;
        row.flops += static_cast<double>(cost.flops) * per_step;
        row.bytes += static_cast<double>(cost.bytes) * per_step;
        row.bound_ms += call.bound_ms * per_step;
        row.ms += call.ms * per_step;
        if (call.compute_bound) compute_ms[cost.name()] += call.bound_ms * per_step;
        row.gap_ms += call.gap_ms * per_step;
    }
    for (auto& [name, row] : rows) {
        row.name = name;
        row.compute_bound = compute_ms[name] > row.bound_ms / 2;
        model.bound_ms += row.bound_ms;
        model.ms += row.ms;
        model.gap_ms += row.gap_ms;
        model.operations.push_back(row);
    }
    std::stable_sort(
        model.operations.begin(), model.operations.end(),
        [](const ModelledOperation& a, const ModelledOperation& b) { return a.lost_ms() > b.lost_ms(); });
    return model;
}

}  // namespace speedrun
