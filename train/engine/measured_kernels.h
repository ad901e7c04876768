// Kernel times measured on a real GPU, which replace the model of kernels/ops/gpu_models.h. Read from a report of
// scripts/gpu_check.sh or from the output of op_bench.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/ops/gpu_models.h"

namespace speedrun {

class MeasuredKernels {
  public:
    struct Case {
        std::string name, op;
        // Without the operation's name. Attention: a shape if all causal keys are visible, otherwise only the head size.
        OpCost cost{};
        double share_of_bound = 0;  // roofline bound / median, with the report's own peaks
        double ms = 0;              // median; 0: not in the report
    };

    // Reads the passed cases in this compute dtype. Matmul and attention cases count only for the kernel in `choice`;
    // cuDNN attention never counts. If names repeat, the last case counts. Lines that are not JSON, as left by a killed
    // run, are skipped with a warning. Throws a data error if the file cannot be read or has no such case.
    MeasuredKernels(const std::string& path, DType compute_dtype, KernelChoice choice);

    // Returns the case of this operation with the fewest differences in kind; among these, with the nearest FLOPs and bytes
    // (smallest sum of log ratios). Null without a case. Kinds: head size and hidden keys of attention; targets,
    // softcap and 8-bit gradients of a loss; terms of a sum.
    const Case* nearest(const OpCost& cost) const;
    // Returns the model with the report's peaks of large matmuls and copies.
    GpuModel with_rates(GpuModel gpu) const;

  private:
    void take(const nlohmann::json& record, KernelChoice choice);

    const DType compute_dtype_;
    std::map<std::string, Case> cases_;  // key: name
    double flops_per_s_ = 0, bytes_per_s_ = 0;
};

}  // namespace speedrun
