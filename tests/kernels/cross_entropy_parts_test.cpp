// Loss of a vocabulary split into parts, each with some of the columns.
#include <algorithm>
#include <cmath>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace cross_entropy_parts_test {

SPEEDRUN_OP_TEST(CrossEntropyPartsTest);

constexpr float kGradientScale = 0.125f;

struct Columns {
    int64_t size, padded;
};
using Split = std::vector<Columns>;
// One part with all columns; a single valid column; none, and fewer columns than lanes of a vector; rows of
// several vectors that end in a partial one.
const std::vector<Split> kSplits = {
    {{257, 272}},
    {{16, 16}, {1, 16}},
    {{13, 13}, {9, 13}, {0, 13}},
    {{37, 104}, {104, 104}, {1, 33}, {259, 264}},
};

struct Problem {
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
Problem random_problem(const Split& split, int64_t rows, DType dtype, double deviation = 6.0) {
    Problem problem{.dtype = dtype, .split = split};
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
void add_targets(Problem& problem, const std::vector<double>& weights) {
    problem.weights = weights;
    const size_t count = std::max<size_t>(1, weights.size());
    for (size_t k = 1; k < count; ++k)
        problem.targets.push_back(random_indices(problem.rows(), problem.whole_size(), 9 + k));
    for (size_t k = 0; k < count; ++k) {
        for (size_t t = 0; t < problem.targets[k].size(); ++t) {
            if (t % 5 == 0) problem.targets[k][t] = problem.targets[0][t];
            if ((t % 4 == 1 && k % 2 == 1) || t % 16 == 7) problem.targets[k][t] = -1;
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

// Target rows are columns of a wider tensor.
constexpr int64_t kColumnsBefore = 3;

Outputs compute(Harness& h, const Problem& problem, Gradient mode) {
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

// As in cross_entropy_test.cpp: values up to 30, each rounded, and the error of tanh times the softcap. The
// targets' weights multiply them. For larger logits the rounding error of L grows and shifts all
// probabilities.
Tolerances tolerances(const Problem& problem) {
    const double cap = std::max(15.0, static_cast<double>(problem.softcap.cap)) / 15.0;
    const double weight = std::max(1.0, problem.sum_of_weights());
    double largest = 0.0;
    if (!problem.softcap.present()) {
        for (const double z : problem.whole_logits().values) largest = std::max(largest, std::abs(z));
    }
    const double of_large = largest > 100.0 ? 4.0 * largest * kF32Roundoff : 0.0;
    Tolerances result;
    result.losses = {16 * kF32Roundoff, 0, (1e-5 * cap + of_large) * weight};
    result.gradients = {problem.dtype == DType::bf16 ? kBf16Ulp : 2e-5 * cap, 0,
                        (2e-6 + of_large) * weight * static_cast<double>(kGradientScale)};
    return result;
}

// −∞ for a part without columns, also in the reference.
void expect_parts(Matrix actual, Matrix expected, Tolerance tolerance, const std::string& name) {
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

void expect_correct(const Outputs& out, const Problem& problem, Gradient mode) {
    const int64_t rows = problem.rows();
    const Tolerances allowed = tolerances(problem);
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
        expect_parts(reference::row_block(out[0], static_cast<int64_t>(p) * rows, rows),
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

TEST_P(CrossEntropyPartsTest, LossesAndGradients) {
    for (const Split& split : kSplits) {
        for (const int64_t rows : {1, 33}) {
            for (const auto& weights : {std::vector<double>{}, {0.75}, {1, 0.5, 0.25, 0.125}}) {
                for (const Softcap& softcap :
                     {Softcap{}, Softcap{15.0f}, Softcap{60.0f}, Softcap{11.5f, 5.0f, 15.0f}}) {
                    for (const Gradient mode : {Gradient::absent, Gradient::separate, Gradient::in_place}) {
                        SCOPED_TRACE(fmt::format("P={} T={} weights={} softcap={} dlogits={}", split.size(),
                                                 rows, weights.size(), softcap.cap, static_cast<int>(mode)));
                        Problem problem = random_problem(split, rows, dtype());
                        problem.softcap = softcap;
                        add_targets(problem, weights);
                        expect_correct(run([&](Harness& h) { return compute(h, problem, mode); }), problem,
                                       mode);
                    }
                }
            }
        }
    }
}

// Targets in the first and last column of each part, all targets in one part, and one target eight times.
TEST_P(CrossEntropyPartsTest, TargetsAtTheEdges) {
    const Split& split = kSplits[3];
    Problem problem = random_problem(split, 4, dtype());
    problem.softcap = {15.0f};
    problem.weights.assign(8, 0.5);
    problem.targets = {{0, 141, 0, 5},    {36, 141, 1, 5},   {37, 141, 2, 5},   {140, 141, 17, 5},
                       {141, 141, 18, 5}, {142, 141, -1, 5}, {400, 141, 36, 5}, {0, 141, 0, 5}};
    expect_correct(run([&](Harness& h) { return compute(h, problem, Gradient::in_place); }), problem,
                   Gradient::in_place);
}

TEST_P(CrossEntropyPartsTest, AllIgnored) {
    for (const auto& weights : {std::vector<double>{}, {1, 0.5}}) {
        Problem problem = random_problem(kSplits[2], 7, dtype());
        add_targets(problem, weights);
        for (Indices& row : problem.targets) row.assign(7, -1);
        const Outputs out = run([&](Harness& h) { return compute(h, problem, Gradient::separate); });
        for (size_t i = 1; i < out.size(); ++i) EXPECT_EQ(reference::norm(out[i]), 0.0) << i;
    }
}

// Logits of ±1e4, and parts with offsets of 1e4: one part dominates, and a target in another part costs as
// much.
TEST_P(CrossEntropyPartsTest, LogitsFarApart) {
    for (const double between : {0.0, 1e4, -1e4}) {
        for (const Softcap& softcap : {Softcap{}, Softcap{15.0f}}) {
            SCOPED_TRACE(fmt::format("between={} softcap={}", between, softcap.cap));
            Problem problem = random_problem(kSplits[3], 7, dtype(), between == 0.0 ? 1e4 : 4.0);
            problem.softcap = softcap;
            for (size_t p = 0; p < problem.split.size(); ++p) {
                for (double& z : problem.logits[p].values) z += between * (static_cast<double>(p) - 1.5);
                problem.logits[p] = rounded(problem.logits[p], dtype());
            }
            expect_correct(run([&](Harness& h) { return compute(h, problem, Gradient::separate); }), problem,
                           Gradient::separate);
        }
    }
}

// NaN must reach the loss of every part: it reveals a diverged model.
TEST_P(CrossEntropyPartsTest, NanStaysNan) {
    for (size_t part = 0; part < 4; ++part) {
        for (const Softcap& softcap : {Softcap{}, Softcap{15.0f}}) {
            Problem problem = random_problem(kSplits[3], 2, dtype());
            problem.softcap = softcap;
            problem.logits[part](1, 0) = std::nan("");
            const Outputs out = run([&](Harness& h) { return compute(h, problem, Gradient::absent); });
            for (size_t p = 0; p < 4; ++p) {
                EXPECT_TRUE(std::isfinite(out[1 + p][0]));
                EXPECT_TRUE(std::isnan(out[1 + p][1])) << "NaN in part " << part << ", loss of " << p;
            }
        }
    }
}

TEST_P(CrossEntropyPartsTest, NoRowsAreNoError) {
    run([&](Harness& h) -> Outputs {
        const Tensor part = h.output(DType::f32, {0, 2}), losses = h.output(DType::f32, {0}),
                     logits = h.output(dtype(), {0, 48}), targets = h.input(Indices());
        h.call(op::CrossEntropyPart{.part = part,
                                    .logits = logits,
                                    .targets = targets,
                                    .first = 0,
                                    .vocab_size = 48,
                                    .whole_vocab_size = 96});
        h.call(op::CrossEntropyOfParts{.losses = losses,
                                       .dlogits = logits,
                                       .logits = logits,
                                       .parts = part,
                                       .targets = targets,
                                       .first = 0,
                                       .vocab_size = 48,
                                       .whole_vocab_size = 96});
        h.stream().synchronize();
        return {};
    });
}

}  // namespace cross_entropy_parts_test
}  // namespace speedrun::testing
