// Everything that forward keeps for backward, and the scratch that backward passes down.
// Legend: T tokens of a microbatch · C model width · F MLP width · H heads · V padded vocabulary.
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/model/runtime.h"

namespace speedrun {

struct BlockActivations {
    Tensor entered;               // (T, C) residual stream before the first-embedding mix; absent without it
    Tensor attn_input;            // (T, C) residual stream that attention's norm reads
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
};

class Activations {
  public:
    Activations(const ModelConfig& model, int64_t tokens, Runtime& runtime);

    BatchTensors batch;
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
    Tensor make(Runtime& runtime, const std::string& name, DType dtype, std::initializer_list<int64_t> dims,
                MemoryCategory category = MemoryCategory::activations);

    std::vector<Buffer> buffers_;
};

}  // namespace speedrun
