// Weighted sums of tensors, and the narrow linear layers that compute their coefficients: residual and skip
// connections, mixes with embeddings, smear, gates.
#pragma once

#include "kernels/ops/op.h"

namespace speedrun {

constexpr int kMaxTerms = 8;

// One term of a weighted sum: factor·c·s.
struct WeightedTerm {
    Tensor source;            // s: real [T,C]
    Tensor coefficient = {};  // c: f32 [1], [T,1] or [T,H], one per C/H columns; absent: 1
    float factor = 1.0f;
    bool shifted = false;  // s of the previous row, or 0 in the first row of a sequence
};
using WeightedTerms = std::array<WeightedTerm, kMaxTerms>;  // terms with a source first

// Requested gradients of a term. Consecutive terms may have the same dsource (a row and the previous row of one
// tensor): their sum is computed in f32 and rounded once; all but the first accumulate.
struct TermGradient {
    Tensor dsource = {};          // real [T,C]
    Tensor dcoefficient = {};     // f32, in the coefficient's shape
    bool accumulate_source;       // to dsource
    bool accumulate_coefficient;  // to dcoefficient
};
using TermGradients = std::array<TermGradient, kMaxTerms>;

inline int count_terms(const WeightedTerms& terms) {
    int count = 0;
    while (count < kMaxTerms && terms[count].source.present()) ++count;
    return count;
}

// Returns H: the columns of coefficients with more than one column, otherwise 1.
inline int64_t coefficient_heads(const WeightedTerms& terms) {
    int64_t heads = 1;
    for (const WeightedTerm& term : terms)
        if (term.coefficient.rank == 2 && term.coefficient.cols() > 1) heads = term.coefficient.cols();
    return heads;
}

inline bool any_shifted(const WeightedTerms& terms) {
    for (int j = 0; j < count_terms(terms); ++j)
        if (terms[j].shifted) return true;
    return false;
}

// True if both are the same memory; always false on a dry device, where tensors have none.
inline bool same_memory(const Tensor& a, const Tensor& b) {
    return a.data && a.data == b.data;
}
// True if the gradient of term j is added to that of the previous term, which has the same dsource.
inline bool joins_previous(const TermGradients& gradients, int j) {
    return j > 0 && same_memory(gradients[j].dsource, gradients[j - 1].dsource);
}

constexpr int kMaxShared = 2;

// A source that several weighted sums have in common, and its requested gradient.
struct SharedSource {
    Tensor source;    // s: real [T,C]
    Tensor dsource;   // real [T,C], not a dy
    bool accumulate;  // to dsource
};
// The term of a shared source in one of the sums.
struct SharedTerm {
    Tensor coefficient = {};   // c: f32 [T,1]; absent: this sum does not have the source
    Tensor dcoefficient = {};  // f32 [T,1], given exactly when c is
    float factor = 1.0f;
    bool accumulate = false;  // to dcoefficient
};
struct SharingSum {
    Tensor dy;                                      // real [T,C], gradient of the sum
    std::array<SharedTerm, kMaxShared> terms = {};  // terms[m] of source m
};
using SharedSources = std::array<SharedSource, kMaxShared>;  // the present ones first
using SharingSums = std::array<SharingSum, kMaxTerms>;       // the present ones first

inline int count_sources(const SharedSources& sources) {
    int count = 0;
    while (count < kMaxShared && sources[count].source.present()) ++count;
    return count;
}
inline int count_sums(const SharingSums& sums) {
    int count = 0;
    while (count < kMaxTerms && sums[count].dy.present()) ++count;
    return count;
}

// Activation of a narrow linear layer. two_sigmoid: 2·sigmoid, which is 1 at 0.
enum class GateActivation : uint8_t { identity, sigmoid, two_sigmoid, tanh };

constexpr int64_t kMaxNarrow = 64;

}  // namespace speedrun

namespace speedrun::op {

// y[t,i] = Σ_j factor_j·c_j·s_j[t − shifted_j, i], in f32 and rounded once. A sequence has sequence_length rows; shifts
// cross document borders. Rows may be strided.
struct WeightedSumForward {
    ByName by_name = ByName();
    Tensor y;             // real [T,C], may alias sources that are not shifted
    WeightedTerms terms;  // 1 to 8; coefficients with more than one column have equal H
    int64_t sequence_length;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(y);
        for (int j = 0; j < count_terms(terms); ++j) {
            bool again = false;
            for (int i = 0; i < j; ++i) again = again || same_memory(terms[i].source, terms[j].source);
            if (!again) t.reads(terms[j].source);
            t.reads(terms[j].coefficient);
        }
    }
};

