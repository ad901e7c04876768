// Attention, and operations on its queries, keys, values and output.
#pragma once

#include "kernels/ops/attention_tiles.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/op.h"
#include "kernels/ops/pointwise.h"

namespace speedrun {

struct RotaryOptions {
    int64_t num_heads = 0;
    int64_t head_dim = 0;          // even
    bool normalize = false;        // RMS-normalise each head's vector (QK-norm)
    bool rotate = false;           // rotate by position, after normalize
    float epsilon = kNormEpsilon;  // epsilon of the norm
};

// Mix of attention's values with a value embedding z: mixed = c₀·v + c₁·z.
struct ValueMix {
    Tensor mixed;  // real [T,H·Dv] with Dv even, receives the sum; may be v
    Tensor v;      // real [T,H·Dv], rows may be strided
    MixWith mix;
};

// Dimensions of keys taken from the previous token: those of the pairs (i, i + D/2) with i ≥ rotated_pairs.
struct KeyOffsetOptions {
    int64_t num_heads = 0;
    int64_t head_dim = 0;         // even
    int64_t rotated_pairs = 0;    // 0 … head_dim/2
    int64_t sequence_length = 0;  // the first token of a sequence keeps its own
};

struct AttentionOptions {
    int64_t sequence_length = 0;  // S, keys per sequence; queries see only keys of their sequence
    int64_t num_heads = 0;
    int64_t head_dim = 0;  // D of q and k; that of v and o, Dv, is v.cols() / num_heads
    int64_t window = 0;    // most keys that a query sees, including its own; 0: no limit
    float scale = 1.0f;    // factor of q·k
    // False promises that first_key is the start of each token's sequence, so that a library without document masks can
    // be used.
    bool documents = true;
    // Visible (query, key) pairs over all queries, to count FLOPs. 0: as in visible_pairs().
    int64_t visible_pairs = 0;
};

// Returns Dv, the width of a head of v.
inline int64_t value_dim_of(const Tensor& v, const AttentionOptions& options) {
    return v.cols() / options.num_heads;
}

// Backward of QK-norm and rotary that is part of attention's backward: operands of op::QkNormRotaryBackward for heads of
// attention's options.
struct RotaryOfInputs {
    bool normalize = false, rotate = false;  // as in RotaryOptions; both false: absent
    Tensor rstd = {};                        // f32 [T,2H], with normalize
    Tensor cos = {};                         // f32 [P,D/2]; with rotate, as are sin and position
    Tensor sin = {};                         // f32 [P,D/2]
    Tensor position = {};                    // i32 [T] or [T,N], contiguous

    bool present() const { return normalize || rotate; }
};

// The rule of cuda.attention "wgmma", in plans and in runs: true if its kernels apply RotaryOfInputs.
bool wgmma_fuses_rotary(HeadWidths widths, DType compute_dtype);

// Row counts of checked attention arguments.
struct AttentionRows {
    int64_t sequences, queries, keys;  // queries, keys: per sequence
};
template <class Arguments>
AttentionRows attention_rows(const Arguments& a) {
    const int64_t keys = a.options.sequence_length, sequences = a.k.rows() / keys;
    return {sequences, sequences > 0 ? a.q.rows() / sequences : 0, keys};
}

template <class Arguments>
AttentionShape attention_shape(const Arguments& a) {
    const AttentionRows rows = attention_rows(a);
    const AttentionOptions& o = a.options;
    return {rows.sequences, rows.queries,         rows.keys, o.num_heads,
            o.head_dim,     value_dim_of(a.v, o), o.window,  o.documents};
}

// Returns the (query, key) pairs that causality and the window leave to `queries` of all sequences, per head, with one
// document per sequence. flops() counts this work. Each query counts as the mean of its sequence's queries. The
// mean over chunks c and 2C − 1 − c of 2C, those of a context rank, is equal.
int64_t visible_pairs(const AttentionOptions& options, int64_t queries);

// Returns the FLOPs over all visible pairs of one matmul with heads of D and one with heads of Dv.
template <class Arguments>
int64_t flops_of_both_widths(const Arguments& a) {
    const AttentionOptions& o = a.options;
    return 2 * o.num_heads * (o.head_dim + value_dim_of(a.v, o)) * visible_pairs(o, a.q.rows());
}

}  // namespace speedrun

namespace speedrun::op {

// For each head's vector u of q and of k:
//   normalize   u ← u·(mean(u²) + epsilon)^-½
//   rotate      rotates the pair (u_i, u_{i+D/2}) by the angle position·frequency_i
//               (Su et al. 2021, eq. 34, with halves as pairs). With N positions per token, head h of q and k
//               uses position h mod N.
// If value.mixed is present, the same pass computes the mix of v. With both options off it computes only the mix.
struct QkNormRotaryForward {
    ByName by_name = ByName();
    Tensor q;              // real [T,H·D], rows may be strided
    Tensor k;              // real [T,H·D], rows may be strided
    Tensor from_q = {};    // real [T,H·D], rows may be strided: the input; absent: q and k in place
    Tensor from_k = {};    // real [T,H·D], given exactly when from_q is
    Tensor rstd = {};      // f32 [T,2H], of q, then of k; with normalize
    Tensor cos = {};       // f32 [P,D/2]; with rotate, as are sin and position
    Tensor sin = {};       // f32 [P,D/2]
    Tensor position = {};  // i32 [T] or [T,N], contiguous
    ValueMix value = {};
    RotaryOptions options;  // with from_q, at least one of both

