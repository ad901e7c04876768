// Norms over the last dimension, and their fusion with weighted sums.
#pragma once

#include "kernels/ops/combine.h"
#include "kernels/ops/op.h"
#include "kernels/ops/pointwise.h"

namespace speedrun {

enum class NormKind : uint8_t { rmsnorm, layernorm };

constexpr float kNormEpsilon = 1e-5f;  // default of all norms, GPT-2's value

}  // namespace speedrun

namespace speedrun::op {

// s = x (+ delta);  y = norm(s) (· gain) (+ bias).
//   rmsnorm     s·rstd             rstd = (mean(s²) + epsilon)^-½     (Zhang & Sennrich 2019, eq. 4)
//   layernorm   (s − mean)·rstd    rstd = (var(s) + epsilon)^-½       (Ba et al. 2016, eq. 4)
struct NormForward {
    ByName by_name = ByName();
    Tensor y;           // real [T,C]
    Tensor sum = {};    // real [T,C], receives s; given exactly when delta is; may alias x
    Tensor mean = {};   // f32 [T], layernorm only
    Tensor rstd;        // f32 [T]
    Tensor amax = {};   // f32 [1], receives max|y|, or NaN if y has one; y is contiguous
    Tensor x;           // real [T,C]
    Tensor delta = {};  // real [T,C]
    Tensor gain = {};   // f32 [C]
    Tensor bias = {};   // f32 [C]
    NormKind kind;
    float epsilon = kNormEpsilon;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(y, sum, mean, rstd, amax);
        t.reads(x, delta, gain, bias);
    }
};

// With ŝ the normed s, before gain and bias:
//   ds        = Jᵀ dy (+ dresidual)
//   dgain (+)= Σ_t dy·ŝ
//   dbias (+)= Σ_t dy
struct NormBackward {
    ByName by_name = ByName();
    Tensor ds;              // real [T,C], may alias dresidual or dy
    Tensor dgain = {};      // f32 [C], given exactly when gain is
    Tensor dbias = {};      // f32 [C], given exactly when the forward had a bias
    Tensor dy;              // real [T,C]
    Tensor s;               // real [T,C], the normed input
    Tensor mean = {};       // f32 [T], layernorm only
    Tensor rstd;            // f32 [T]
    Tensor gain = {};       // f32 [C]
    Tensor dresidual = {};  // real [T,C]
    bool accumulate;        // to dgain and dbias
    NormKind kind;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(ds);
        t.adds_to(accumulate, dgain, dbias);
        t.reads(dy, s, mean, rstd, gain, dresidual);
    }
};

// Norm of a weighted sum: s = Σ_j factor_j·c_j·s_j as in op::WeightedSumForward, y = norm(s) (· gain) (+ bias). If delta
// is given, s_0 = x + delta is computed first. s_0 and s are rounded to the real type before they are read, as if add,
// sum and norm were separate operations.
struct SumNormForward {
    ByName by_name = ByName();
    Tensor y;             // real [T,C]
    Tensor sum;           // real [T,C], receives s; may alias sources that are not shifted
    Tensor mean = {};     // f32 [T], layernorm only
    Tensor rstd;          // f32 [T]
    Tensor amax = {};     // f32 [1], as in NormForward
    WeightedTerms terms;  // 1 to 8; with delta the first is not shifted
    int64_t sequence_length;
    Tensor x = {};      // real [T,C], given exactly when delta is; may alias s_0, which is written
    Tensor delta = {};  // real [T,C]
    Tensor gain = {};   // f32 [C]
    Tensor bias = {};   // f32 [C]
    NormKind kind;
    float epsilon = kNormEpsilon;

    // The operations that it replaces.
    Add before() const { return {.y = terms[0].source, .x = x, .z = delta}; }
    WeightedSumForward first() const {
        return {.y = sum, .terms = terms, .sequence_length = sequence_length};
    }
    NormForward second() const {
        return {.y = y,
                .mean = mean,
                .rstd = rstd,
                .amax = amax,
                .x = sum,
                .gain = gain,
                .bias = bias,
                .kind = kind,
                .epsilon = epsilon};
    }

    void check() const;
    void traffic(Traffic& t) const {
        first().traffic(t);
        t.writes(y, mean, rstd, amax);
        t.reads(gain, bias, delta);
        if (delta.present()) t.writes(terms[0].source);  // and x is read instead
    }
};

// NormBackward, with ds rounded to the real type and stored in dsum only, followed by op::WeightedSumBackward. No term is
// shifted, and coefficients have one value, or one per row.
struct SumNormBackward {
    ByName by_name = ByName();
    TermGradients gradients;  // gradients[j] of terms[j]; a dsource may alias dresidual or dy
    Tensor dgain = {};        // f32 [C], given exactly when gain is
    Tensor dbias = {};        // f32 [C], given exactly when the forward had a bias
    Tensor dy;                // real [T,C]
    Tensor s;                 // real [T,C], as the forward stored it
    WeightedTerms terms;      // the forward's terms that need gradients
    Tensor mean = {};         // f32 [T], layernorm only
    Tensor rstd;              // f32 [T]
    Tensor gain = {};         // f32 [C]
    Tensor dresidual = {};    // real [T,C]
    Tensor dsum = {};         // real [T,C], receives ds; may alias dresidual or dy, but no dsource
    bool accumulate;          // to dgain and dbias
    NormKind kind;

    // The two operations that it replaces, with ds between them.
    NormBackward first(const Tensor& ds) const {
        return {.ds = ds,
                .dgain = dgain,
                .dbias = dbias,
                .dy = dy,
                .s = s,
                .mean = mean,
                .rstd = rstd,
                .gain = gain,
                .dresidual = dresidual,
                .accumulate = accumulate,
                .kind = kind};
    }
    WeightedSumBackward second(const Tensor& ds) const {
        return {.gradients = gradients,
                .dy = ds,
                .terms = terms,
                .sequence_length = std::max<int64_t>(1, ds.rows())};
    }

    void check() const;
    void traffic(Traffic& t) const {
        first(dsum).traffic(t);
        second({}).traffic(t);
    }
};

#define SPEEDRUN_NORM_OPS(X)              \
    X(sum_norm_forward, SumNormForward)   \
    X(sum_norm_backward, SumNormBackward) \
    X(norm_forward, NormForward)          \
    X(norm_backward, NormBackward)

}  // namespace speedrun::op
