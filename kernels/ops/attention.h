// Attention, and what is done to queries, keys and values before it.
#pragma once

#include "kernels/ops/norm.h"
#include "kernels/ops/op.h"
#include "kernels/ops/pointwise.h"

namespace speedrun {

struct RotaryOptions {
    int64_t num_heads = 0;
    int64_t head_dim = 0;          // even
    bool normalize = false;        // RMS-normalise each head's vector first (QK-norm)
    bool rotate = false;           // then rotate it by its position
    float epsilon = kNormEpsilon;  // of that norm
};

// The values of attention mixed with a value embedding z: mixed = c₀·v + c₁·z.
struct ValueMix {
    Tensor mixed;  // real [T,H·D], receives the sum; may be v
    Tensor v;      // real [T,H·D], rows may be strided
    MixWith mix;
};

// Which dimensions of keys come from the token before: those of the pairs (i, i + D/2) with i ≥ turning_pairs.
struct KeyOffsetOptions {
    int64_t num_heads = 0;
    int64_t head_dim = 0;         // even
    int64_t turning_pairs = 0;    // 0 … head_dim/2
    int64_t sequence_length = 0;  // whose first token keeps its own
};

struct AttentionOptions {
    int64_t sequence_length = 0;  // S, keys of a sequence; no query sees a key of another sequence
    int64_t num_heads = 0;
    int64_t head_dim = 0;
    int64_t window = 0;  // keys that a query sees at most, itself included; 0: no limit
    float scale = 1.0f;  // of the products q·k
    // False promises that first_key is the start of every token's sequence: a library that cannot mask
    // documents may then serve.
    bool documents = true;
    // Pairs of a query and a key that it may see, of all queries, from which work is counted; 0: as many as causal
    // queries see that stand at equal distances.
    int64_t visible_pairs = 0;
};

// Rows of attention whose arguments were checked.
struct AttentionRows {
    int64_t sequences, queries, keys;  // the last two of each sequence
};
template <class Arguments>
AttentionRows attention_rows(const Arguments& a) {
    const int64_t keys = a.options.sequence_length, sequences = a.k.rows() / keys;
    return {sequences, sequences > 0 ? a.q.rows() / sequences : 0, keys};
}

// Query-key pairs that causality and the window leave to `queries` of all sequences, for one head and one
// document a sequence: the work that flops() counts. Each query counts as the mean of its sequence's queries,
// which chunks c and 2C − 1 − c of 2C average to.
int64_t visible_pairs(const AttentionOptions& options, int64_t queries);

}  // namespace speedrun

namespace speedrun::op {

// For each head's vector u of q and of k, in place:
//   normalize   u ← u·(mean(u²) + epsilon)^-½
//   rotate      the pair (u_i, u_{i+D/2}) is turned by the angle position·frequency_i
//               (Su et al. 2021, eq. 34, halves as pairs); where a token has N positions, head h of q and of k is
//               turned by the position h mod N
// and in the same pass, where value.mixed is given, the mix of v; with neither of the two that is all.
struct QkNormRotaryForward {
    ByName by_name = ByName();
    Tensor q;              // real [T,H·D], rows may be strided
    Tensor k;              // real [T,H·D], likewise
    Tensor rstd = {};      // f32 [T,2H], of q, then of k; with normalize
    Tensor cos = {};       // f32 [P,D/2]; with rotate, as the two that follow
    Tensor sin = {};       // f32 [P,D/2]
    Tensor position = {};  // i32 [T] or [T,N], contiguous
    ValueMix value = {};
    RotaryOptions options;

    void check() const;
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
    Tensor position = {};  // i32 [T] or [T,N], contiguous
    RotaryOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        if (options.normalize || options.rotate) t.updates(dq, dk);
        if (options.normalize) t.reads(q, k, rstd);
        if (options.rotate) t.reads(cos, sin, position);
    }
};

// y[t] = x[t], but in the dimensions that rotary leaves as they are x[t − 1]; all of x[t] in the first row of a
// sequence. Borders of documents are no matter.
struct OffsetKeysForward {
    ByName by_name = ByName();
    Tensor y;  // real [T,H·D], not x; rows of both may be strided
    Tensor x;  // real [T,H·D]
    KeyOffsetOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(y);
        t.reads(x);
    }
};

// dx[t] = dy[t], but in those dimensions dy[t + 1], 0 in the last row of a sequence; dy[t] is added in the first.
struct OffsetKeysBackward {
    ByName by_name = ByName();
    Tensor dx;  // real [T,H·D], not dy; rows of both may be strided
    Tensor dy;  // real [T,H·D]
    KeyOffsetOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(dx);
        t.reads(dy);
    }
};

