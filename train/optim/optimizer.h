// What an optimizer is: functions that enqueue a step of the pieces they are given. It has hyperparameters and
// no memory: the state that it declares is allocated, handed in and checkpointed by its caller
// (train/sharding/group_update.h), which also decides what pieces a rank has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/ops.h"
#include "train/fields/scheduled.h"

namespace speedrun {

struct StepContext {
    int64_t step = 0;       // of this optimizer, from 0
    double lr_factor = 1;   // of the schedule
    StagePoint point = {};  // of the run
    Tensor grad_scale;      // f32 [1]: gradients are multiplied by it; not finite: the step changes nothing
    Ops& ops;
    Stream& stream;
};

// What an optimizer remembers of a parameter: `values` numbers for each `elements` elements in a row. A piece
// of the parameter therefore has its own piece of the state, however parameters are cut among ranks.
struct StateKind {
    const char* name;  // "adamw_m"; lives for ever
    int64_t elements = 1, values = 1;
    DType dtype = DType::f32;  // f32 or bf16; bf16: per_element() alone
    bool per_element() const { return elements == 1 && values == 1; }
};

// The shape of a parameter's state of a kind that a matrix has, of which its matrices have so many numbers: (matrices, numbers)
// where all have as many, else one after the other.
std::vector<int64_t> shape_of_state(const std::vector<int64_t>& numbers);

// A piece of some parameters: n elements in a row.
struct OptimizerShard {
    Tensor compute;   // real [n]: what compute reads; may be the master itself
    Tensor master;    // [n]: f32, or bf16 where it is what compute reads
    Tensor gradient;  // f32 [n], reduced; read no more after the step
    std::span<const Tensor>
        state;  // [n] each, of its kind's type: the kinds that an element has, as declared
};

// An optimizer whose step of an element depends on that element alone.
class ElementwiseOptimizer {
  public:
    virtual ~ElementwiseOptimizer() = default;
    virtual std::vector<StateKind> state_kinds() const = 0;
    virtual void step(const OptimizerShard& shard, const StepContext& context) const = 0;
};

// Matrices of one shape, whole, one after the other.
struct MatrixBatch {
    Tensor updates;                 // real [n,R,C], in place
    std::span<const Tensor> state;  // f32 [n,values] each: the kinds of state that a matrix has, as declared
    Tensor workspace;               // real, at least workspace(n, R, C) elements
};

// An optimizer that makes its update of whole matrices. Three functions, so that pieces of the update can
// travel between them to where the matrices are whole, and back.
class MatrixOptimizer {
  public:
    virtual ~MatrixOptimizer() = default;
    // State of matrices rows x cols: first the kinds that an element has, then those that a matrix has.
    virtual std::vector<StateKind> state_kinds(int64_t rows, int64_t cols) const = 0;
    // update (real [n]) from gradient and state, element by element.
    virtual void propose(const Tensor& update, const OptimizerShard& shard,
                         const StepContext& context) const = 0;
    virtual void transform(const MatrixBatch& batch, const StepContext& context) const = 0;
    virtual int64_t workspace(int64_t count, int64_t rows, int64_t cols) const = 0;
    // Master and compute copy from the transformed update, element by element; of matrices rows x cols.
    struct Shape {
        int64_t rows, cols;
    };
    virtual void apply(const OptimizerShard& shard, const Tensor& update, const Shape& matrix,
                       const StepContext& context) const = 0;
};

}  // namespace speedrun
