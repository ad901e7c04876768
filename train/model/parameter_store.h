// The values of all parameters on the device: f32 masters, and the copies that compute reads.
#pragma once

#include <vector>

#include "train/model/parameter_table.h"
#include "train/model/runtime.h"

namespace speedrun {

class ParameterStore {
  public:
    ParameterStore(const ParameterTable& table, Runtime& runtime);

    // What forward and backward read: the compute type, or f32 for full-precision parameters. Shape of the
    // table.
    Tensor compute(const Parameter& p) const;
    // The f32 master, flat [n]. The same memory as the compute copy where that is f32.
    Tensor master(const Parameter& p) const;
    Tensor compute_flat(const Parameter& p) const;

    // Enqueues the initial values on the compute stream: a function of (seed, parameter, element) alone.
    void initialize(uint64_t seed);
    // Enqueues the rounding of one master to its compute copy.
    void publish(const Parameter& p, Stream& stream);

  private:
    DType dtype_of(const Parameter& p) const;

    const ParameterTable& table_;
    Runtime& runtime_;
    Buffer masters_, copies_;
    std::vector<int64_t> master_offset_, copy_offset_;  // bytes
};

}  // namespace speedrun
