// An average of the weights of a group over its last updates, and a blend of the weights with it (Izmailov et al. 2018, "Averaging
// Weights Leads to Wider Optima", for the mean; exponential decay as in records of modded-nanogpt).
#pragma once

#include "train/optim/group_extension.h"

namespace speedrun {

// Samples are the weights after the updates `start`, `start` + `every` … of the group, counted from 0. The first one is the average.
// At sample n, average ← average + s·(weights − average), s = 1 − decay, or 1/n if decay is 0.
//
// The blend belongs to the last update of the group in the run: weights ← weights + blend·(average − weights). So validation and
// checkpoints after it, and final weights, are of blended weights; all earlier ones are not, nor is a run that ends early.
class WeightAverage final : public GroupExtension {
  public:
    static constexpr const char* kKey = "average";
    static constexpr const char* kHelp =
        "average of the weights over the last updates, blended into the weights at the last update of the run";
    int64_t start = 0, every = 1;
    double decay = 0, blend = 1;

    void fields(FieldVisitor& v) {
        v.field("start", start, "update of the group with the first sample of the weights, counted from 0",
                {0, 1e12});
        v.field("every", every, "updates of the group between samples", {1, 1e9});
        v.field("decay", decay,
                "share of the average that remains at a sample, below 1; 0: mean of all samples", kDecays);
        v.field("blend", blend, "share of the average in the final weights", {0, 1});
    }
    void check(const CheckedGroup& group) const override {
        if (start >= group.steps()) {
            throw_usage(
                "{}.start {} is not below the {} updates of the group in {} steps of the run (every {}): lower it",
                group.name, start, group.steps(), group.run_steps, group.every);
        }
        if (group.weights_dtype != DType::f32) {
            throw_usage(
                "{} is set, but weights_dtype is {}: weights without an f32 master round the blend. Set weights_dtype=f32, or "
                "average=null",
                group.name, word_of(group.weights_dtype));
        }
    }
    std::vector<StateKind> state_kinds() const override { return {{"average"}}; }
    void after_update(const OptimizerShard& shard, const StepContext& context) const override {
        const Tensor& average = shard.state[0];
        if (const int64_t updates = context.step - start; updates >= 0 && updates % every == 0)
            approach(average, shard.master, share_of_sample(updates / every + 1), context);
        if (!context.last) return;
        approach(shard.master, average, blend, context);
        if (shard.compute.dtype != shard.master.dtype)
            context.ops.cast({.out = shard.compute, .in = shard.master}, context.stream);
    }

  private:
    double share_of_sample(int64_t number) const {
        if (number == 1) return 1;
        return decay > 0 ? 1 - decay : 1 / static_cast<double>(number);
    }
    // x ← (1 − share)·x + share·target
    static void approach(const Tensor& x, const Tensor& target, double share, const StepContext& context) {
        sum_flat(x,
                 {{{.source = x, .factor = static_cast<float>(1 - share)},
                   {.source = target, .factor = static_cast<float>(share)}}},
                 context);
    }
};

}  // namespace speedrun
