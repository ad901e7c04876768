// Muon with the lines' second moments: the parameters and gradients of the Muon fixture, against our float64
// operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/reference/reference.h"
#include "tests/train/optimizer_harness.h"
#include "train/optim/lr_schedule.h"

namespace speedrun::testing {
namespace {

class NormuonTest : public ::testing::Test {
  protected:
    NormuonTest() {
        fixture_.group.normuon = true;
        fixture_.group.beta2 = 0.8;
    }
    OptimizerHarness harness() const { return muon_harness(fixture_, DType::f32); }
    // The way of one parameter, step by step; `matrices` of them are stacked in it.
    std::vector<Values> reference_steps(const OptimizerFixture::Entry& entry, int64_t matrices,
                                        int64_t cols) {
        using reference::Matrix;
        const OptimizerGroupConfig& group = fixture_.group;
        const int64_t count = static_cast<int64_t>(entry.start.size()), rows = count / matrices / cols;
        Matrix master(1, count), momentum(1, count), grad(1, count);
        master.values = entry.start;
        std::vector<Matrix> second_moments(static_cast<size_t>(matrices), Matrix(1, std::max(rows, cols)));
        std::vector<Values> after;
        for (int step = 0; step < 10; ++step) {
            grad.values = entry.gradients.at(step);
            const float mu = static_cast<float>(muon_momentum_at(group, step));
            const Matrix direction = reference::muon_momentum(momentum, grad, 1.0, mu, group.nesterov);
            Matrix update(1, count);
            for (int64_t i = 0; i < matrices; ++i) {
                Matrix one(rows, cols);
                for (int64_t j = 0; j < one.size(); ++j) one[j] = direction[i * one.size() + j];
                one = reference::polar_express(one);
                reference::normuon_scale(one, second_moments[i], static_cast<float>(group.beta2));
                for (int64_t j = 0; j < one.size(); ++j) update[i * one.size() + j] = one[j];
            }
            const double scale =
                std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
            const double lr = group.lr * fixture_.lr_factors[step];
            reference::muon_apply(master, update, static_cast<float>(lr * scale),
                                  static_cast<float>(group.weight_decay / scale), group.cautious);
            after.push_back(master.values);
        }
        return after;
    }

    OptimizerFixture fixture_ = load_optimizer_fixture("muon");
};

// Tolerance of Muon without the factors of lines: these are smooth functions of the polar factor's elements
// and add nothing to its error.
TEST_F(NormuonTest, TenStepsAgreeInF32) {
    OptimizerHarness h = harness();
    fixture_.group.normuon = false;
    OptimizerHarness plain = harness();
    for (const auto& [name, entry] : fixture_.parameters) {
        const Parameter& p = h.parameter(name);
        const std::vector<Values> expected = reference_steps(entry, p.matrices, p.shape[1]);
        for (int step = 0; step < 10; ++step) {
            h.step(name, entry.gradients.at(step), step, fixture_.lr_factors[step]);
            plain.step(name, entry.gradients.at(step), step, fixture_.lr_factors[step]);
            const double moved = norm_of(difference_of(expected[step], entry.start));
            EXPECT_LT(norm_of(difference_of(h.value(name), expected[step])), 5e-5 * moved)
                << name << " after " << step + 1;
        }
        // Little for the square matrices: the rows of an orthogonal one are equally long as they are.
        const double moved = norm_of(difference_of(expected.back(), entry.start));
        EXPECT_GT(norm_of(difference_of(plain.value(name), expected.back())), 1e-3 * moved)
            << name << ": the switch changes nothing";
    }
}

TEST_F(NormuonTest, BadScalesChangeNothingAndResetForgets) {
    OptimizerHarness plain = harness(), other = harness();
    for (const auto& [name, entry] : fixture_.parameters) {
        plain.step(name, entry.gradients[0], 0, 1);
        other.step(name, entry.gradients[0], 0, 1);
        other.step(name, Values(entry.start.size(), std::nan("")), 1, 1, std::nan(""));
        plain.step(name, entry.gradients[1], 1, 1);
        other.step(name, entry.gradients[1], 1, 1);
        EXPECT_EQ(other.value(name), plain.value(name)) << name << ": the second moments were touched";
    }
    plain.reset();
    OptimizerHarness fresh = harness();
    for (const auto& [name, entry] : fixture_.parameters) {
        plain.set(name, entry.start);
        plain.step(name, entry.gradients[2], 2, 1);
        fresh.step(name, entry.gradients[2], 2, 1);
        EXPECT_EQ(plain.value(name), fresh.value(name)) << name;
    }
}

TEST_F(NormuonTest, SecondMomentsAreInTheMemoryTable) {
    OptimizerHarness with = harness();
    fixture_.group.normuon = false;
    OptimizerHarness without = harness();
    int64_t bytes = 0;
    for (const auto& [name, entry] : fixture_.parameters) {
        const Parameter& p = with.parameter(name);
        bytes += p.matrices * std::max(p.shape[0] / p.matrices, p.shape[1]) * size_of(DType::f32);
    }
    EXPECT_EQ(with.optimizer_bytes() - without.optimizer_bytes(), bytes);
}

}  // namespace
}  // namespace speedrun::testing
