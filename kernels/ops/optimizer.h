// Optimizer steps. Everywhere g = grad·grad_scale. If grad_scale is not finite nothing changes, so that a diverged step
// keeps the last good parameters. "parameter" receives the rounded master and may alias it.
#pragma once

#include <array>
#include <limits>

#include "kernels/ops/op.h"

namespace speedrun {

// Lines of a matrix that NorMuon scales: rows or columns, whichever are more (rows of a square matrix), or always one
// of them.
enum class NormuonLines : uint8_t { more, rows, columns };
constexpr bool by_row(NormuonLines lines, int64_t rows, int64_t cols) {
    return lines == NormuonLines::rows || (lines == NormuonLines::more && rows >= cols);
}
constexpr int64_t num_lines(NormuonLines lines, int64_t rows, int64_t cols) {
    return by_row(lines, rows, cols) ? rows : cols;
}

struct PolarCoefficients {
    float a, b, c;
};
// Five iterations of the reference recipe (Polar Express, Amsel et al. 2025, with its safety factor).
constexpr std::array<PolarCoefficients, 5> kPolarExpress = {{
    {8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
    {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
    {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
    {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
    {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f},
}};
// Iterations swap two buffers; the last one must write the second.
static_assert(kPolarExpress.size() % 2 == 1);

}  // namespace speedrun

namespace speedrun::op {

// AdamW (Loshchilov & Hutter 2019, algorithm 2); `cautious`: Chen et al. 2025, "Cautious Weight Decay", algorithm 1.
struct AdamwStep {
    ByName by_name = ByName();
    Tensor parameter;  // real [n]
    Tensor master;     // f32 [n]; or bf16 [n], rounded when stored; then parameter is bf16 too
    // f32 or bf16 [n]; bf16 is rounded when stored, and the step uses the value before rounding
    Tensor first_moment;
    Tensor second_moment;  // [n], dtype of first_moment
    Tensor grad;           // f32 [n]
    Tensor grad_scale;     // f32 [1] in device memory
    float learning_rate;
    float beta1, beta2;
    float epsilon;
    float weight_decay;          // decoupled: the master shrinks by learning_rate · weight_decay
    int64_t step;                // from 1, for the bias correction
    bool cautious = false;       // decay only where update · master >= 0
    bool decays_unmoved = true;  // only with cautious; false: decay only where the product is > 0
    // Returns the smallest update · master at which a weight decays.
    float least_product() const {
        using Limits = std::numeric_limits<float>;
        if (!cautious) return -Limits::infinity();
        return decays_unmoved ? 0.0f : Limits::denorm_min();
    }

    void check() const;
    void traffic(Traffic& t) const {
        t.writes_copy(parameter, master);
        t.updates(master, first_moment, second_moment);
        t.reads(grad, grad_scale);
    }
};

//   b      ← μ·b + (1−μ)·g
//   update = (1−μ)·g + μ·b (nesterov) or b; 0 if grad_scale is not finite
struct MuonMomentum {
    ByName by_name = ByName();
    Tensor update;      // real [n]
    Tensor momentum;    // b: f32 [n]
    Tensor grad;        // f32 [n]
    Tensor grad_scale;  // f32 [1] in device memory
    float mu;
    bool nesterov = true;

    void check() const;
    void traffic(Traffic& t) const {
        t.writes(update);
        t.updates(momentum);
        t.reads(grad, grad_scale);
    }
};

// Replaces each of n matrices by its orthogonal polar factor (Polar Express, Amsel et al. 2025, algorithm 1):
//   X ← X / (1.02·‖X‖_F + epsilon), then 5 times X ← aX + (bA + cA²)X with A = XXᵀ
// on the side that makes A smaller.
struct PolarExpress {
    ByName by_name = ByName();
    Tensor x;          // real [n,R,C], in place
    Tensor workspace;  // real, workspace_size(n, R, C) elements
    float epsilon = 1e-6f;

    // A backend may process all matrices together or one at a time.
    static int64_t workspace_size(int64_t n, int64_t rows, int64_t cols) {
        const int64_t side = std::min(rows, cols);
        return n * (2 * side * side + rows * cols);
    }
    void check() const {
        if (x.rank != 3) throw_internal("polar_express: x must be [n,R,C], not {}", x.describe());
        expect(workspace, x.dtype, {workspace_size(x.shape[0], x.shape[1], x.shape[2])},
               "polar_express workspace");
    }
    void traffic(Traffic& t) const { t.updates(x); }
    ProductShape product() const { return {{x.shape[0], x.shape[1], x.shape[2]}}; }
};

// NorMuon (Li et al. 2025, algorithm 1) with lines in either direction. For each of n matrices and each of its L lines
// i, L = num_lines(lines, R, C):
//   v_i ← β₂·v_i + (1−β₂)·mean(u_i²);  u_i ← u_i/(√v_i + epsilon)
// Then u is scaled to its original Frobenius norm, which would cancel a bias correction of v. A zero matrix stays zero.
struct NormuonScale {
    ByName by_name = ByName();
    Tensor update;         // u: real [n,R,C], in place, rounded once
    Tensor second_moment;  // v: f32 [n,L]
    Tensor grad_scale;     // f32 [1] in device memory
    float beta2;           // decay of the mean squares
    NormuonLines lines = NormuonLines::more;
    float epsilon = 1e-8f;  // above 0: a zero line stays zero

    void check() const;
    void traffic(Traffic& t) const {
        t.updates(update, second_moment);
        t.reads(grad_scale);
    }
};

// master ← master − learning_rate·(update + weight_decay·master); parameter = rounded master.
struct MuonApply {
    ByName by_name = ByName();
    Tensor parameter;       // real [n]
    Tensor master;          // f32 or bf16 [n], as in AdamwStep
    Tensor update;          // real [n]
    Tensor grad_scale;      // f32 [1] in device memory
    float learning_rate;    // includes all multipliers
    float weight_decay;     // decoupled
    bool cautious = false;  // decay only where update · master >= 0

    void check() const;
    void traffic(Traffic& t) const {
        t.writes_copy(parameter, master);
        t.updates(master);
        t.reads(update, grad_scale);
    }
};

#define SPEEDRUN_OPTIMIZER_OPS(X)  \
    X(adamw_step, AdamwStep)       \
    X(muon_momentum, MuonMomentum) \
    X(polar_express, PolarExpress) \
    X(normuon_scale, NormuonScale) \
    X(muon_apply, MuonApply)

}  // namespace speedrun::op
