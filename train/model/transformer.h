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
        const LossConfig loss = config.parts.loss, others = other.config.parts.loss;
        return batch == other.batch && config.parts.windows == other.config.parts.windows &&
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
    // Columns that a batch needs, see complete().
    std::vector<Column> columns() const { return derived_.model.columns(); }
    // Tables with gradients that ranks exchange as rows, each with a column that looks it up.
    const std::vector<RowIds>& row_ids() const { return derived_.model.row_ids; }
    // Copies a completed batch to the inputs of the graph, on the compute stream; loss_weights: of each row of targets
    // (LossConfig::numbers_at), empty for the next token alone. Waits until the staging memory is free. Throws an internal
    // error if the batch lacks a column or has another size.
    void put_batch(const Batch& batch, std::span<const float> loss_weights = {});
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
    // Enqueues the copy of host values, through the staging memory from `offset` on. Returns the next offset.
    template <class T>
    int64_t put(ValueId value, std::span<const T> values, int64_t offset);

    // What a shape says without memory.
    struct Derived {
        Derived(const ModelShape& shape, Runtime& runtime, const TransformerOptions& options);
        ModelShape shape;
        int64_t logit_rows;
        ModelGraph model;
        Fusions fusions;
        Program program;
        int64_t input_bytes() const;
    };
    struct Sizes {
        int64_t values = 0, inputs = 0;  // bytes
    };
    struct Shared {
        Shared(const ParameterTable& table, const BucketRules& rules, const Sizes& sizes, Runtime& runtime)
            : table(table),
              parameters(this->table, rules, runtime),
              values(runtime.device(), "activations and their gradients", MemoryCategory::activations,
                     sizes.values),
              staging(runtime.device(), sizes.inputs),
              staged(runtime.device().create_event()) {}
        const ParameterTable table;
        ParameterStore parameters;
        const Buffer values;
        const HostBuffer staging;  // inputs of one microbatch
        const std::unique_ptr<Event> staged;
    };
    Transformer(Derived derived, std::shared_ptr<Shared> shared, Runtime& runtime);

    const Derived derived_;
    const std::shared_ptr<Shared> shared_;
    Runtime& runtime_;
    Executor executor_;
};

}  // namespace speedrun
