// Every operation of kernels/ops/ops.h in float64, directly from its formula: no blocking, no fusion, no
// recomputation. Arguments and options have the same meaning as there. Tests handle "accumulate", aliases and
// strides. A backward function takes the inputs of its forward, never its outputs or statistics. Goal:
// readers can compare each function with the paper. Non-goal: speed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/ops.h"
#include "tests/reference/matrix.h"

namespace speedrun::reference {

using Indices = std::vector<int32_t>;

// ---- linear.cpp
// position_table may be empty.
Matrix embedding_forward(const Indices& index, const Matrix& table, const Indices& position,
                         const Matrix& position_table);
Matrix embedding_backward(int64_t vocab_size, const Indices& index, const Matrix& dout);
// Row t of x times row[t] of the signs, elementwise.
Matrix with_signs(const Matrix& x, const Matrix& signs, const Indices& row);
Matrix transposed(const Matrix& x);
Matrix matmul(const Matrix& a, const Matrix& b);  // M×K times K×N
Matrix column_sum(const Matrix& x);               // 1×C

// ---- fp8.cpp
// Nearest value of an FP8 type, ties to even. Saturates at the largest; NaN stays NaN.
double fp8(double x, DType type);

// ---- norm.cpp
struct NormForward {
    Matrix y;           // T×C
    Matrix mean, rstd;  // 1×T
};
struct NormBackward {
    Matrix ds;            // T×C
    Matrix dgain, dbias;  // 1×C, also without gain or bias
};
// gain and bias may be empty.
NormForward norm_forward(const Matrix& s, const Matrix& gain, const Matrix& bias, NormKind kind,
                         float epsilon = kNormEpsilon);
NormBackward norm_backward(const Matrix& dy, const Matrix& s, const Matrix& gain, NormKind kind,
                           float epsilon = kNormEpsilon);

// ---- pointwise.cpp
Matrix activation_forward(const Matrix& x, Activation activation);
Matrix activation_backward(const Matrix& dy, const Matrix& x, Activation activation);

// ---- combine.cpp
struct WeightedTerm {
    Matrix source;            // T×C
    Matrix coefficient = {};  // 1×1, T×1 or T×H; empty: 1
    double factor = 1.0;
    bool shifted = false;
};
struct WeightedTermGradient {
    Matrix dsource;       // T×C
    Matrix dcoefficient;  // shape of the coefficient
};
// The two terms c₀·x + c₁·z.
std::vector<WeightedTerm> mix_terms(const Matrix& x, const Matrix& z, const Matrix& coefficients);
Matrix weighted_sum_forward(const std::vector<WeightedTerm>& terms, int64_t sequence_length);
std::vector<WeightedTermGradient> weighted_sum_backward(const Matrix& dy,
                                                        const std::vector<WeightedTerm>& terms,
                                                        int64_t sequence_length);

struct NarrowLinearBackward {
    Matrix dx, dweight, dbias;  // T×K, N×K, 1×N
};
// bias may be empty.
Matrix narrow_linear_forward(const Matrix& x, const Matrix& weight, const Matrix& bias, double scale,
                             GateActivation activation);
NarrowLinearBackward narrow_linear_backward(const Matrix& dy, const Matrix& x, const Matrix& weight,
                                            const Matrix& bias, double scale, GateActivation activation);

// ---- rotary.cpp: for q or k, T×(H·D)
struct RotaryForward {
    Matrix u;     // T×(H·D)
    Matrix rstd;  // T×H
};
RotaryForward qk_norm_rotary_forward(const Matrix& u, const Matrix& cos, const Matrix& sin,
                                     const Indices& position, const RotaryOptions& options);
Matrix qk_norm_rotary_backward(const Matrix& dout, const Matrix& u, const Matrix& cos, const Matrix& sin,
                               const Indices& position, const RotaryOptions& options);

Matrix offset_keys_forward(const Matrix& x, const KeyOffsetOptions& options);
Matrix offset_keys_backward(const Matrix& dy, const KeyOffsetOptions& options);

// ---- attention.cpp
struct AttentionForward {
    Matrix o;    // Tq×(H·D)
    Matrix lse;  // H×Tq
};
struct AttentionBackward {
    Matrix dq, dk, dv;  // rows as in q, k, v
};
// Places of the queries (op::AttentionForward::place); empty: query i of a sequence is at place i.
struct QueryPositions {
    Indices place = {};
    int64_t of_sequence = 0;  // queries per sequence
};
// True if query i sees key j.
bool visible(int64_t i, int64_t j, const Indices& first_key, const AttentionOptions& options,
             const QueryPositions& places = {});
AttentionForward attention_forward(const Matrix& q, const Matrix& k, const Matrix& v,
                                   const Indices& first_key, const AttentionOptions& options,
                                   const QueryPositions& places = {});
AttentionBackward attention_backward(const Matrix& dout, const Matrix& q, const Matrix& k, const Matrix& v,
                                     const Indices& first_key, const AttentionOptions& options,
                                     const QueryPositions& places = {});

struct ExcludeOwnValueBackward {
    Matrix d_o, dv;  // T×(H·D)
    Matrix dalpha;   // shape of alpha
};
// alpha: 1×H, or T×H.
Matrix exclude_own_value_forward(const Matrix& o, const Matrix& v, const Matrix& alpha, int64_t heads);
ExcludeOwnValueBackward exclude_own_value_backward(const Matrix& dy, const Matrix& o, const Matrix& v,
                                                   const Matrix& alpha, int64_t heads);

// ---- compose_heads.cpp
struct ComposedHeads {
    Matrix q, k, v;  // T×(H·D)
    Indices first_key;
    Matrix w1, w2;  // each 1×H, or T×H
};
struct ComposeHeadsBackward {
    Matrix dq, dk, dv;  // T×(H·D)
    Matrix dw1, dw2;    // shapes of w1 and w2
};
Matrix compose_heads_forward(const ComposedHeads& x, const ComposeHeadsOptions& options);
ComposeHeadsBackward compose_heads_backward(const Matrix& dc, const ComposedHeads& x,
                                            const ComposeHeadsOptions& options);

// ---- cross_entropy.cpp
Matrix cross_entropy_losses(const Matrix& logits, const Indices& targets, int64_t vocab_size,
                            const Softcap& softcap);
Matrix cross_entropy_dlogits(const Matrix& logits, const Indices& targets, int64_t vocab_size,
                             const Softcap& softcap, float gradient_scale);
// targets and weights: one entry per target of a row.
Matrix weighted_cross_entropy_losses(const Matrix& logits, const std::vector<Indices>& targets,
                                     const std::vector<double>& weights, int64_t vocab_size,
                                     const Softcap& softcap);
Matrix weighted_cross_entropy_dlogits(const Matrix& logits, const std::vector<Indices>& targets,
                                      const std::vector<double>& weights, int64_t vocab_size,
                                      const Softcap& softcap, float gradient_scale);
// Ids of the columns, from `first` on; later columns are padding.
struct IdRange {
    int64_t first, size;
};
// T×2: log Σ exp over the range's columns, and the weighted sum of the logits of targets in it.
Matrix cross_entropy_part(const Matrix& logits, const std::vector<Indices>& targets,
                          const std::vector<double>& weights, const IdRange& ids, const Softcap& softcap);

// ---- optimizers.cpp: in place on vectors and matrices
struct AdamwNumbers {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    int64_t step;
    bool cautious = false, decays_unmoved = true;
};
void adamw_step(Matrix& master, Matrix& first_moment, Matrix& second_moment, const Matrix& grad,
                double grad_scale, const AdamwNumbers& numbers);
// Returns the update.
Matrix muon_momentum(Matrix& momentum, const Matrix& grad, double grad_scale, float mu, bool nesterov);
Matrix gram(const Matrix& x);                                  // x xᵀ
Matrix polar_express(const Matrix& x, double epsilon = 1e-6);  // one matrix
// One matrix; second_moment: one value per line.
void normuon_scale(Matrix& update, Matrix& second_moment, float beta2,
                   NormuonLines lines = NormuonLines::more, float epsilon = 1e-8f);
void muon_apply(Matrix& master, const Matrix& update, float learning_rate, float weight_decay, bool cautious);

struct Clip {
    double norm, coefficient;
};
double norm_term(const Matrix& x, VectorNorm norm);
Clip clip_coefficient(const Matrix& terms, double max_norm, VectorNorm norm);

}  // namespace speedrun::reference
