// The model at work: the programs of its graph (model_graph.h), bound to memory and enqueued.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/batch.h"
#include "train/model/graph/busiest_step.h"
#include "train/model/graph/executor.h"
#include "train/model/graph/value_collectives.h"
#include "train/model/model_graph.h"
#include "train/sharding/pass_tracker.h"

namespace speedrun {

// A model, and the microbatches that it is for.
struct ModelShape {
    ModelConfig config;
    BatchShape batch;
    bool trains = true;  // without, there is no backward, and so no memory for it
    // Compares shapes of configs that differ by their stage alone. A model that trains validates too, so whether it does is left
    // out, as the weights of a loss are, but not how many they are.
    bool operator==(const ModelShape& other) const {
        const LossConfig loss = config.loss(), others = other.config.loss();
        return batch == other.batch && config.window == other.config.window &&
               config.parts.windows == other.config.parts.windows &&
               config.parts.window_past == other.config.parts.window_past &&
               config.parts.head.tied() == other.config.parts.head.tied() &&
               loss.num_tokens() == others.num_tokens() &&
               loss.counts_prefixes() == others.counts_prefixes() && loss.is_plain() == others.is_plain();
    }
};

struct TransformerOptions {
    BucketRules rules = {};    // how parameters lie in memory
    bool documents = true;     // without, the batch's first_key must be the start of each token's sequence
    MemoryConfig memory = {};  // what blocks keep for backward; it changes no bit of any result
};

class Transformer {
  public:
    // One for each shape, all of the same parameters, which they share, as they do the memory of what a pass
    // computes: only one of them is at work at a time. Throws an internal error if their parameters differ.
    static std::vector<std::unique_ptr<Transformer>> make(const std::vector<ModelShape>& shapes,
                                                          Runtime& runtime,
                                                          const TransformerOptions& options = {});

    const ParameterTable& table() const { return shared_->table; }
    ParameterStore& parameters() { return shared_->parameters; }
    const ModelShape& shape() const { return derived_.shape; }
    int64_t tokens() const { return derived_.shape.batch.local_tokens(); }
    int64_t logit_rows() const { return derived_.logit_rows; }  // of the head's product at a time
    // What the next microbatch's tensors are to hold: put(tensor, values) for each: tokens, targets, positions,
    // first keys, n-grams. The values live as long as the call. Targets may be absent (empty): they are not put.
    // Throws an internal error if the batch has not tokens() tokens, or not the n-grams of the model.
    using PutIds = std::function<void(const Tensor&, std::span<const int32_t>)>;
    // Is told which rows the batch looks up of each table whose gradient ranks exchange as rows (Parameter::row_ids); an
    // id behind its last row is of a row that another rank of the tensor axis has.
    using SeeRows = std::function<void(const Parameter&, std::span<const int32_t>)>;
    void put_batch(const Batch& batch, const PutIds& put, const SeeRows& see = {});

    // Of all that a microbatch writes: ids, and the weights of the loss.
    int64_t batch_bytes() const;
    // Receives the events of all later passes, see Executor::track.
    void track(PassTracker* tracker) { executor_.track(tracker); }
    void watch(StepWatch watch) { executor_.watch(std::move(watch)); }
    // The ranks that share rows and matrices with this one (BatchShape), see Executor::connect.
    void connect(const Peers& peers) { executor_.connect(peers); }
    // Which has the scales of the table, see Executor::scale_by.
    void scale_by(const ScaleStore* scales) { executor_.scale_by(scales); }
    const NodeGraph& graph() const { return derived_.model.graph; }

    // Forward up to what the head reads.
    // training: products are those that backward goes with, else those of validation.
    void forward(bool training) { executor_.forward(training); }
    // After forward: the losses of all tokens, and their sum into loss_sum (f32 [1]).
    void loss(Tensor loss_sum, bool accumulate);
    // Enqueues the loss and backward: gradients of gradient_scale · Σ losses. The tracker receives each gradient's completion.
    void loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale);
    // After forward: logits of one row (real [1, V]) for sampling; capped if the model caps them.
    Tensor logits_of(int64_t row);
    // f32 [K], to be written with each microbatch: of each token's targets; absent for the next token alone.
    Tensor loss_weights() const {
        const ValueId weights = derived_.model.loss_weights;
        return weights == kNoValue ? Tensor{} : executor_.held(weights);
    }
    // Losses of the last loss() or loss_and_backward(), f32 [T].
    Tensor losses() const { return executor_.held(derived_.model.losses); }
    // The parameter that its graph does not use; kNoParameter: there is none.
    ParameterId resting() const { return derived_.model.resting; }
    const Softcap& softcap() const { return derived_.model.head->softcap(); }
    // Floating-point operations, so far, of forward passes that backward repeated for what checkpointed
    // blocks had not kept: in Ops::flops(), but not the model's own work.
    int64_t recomputed_flops() const { return executor_.repeated_flops(); }
    // When most is in the memory that values and gradients share, and what.
    BusiestStep busiest_step() const { return busiest_step_of(derived_.program, derived_.model.graph); }

    // What ranks that share rows or matrices send in a microbatch; `real`: the compute type.
    CollectiveRow value_collectives(const Mesh& mesh, DType real) const {
        return speedrun::value_collectives({.program = derived_.program, .graph = graph(), .real = real},
                                           mesh);
    }

  private:
    void put_targets(const Batch& batch, const PutIds& put) const;
    // For each token: `last` counts in its row of keys, `first` in all of them (op::AttentionForward).
    struct SeenKeys {
        std::vector<int32_t> last, first;
    };
    SeenKeys seen_keys(const KeyPlaces& places, const Batch& batch) const;
    // For each id i: 2i and 2i + step.
    static std::vector<int32_t> in_pairs(const std::vector<int32_t>& ids, int32_t step);
    static std::vector<int32_t> own_of(const OwnRows& rows, const std::vector<int32_t>& ids);

    // What a shape says without memory.
    struct Derived {
        Derived(const ModelShape& shape, Runtime& runtime, const TransformerOptions& options);
        ModelShape shape;
        int64_t logit_rows;
        ModelGraph model;
        Fusions fusions;
        Program program;
    };
    struct Shared {
        Shared(const ParameterTable& table, const BucketRules& rules, int64_t bytes, Runtime& runtime)
            : table(table),
              parameters(this->table, rules, runtime),
              values(runtime.device(), "activations and their gradients", MemoryCategory::activations,
                     bytes) {}
        const ParameterTable table;
        ParameterStore parameters;
        const Buffer values;
    };
    Transformer(Derived derived, std::shared_ptr<Shared> shared, Runtime& runtime);

    const Derived derived_;
    const std::shared_ptr<Shared> shared_;
    Executor executor_;
};

}  // namespace speedrun
