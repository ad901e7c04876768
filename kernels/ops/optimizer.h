// Optimizer steps. Everywhere g = grad·grad_scale. If grad_scale is not finite nothing changes, so that a diverged step
// keeps the last good parameters. "parameter" receives the rounded master and may alias it.
//
// Numbers that change from step to step (learning rates, momenta, bias corrections) are f32 in device memory: a captured
// graph reads the values of its launch.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <vector>

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

// Numbers of an AdamW step, from 1 for the bias correction.
struct AdamwSchedule {
    float learning_rate;
    float weight_decay;  // decoupled: the master shrinks by learning_rate · weight_decay
    float beta1, beta2;
    int64_t step;
};
// Returns op::AdamwStep::rates: factor of weights that decay, learning rate with the correction of the first moment,
// correction of the second moment.
inline std::array<float, 3> adamw_rates(const AdamwSchedule& s) {
    const auto correction = [&](float beta) {
        return static_cast<float>(1.0 / (1.0 - std::pow(double{beta}, static_cast<double>(s.step))));
    };
    return {1.0f - s.learning_rate * s.weight_decay, s.learning_rate * correction(s.beta1),
            correction(s.beta2)};
}

// Learning rate of a Muon step, with all multipliers, and decoupled weight decay.
struct MuonSchedule {
    float learning_rate, weight_decay;
};
// Returns op::MuonApply::Piece::rates: learning rate, and share of a weight that decays.
inline std::array<float, 2> muon_rates(const MuonSchedule& s) {
    return {s.learning_rate, s.learning_rate * s.weight_decay};
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
    Tensor rates;          // f32 [3] in device memory: adamw_rates()
    float beta1, beta2;
    float epsilon;
    bool cautious = false;       // decay only where update · master >= 0
    bool decays_unmoved = true;  // only with cautious; false: decay only where the product is > 0
    // Returns the smallest update · master at which a weight decays.
    float min_product() const {
        using Limits = std::numeric_limits<float>;
        if (!cautious) return -Limits::infinity();
        return decays_unmoved ? 0.0f : Limits::denorm_min();
    }

    void check() const;
    void traffic(Traffic& t) const {
        t.writes_copy(parameter, master);
        t.updates(master, first_moment, second_moment);
        t.reads(grad, grad_scale, rates);
    }
};

//   b      ← μ·b + (1−μ)·g
//   update = (1−μ)·g + μ·b (nesterov) or b; 0 if grad_scale is not finite
struct MuonMomentum {
    struct Piece {
        Tensor update;    // real [n]
        Tensor momentum;  // b: f32 [n]
        Tensor grad;      // f32 [n]
    };
    ByName by_name = ByName();
    std::vector<Piece> pieces;  // disjoint, all updates of one type
    Tensor grad_scale;          // f32 [1] in device memory
    Tensor mu;                  // f32 [1] in device memory
    bool nesterov = true;

    void check() const;
    void traffic(Traffic& t) const {
        for (const Piece& piece : pieces) {
            t.writes(piece.update);
            t.updates(piece.momentum);
            t.reads(piece.grad);
        }
        t.reads(grad_scale, mu);
    }
};

// Replaces each matrix by its orthogonal polar factor (Polar Express, Amsel et al. 2025, algorithm 1):
//   X ← X / (1.02·‖X‖_F + epsilon), then 5 times X ← aX + (bA + cA²)X with A = XXᵀ.
// A has the smaller side of X.
struct PolarExpress {
    ByName by_name = ByName();
    std::vector<Tensor> x;  // real [n,R,C] each, in place; one type
    Tensor workspace;       // real, workspace_size(x) elements: the parts of the batches in their order
    float epsilon = 1e-6f;

    // A backend may process all matrices together or one at a time.
    static int64_t workspace_size(int64_t n, int64_t rows, int64_t cols) {
        const int64_t side = std::min(rows, cols);
        return n * (2 * side * side + rows * cols);
    }
    static int64_t workspace_size(const std::vector<Tensor>& x) {
        int64_t size = 0;
        for (const Tensor& batch : x) size += workspace_size(batch.shape[0], batch.shape[1], batch.shape[2]);
        return size;
    }
    // Returns the workspace of one batch.
    Tensor workspace_of(size_t batch) const;
    void check() const;
    void traffic(Traffic& t) const {
        for (const Tensor& batch : x) t.updates(batch);
    }
    std::vector<ProductShape> batches() const {
        std::vector<ProductShape> shapes;
        for (const Tensor& batch : x) shapes.push_back({{batch.shape[0], batch.shape[1], batch.shape[2]}});
        return shapes;
    }
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

// master ← master − rate·update − decay·master; parameter = rounded master.
struct MuonApply {
    struct Piece {
        Tensor parameter;  // real [n]
        Tensor master;     // f32 or bf16 [n], as in AdamwStep
        Tensor update;     // real [n]
        Tensor rates;      // f32 [2] in device memory: muon_rates()
    };
    ByName by_name = ByName();
    std::vector<Piece> pieces;  // disjoint; parameters, masters and updates of one type each
    Tensor grad_scale;          // f32 [1] in device memory
    bool cautious = false;      // decay only where update · master >= 0

    void check() const;
    void traffic(Traffic& t) const {
        for (const Piece& piece : pieces) {
            t.writes_copy(piece.parameter, piece.master);
            t.updates(piece.master);
            t.reads(piece.update, piece.rates);
        }
        t.reads(grad_scale);
    }
};

#define SPEEDRUN_OPTIMIZER_OPS(X)  \
    X(adamw_step, AdamwStep)       \
    X(muon_momentum, MuonMomentum) \
    X(polar_express, PolarExpress) \
    X(normuon_scale, NormuonScale) \
    X(muon_apply, MuonApply)

}  // namespace speedrun::op
