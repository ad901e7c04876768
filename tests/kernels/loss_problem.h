// Losses of random logits and targets by the operation of a whole vocabulary and by those of its parts, against float64.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::loss_problem {

constexpr float kGradientScale = 0.125f;
constexpr float kLargestSoftcapAsMaximum = 40.0f;  // kLossMaxSoftcap of the CUDA kernels
// None, the standard form, a softcap too large to replace the maximum, and 23·σ((z + 5)/7.5).
constexpr Softcap kSoftcaps[] = {{}, {15.0f}, {60.0f}, {11.5f, 5.0f, 15.0f}};

struct Columns {
    int64_t size, padded;
};
using Split = std::vector<Columns>;
// Logits of a vocabulary split into parts, each with some of the columns, and targets.
struct LossProblem {
    DType dtype;
    Split split;
    std::vector<Matrix> logits = {};    // per part, with its padding
    std::vector<Indices> targets = {};  // one row per weight
    std::vector<double> weights = {};   // empty: one target of weight 1
    Softcap softcap = {};

    int64_t rows() const { return logits[0].rows; }
    int64_t whole_size() const {
        int64_t sum = 0;
        for (const Columns& part : split) sum += part.size;
        return sum;
    }
    std::vector<double> all_weights() const { return weights.empty() ? std::vector<double>{1} : weights; }
    double sum_of_weights() const {
        double sum = 0;
        for (const double w : all_weights()) sum += w;
        return sum;
    }
    // All valid columns, concatenated.
    Matrix whole_logits() const {
        Matrix whole(rows(), whole_size());
        int64_t first = 0;
        for (size_t p = 0; p < split.size(); first += split[p++].size) {
            for (int64_t t = 0; t < rows(); ++t) {
                for (int64_t v = 0; v < split[p].size; ++v) whole(t, first + v) = logits[p](t, v);
            }
        }
        return whole;
    }
};

// Padding columns hold logits that would win every softmax.
inline LossProblem random_problem(const Split& split, int64_t rows, DType dtype, double deviation = 6.0) {
    LossProblem problem{.dtype = dtype, .split = split};
    for (size_t p = 0; p < split.size(); ++p) {
        Matrix logits = random_matrix(rows, split[p].padded, p + 1, dtype, deviation);
        for (int64_t t = 0; t < rows; ++t) {
            for (int64_t v = split[p].size; v < split[p].padded; ++v) logits(t, v) = 8192.0;
        }
        problem.logits.push_back(std::move(logits));
    }
    problem.targets = {random_indices(rows, problem.whole_size(), 9)};
    return problem;
}

// Rows in which several weights have one target, and rows in which some or all have none.
inline void add_targets(LossProblem& problem, const std::vector<double>& weights) {
    problem.weights = weights;
    const size_t count = std::max<size_t>(1, weights.size());
    for (size_t k = 1; k < count; ++k)
        problem.targets.push_back(random_indices(problem.rows(), problem.whole_size(), 9 + k));
    for (size_t k = 0; k < count; ++k) {
        for (size_t t = 0; t < problem.targets[k].size(); ++t) {
            if (t % 5 == 0) problem.targets[k][t] = problem.targets[0][t];
            if ((weights.empty() && t % 3 == 2) || (t % 4 == 1 && k % 2 == 1) || t % 16 == 7)
                problem.targets[k][t] = -1;
        }
    }
}

enum class Gradient { absent, separate, in_place };

// Results of each part: its reduction, its losses and its gradients.
struct Places {
    size_t num_parts;
    size_t losses(size_t p) const { return 1 + p; }
    size_t dlogits(size_t p) const { return 1 + num_parts + p; }
};

// The operation of a whole vocabulary, or the operations of its parts.
enum class LossBy { whole, parts };

// Target rows are columns of a wider tensor.
constexpr int64_t kColumnsBefore = 3;

