// Cross-entropy loss of the next token, or of several targets.
#pragma once

#include <cmath>

#include "kernels/ops/op.h"

namespace speedrun {

// Bounds logits: z = cap·tanh((logit + shift)/scale). A sigmoid cap, c·σ((logit + s)/d), equals cap c/2, shift s and
// scale 2d plus the constant c/2, which does not change probabilities.
struct Softcap {
    float cap = 0.0f;  // 0: none
    float shift = 0.0f;
    float scale = 0.0f;  // 0: cap, so that z ≈ logit near 0

    bool present() const { return cap > 0.0f; }
    float divisor() const { return scale > 0.0f ? scale : cap; }
    // Returns one bounded logit. Requires present().
    float of(float logit) const { return cap * std::tanh((logit + shift) / divisor()); }
    // Returns the largest dz/dlogit, at tanh = 0; 1 without a cap.
    float slope() const { return present() ? cap / divisor() : 1.0f; }
};

// Properties of a loss that determine its time.
struct LossShape {
    int64_t targets = 0;  // per token; 0: no loss
    bool softcap = false;
    bool fp8 = false;  // writes 8-bit gradients and their transpose
};

}  // namespace speedrun

namespace speedrun::op {

// With z = c·tanh((logits + shift)/scale) for a softcap c, otherwise z = logits, in one pass:
//   losses[t]  = −log softmax(z[t])[targets[t]], 0 if targets[t] = −1
//   dlogits[t] = gradient_scale · d losses[t] / d logits[t]
// With weights each row has K targets (multi-token prediction from one head; Gloeckle et al. 2024 use several heads):
//   losses[t]  = Σ_k weights[k] · (−log softmax(z[t])[targets[k,t]]) over the targets that are not −1
// With a scale, gradients are rounded to the logits' dtype and then quantized by op::Quantize, as a matrix and
// transposed, the operands of op::ScaledMatmul. T, V and the row strides of both and of logits are multiples of 16.
struct CrossEntropy {
    static constexpr int kMaxTargets = 8;  // K
    ByName by_name = ByName();
    Tensor losses;           // f32 [T]
    Tensor dlogits = {};     // real [T,V], may alias logits; with scale e5m2 [T,V]
    Tensor transposed = {};  // with scale: e5m2 [V,T], transpose of dlogits
    Tensor scale = {};       // f32 [1], scale of dlogits
    Tensor logits;           // real [T,V]
    Tensor targets;          // i32 [T]; with weights [K,T]
    Tensor weights = {};     // f32 [K]; absent: one target of weight 1
    int64_t vocab_size;      // columns from vocab_size on are padding: probability 0, gradient 0
    Softcap softcap = {};
    float gradient_scale = 1.0f;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(losses, dlogits, transposed);
        t.reads(scale, logits, targets, weights);
    }
    LossShape loss() const {
        return {weights.present() ? weights.numel() : 1, softcap.present(), scale.present()};
    }
};

// Cross entropy with the vocabulary's columns split into parts, in two operations: a partial result per part and row,
// and from all parts the loss and the part's own gradient. z and targets as above. W is the sum of the weights of a
// row's targets that are not −1 (1 without weights). Column 0 has the id `first`.
//   part[t] = (log Σ_i exp(z[t,i]) over the part's columns, −∞ if it has none,
//              Σ_k weights[k] · z[t, targets[k,t] − first] over the targets that are among them)
struct CrossEntropyPart {
    ByName by_name = ByName();
    Tensor part;          // f32 [T,2]
    Tensor logits;        // real [T,V]
    Tensor targets;       // i32 [T]; with weights [K,T]
    Tensor weights = {};  // f32 [K]
    int64_t first;
    int64_t vocab_size;        // columns from vocab_size on are padding; 0: all
    int64_t whole_vocab_size;  // over all parts: bound of targets
    Softcap softcap = {};

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(part);
        t.reads(logits, targets, weights);
    }
};

// With L = log Σ_p exp(parts[p,t,0]), in order of p:
//   losses[t]  = W·L − Σ_p parts[p,t,1], 0 where no target counts
//   dlogits[t] = gradient_scale · d losses[t] / d logits[t], by a scale in 8 bits as above
struct CrossEntropyOfParts {
    ByName by_name = ByName();
    Tensor losses;           // f32 [T]
    Tensor dlogits = {};     // real [T,V], may alias logits; with scale e5m2 [T,V]
    Tensor transposed = {};  // with scale: e5m2 [V,T]
    Tensor scale = {};       // f32 [1]
    Tensor logits;           // real [T,V]; absent where dlogits is
    Tensor parts;            // f32 [P·T,2]: of part 0, of part 1, …
    Tensor targets;          // i32 [T]; with weights [K,T]
    Tensor weights = {};     // f32 [K]
    int64_t first, vocab_size, whole_vocab_size;
    Softcap softcap = {};
    float gradient_scale = 1.0f;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(losses, dlogits, transposed);
        t.reads(scale, parts, targets, weights);
        if (dlogits.present()) t.reads(logits);
    }
};

#define SPEEDRUN_LOSS_OPS(X)                \
    X(cross_entropy, CrossEntropy)          \
    X(cross_entropy_part, CrossEntropyPart) \
    X(cross_entropy_of_parts, CrossEntropyOfParts)

}  // namespace speedrun::op
