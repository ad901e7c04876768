// StepNumbers: numbers of all optimizers that change from step to step (learning rates, momenta, bias corrections), in device
// memory. Captured work reads the values of the step that launches it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/runtime/runtime.h"

namespace speedrun {

class StepNumbers {
  public:
    // counts: numbers of each group. The runtime must outlive it.
    StepNumbers(const std::vector<int64_t>& counts, Runtime& runtime);

    // Returns the numbers of a group: f32 [count].
    Tensor of(size_t group) const;
    // Enqueues a copy of the values of all groups on the optimizer's stream, which reads them.
    void write(const std::vector<std::vector<float>>& values);

  private:
    // Host memory of a copy. More of them than steps that are enqueued ahead: no write waits for the device.
    struct Staging {
        HostBuffer memory;
        std::unique_ptr<Event> copied;
    };

    Runtime& runtime_;
    std::vector<int64_t> begins_;  // offset of each group, then their total
    Buffer memory_;
    std::array<Staging, 3> staging_;
    size_t writes_ = 0;
};

}  // namespace speedrun