// The T keys are those of n = T/S sequences; query i stands at place p_i of its sequence. Per head, over the
// keys j of that sequence, counted from its start, with first_key[i] ≤ start + j, j ≤ p_i and
// p_i − j < window:
//   o_i   = Σ_j softmax_j(scale·q_i·k_j) v_j
//   lse_i = log Σ_j exp(scale·q_i·k_j)
// and, where it sees no key, o_i = 0 and lse_i = −∞.
// Flash attention: O(T) memory (Dao et al. 2022, algorithm 1).
//
// Without `place` there is a query for each key, Tq = T, and it stands where its key does. With it the queries
// are any n·Sq, those of sequence s in rows s·Sq … (s+1)·Sq, as a rank has them that holds some chunks of each
// sequence and the keys of all. Sq may be below or above S, which rows of padding make it.
struct AttentionForward {
    ByName by_name = ByName();
    Tensor o;           // real [Tq,H·D]; rows of it and of q, k, v may be strided
    Tensor lse;         // f32 [H,Tq]
    Tensor q;           // real [Tq,H·D]
    Tensor k;           // real [T,H·D]
    Tensor v;           // real [T,H·D]
    Tensor first_key;   // i32 [Tq], first visible of the T keys (start of the document), in the sequence of i
    Tensor place = {};  // i32 [Tq], −1 ≤ p_i < S; must not fall from one query of a sequence to the next
    AttentionOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(o, lse);
        t.reads(q, k, v, first_key, place);
    }
};

// Gradients from dout, recomputing the probabilities from lse (Dao et al. 2022, algorithm 4). dk and dv are
// sums over the queries of this call: zero for a key that none of them sees.
struct AttentionBackward {
    ByName by_name = ByName();
    Tensor dq;          // real [Tq,H·D]; rows of all real tensors may be strided
    Tensor dk;          // real [T,H·D]
    Tensor dv;          // real [T,H·D]
    Tensor dout;        // real [Tq,H·D]
    Tensor o;           // real [Tq,H·D], of the forward
    Tensor lse;         // f32 [H,Tq], likewise
    Tensor q;           // real [Tq,H·D]
    Tensor k;           // real [T,H·D]
    Tensor v;           // real [T,H·D]
    Tensor first_key;   // i32 [Tq]
    Tensor place = {};  // i32 [Tq]
    AttentionOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(dq, dk, dv);
        t.reads(dout, o, lse, q, k, v, first_key, place);
    }
};

// Takes from each head's output o, per token, what lies along the token's own value v:
//   y = o − tanh(alpha)·(o·v)/max(|v|², kLeastSquare)·v, in f32 and rounded once.
// alpha is one number for each head, or one for each head of each token.
struct ExcludeOwnValueForward {
    static constexpr float kLeastSquare = 1e-8f;

    ByName by_name = ByName();
    Tensor y;      // real [T,H·D], may alias o; rows of it, o and v may be strided
    Tensor o;      // real [T,H·D]
    Tensor v;      // real [T,H·D]
    Tensor alpha;  // f32 [H], or [T,H] with rows that may be strided

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(y);
        t.reads(o, v, alpha);
    }
};

// With a = tanh(alpha), n = max(|v|², kLeastSquare), p = o·v and q = dy·v, per head and token:
//   do        = dy − (a·q/n)·v
//   dv     (+)= −(a/n)·(q·o + p·dy) + [|v|² > kLeastSquare]·(2·a·p·q/n²)·v
//   dalpha (+)= −(1 − a²)·p·q/n, summed over all tokens where alpha has no rows
struct ExcludeOwnValueBackward {
    ByName by_name = ByName();
    Tensor d_o;     // real [T,H·D], may alias dy; rows of all real tensors may be strided
    Tensor dv;      // real [T,H·D]
    Tensor dalpha;  // f32, of the shape of alpha
    Tensor dy;      // real [T,H·D]
    Tensor o;       // real [T,H·D], of the forward
    Tensor v;       // real [T,H·D]
    Tensor alpha;   // f32 [H] or [T,H]
    bool accumulate_v;
    bool accumulate_alpha;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(d_o);
        t.adds_to(accumulate_v, dv);
        t.adds_to(accumulate_alpha, dalpha);
        t.reads(dy, o, v, alpha);
    }
};

#define SPEEDRUN_ATTENTION_OPS(X)                        \
    X(qk_norm_rotary_forward, QkNormRotaryForward)       \
    X(qk_norm_rotary_backward, QkNormRotaryBackward)     \
    X(offset_keys_forward, OffsetKeysForward)            \
    X(offset_keys_backward, OffsetKeysBackward)          \
    X(attention_forward, AttentionForward)               \
    X(attention_backward, AttentionBackward)             \
    X(exclude_own_value_forward, ExcludeOwnValueForward) \
    X(exclude_own_value_backward, ExcludeOwnValueBackward)

}  // namespace speedrun::op
