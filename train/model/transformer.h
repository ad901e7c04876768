// Transformer: the programs of a model's graph (model_graph.h), bound to memory and enqueued.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/batch.h"
#include "train/model/graph/executor.h"
#include "train/model/graph/memory_peak.h"
#include "train/model/graph/value_collectives.h"
#include "train/model/model_graph.h"
#include "train/sharding/pass_tracker.h"

namespace speedrun {

// A model and the shape of its microbatches.
struct ModelShape {
    ModelConfig config;
    BatchShape batch;
    bool trains = true;  // false: no backward, and no memory for it
    // Compares shapes of configs that differ only by stage. Ignores `trains`, because a model that trains can validate,
    // and the values of loss weights, but not their number.
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
    BucketRules rules = {};    // layout of parameters in memory
    bool documents = true;     // false: first_key of the batch must be the start of each token's sequence
    MemoryConfig memory = {};  // values that blocks keep for backward; results do not depend on it
};

class Transformer {
  public:
    // Creates one model per shape. They share parameters and the memory of passes, so only one may run at a time.
    // Throws an internal error if their parameters differ.
    static std::vector<std::unique_ptr<Transformer>> make(const std::vector<ModelShape>& shapes,
                                                          Runtime& runtime,
                                                          const TransformerOptions& options = {});

    const ParameterTable& table() const { return shared_->table; }
    ParameterStore& parameters() { return shared_->parameters; }
    const ModelShape& shape() const { return derived_.shape; }
    int64_t tokens() const { return derived_.shape.batch.local_tokens(); }
    int64_t logit_rows() const { return derived_.logit_rows; }  // rows per chunk of the head's matmul
    // The graph with its inputs: columns() are those that a batch must have, see complete().
    const ModelGraph& description() const { return derived_.model; }
    // Copies a completed batch to the graph's inputs, on the compute stream. loss_weights: one per row of targets
    // (LossConfig::numbers_at); empty for next-token loss. Waits until the staging memory is free. Throws an internal
    // error if the batch lacks a column or has another size.
    void put_batch(const Batch& batch, std::span<const float> loss_weights = {});
    // Receives the events of all later passes, see Executor::track.
    void track(PassTracker* tracker) { executor_.track(tracker); }
    void watch(InstructionWatch watch) { executor_.watch(std::move(watch)); }
    // Sets the ranks that share rows and matrices with this one (BatchShape), see Executor::connect.
    void connect(const Peers& peers) { executor_.connect(peers); }
    // Sets the store with the table's scales, see Executor::scale_by.
    void scale_by(const ScaleStore* scales) { executor_.scale_by(scales); }
    const NodeGraph& graph() const { return derived_.model.graph; }

    // Enqueues forward up to the head. training: use training's matmuls (FP8), else validation's.
    void forward(bool training) { executor_.forward(training); }
    // After forward(): enqueues the losses of all tokens, and their sum into loss_sum (f32 [1]).
    void loss(Tensor loss_sum, bool accumulate);
    // Enqueues the loss and backward: gradients of gradient_scale · Σ losses. The tracker receives each gradient's completion.
    void loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale);
    // After forward(): returns the logits of one row (compute dtype [1, V]), before the softcap.
    Tensor logits_of(int64_t row);
    // Losses of the last loss() or loss_and_backward(), f32 [T].
    Tensor losses() const { return executor_.held(derived_.model.losses); }
    // FLOPs so far of forward passes that backward recomputed. Ops::flops() includes them; the model's own work does
    // not.
    int64_t recomputed_flops() const { return executor_.repeated_flops(); }
    // Returns the step with the most bytes of values and gradients, and these.
    MemoryPeak memory_peak() const { return memory_peak_of(derived_.program, derived_.model.graph); }

    // Collectives of a microbatch among ranks that share rows or matrices.
    BucketCollectives value_collectives(const Mesh& mesh, DType compute_dtype) const {
        return speedrun::value_collectives(
            {.program = derived_.program, .graph = graph(), .compute_dtype = compute_dtype}, mesh);
    }

  private:
    // Enqueues the copy of host values through the staging memory from `offset`. Returns the next offset.
    template <class T>
    int64_t put(ValueId value, std::span<const T> values, int64_t offset);

    // Properties of a shape that need no memory.
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
