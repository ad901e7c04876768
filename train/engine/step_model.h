// A step on a GPU that is not here, modelled: the step's own schedule, run on a device that computes nothing,
// and what kernels/ops/gpu_models.h says of each operation in it. What `speedrun plan --gpu` prints.
#pragma once

#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/config/config.h"
#include "train/engine/measured_kernels.h"
#include "train/sharding/ranks.h"

namespace speedrun {

// Figures of a step: of calls of the same OpCost::name().
struct ModelledOperation {
    std::string name;
    double calls = 0, flops = 0, bytes = 0, floor_ms = 0, ms = 0;
    bool compute_bound = false;  // most of the floor is
    std::string source;          // of the share of the floor: what was assumed, or the case that was measured

    double lost_ms() const { return ms - floor_ms; }
};

struct StepModel {
    std::vector<ModelledOperation> operations;  // what loses most first
    DType real = DType::f32;
    int64_t microbatches = 0;  // of one rank, per step
    double floor_ms = 0;
    double ms = 0;      // operations one after the other
    double gap_ms = 0;  // of that, between kernels
};

// A config, and the device that its step is taken on, which computes nothing: as on a GPU of this compute type.
struct DryStep {
    Config config;
    RuntimeOptions runtime;
};
DryStep dry_gpu_step(Config config, DType real);

KernelChoice kernel_choice(const Config& config, const GpuModel& gpu);

// How long operations of a config take on a GPU.
struct OperationTimes {
    const GpuModel& gpu;
    const MeasuredKernels* measured;  // may be null
    DType real;
    KernelChoice choice;

    OperationTimes(const Config& config, const GpuModel& model, const MeasuredKernels* report);
    ModelledCall of(const OpCost& cost) const;
    // Where the share of the floor is from.
    std::string source_of(const OpCost& cost) const;
};

// Calls of the operations of `period` steps (after which all optimizer groups have had their turn) of one of
// these ranks, in order, as a run makes them on a device of this compute type.
std::vector<OpCost> step_operations(const Config& of, const Ranks& ranks, DType real, int64_t& period);

// bf16 unless the config asks for f32: every GPU there is a model of has it.
DType gpu_compute_type(const Config& config);

// One GPU, of one rank; what ranks send each other takes no time here. measured: takes the place of assumed
// shares, where it has the operation; may be null.
StepModel model_step(const Config& config, const Ranks& ranks, const GpuModel& gpu,
                     const MeasuredKernels* measured = nullptr);

}  // namespace speedrun
