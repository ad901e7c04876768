// The model at work: the programs of its graph (build_model.h), bound to memory and enqueued.
#pragma once

#include <functional>
#include <span>

#include "data/batch.h"
#include "train/model/build_model.h"
#include "train/model/graph/busiest_step.h"
#include "train/model/graph/executor.h"
#include "train/sharding/gradient_store.h"

namespace speedrun {

class Transformer {
  public:
    // For microbatches of this shape. `rules`: how parameters lie in memory. Without documents the batch's
    // first_key must be the start of each token's sequence. `memory`: what blocks keep for backward; it
    // changes no bit of any result.
    Transformer(const ModelConfig& config, const BatchShape& batch, Runtime& runtime,
                const BucketRules& rules = {}, bool documents = true, const MemoryConfig& memory = {});

    const ParameterTable& table() const { return table_; }
    ParameterStore& parameters() { return parameters_; }
    int64_t tokens() const { return batch_.tokens; }
    int64_t logit_rows() const { return logit_rows_; }  // of the head's product at a time
    // What the next microbatch's tensors are to hold: put(tensor, values) for each: tokens, targets, positions,
    // first keys, n-grams. The values live as long as the call. Targets may be absent (empty): they are not put.
    // Throws an internal error if the batch has not tokens() tokens, or not the n-grams of the model.
    using PutIds = std::function<void(const Tensor&, std::span<const int32_t>)>;
    void put_batch(const Batch& batch, const PutIds& put) const;

    // Who is told that a pass enters a unit, from here on; null: nobody.
    void observe(PassObserver* observer) { executor_.observe(observer); }

    // Forward up to what the head reads.
    void forward() { executor_.forward(); }
    // After forward: the losses of all tokens, and their sum into loss_sum (f32 [1]).
    void loss(Tensor loss_sum, bool accumulate);
    // Computes the loss and goes backward: gradients of gradient_scale · Σ losses; announces each parameter
    // as it is complete.
    void loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale, GradientStore& gradients);
    // After forward: logits of one row (real [1, V]) for sampling; capped if the model caps them.
    Tensor logits_of(int64_t row);
    // Losses of the last loss() or loss_and_backward(), f32 [T].
    Tensor losses() const { return executor_.held(model_.losses); }
    double softcap() const { return model_.head->softcap(); }
    // Floating-point operations, so far, of forward passes that backward repeated for what checkpointed
    // blocks had not kept: in Ops::flops(), but not the model's own work.
    int64_t recomputed_flops() const { return executor_.repeated_flops(); }
    // When most is in the memory that values and gradients share, and what.
    BusiestStep busiest_step() const { return busiest_step_of(program_, model_.graph); }

  private:
    const ModelConfig config_;
    const BatchShape batch_;
    const int64_t logit_rows_;
    const ModelGraph model_;
    const ParameterTable& table_;
    ParameterStore parameters_;
    const Fusions fusions_;
    const Program program_;
    Executor executor_;
};

}  // namespace speedrun
