// Everything that forward keeps for backward, and the scratch that backward passes down.
// Legend: T tokens of a microbatch · C model width · F MLP width · H heads · V padded vocabulary · L blocks.
//
// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"): the first n
// blocks keep some of their activations and share one set of buffers for the others, which backward computes
// again from what was kept, block by block. With r bytes of a real, m = 1 if blocks mix the first embedding
// and y = 1 in a block with a value embedding, a block holds for itself
//     none       r·T·((8 + m + 2y)·C + 2·F) + 4·T·(4 + 3·H)
//     selective  r·T·((6 + y)·C + F) + 4·T·3·H    its input, and what products and attention gave
//     full       r·T·(1 + y)·C                    its input: residual stream and value embedding
// bytes, r·T·C less in block 0, which `first` enters. The n blocks share, once, what none holds more than
// their mode (y = 1 if one of them has a value embedding). Selective repeats norms and pointwise work; full
// also attention and three of a block's four products. The last of the n finds the shared buffers as forward
// left them and repeats nothing. Value embeddings count as input so that backward reads no parameter of
// another unit.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/config/config.h"

namespace speedrun {

struct BlockActivations {
    Tensor entered;               // (T, C) residual stream that enters the block
    Tensor attn_input;            // (T, C) what attention's norm reads: that, or its mix with `first`
    Tensor attn_mean, attn_rstd;  // (T)
    Tensor attn_normed;           // (T, C)
    Tensor qkv;                   // (T, 3C) q and k after QK-norm and rotary, v as projected
    Tensor qk_rstd;               // (T, 2H)
    Tensor value_embedding;       // (T, C) rows of the value table; absent without it
    Tensor mixed_value;           // (T, C) v after the mix; absent without it
    Tensor attn_out;              // (T, C)
    Tensor lse;                   // (H, T)
    Tensor mlp_input;             // (T, C) residual stream that the MLP's norm reads
    Tensor mlp_mean, mlp_rstd;    // (T)
    Tensor mlp_normed;            // (T, C)
    Tensor hidden;                // (T, F) before the activation
    Tensor activated;             // (T, F)
};

// What one microbatch looks like on the device.
struct BatchTensors {
    Tensor tokens, targets, positions, first_key;  // i32 (T)
    std::vector<Tensor> ngrams;                    // i32 (T) each: rows of 2-grams, 3-grams, ...
};

class Activations {
  public:
    Activations(const ModelConfig& model, const MemoryConfig& memory, int64_t tokens, Runtime& runtime);

    // Must backward compute this block's activations again?
    bool recomputed(int64_t block) const { return block + 1 < num_checkpointed_; }
    bool keeps_products() const { return kept_ != Origin::input; }  // of checkpointed blocks

    BatchTensors batch;
    Tensor order;                           // i32 (2, T) what sort_ids made of the ids at hand, for backward
    Tensor embedding;                       // (T, C) sum of embeddings, before its norm
    Tensor embedding_mean, embedding_rstd;  // (T)
    Tensor first;                           // (T, C) what enters block 0
    std::vector<BlockActivations> blocks;
    Tensor delta;                   // (T, C) output of attention or MLP, on its way into the residual stream
    Tensor last;                    // (T, C) residual stream after the last block
    Tensor final_mean, final_rstd;  // (T)
    Tensor normed;                  // (T, C) what the head reads
    Tensor losses;                  // (T)
    int64_t logit_rows = 0;         // rows of the head's product at a time
    Tensor logits;                  // (logit_rows, V), becomes its own gradient

    Tensor dresidual, dnormed, dfirst;  // (T, C)
    Tensor dqkv;                        // (T, 3C)
    Tensor dhidden;                     // (T, F)
    Tensor dmixed_value;                // (T, C)

  private:
    // What gives an activation, from what must be kept to what is cheap to compute again.
    enum class Origin : uint8_t { input, product, pointwise };

    void make_block(int64_t index, const ModelConfig& model, int64_t tokens, Runtime& runtime);
    Tensor make(Runtime& runtime, const std::string& name, DType dtype, std::initializer_list<int64_t> dims,
                MemoryCategory category = MemoryCategory::activations);

    const Origin kept_;  // by checkpointed blocks: this and what comes before it
    const int64_t num_checkpointed_;
    std::map<std::string, Tensor> shared_;  // by the checkpointed blocks
    std::vector<Buffer> buffers_;
};

}  // namespace speedrun
