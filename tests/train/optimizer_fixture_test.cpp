// Our optimizers against PyTorch's AdamW and a float64 Muon over ten steps, through the classes that a run
// uses; and which group takes which parameter.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/train/optimizer_harness.h"

namespace speedrun::testing {
namespace {

// ---- AdamW: a 12 x 8 matrix, which the position embedding of this model is

constexpr char kMatrix[] = "position.weight";

class AdamwFixtureTest : public ::testing::Test {
  protected:
    OptimizerHarness harness() const {
        ModelConfig model;
        model.preset = Family::gpt2;
        model.apply_preset();
        model.num_layers = 1;
        model.model_dim = 8;
        // Beside another one, so that the moments do not begin at offset 0.
        OptimizerHarness h(model, 12, fixture_.group, {"embed.weight", kMatrix}, DType::f32);
        h.set(kMatrix, entry().start);
        return h;
    }
    const OptimizerFixture::Entry& entry() const { return fixture_.parameters.at(""); }

    const OptimizerFixture fixture_ = load_adamw_fixture();
};

// A step moves an element by at most a few lr and is computed to some 1e-6 of that (a quotient, a root, and 1
// − β^t, which is 0.05 with f32's 6e-8); the elements are of size 1 and rounded to 6e-8 ten times. 2e-6
// bounds the sum of both.
TEST_F(AdamwFixtureTest, TenStepsAgreeWithPyTorch) {
    OptimizerHarness h = harness();
    ASSERT_EQ(entry().gradients.size(), 10u);
    for (int step = 0; step < 10; ++step) {
        h.step(kMatrix, entry().gradients[step], step, fixture_.lr_factors[step]);
        EXPECT_LT(largest_of(difference_of(h.value(kMatrix), entry().after.at(step + 1))), 2e-6)
            << "step " << step;
    }
}

// Clipping reaches the optimizer as a factor of the gradients; a power of two loses no bit.
TEST_F(AdamwFixtureTest, GradientsAreScaled) {
    OptimizerHarness plain = harness(), scaled = harness();
    for (int step = 0; step < 3; ++step) {
        plain.step(kMatrix, entry().gradients[step], step, 1);
        scaled.step(kMatrix, times(entry().gradients[step], 8), step, 1, 0.125);
    }
    EXPECT_EQ(scaled.value(kMatrix), plain.value(kMatrix));
}

TEST_F(AdamwFixtureTest, StepWithoutFiniteScaleChangesNothing) {
    OptimizerHarness plain = harness(), disturbed = harness();
    plain.step(kMatrix, entry().gradients[0], 0, 1);
    disturbed.step(kMatrix, entry().gradients[0], 0, 1);
    disturbed.step(kMatrix, Values(96, std::nan("")), 1, 1, std::nan(""));
    EXPECT_EQ(disturbed.value(kMatrix), plain.value(kMatrix));
    plain.step(kMatrix, entry().gradients[1], 1, 1);
    disturbed.step(kMatrix, entry().gradients[1], 1, 1);
    EXPECT_EQ(disturbed.value(kMatrix), plain.value(kMatrix)) << "the moments were touched";
}

// ---- Muon: square matrices stacked by three, a tall and a wide one

class MuonFixtureTest : public ::testing::Test {
  protected:
    OptimizerHarness harness(DType precision) const { return muon_harness(fixture_, precision); }
    // ‖error‖ relative to ‖what the steps so far have moved‖.
    void expect_agreement(DType precision, double tolerance) const {
        OptimizerHarness h = harness(precision);
        for (int step = 0; step < 10; ++step) {
            for (const auto& [name, entry] : fixture_.parameters) {
                h.step(name, entry.gradients.at(step), step, fixture_.lr_factors[step]);
                if (!entry.after.count(step + 1)) continue;
                const Values& expected = entry.after.at(step + 1);
                const double moved = norm_of(difference_of(expected, entry.start));
                EXPECT_LT(norm_of(difference_of(h.value(name), expected)), tolerance * moved)
                    << name << " after " << step + 1;
            }
        }
    }

    const OptimizerFixture fixture_ = load_muon_fixture();
};

// The polar factor stretches the smallest singular values of the square matrices by up to a thousand, and the
// rounding errors (6e-8 relative to the largest) with them: 6e-5 of single directions, less of the norm.
TEST_F(MuonFixtureTest, TenStepsAgreeInF32) {
    expect_agreement(DType::f32, 5e-5);
}

// In bf16 the update errs by up to the polynomials' band of 14 % (see tests/kernels/muon_test.cpp), but not
// always in the same direction: over ten steps less than half of that remains of the way.
TEST_F(MuonFixtureTest, TenStepsAgreeInBf16) {
    expect_agreement(DType::bf16, 0.07);
}

TEST_F(MuonFixtureTest, GradientsAreScaledAndBadScalesChangeNothing) {
    OptimizerHarness plain = harness(DType::f32), other = harness(DType::f32);
    for (const auto& [name, entry] : fixture_.parameters) {
        plain.step(name, entry.gradients[0], 0, 1);
        other.step(name, times(entry.gradients[0], 8), 0, 1, 0.125);
        EXPECT_EQ(other.value(name), plain.value(name)) << name;
        other.step(name, Values(entry.start.size(), std::nan("")), 1, 1,
                   std::numeric_limits<double>::infinity());
        EXPECT_EQ(other.value(name), plain.value(name)) << name;
        plain.step(name, entry.gradients[1], 1, 1);
        other.step(name, entry.gradients[1], 1, 1);
        EXPECT_EQ(other.value(name), plain.value(name)) << name << ": the momentum was touched";
    }
}

}  // namespace
}  // namespace speedrun::testing
