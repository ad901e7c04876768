// Attention, and what is done to queries, keys and values before it.
#pragma once

#include "kernels/ops/op.h"
#include "kernels/ops/pointwise.h"

namespace speedrun {

struct RotaryOptions {
    int64_t num_heads = 0;
    int64_t head_dim = 0;    // even
    bool normalize = false;  // RMS-normalise each head's vector first (QK-norm)
    bool rotate = false;     // then rotate it by its position
};

// The values of attention mixed with a value embedding z: mixed = c₀·v + c₁·z.
struct ValueMix {
    Tensor mixed;  // real [T,H·D], receives the sum; may be v
    Tensor v;      // real [T,H·D], rows may be strided
    MixWith mix;
};

struct AttentionOptions {
    int64_t sequence_length = 0;  // S; T is a multiple of it; no query sees a key of another sequence
    int64_t num_heads = 0;
    int64_t head_dim = 0;
    int64_t window = 0;  // keys that a query sees at most, itself included; 0: no limit
    float scale = 1.0f;  // of the products q·k
    // False promises that first_key is the start of every token's sequence: a library that cannot mask
    // documents may then serve.
    bool documents = true;
};

}  // namespace speedrun

namespace speedrun::op {

// For each head's vector u of q and of k, in place:
//   normalize   u ← u·(mean(u²) + eps)^-½
//   rotate      the pair (u_i, u_{i+D/2}) is turned by the angle position·frequency_i
//               (Su et al. 2021, eq. 34, halves as pairs)
// and in the same pass, where value.mixed is given, the mix of v; with neither of the two that is all.
struct QkNormRotaryForward {
    ByName by_name = ByName();
    Tensor q;              // real [T,H·D], rows may be strided
    Tensor k;              // real [T,H·D], likewise
    Tensor rstd = {};      // f32 [T,2H], of q, then of k; with normalize
    Tensor cos = {};       // f32 [P,D/2]; with rotate, as the two that follow
    Tensor sin = {};       // f32 [P,D/2]
    Tensor position = {};  // i32 [T]
    ValueMix value = {};
    RotaryOptions options;

    void traffic(Traffic& t) const {
        if (options.normalize || options.rotate) t.updates(q, k);
        t.writes(rstd);
        if (options.rotate) t.reads(cos, sin, position);
        if (!value.mixed.present()) return;
        t.writes(value.mixed);
        t.reads(value.v, value.mix.z, value.mix.coefficients);
    }
};

// Gradients of the outputs become gradients of the inputs, in place. (The value mix goes back through
// MixBackward: it shares no memory with q and k, and its sums over all rows would put barriers into a kernel
// that has none.)
struct QkNormRotaryBackward {
    ByName by_name = ByName();
    Tensor dq;             // real [T,H·D], rows may be strided
    Tensor dk;             // real [T,H·D], likewise
    Tensor q;              // real [T,H·D], the output of the forward
    Tensor k;              // real [T,H·D], likewise
    Tensor rstd = {};      // f32 [T,2H], of the forward; with normalize
    Tensor cos = {};       // f32 [P,D/2]; with rotate, as the two that follow
    Tensor sin = {};       // f32 [P,D/2]
    Tensor position = {};  // i32 [T]
    RotaryOptions options;

    void traffic(Traffic& t) const {
        if (options.normalize || options.rotate) t.updates(dq, dk);
        if (options.normalize) t.reads(q, k, rstd);
        if (options.rotate) t.reads(cos, sin, position);
    }
};

// Per head, over the keys first_key[i] ≤ j ≤ i with i − j < window:
//   o_i   = Σ_j softmax_j(scale·q_i·k_j) v_j
//   lse_i = log Σ_j exp(scale·q_i·k_j)
// Flash attention: O(T) memory (Dao et al. 2022, algorithm 1).
struct AttentionForward {
    ByName by_name = ByName();
    Tensor o;          // real [T,H·D]; rows of it and of q, k, v may be strided
    Tensor lse;        // f32 [H,T]
    Tensor q;          // real [T,H·D]
    Tensor k;          // real [T,H·D]
    Tensor v;          // real [T,H·D]
    Tensor first_key;  // i32 [T], first visible token (start of the document), within the sequence of i
    AttentionOptions options;

    void traffic(Traffic& t) const {
        t.writes(o, lse);
        t.reads(q, k, v, first_key);
    }
};

// Gradients from dout, recomputing the probabilities from lse (Dao et al. 2022, algorithm 4).
struct AttentionBackward {
    ByName by_name = ByName();
    Tensor dq;         // real [T,H·D]; rows of all real tensors may be strided
    Tensor dk;         // real [T,H·D]
    Tensor dv;         // real [T,H·D]
    Tensor dout;       // real [T,H·D]
    Tensor o;          // real [T,H·D], of the forward
    Tensor lse;        // f32 [H,T], likewise
    Tensor q;          // real [T,H·D]
    Tensor k;          // real [T,H·D]
    Tensor v;          // real [T,H·D]
    Tensor first_key;  // i32 [T]
    AttentionOptions options;

    void traffic(Traffic& t) const {
        t.writes(dq, dk, dv);
        t.reads(dout, o, lse, q, k, v, first_key);
    }
};

#define SPEEDRUN_ATTENTION_OPS(X)                    \
    X(qk_norm_rotary_forward, QkNormRotaryForward)   \
    X(qk_norm_rotary_backward, QkNormRotaryBackward) \
    X(attention_forward, AttentionForward)           \
    X(attention_backward, AttentionBackward)

}  // namespace speedrun::op
