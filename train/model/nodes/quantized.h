// FP8 form of a node's operand, computed just before use.
#pragma once

#include "train/model/graph/call.h"
#include "train/model/parts/fp8.h"

namespace speedrun {

// Scratch of a node; absent ports are not written.
struct Quantized {
    Node::Tmp numbers, transposed;
    Node::Tmp scale;  // f32 (1, 1)
    int kept = -1;    // index of a delayed scale in the table; −1: none

    // Quantizes x with a constant scale.
    void fill(const Call& call, const Tensor& x, float scale_of_x) const;
    // Quantizes x with the configured scaling. amax: max|x|, f32 (1, 1), or none: it is computed if the scale needs it.
    void fill(const Call& call, const Tensor& x, const Fp8ScaleConfig& how, const Tensor& amax = {}) const;
    // True if the scale is known before x is computed.
    bool known(const Call& call, const Fp8ScaleConfig& how) const {
        return how.by == Fp8ScaleBy::constant || by_last_step(call);
    }
    // If known(): the epilogue of the matmul that writes relu² and quantizes it.
    op::Epilogue epilogue(const Call& call, const Fp8ScaleConfig& how) const;
    // Returns the scale that divides x, f32 [1].
    Tensor scale_in(const Call& call) const;

  private:
    // constant: the scale if above 0.
    void round(const Call& call, const Tensor& x, float constant) const;
    Tensor amax_in(const Call& call) const {
        return kept >= 0 && call.scales ? call.scales->amax(kept) : Tensor{};
    }
    bool by_last_step(const Call& call) const {
        return kept >= 0 && call.scales && !call.scales->exact(kept);
    }
};

}  // namespace speedrun
