// What every optimizer offers: one step of one region of parameters, enqueued. Implementations: adamw.h,
// muon.h.
#pragma once

#include <memory>
#include <vector>

#include "train/distributed/reducer.h"

namespace speedrun {

struct StepContext {
    int64_t step = 0;      // of this optimizer, from 0
    double lr_factor = 1;  // of the schedule
    Tensor grad_scale;     // f32 [1]: gradients are multiplied by it; not finite: the step changes nothing
    Stream* stream = nullptr;
};

// What an optimizer remembers of a parameter: `values` numbers for each `elements` elements in a row. So a
// piece of the parameter has its own piece of the state, however parameters are cut among ranks.
struct StateKind {
    const char* name;  // "adamw_m"; lives for ever
    int64_t elements = 1, values = 1;
};
struct StatePart {
    StateKind kind;
    Tensor values;  // f32 [k], of this rank's part of a region; k may be 0
    // Not of this rank's part, but of a whole matrix: numbers of the region's parameter that lie before.
    int64_t begin = -1;
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    // Steps this rank's part of a region: its gradient, master and compute copy.
    virtual void step(const Region& region, const StepContext& context) = 0;
    // Enqueues the state of step 0.
    virtual void reset(Stream& stream) = 0;
    // Everything that step() reads and changes besides the master, for this rank's part of a region: what a
    // checkpoint holds.
    virtual std::vector<StatePart> state(const Region& region) const = 0;
};

// An optimizer of this group's type for these regions, which the type can train (see assign_groups), in the
// order in which they are stepped. What it is given must outlive it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Region*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Reducer& reducer, Runtime& runtime);
// The kinds of state that it has of matrices rows x cols (0 x 0: of what is not a matrix), in the order of
// Optimizer::state.
std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols);
// Does an optimizer of this type need whole matrices?
inline bool needs_whole_matrices(const OptimizerGroupConfig& group) {
    return group.type == "muon";
}

}  // namespace speedrun
