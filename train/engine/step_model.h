// Models a step on a GPU that is not present: runs the step's schedule on a device that computes nothing, and takes
// each operation's time from kernels/ops/gpu_models.h. Printed by `speedrun plan --gpu`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/config/config.h"
#include "train/engine/document_lengths.h"
#include "train/engine/measured_kernels.h"
#include "train/sharding/ranks.h"

namespace speedrun {

// Sums over the calls with the same OpCost::name() in a step.
struct ModelledOperation {
    std::string name;
    double calls = 0, flops = 0, bytes = 0, bound_ms = 0, ms = 0;
    double gap_ms = 0;           // included in ms
    bool compute_bound = false;  // true if compute sets most of bound_ms
    // source of the share of the roofline bound: the assumption or the measured case
    std::string source;

    double lost_ms() const { return ms - bound_ms; }
};

struct StepModel {
    std::vector<ModelledOperation> operations;  // largest lost_ms() first
    DType compute_dtype = DType::f32;
    int64_t microbatches = 0;  // per step and rank
    double bound_ms = 0;
    double ms = 0;      // sum of operations in sequence
    double gap_ms = 0;  // included in ms: time between kernels
};

KernelChoice kernel_choice(const Config& config, const GpuModel& gpu);

// Config and runtime of a step on a device that computes nothing, with the defaults of a GPU and this compute dtype. These
// kernels decide fusions.
struct DryStep {
    Config config;
    RuntimeOptions runtime;
};
DryStep dry_gpu_step(Config config, DType compute_dtype, const KernelChoice& kernels);

// Modelled times of the operations of a config of one stage on a GPU. Copies share the counts of attention's tiles.
class OperationTimes {
  public:
    // report: may be null. GPU and report must outlive this object.
    OperationTimes(const Config& stage, const GpuModel& gpu, const MeasuredKernels* report)
        : OperationTimes(stage, gpu, report, document_lengths(stage)) {}
    OperationTimes(const Config& stage, const GpuModel& gpu, const MeasuredKernels* report,
                   const DocumentLengths& documents);

    DType compute_dtype() const { return compute_dtype_; }
    const KernelChoice& kernels() const { return choice_; }
    ModelledCall of(const OpCost& cost) const;
    // Returns the source of the share of the roofline bound.
    std::string source_of(const OpCost& cost) const;

  private:
    KernelModel kernel_of(const OpCost& cost) const;
    ModelledCall modelled(const OpCost& cost, double share_of_bound) const;
    AttentionWork work_of(const OpCost& cost, const KernelModel& kernel) const;

    const GpuModel& gpu_;
    const MeasuredKernels* const measured_;
    const DType compute_dtype_;
    const KernelChoice choice_;
    const std::shared_ptr<const std::vector<int32_t>> first_keys_;
    const int64_t row_length_;  // tokens per row of first_keys_
    const std::shared_ptr<std::map<std::pair<AttentionShape, std::string>, AttentionWork>> works_;
};

// Returns the operations of `period` steps of one of these ranks, in the order and shapes of a run, from
// StepRunner::first_steady_step(). times: of that run. `period` is set to the optimizer groups' common period.
std::vector<OpCost> step_operations(const Config& of, const Ranks& ranks, const OperationTimes& times,
                                    int64_t& period);

// bf16 unless the config requests f32: every modelled GPU supports bf16.
DType gpu_compute_type(const Config& config);

// Models one rank on one GPU, without communication time. measured: replaces assumed shares for the operations that it
// contains; may be null.
StepModel model_step(const Config& config, const Ranks& ranks, const GpuModel& gpu,
                     const MeasuredKernels* measured = nullptr);
StepModel model_step(const Config& config, const Ranks& ranks, const OperationTimes& times);

}  // namespace speedrun
