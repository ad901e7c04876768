// The loss of predicting the next token, or several.
#pragma once

#include <cmath>

#include "kernels/ops/op.h"

namespace speedrun {

// Bounds logits: z = cap·tanh((logit + shift)/scale). A cap by a sigmoid, c·σ((logit + s)/d), differs from cap c/2, shift s and
// scale 2d by the constant c/2, which no probability sees.
struct Softcap {
    float cap = 0.0f;  // 0: none
    float shift = 0.0f;
    float scale = 0.0f;  // 0: cap, so that z ≈ logit near 0

    bool present() const { return cap > 0.0f; }
    float divisor() const { return scale > 0.0f ? scale : cap; }
    // One logit, bounded; only of a cap that is present.
    float of(float logit) const { return cap * std::tanh((logit + shift) / divisor()); }
    // dz/dlogit at its steepest, where tanh is 0; 1 without a cap.
    float slope() const { return present() ? cap / divisor() : 1.0f; }
};

}  // namespace speedrun

namespace speedrun::op {

// With z = c·tanh((logits + shift)/scale) where there is a softcap c, logits elsewhere, and in one pass:
//   losses[t]  = −log softmax(z[t])[targets[t]], 0 where targets[t] = −1
//   dlogits[t] = gradient_scale · d losses[t] / d logits[t]
// With weights each row has K targets (multi-token prediction from one head, Gloeckle et al. 2024 being the form with
// several heads):
//   losses[t]  = Σ_k weights[k] · (−log softmax(z[t])[targets[k,t]]) over the targets that are not −1
// With a scale the gradients are 8-bit numbers, what op::Quantize makes of them once they are rounded to the logits' type, as a
// matrix and transposed, as op::ScaledMatmul wants them; T, V and rows of both and of logits are in units of 16.
struct CrossEntropy {
    static constexpr int kMostTargets = 8;  // K
    ByName by_name = ByName();
    Tensor losses;           // f32 [T]
    Tensor dlogits = {};     // real [T,V], may alias logits; with scale e5m2 [T,V]
    Tensor transposed = {};  // with scale: e5m2 [V,T], the same numbers
    Tensor scale = {};       // f32 [1], of dlogits
    Tensor logits;           // real [T,V]
    Tensor targets;          // i32 [T]; with weights [K,T]
    Tensor weights = {};     // f32 [K]; absent: one target of weight 1
    int64_t vocab_size;      // columns beyond it are padding: probability 0, gradient 0
    Softcap softcap = {};
    float gradient_scale = 1.0f;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(losses, dlogits, transposed);
        t.reads(scale, logits, targets, weights);
    }
};

// The loss of a vocabulary whose columns are cut in parts, in two steps: what each part knows of a row, and, from that of
// all parts, the loss and the part's own gradient. z and targets as above; W is the sum of the weights of a row's targets
// that are not −1 (1 without weights), column 0 stands for the id `first`.
//   part[t] = (log Σ_i exp(z[t,i]) over the part's columns, −∞ if it has none,
//              Σ_k weights[k] · z[t, targets[k,t] − first] over the targets that are among them)
struct CrossEntropyPart {
    ByName by_name = ByName();
    Tensor part;          // f32 [T,2]
    Tensor logits;        // real [T,V]
    Tensor targets;       // i32 [T]; with weights [K,T]
    Tensor weights = {};  // f32 [K]
    int64_t first;
    int64_t vocab_size;        // columns beyond it are padding; 0: all are
    int64_t whole_vocab_size;  // of all parts: targets are below it
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
