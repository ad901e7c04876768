// What a report of a real card (of scripts/gpu_check.sh, or the lines that op_bench writes) puts in the place of
// the figures of kernels/ops/gpu_models.h.
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
        double flops = 0, bytes = 0;
        double share_of_floor = 0;  // floor over median, by the report's own rates
    };

    // Reads the cases that passed in this compute type, of the kernels that are chosen; of attention our own. The last of cases with one name counts. Data error if the file cannot be read or has
    // none; lines that are no JSON, as a killed run leaves them, are passed over.
    MeasuredKernels(const std::string& path, DType real, KernelChoice choice);

    // The case of this operation that is nearest to the call in FLOPs and bytes (sum of the logarithms of
    // their ratios); null where there is none.
    const Case* nearest(const OpCost& cost) const;
    // The model with the rates of large products and copies that the report has.
    GpuModel with_rates(GpuModel gpu) const;

  private:
    void take(const nlohmann::json& record, KernelChoice choice);

    const DType real_;
    std::map<std::string, Case> cases_;  // by name
    double flops_per_s_ = 0, bytes_per_s_ = 0;
};

}  // namespace speedrun