inline Outputs compute(Harness& h, const LossProblem& problem, LossBy by, Gradient mode) {
    const int64_t rows = problem.rows();
    const auto num_targets = static_cast<int64_t>(problem.targets.size()),
               num_parts = static_cast<int64_t>(problem.split.size());
    Tensor targets, weights;
    if (problem.weights.empty()) {
        targets = h.input(problem.targets[0]);
    } else {
        Indices flat;
        for (const Indices& row : problem.targets) {
            flat.insert(flat.end(), kColumnsBefore, 99999);  // not a valid id
            flat.insert(flat.end(), row.begin(), row.end());
        }
        targets =
            h.input(flat).reshaped({num_targets, kColumnsBefore + rows}).column_slice(kColumnsBefore, rows);
        Matrix row(1, num_targets);
        row.values = problem.weights;
        weights = h.input(row, DType::f32, {num_targets});
    }
    if (by == LossBy::whole) {
        const Tensor in = mode == Gradient::in_place ? h.inout(problem.logits[0], problem.dtype)
                                                     : h.input(problem.logits[0], problem.dtype);
        op::CrossEntropy a{.losses = h.output(DType::f32, {rows}),
                           .logits = in,
                           .targets = targets,
                           .weights = weights,
                           .vocab_size = problem.split[0].size,
                           .softcap = problem.softcap,
                           .gradient_scale = kGradientScale};
        if (mode == Gradient::in_place) a.dlogits = in;
        if (mode == Gradient::separate) a.dlogits = h.output(problem.dtype, {rows, in.cols()});
        h.call(a);
        return {Matrix(), h.read(a.losses), a.dlogits.present() ? h.read(a.dlogits) : Matrix()};
    }
    const Tensor parts = h.output(DType::f32, {num_parts * rows, 2});
    std::vector<Tensor> logits, results{parts}, gradients;
    int64_t first = 0;
    for (int64_t p = 0; p < num_parts; ++p) {
        const auto at = static_cast<size_t>(p);
        const Matrix& values = problem.logits[at];
        logits.push_back(mode == Gradient::in_place ? h.inout(values, problem.dtype)
                                                    : h.input(values, problem.dtype));
        h.call(op::CrossEntropyPart{.part = parts.row_slice(p * rows, rows),
                                    .logits = logits.back(),
                                    .targets = targets,
                                    .weights = weights,
                                    .first = first,
                                    .vocab_size = problem.split[at].size,
                                    .whole_vocab_size = problem.whole_size(),
                                    .softcap = problem.softcap});
        first += problem.split[at].size;
    }
    first = 0;
    for (size_t p = 0; p < problem.split.size(); ++p) {
        Tensor dlogits;
        if (mode == Gradient::in_place) dlogits = logits[p];
        if (mode == Gradient::separate) dlogits = h.output(problem.dtype, {rows, problem.split[p].padded});
        results.push_back(h.output(DType::f32, {rows}));
        if (dlogits.present()) gradients.push_back(dlogits);
        h.call(op::CrossEntropyOfParts{.losses = results.back(),
                                       .dlogits = dlogits,
                                       .logits = mode == Gradient::absent ? Tensor() : logits[p],
                                       .parts = parts,
                                       .targets = targets,
                                       .weights = weights,
                                       .first = first,
                                       .vocab_size = problem.split[p].size,
                                       .whole_vocab_size = problem.whole_size(),
                                       .softcap = problem.softcap,
                                       .gradient_scale = kGradientScale});
        first += problem.split[p].size;
    }
    results.insert(results.end(), gradients.begin(), gradients.end());
    Outputs out;
    for (const Tensor& tensor : results) out.push_back(h.read(tensor));
    return out;
}

struct Tolerances {
    Tolerance losses, gradients;
};

