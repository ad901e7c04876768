// The loss of predicting the next token, or several.
#pragma once

#include "kernels/ops/op.h"

namespace speedrun::op {

// With z = c·tanh(logits/c) where a softcap c is given, logits elsewhere, and in one pass:
//   losses[t]  = −log softmax(z[t])[targets[t]], 0 where targets[t] = −1
//   dlogits[t] = gradient_scale · d losses[t] / d logits[t]
// With weights each row has K targets (multi-token prediction from one head, Gloeckle et al. 2024 being the form with
// several heads):
//   losses[t]  = Σ_k weights[k] · (−log softmax(z[t])[targets[k,t]]) over the targets that are not −1
struct CrossEntropy {
    static constexpr int kMostTargets = 8;  // K
    ByName by_name = ByName();
    Tensor losses;        // f32 [T]
    Tensor dlogits = {};  // real [T,V], may alias logits
    Tensor logits;        // real [T,V]
    Tensor targets;       // i32 [T]; with weights [K,T]
    Tensor weights = {};  // f32 [K]; absent: one target of weight 1
    int64_t vocab_size;   // columns beyond it are padding: probability 0, gradient 0
    float softcap = 0.0f;
    float gradient_scale = 1.0f;

    void traffic(Traffic& t) const {
        t.writes(losses, dlogits);
        t.reads(logits, targets, weights);
    }
};

#define SPEEDRUN_LOSS_OPS(X) X(cross_entropy, CrossEntropy)

}  // namespace speedrun::op
