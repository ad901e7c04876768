// The model: one description, two families (see ModelConfig). Forward and backward are written out block by
// block; every line enqueues one operation of kernels/ops/ops.h on the compute stream.
#pragma once

#include <functional>
#include <span>

#include "data/batch.h"
#include "train/model/activations.h"
#include "train/sharding/gradient_store.h"
#include "train/sharding/parameter_store.h"

namespace speedrun {

struct BatchShape {
    int64_t tokens = 0, sequence_length = 0;  // of a microbatch; so many tokens in rows of this length
};

class Transformer {
  public:
    // For microbatches of this shape. `rules`: how parameters lie in
    // memory. Without documents the batch's first_key must be the start of each token's sequence. `memory`:
    // what blocks keep for backward; it changes no bit of any result.
    Transformer(const ModelConfig& config, const BatchShape& batch, Runtime& runtime,
                const BucketRules& rules = {}, bool documents = true, const MemoryConfig& memory = {});

    const ParameterTable& table() const { return table_; }
    ParameterStore& parameters() { return parameters_; }
    const BatchTensors& batch() const { return act_.batch; }
    int64_t tokens() const { return tokens_; }
    // What the next microbatch's tensors are to hold: put(tensor, values) for each, in the order of
    // BatchTensors. The values live as long as the call. Targets may be absent (empty): they are not put.
    // Throws an internal error if the batch has not tokens() tokens, or not the n-grams of the model.
    using PutIds = std::function<void(const Tensor&, std::span<const int32_t>)>;
    void put_batch(const Batch& batch, const PutIds& put) const;

    // Who is told that a pass enters a unit, from here on; null: nobody.
    void observe(PassObserver* observer) { observer_ = observer; }

    // Forward up to what the head reads; `batch()` holds the tokens.
    void forward();
    // After forward: the losses of all tokens, and their sum into loss_sum (f32 [1]).
    void loss(Tensor loss_sum, bool accumulate);
    // Computes the loss and goes backward: gradients of gradient_scale · Σ losses; announces each parameter
    // as it is complete.
    void loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale, GradientStore& gradients);
    // After forward: logits of one row (real [1, V]) for sampling; capped if the model caps them.
    Tensor logits_of(int64_t row);
    // Losses of the last loss() or loss_and_backward(), f32 [T].
    Tensor losses() const { return act_.losses; }
    double softcap() const { return config_.logit_softcap; }
    // Floating-point operations, so far, of forward passes that backward repeated for what checkpointed
    // blocks had not kept: in Ops::flops(), but not the model's own work.
    int64_t recomputed_flops() const { return recomputed_flops_; }

  private:
    void enter(int unit, Pass pass) {
        if (observer_) observer_->entered(unit, pass);
    }
    const Parameter* parameter(const std::string& name) const;
    Tensor weight(const std::string& name) const;    // compute copy
    Tensor optional(const std::string& name) const;  // the same, absent if the model has no such parameter

    void forward_block(int64_t index, Tensor residual);
    void recompute_block(int64_t index);
    void attention_norm(int64_t index, Tensor residual, Tensor delta);
    void attention(int64_t index);
    ValueMix value_mix(int64_t index) const;  // absent where the block mixes none
    Tensor query(Tensor qkv) const { return qkv.column_slice(0, config_.model_dim); }
    Tensor key(Tensor qkv) const { return qkv.column_slice(config_.model_dim, config_.model_dim); }
    Tensor value(Tensor qkv) const { return qkv.column_slice(2 * config_.model_dim, config_.model_dim); }
    void backward_head(Tensor loss_sum, bool accumulate, float gradient_scale, GradientStore& gradients);
    void backward_block(int64_t index, GradientStore& gradients);
    void backward_embedding(GradientStore& gradients);

    void linear(Tensor y, Tensor x, const std::string& name);
    // dx = dy W (unless dx is absent), then the gradients of W and its bias, which are announced.
    void linear_backward(Tensor dx, Tensor dy, Tensor x, const std::string& name, GradientStore& gradients);
    void norm(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta,
              const std::string& name);
    void norm_backward(Tensor dx, Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor dresidual,
                       const std::string& name, GradientStore& gradients);
    Tensor gradient_of(const std::string& name, bool& accumulate, GradientStore& gradients) const;
    Tensor head_weight() const { return weight(head_name()); }
    std::string head_name() const { return config_.tied_head ? "embed.weight" : "head.weight"; }
    int64_t value_table(int64_t block) const {
        return block - (config_.num_layers - config_.value_embeddings);
    }
    std::string block_name(int64_t index) const;
    AttentionOptions attention_options() const;
    RotaryOptions rotary_options() const;
    void fill_rotary_tables();

    const ModelConfig config_;
    const int64_t tokens_, sequence_length_;
    const bool documents_;
    Runtime& runtime_;
    Ops& ops_;
    Stream& stream_;
    const NormKind norm_kind_;
    const Activation activation_;
    ParameterTable table_;
    ParameterStore parameters_;
    Activations act_;
    Buffer rotary_;
    Tensor rotary_cos_, rotary_sin_;  // (S, D/2)
    PassObserver* observer_ = nullptr;
    int64_t recomputed_flops_ = 0;
};

}  // namespace speedrun