// A loss is a difference of values up to 30, each rounded, plus the error of a vectorized tanh (2e-7) times the softcap, which also
// shifts each probability by that relative error. The targets' weights multiply them. The log of the sum of a part rounds in
// proportion to large logits, and shifts all probabilities. CUDA rounds bf16 gradients twice where it replaces the maximum by a softcap:
// the terms before their sum is known, and the results.
inline Tolerances tolerances(const LossProblem& problem, LossBy by) {
    const double cap = std::max(15.0, static_cast<double>(problem.softcap.cap)) / 15.0;
    const double weight = std::max(1.0, problem.sum_of_weights());
    double largest = 0.0;
    if (by == LossBy::parts && !problem.softcap.present()) {
        for (const double z : problem.whole_logits().values) largest = std::max(largest, std::abs(z));
    }
    const double of_large = largest > 100.0 ? 4.0 * largest * kF32Roundoff : 0.0;
    Tolerances result;
    result.losses = {16 * kF32Roundoff, 0, (1e-5 * cap + of_large) * weight};
    const bool twice =
        by == LossBy::whole && problem.softcap.present() && problem.softcap.cap <= kLargestSoftcapAsMaximum;
    const double of_bf16 = twice ? 2 * kBf16Ulp : kBf16Ulp;
    result.gradients = {problem.dtype == DType::bf16 ? of_bf16 : 2e-5 * cap, 0,
                        (2e-6 + of_large) * weight * static_cast<double>(kGradientScale)};
    return result;
}

// −∞ for a part without columns, also in the reference.
inline void expect_parts(Matrix actual, Matrix expected, Tolerance tolerance, const std::string& name) {
    for (int64_t t = 0; t < expected.rows; ++t) {
        if (!std::isinf(expected(t, 0))) continue;
        EXPECT_EQ(actual(t, 0), expected(t, 0)) << name;
        actual(t, 0) = expected(t, 0) = 0.0;
    }
    expect_close(reference::column_block(actual, 0, 1), reference::column_block(expected, 0, 1), tolerance,
                 name + ": log of the sum");
    expect_close(reference::column_block(actual, 1, 1), reference::column_block(expected, 1, 1), tolerance,
                 name + ": targets");
}

inline void expect_correct(const Outputs& out, const LossProblem& problem, LossBy by, Gradient mode) {
    const int64_t rows = problem.rows();
    const Tolerances allowed = tolerances(problem, by);
    const Places places{problem.split.size()};
    const Matrix whole = problem.whole_logits();
    const Matrix losses = reference::weighted_cross_entropy_losses(
        whole, problem.targets, problem.all_weights(), whole.cols, problem.softcap);
    const Matrix dlogits = reference::weighted_cross_entropy_dlogits(
        whole, problem.targets, problem.all_weights(), whole.cols, problem.softcap, kGradientScale);
    int64_t first = 0;
    for (size_t p = 0; p < problem.split.size(); ++p) {
        const std::string name = fmt::format("part {}", p);
        const Columns columns = problem.split[p];
        if (by == LossBy::parts)
            expect_parts(
                reference::row_block(out[0], static_cast<int64_t>(p) * rows, rows),
                reference::cross_entropy_part(problem.logits[p], problem.targets, problem.all_weights(),
                                              {.first = first, .size = columns.size}, problem.softcap),
                allowed.losses, name);
        expect_close(out[places.losses(p)], losses, allowed.losses, name + ": losses");
        expect_same_bits(out[places.losses(p)], out[places.losses(0)], "losses of all parts");
        if (mode != Gradient::absent) {
            Matrix expected(rows, columns.padded);
            for (int64_t t = 0; t < rows; ++t) {
                for (int64_t v = 0; v < columns.size; ++v) expected(t, v) = dlogits(t, first + v);
            }
            const Matrix& actual = out[places.dlogits(p)];
            expect_close(actual, expected, allowed.gradients, name + ": dlogits");
            for (int64_t t = 0; t < rows; ++t) {
                const bool counts =
                    std::any_of(problem.targets.begin(), problem.targets.end(),
                                [&](const Indices& row) { return row[static_cast<size_t>(t)] >= 0; });
                for (int64_t v = counts ? columns.size : 0; v < columns.padded; ++v)
                    ASSERT_EQ(actual(t, v), 0.0) << "padding or ignored row: " << t << "," << v;
            }
        }
        first += columns.size;
    }
}

class LossTest : public OpTest {
  protected:
    Outputs outputs_of(const LossProblem& problem, LossBy by, Gradient mode) const {
        return run([&](Harness& h) { return compute(h, problem, by, mode); });
    }
    void check(const LossProblem& problem, LossBy by, Gradient mode) const {
        expect_correct(outputs_of(problem, by, mode), problem, by, mode);
    }
};

}  // namespace speedrun::testing::loss_problem
