// The interface of an optimizer: functions that enqueue a step of the pieces that they receive. An optimizer declares its
// config and its state. Its caller (train/sharding/group_update.h) allocates the state, checkpoints it and selects the
// pieces of a rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"
#include "train/fields/choice.h"
#include "train/fields/field_visitor.h"
#include "train/fields/scheduled.h"

namespace speedrun {

// Factor of weight_decay in a step: the learning rate, or its square.
enum class DecayBy : uint8_t { lr, lr_squared };
template <>
inline constexpr Word<DecayBy> kWords<DecayBy>[] = {{"lr", DecayBy::lr}, {"lr_squared", DecayBy::lr_squared}};

// Settings of a group that every optimizer has.
struct StepSettings {
    double lr = 0.001;
    double weight_decay = 0;
    DecayBy weight_decay_by = DecayBy::lr;
    int64_t every = 1;
    // A frozen group has no optimizer state; its gradients are neither reduced nor counted in the norm.
    bool frozen() const { return lr == 0; }
};

// Weight decay of a step at this learning rate. Weights shrink by lr times the result.
inline double weight_decay_at(const StepSettings& group, double lr) {
    return group.weight_decay_by == DecayBy::lr ? group.weight_decay : lr * group.weight_decay;
}

// Steps of a run at which a group with `every: k` updates its parameters: the last of each period of k steps. The gradients of
// a period are summed.
// True if no gradient is pending in the group before this step.
inline bool begins_period(const StepSettings& group, int64_t step) {
    return step % group.every == 0;
}
// True if the group updates its parameters at the end of this step.
inline bool updates_at(const StepSettings& group, int64_t step) {
    return (step + 1) % group.every == 0;
}
// Returns the number of the group's updates before this step.
inline int64_t updates_before(const StepSettings& group, int64_t step) {
    return step / group.every;
}
// Returns the number of the group's updates in the last `steps` steps, the end of which is the end of a period.
inline int64_t updates_in_last(const StepSettings& group, int64_t steps) {
    return steps > 0 ? (steps - 1) / group.every + 1 : 0;
}

// Ranges that optimizers share. A decay of 1 would freeze a running mean and make its bias correction divide by 0, and
// an f32 closer to 1 is 1. Below kMinEpsilon the reciprocal of an f32 could be infinite.
constexpr Limits kDecays{0, 0.999999};
constexpr double kMinEpsilon = 1e-30;

// The group of the checked optimizer.
struct CheckedGroup {
    std::string name;  // "optimizers.groups[0]"
    int64_t run_steps;
    int64_t every;
    DType weights_dtype = DType::f32;
    int64_t steps() const { return run_steps / every; }
};

struct StepContext {
    int64_t step = 0;  // counts the steps of this optimizer from 0
    double lr_factor = 1;
    StagePoint point = {};
    bool last = false;    // last step of this optimizer in the run
    Tensor grad_scale;    // f32 [1]: factor of the gradients. If it is not finite, the step changes nothing.
    Tensor numbers = {};  // f32: numbers() of this step, in device memory
    Ops& ops;
    Stream& stream;
};

// out = Σ factor·coefficient·source (WeightedSumForward) of flat f32 tensors of one length. out may be a source.
inline void sum_flat(const Tensor& out, const WeightedTerms& terms, const StepContext& context) {
    constexpr int64_t kColumns = 1024;  // rows are divided among threads
    const auto sum = [&](int64_t first, int64_t rows, int64_t cols) {
        const auto matrix = [&](const Tensor& flat) {
            float* const data = flat.as<float>();
            return Tensor(data ? data + first : nullptr, DType::f32, {rows, cols});
        };
        WeightedTerms parts = terms;
        for (WeightedTerm& term : parts)
            if (term.source.present()) term.source = matrix(term.source);
        context.ops.weighted_sum_forward({.y = matrix(out), .terms = parts, .sequence_length = rows},
                                         context.stream);
    };
    const int64_t rows = out.numel() / kColumns, rest = out.numel() % kColumns;
    if (rows > 0) sum(0, rows, kColumns);
    if (rest > 0) sum(rows * kColumns, 1, rest);
}

// One kind of state of a parameter: `values` numbers for each `elements` adjacent elements. So a piece of the parameter
// has its own piece of the state, for any cut of parameters among ranks.
struct StateKind {
    const char* name;  // "adamw_m"; static storage
    int64_t elements = 1, values = 1;
    DType dtype = DType::f32;  // f32 or bf16; bf16 only per element
    bool per_element() const { return elements == 1 && values == 1; }
};

// n adjacent elements of parameters.
struct OptimizerShard {
    Tensor compute;                 // real [n], the weights of forward and backward; may be the master itself
    Tensor master;                  // [n]: f32, or bf16 where `compute` is the master
    Tensor gradient;                // f32 [n], reduced; not read after the step
    std::span<const Tensor> state;  // [n] each: the kinds of state per element, in order of declaration
};

// Functions of an optimizer may be captured once and launched in every later step. Numbers that change from step to step are
// therefore read from StepContext::numbers; they are f32, a fixed number of them for each optimizer.

// Returns elements of StepContext::numbers.
inline Tensor numbers_of(const StepContext& context, int64_t first, int64_t count) {
    float* const data = context.numbers.as<float>();
    return Tensor(data ? data + first : nullptr, DType::f32, {count});
}

// An optimizer with an elementwise step.
class ElementwiseOptimizer {
  public:
    virtual ~ElementwiseOptimizer() = default;
    virtual std::vector<StateKind> state_kinds() const = 0;
    // Returns the numbers of a step; reads neither `numbers` nor tensors of the context.
    virtual std::vector<float> numbers(const StepContext& context) const = 0;
    virtual void step(const OptimizerShard& shard, const StepContext& context) const = 0;
};

// Whole matrices of one shape, stored one after the other.
struct MatrixBatch {
    Tensor updates;  // real [n,R,C], in place
    std::span<const Tensor>
        state;  // f32 [n,values] each: the kinds of state per matrix, in order of declaration
};

// An optimizer that needs whole matrices. Its step is cut into three functions. Between them a caller sends pieces
// of the update to the rank that owns the matrix, and back.
class MatrixOptimizer {
  public:
    virtual ~MatrixOptimizer() = default;
    // State of matrices rows x cols: first the kinds per element, then the kinds per matrix.
    virtual std::vector<StateKind> state_kinds(int64_t rows, int64_t cols) const = 0;
    // Heads of queries or keys that form one matrix; 0: all heads.
    virtual int64_t heads_per_matrix() const = 0;
    struct Shape {
        int64_t rows, cols;
    };
    // Returns the numbers of a step for matrices of these shapes; reads neither `numbers` nor tensors of the context.
    virtual std::vector<float> numbers(const StepContext& context, std::span<const Shape> shapes) const = 0;
    // True if steps differ only in numbers().
    virtual bool replays() const = 0;
    // A slice of matrices of one shape.
    struct Slice {
        Tensor update;  // real [n]
        OptimizerShard shard;
        int64_t shape;  // index of the shape in numbers()
    };
    // Writes updates from gradients and state, element by element.
    virtual void propose(std::span<const Slice> slices, const StepContext& context) const = 0;
    // workspace: real, the sum of workspace(n, R, C) elements of the batches.
    virtual void transform(std::span<const MatrixBatch> batches, const Tensor& workspace,
                           const StepContext& context) const = 0;
    virtual int64_t workspace(int64_t count, int64_t rows, int64_t cols) const = 0;
    // Writes masters and compute copies from the transformed updates, element by element.
    virtual void apply(std::span<const Slice> slices, const StepContext& context) const = 0;
};

}  // namespace speedrun
