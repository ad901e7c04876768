// Attention maps shared among the heads of a token.
#pragma once

#include "kernels/ops/norm.h"
#include "kernels/ops/op.h"

namespace speedrun {

struct ComposeHeadsOptions {
    int64_t sequence_length = 0;  // S; queries see only keys of their sequence
    int64_t num_heads = 0;
    int64_t head_dim = 0;
    int64_t keys = 0;              // most keys that a query sees, including its own: 1 … kMaxKeys
    float scale = 1.0f;            // factor of q·k
    float epsilon = kNormEpsilon;  // epsilon of the norm of w1

    // A query tile's maps of all these keys must fit the shared memory of one block.
    static constexpr int64_t kMaxKeys = 256;
};

// As visible_pairs() of AttentionOptions, with `keys` as the window.
int64_t visible_pairs(const ComposeHeadsOptions& options, int64_t queries);

}  // namespace speedrun

namespace speedrun::op {

// Applies one attention map per token, a mix of its heads' maps, to the values of each head. Over the keys j of i's
// sequence with first_key[i] ≤ j ≤ i and i − j < keys (c_i = 0 without any):
//   P_ijh = softmax_j(scale·q_ih·k_jh)
//   u_ih  = w1_ih·(mean_h(w1²) + epsilon)^-½
//   A_ij  = Σ_h u_ih·P_ijh
//   c_ih  = w2_ih·Σ_j A_ij·v_jh
// w1 and w2 have one value per head, or one per token and head. (Dynamically composable attention, Xiao et al. 2024, of
// rank one, with weights computed by the caller.)
struct ComposeHeadsForward {
    ByName by_name = ByName();
    Tensor c;          // real [T,H·D]; rows of c, q, k and v may be strided
    Tensor q;          // real [T,H·D]
    Tensor k;          // real [T,H·D]
    Tensor v;          // real [T,H·D]
    Tensor first_key;  // i32 [T], first visible of the T keys (start of the document), in the sequence of i
    Tensor w1;         // f32 [H], or [T,H] with rows that may be strided
    Tensor w2;         // f32, as w1
    ComposeHeadsOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(c);
        t.reads(q, k, v, first_key, w1, w2);
    }
};

// With G_ijh = dc_ih·v_jh and B_ij = Σ_h w2_ih·G_ijh, the gradient of A:
//   dw2_ih (+)= Σ_j A_ij·G_ijh
//   dv_jh  (+)= Σ_i A_ij·w2_ih·dc_ih
//   e_ih      = Σ_j P_ijh·B_ij, the gradient of u; that of w1 follows as for a norm
//   dS_ijh    = u_ih·P_ijh·(B_ij − e_ih)
//   dq_ih  (+)= scale·Σ_j dS_ijh·k_jh
//   dk_jh  (+)= scale·Σ_i dS_ijh·q_ih
// dw1 and dw2 are summed over all tokens if their weights have no rows.
struct ComposeHeadsBackward {
    ByName by_name = ByName();
    Tensor dq;         // real [T,H·D]; rows of all real tensors may be strided
    Tensor dk;         // real [T,H·D]
    Tensor dv;         // real [T,H·D]
    Tensor dw1;        // f32, of the shape of w1
    Tensor dw2;        // f32, of the shape of w2
    Tensor dc;         // real [T,H·D]
    Tensor q;          // real [T,H·D]
    Tensor k;          // real [T,H·D]
    Tensor v;          // real [T,H·D]
    Tensor first_key;  // i32 [T]
    Tensor w1;         // f32 [H] or [T,H]
    Tensor w2;         // f32 [H] or [T,H]
    bool accumulate_q;
    bool accumulate_k;
    bool accumulate_v;
    bool accumulate_w1;
    bool accumulate_w2;
    ComposeHeadsOptions options;

    void check() const;
    void traffic(Traffic& t) const {
        t.adds_to(accumulate_q, dq);
        t.adds_to(accumulate_k, dk);
        t.adds_to(accumulate_v, dv);
        t.adds_to(accumulate_w1, dw1);
        t.adds_to(accumulate_w2, dw2);
        t.reads(dc, q, k, v, first_key, w1, w2);
    }
};

#define SPEEDRUN_COMPOSE_OPS(X)                   \
    X(compose_heads_forward, ComposeHeadsForward) \
    X(compose_heads_backward, ComposeHeadsBackward)

}  // namespace speedrun::op