    void check() const;
    void traffic(Traffic& t) const {
        if (options.normalize || options.rotate) t.updates(q, k);  // from_q and from_k are as large
        t.writes(rstd);
        if (options.rotate) t.reads(cos, sin, position);
        if (!value.mixed.present()) return;
        t.writes(value.mixed);
        t.reads(value.v, value.mix.z, value.mix.coefficients);
    }
};

// Turns gradients of the outputs into gradients of the inputs. WeightedSumBackward computes the gradient of the value
// mix: it shares no memory with q and k, and its sums over all rows would add barriers to this kernel.
struct QkNormRotaryBackward {
    ByName by_name = ByName();
    Tensor dq;             // real [T,H·D], rows may be strided
    Tensor dk;             // real [T,H·D], rows may be strided
    Tensor from_dq = {};   // real [T,H·D]: gradients of the outputs; absent: dq and dk in place
    Tensor from_dk = {};   // real [T,H·D], given exactly when from_dq is
    Tensor q;              // real [T,H·D], the output of the forward
    Tensor k;              // real [T,H·D], the output of the forward
    Tensor rstd = {};      // f32 [T,2H], of the forward; with normalize
    Tensor cos = {};       // f32 [P,D/2]; with rotate, as are sin and position
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

// y[t] = x[t], but x[t − 1] in the dimensions that rotary does not rotate. The first row of a sequence is all x[t].
// Document borders are ignored.
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

// dx[t] = dy[t], but dy[t + 1] in the shifted dimensions, or 0 in the last row of a sequence. In the first row dy[t] is
// added.
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

// The T keys belong to n = T/S sequences; query i is at position p_i of its sequence. Per head, over the keys j of that
// sequence, counted from its start, with first_key[i] ≤ start + j, j ≤ p_i and p_i − j < window:
//   o_i   = Σ_j softmax_j(scale·q_i·k_j) v_j
//   lse_i = log Σ_j exp(scale·q_i·k_j)
// A query without visible keys has o_i = 0 and lse_i = −∞.
// Flash attention: O(T) memory (Dao et al. 2022, algorithm 1).
//
// Without `place` there is one query per key, Tq = T, at the key's position. With `place` there are n·Sq queries, with
// sequence s in rows s·Sq … (s+1)·Sq: a context rank holds some chunks of each sequence and all keys. Sq may be below
// S, or above it because of padding rows.
struct AttentionForward {
    ByName by_name = ByName();
    Tensor o;    // real [Tq,H·Dv]; rows of o, q, k and v may be strided
    Tensor lse;  // f32 [H,Tq]
    Tensor q;    // real [Tq,H·D]
    Tensor k;    // real [T,H·D]
    Tensor v;    // real [T,H·Dv]
    // i32 [Tq], first visible of the T keys (start of the document), in the sequence of query i
    Tensor first_key;
    Tensor place = {};  // i32 [Tq], −1 ≤ p_i < S; must not descend within a sequence
    AttentionOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(o, lse);
        t.reads(q, k, v, first_key, place);
    }
    AttentionShape shape() const { return attention_shape(*this); }
    int64_t flops() const { return flops_of_both_widths(*this); }  // q·k and the sum of v
};

// Gradients from dout; recomputes the probabilities from lse (Dao et al. 2022, algorithm 4). dk and dv sum over this
// call's queries: zero for a key that none of them sees. With `rotary`, q and k are outputs of QkNormRotaryForward, and
// dq and dk are gradients of its inputs: results of attention rounded to real, then of QkNormRotaryBackward in place.
struct AttentionBackward {
    ByName by_name = ByName();
    Tensor dq;          // real [Tq,H·D]; rows of all real tensors may be strided
    Tensor dk;          // real [T,H·D]
    Tensor dv;          // real [T,H·Dv]
    Tensor dout;        // real [Tq,H·Dv]
    Tensor o;           // real [Tq,H·Dv], of the forward
    Tensor lse;         // f32 [H,Tq], of the forward
    Tensor q;           // real [Tq,H·D]
    Tensor k;           // real [T,H·D]
    Tensor v;           // real [T,H·Dv]
    Tensor first_key;   // i32 [Tq]
    Tensor place = {};  // i32 [Tq], not with rotary
    RotaryOfInputs rotary = {};
    AttentionOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(dq, dk, dv);
        t.reads(dout, o, lse, q, k, v, first_key, place);
        if (rotary.normalize) t.reads(rotary.rstd);
        if (rotary.rotate) t.reads(rotary.cos, rotary.sin, rotary.position);
    }
    AttentionShape shape() const { return attention_shape(*this); }
    // dq and dk, dout·v and dv. Recomputed scores are not counted as work.
    int64_t flops() const { return 2 * flops_of_both_widths(*this); }
    // The operation that `rotary` adds to attention.
    QkNormRotaryBackward rotary_backward() const;
};

// Removes from each head's output o, per token, its component along the token's own value v:
//   y = o − tanh(alpha)·(o·v)/max(|v|², kMinSquare)·v, in f32 and rounded once.
// alpha has one value per head, or one per token and head.
struct ExcludeOwnValueForward {
    static constexpr float kMinSquare = 1e-8f;

    ByName by_name = ByName();
    Tensor y;      // real [T,H·D], may alias o; rows of y, o and v may be strided
    Tensor o;      // real [T,H·D]
    Tensor v;      // real [T,H·D]
    Tensor alpha;  // f32 [H], or [T,H] with rows that may be strided

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(y);
        t.reads(o, v, alpha);
    }
};

// With a = tanh(alpha), n = max(|v|², kMinSquare), p = o·v and q = dy·v, per head and token:
//   do        = dy − (a·q/n)·v
//   dv     (+)= −(a/n)·(q·o + p·dy) + [|v|² > kMinSquare]·(2·a·p·q/n²)·v
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