// With t' = t + shifted_j, if that is a row of the same sequence:
//   ds_j[t,i] (+)= factor_j·c_j[t']·dy[t',i]
//   dc_j[t']  (+)= factor_j·Σ_i dy[t',i]·s_j[t,i], over the columns of the coefficient; summed over all t for a
//                  coefficient of one value
// A source is read if its dcoefficient is requested, a coefficient if its dsource is.
struct WeightedSumBackward {
    ByName by_name = ByName();
    TermGradients gradients;  // gradients[j] of terms[j]
    Tensor dy;                // real [T,C]; a dsource may alias it if no term is shifted
    WeightedTerms terms;      // the forward's
    int64_t sequence_length;

    void check() const;
    void traffic(Traffic& t) const {
        t.reads(dy);
        for (int j = 0; j < count_terms(terms); ++j) {
            const TermGradient& g = gradients[j];
            if (!joins_previous(gradients, j)) t.adds_to(g.accumulate_source, g.dsource);
            t.adds_to(g.accumulate_coefficient, g.dcoefficient);
            if (g.dsource.present()) t.reads(terms[j].coefficient);
            bool again = false;
            for (int i = 0; i < j; ++i)
                again = again || (gradients[i].dcoefficient.present() &&
                                  same_memory(terms[i].source, terms[j].source));
            if (g.dcoefficient.present() && !again) t.reads(terms[j].source);
        }
    }
};

// Gradients of the sources that several weighted sums share, in one pass over the gradients dy_l of the sums:
//   ds_m[t,i] (+)= Σ_l factor_lm·c_lm[t]·dy_l[t,i], in f32, in order of l, rounded once
//   dc_lm[t]  (+)= factor_lm·Σ_i dy_l[t,i]·s_m[t,i]
struct SharedSourcesBackward {
    ByName by_name = ByName();
    SharedSources sources;  // 1 or 2
    SharingSums sums;       // 1 to 8

    void check() const;
    void traffic(Traffic& t) const {
        for (const SharedSource& shared : sources) {
            t.reads(shared.source);
            t.adds_to(shared.accumulate, shared.dsource);
        }
        for (const SharingSum& sum : sums) {
            t.reads(sum.dy);
            for (const SharedTerm& term : sum.terms) {
                t.reads(term.coefficient);
                t.adds_to(term.accumulate, term.dcoefficient);
            }
        }
    }
};

// y = activation(scale·(x Wᵀ + b)), for at most 64 columns of x and 64 outputs: gates. x is usually the first columns
// of a wider tensor. y, or columns of it, are usually the coefficients of a weighted sum. Sums in f32. Memory-bound, so
// its FLOPs are not counted.
struct NarrowLinearForward {
    ByName by_name = ByName();
    Tensor y;          // f32 [T,N], rows may be strided
    Tensor x;          // real [T,K], rows may be strided
    Tensor weight;     // W: f32 or x's dtype, [N,K], contiguous
    Tensor bias = {};  // b: f32 [N]
    float scale;
    GateActivation activation;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(y);
        t.reads_columns(x);
        t.reads(weight, bias);
    }
};

// With dz = scale·dy·activation', which is a function of y:
//   dx (+)= dz W;  dW (+)= dzᵀ x;  db (+)= Σ_t dz
struct NarrowLinearBackward {
    ByName by_name = ByName();
    Tensor dx = {};       // real [T,K], rows may be strided
    Tensor dweight = {};  // f32 [N,K], contiguous
    Tensor dbias = {};    // f32 [N]
    Tensor dy;            // f32 [T,N], rows may be strided
    Tensor y;             // f32 [T,N], the output of the forward
    Tensor x;             // real [T,K], the input of the forward
    Tensor weight;        // the forward's
    float scale;
    GateActivation activation;
    bool accumulate_x;  // to dx
    bool accumulate;    // to dweight and dbias

    void check() const;
    void traffic(Traffic& t) const {
        t.adds_to(accumulate_x, dx);
        t.adds_to(accumulate, dweight, dbias);
        t.reads(dy, y);
        if (dweight.present()) t.reads_columns(x);
        if (dx.present()) t.reads(weight);
    }
};

#define SPEEDRUN_COMBINE_OPS(X)                       \
    X(weighted_sum_forward, WeightedSumForward)       \
    X(weighted_sum_backward, WeightedSumBackward)     \
    X(shared_sources_backward, SharedSourcesBackward) \
    X(narrow_linear_forward, NarrowLinearForward)     \
    X(narrow_linear_backward, NarrowLinearBackward)

}  // namespace speedrun::op
