#include "train/engine/step_model.h"

#include <algorithm>
#include <map>

#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"

namespace speedrun {

DryStep dry_gpu_step(Config config, DType real) {
    RuntimeOptions options = dry_runtime_options(config);
    options.device = DeviceKind::cpu;  // the device determines only this default:
    config.memory.logits_at_once = config.memory.logits_on(DeviceKind::cuda);
    options.precision = real;
    return {std::move(config), options};
}

KernelChoice kernel_choice(const Config& config, const GpuModel& gpu) {
    return {.hand_products = config.cuda.products == Products::hand,
            .wgmma_attention = config.cuda.attention == AttentionKind::wgmma && gpu.has_wgmma &&
                               gpu_compute_type(config) == DType::bf16};
}

OperationTimes::OperationTimes(const Config& config, const GpuModel& model, const MeasuredKernels* report)
    : gpu(model), measured(report), real(gpu_compute_type(config)), choice(kernel_choice(config, model)) {}

ModelledCall OperationTimes::of(const OpCost& cost) const {
    const MeasuredKernels::Case* const found = measured ? measured->nearest(cost) : nullptr;
    return model_call(cost, real, gpu, kernel_model(cost.op, choice), found ? found->share_of_floor : 0);
}

std::string OperationTimes::source_of(const OpCost& cost) const {
    const MeasuredKernels::Case* const found = measured ? measured->nearest(cost) : nullptr;
    return found ? "measured: " + found->name : kernel_model(cost.op, choice).source;
}

std::vector<OpCost> step_operations(const Config& of, const Ranks& ranks, DType real, int64_t& period) {
    const auto [config, options] = dry_gpu_step(of, real);
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
    StepModel model;
    model.real = gpu_compute_type(config);
    model.microbatches = config.microbatches_per_step(ranks.num_data_ranks());
    int64_t period = 1;
    const std::vector<OpCost> costs = step_operations(config, ranks, model.real, period);
    const OperationTimes times(config, gpu, measured);
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
        row.floor_ms += call.floor_ms * per_step;
        row.ms += call.ms * per_step;
        if (call.compute_bound) compute_ms[cost.name()] += call.floor_ms * per_step;
        model.gap_ms += call.gap_ms * per_step;
    }
    for (auto& [name, row] : rows) {
        row.name = name;
        row.compute_bound = compute_ms[name] > row.floor_ms / 2;
        model.floor_ms += row.floor_ms;
        model.ms += row.ms;
        model.operations.push_back(row);
    }
    std::stable_sort(
        model.operations.begin(), model.operations.end(),
        [](const ModelledOperation& a, const ModelledOperation& b) { return a.lost_ms() > b.lost_ms(); });
    return model;
}

}  // namespace speedrun
