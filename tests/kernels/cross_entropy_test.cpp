// Covers: kernels/ops/loss.cpp kernels/cuda/ops/cross_entropy_parts.cu
#include "tests/kernels/loss_problem.h"

namespace speedrun::testing::cross_entropy_test {

using namespace loss_problem;

// Vocabularies with and without padding, of one vector and of less.
const std::vector<Split> kWholes = {{{257, 272}}, {{1000, 1000}}, {{16, 16}}, {{5, 7}}};
// One part with all columns; a single valid column; none, and fewer columns than lanes of a vector; rows of
// several vectors that end in a partial one.
const std::vector<Split> kSplits = {
    {{257, 272}},
    {{16, 16}, {1, 16}},
    {{13, 13}, {9, 13}, {0, 13}},
    {{37, 104}, {104, 104}, {1, 33}, {259, 264}},
};
constexpr Gradient kGradients[] = {Gradient::absent, Gradient::separate, Gradient::in_place};

class CrossEntropyTest : public LossTest {
  protected:
    // Each of these weights with each softcap and place of the gradients.
    void check_all(const Split& split, LossBy by, int64_t rows,
                   const std::vector<std::vector<double>>& all_weights) const {
        for (const auto& weights : all_weights) {
            for (const Softcap& softcap : kSoftcaps) {
                for (const Gradient mode : kGradients) {
                    SCOPED_TRACE(fmt::format("V={} of {} P={} T={} K={} softcap={} dlogits={}", split[0].size,
                                             split[0].padded, split.size(), rows, weights.size(), softcap.cap,
                                             static_cast<int>(mode)));
                    LossProblem problem = random_problem(split, rows, dtype());
                    problem.softcap = softcap;
                    add_targets(problem, weights);
                    check(problem, by, mode);
                }
            }
        }
    }
    // Calls body(problem, by) for random logits of the whole, and of parts.
    template <class Body>
    void for_both(int64_t rows, double deviation, const Body& body) const {
        for (const LossBy by : {LossBy::whole, LossBy::parts}) {
            SCOPED_TRACE(by == LossBy::whole ? "whole" : "parts");
            body(random_problem(by == LossBy::whole ? kWholes[0] : kSplits[3], rows, dtype(), deviation), by);
        }
    }
};
SPEEDRUN_ON_BACKENDS(CrossEntropyTest, backends());

TEST_P(CrossEntropyTest, WholeVocabulary) {
    for (const Split& split : kWholes) {
        for (const int64_t rows : {1, 7, 33, 130}) check_all(split, LossBy::whole, rows, {{}});
        check_all(split, LossBy::whole, 33, {{0.75}, {1, 0.5, 0.25}, {1, 0}, std::vector<double>(8, 0.5)});
    }
}

TEST_P(CrossEntropyTest, ShardedVocabulary) {
    for (const Split& split : kSplits)
        for (const int64_t rows : {1, 33})
            check_all(split, LossBy::parts, rows, {{}, {0.75}, {1, 0.5, 0.25, 0.125}});
}

// Targets in the first and last column of each part, all targets in one part, and one target eight times.
TEST_P(CrossEntropyTest, TargetsAtShardBoundaries) {
    LossProblem problem = random_problem(kSplits[3], 4, dtype());
    problem.softcap = {15.0f};
    problem.weights.assign(8, 0.5);
    problem.targets = {{0, 141, 0, 5},    {36, 141, 1, 5},   {37, 141, 2, 5},   {140, 141, 17, 5},
                       {141, 141, 18, 5}, {142, 141, -1, 5}, {400, 141, 36, 5}, {0, 141, 0, 5}};
    check(problem, LossBy::parts, Gradient::in_place);
}

// A weight of 1 for one target gives the plain loss, bit for bit.
TEST_P(CrossEntropyTest, SingleUnitWeightEqualsPlainLoss) {
    LossProblem problem = random_problem(kWholes[0], 33, dtype());
    problem.softcap = {15.0f};
    problem.targets[0][5] = -1;
    const Outputs plain = outputs_of(problem, LossBy::whole, Gradient::separate);
    problem.weights = {1};
    const Outputs weighted = outputs_of(problem, LossBy::whole, Gradient::separate);
    EXPECT_EQ(plain[1].values, weighted[1].values);
    expect_same_bits(weighted[2], plain[2], "dlogits");
}

TEST_P(CrossEntropyTest, AllTargetsIgnored) {
    for (const auto& weights : {std::vector<double>{}, {1, 0.5}}) {
        for_both(7, 6.0, [&](LossProblem problem, LossBy by) {
            problem.softcap = {15.0f};
            add_targets(problem, weights);
            for (Indices& row : problem.targets) row.assign(7, -1);
            const Outputs out = outputs_of(problem, by, Gradient::separate);
            for (size_t i = 1; i < out.size(); ++i) EXPECT_EQ(reference::norm(out[i]), 0.0) << i;
        });
    }
}

// Logits of ±1e4, whose exponentials overflow, and parts with offsets of 1e4: one part dominates, and a target in another part
// costs as much.
TEST_P(CrossEntropyTest, LogitsFarApart) {
    for (const double between : {0.0, 1e4, -1e4}) {
        for (const Softcap& softcap : kSoftcaps) {
            for_both(7, between == 0.0 ? 1e4 : 4.0, [&](LossProblem problem, LossBy by) {
                if (by == LossBy::whole && between != 0) return;
                SCOPED_TRACE(fmt::format("between={} softcap={}", between, softcap.cap));
                problem.softcap = softcap;
                for (size_t p = 0; p < problem.split.size(); ++p) {
                    for (double& z : problem.logits[p].values) z += between * (static_cast<double>(p) - 1.5);
                    problem.logits[p] = rounded(problem.logits[p], dtype());
                }
                check(problem, by, Gradient::separate);
            });
        }
    }
}

// NaN must reach every loss: it reveals a diverged model.
TEST_P(CrossEntropyTest, PropagatesNan) {
    for (const Softcap& softcap : kSoftcaps) {
        for_both(2, 6.0, [&](const LossProblem& problem, LossBy by) {
            for (size_t part = 0; part < problem.split.size(); ++part) {
                for (const int64_t column :
                     {int64_t{0}, problem.split[part].size / 2, problem.split[part].size - 1}) {
                    LossProblem with_nan = problem;
                    with_nan.softcap = softcap;
                    with_nan.logits[part](1, column) = std::nan("");
                    const Outputs out = outputs_of(with_nan, by, Gradient::absent);
                    for (size_t p = 0; p < problem.split.size(); ++p) {
                        EXPECT_TRUE(std::isfinite(out[1 + p][0]));
                        EXPECT_TRUE(std::isnan(out[1 + p][1])) << "NaN in part " << part << ", loss of " << p;
                    }
                }
            }
        });
    }
}

TEST_P(CrossEntropyTest, AcceptsZeroRows) {
    LossProblem problem = random_problem({{48, 48}, {48, 48}}, 0, dtype());
    outputs_of(problem, LossBy::parts, Gradient::separate);
}

}  // namespace speedrun::testing::cross_entropy_test
