// Amount of weight decay per step. Gradients are zero, so that nothing else changes the weights. Tolerance: ten f32
// roundings, 6e-7 of a weight.
#include <cmath>
#include <functional>

#include "tests/train/optimizer_harness.h"

namespace speedrun::testing::weight_decay_test {

class WeightDecayTest : public ::testing::TestWithParam<OptimizerKind> {
  protected:
    WeightDecayTest() {
        fixture_.group.type = GetParam();
        fixture_.group.lr = 0.3;
        fixture_.group.weight_decay = 1.2;
    }
    // Every weight must shrink by the factor 1 − amount(scale). scale: Muon's shape factor of the matrix, else 1.
    void expect_shrinks(double lr_factor, const std::function<double(double scale)>& amount) {
        OptimizerHarness h = muon_harness(fixture_, DType::f32);
        bool tall = false;
        for (const auto& [name, entry] : fixture_.parameters) {
            h.step(name, Values(entry.start.size(), 0.0), 0, lr_factor);
            const Parameter& p = h.parameter(name);
            const double ratio = static_cast<double>(p.stacks().front()) / static_cast<double>(p.shape[1]);
            tall = tall || ratio > 1;
            const double scale = GetParam() == OptimizerKind::muon ? std::sqrt(std::max(1.0, ratio)) : 1.0;
            const Values left = h.value(name);
            for (size_t i = 0; i < left.size(); ++i)
                ASSERT_NEAR(left[i], entry.start[i] * (1 - amount(scale)), 6e-7 * std::abs(entry.start[i]))
                    << name << " " << i;
        }
        EXPECT_TRUE(tall) << "no matrix has a factor";
    }

    OptimizerFixture fixture_ = load_optimizer_fixture("muon");
};
INSTANTIATE_TEST_SUITE_P(Optimizers, WeightDecayTest,
                         ::testing::Values(OptimizerKind::adamw, OptimizerKind::muon),
                         [](const auto& info) { return word_of(info.param); });

TEST_P(WeightDecayTest, ScalesByLearningRate) {
    expect_shrinks(1, [](double) { return 0.3 * 1.2; });
    expect_shrinks(0.5, [](double) { return 0.15 * 1.2; });
}

TEST_P(WeightDecayTest, ScalesBySquaredRateAndShapeFactor) {
    fixture_.group.weight_decay_by = DecayBy::lr_squared;
    expect_shrinks(1, [](double scale) { return 0.3 * (0.3 * scale) * 1.2; });
    expect_shrinks(0.5, [](double scale) { return 0.15 * (0.15 * scale) * 1.2; });
}

// Cautious decay also decays weights with a zero update.
TEST_P(WeightDecayTest, CautiousDecayIncludesZeroUpdates) {
    fixture_.group.adamw.cautious = fixture_.group.muon.cautious = true;
    expect_shrinks(1, [](double) { return 0.3 * 1.2; });
    fixture_.group.weight_decay_by = DecayBy::lr_squared;
    expect_shrinks(1, [](double scale) { return 0.3 * (0.3 * scale) * 1.2; });
}

// lr 0.03 and weight decay 1.2, typical of NorMuon on 124M models: 3.6%, or 0.11% per step.
TEST(WeightDecayAmountTest, AmountAtTypicalRate) {
    StepSettings group{.lr = 0.03, .weight_decay = 1.2};
    EXPECT_DOUBLE_EQ(group.lr * weight_decay_at(group, group.lr), 0.036);
    group.weight_decay_by = DecayBy::lr_squared;
    EXPECT_DOUBLE_EQ(group.lr * weight_decay_at(group, group.lr), 0.00108);
}

}  // namespace speedrun::testing::weight_decay_test
