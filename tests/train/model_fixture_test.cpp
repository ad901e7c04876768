// Both presets against PyTorch: loss, per-token losses, and the gradient of every
// parameter.
// Covers: train/model/transformer.cpp
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/train/model_harness.h"

namespace speedrun::testing::model_fixture_test {

class ModelFixtureTest : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override { fixture_ = load_model_fixture(GetParam()); }

    ModelHarness harness(DType precision) const {
        return ModelHarness(fixture_.model, static_cast<int64_t>(fixture_.tokens.size()),
                            fixture_.sequence_length, precision);
    }
    float gradient_scale() const {
        return static_cast<float>(1.0 / static_cast<double>(fixture_.valid_targets()));
    }
    // Scale for the error of p's gradient: the size of that gradient. The gradient of a stream factor is a sum over
    // the whole stream that may cancel almost completely, because a norm follows. Its scale is the largest gradient
    // of all stream factors.
    double size_of_gradient(const Parameter& p, double (*measure)(const Values&)) const {
        double size = measure(fixture_.parameters.at(p.name).gradient);
        if (!weighs_the_stream(p.name)) return size;
        for (const auto& [name, entry] : fixture_.parameters) {
            if (weighs_the_stream(name)) size = std::max(size, measure(entry.gradient));
        }
        return size;
    }
    static bool weighs_the_stream(const std::string& name) { return name.ends_with("mix"); }
    // Relative error of every gradient, with this scale.
    void expect_gradients(ModelHarness& h, double (*measure)(const Values&), double tolerance) const {
        for (const Parameter& p : h.table().all()) {
            const Values error = difference_of(h.gradient(p), fixture_.parameters.at(p.name).gradient);
            EXPECT_LT(measure(error) / size_of_gradient(p, measure), tolerance) << p.name;
        }
    }

    ModelFixture fixture_;
};

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelFixtureTest,
                         ::testing::Values("gpt2", "modern", "modern_switches", "modern_ngrams"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ModelFixtureTest, TableDeclaresTheFixturesParameters) {
    ModelHarness h = harness(DType::f32);
    EXPECT_EQ(static_cast<size_t>(h.table().size()), fixture_.parameters.size());
    for (const Parameter& p : h.table().all()) {
        ASSERT_TRUE(fixture_.parameters.count(p.name)) << p.name;
        EXPECT_EQ(p.shape, fixture_.parameters.at(p.name).shape) << p.name;
    }
}

// Loss: 36 losses of about 6 nats after two layers. Some tens of roundings of 6e-8 add up, so 1e-5 is ten times the
// expected error. Gradients have the same errors, but an element is a sum in which larger terms cancel. Its error is
// therefore relative to the parameter's largest element.
TEST_P(ModelFixtureTest, F32AgreesWithPyTorch) {
    ModelHarness h = harness(DType::f32);
    h.load(fixture_);
    h.tracker.begin_step();
    const double loss =
        h.backward(batch_of(fixture_), gradient_scale()) / static_cast<double>(fixture_.valid_targets());
    EXPECT_NEAR(loss, fixture_.loss, 1e-5 * fixture_.loss);
    const Values losses = h.read(h.model.losses());
    for (size_t t = 0; t < losses.size(); ++t)
        EXPECT_NEAR(losses[t], fixture_.losses[t], 1e-5 * fixture_.loss) << "token " << t;
    expect_gradients(h, largest_of, 2e-5);
}

// bf16 has 8 significant bits: every stored activation and weight errs by up to 2⁻⁹ = 0.2 %. A gradient accumulates a
// few dozen mostly independent errors: one or two percent of its norm. The tolerance is three times that; a wrong
// term would give an error of order 1. Single elements can cancel to pure rounding error, so norms are compared.
TEST_P(ModelFixtureTest, Bf16AgreesWithPyTorch) {
    ModelHarness h = harness(DType::bf16);
    h.load(fixture_);
    h.tracker.begin_step();
    const double loss =
        h.backward(batch_of(fixture_), gradient_scale()) / static_cast<double>(fixture_.valid_targets());
    EXPECT_NEAR(loss, fixture_.loss, 3e-3 * fixture_.loss);
    expect_gradients(h, norm_of, 0.06);
}

// loss() without backward, as validation calls it, gives the same losses.
TEST_P(ModelFixtureTest, LossWithoutBackwardIsTheSame) {
    for (const DType precision : {DType::f32, DType::bf16}) {
        ModelHarness h = harness(precision);
        h.load(fixture_);
        const double forward = h.forward_loss(batch_of(fixture_));
        const Values losses = h.read(h.model.losses());
        h.tracker.begin_step();
        EXPECT_EQ(h.backward(batch_of(fixture_), 1), forward) << name_of(precision);
        EXPECT_EQ(h.read(h.model.losses()), losses) << name_of(precision);
    }
}

// Gradients are proportional to the loss scale, and each step starts from zero. The bits are equal because 1/4 is
// exact.
TEST_P(ModelFixtureTest, StepsStartAfreshAndGradientsScale) {
    ModelHarness h = harness(DType::f32);
    h.load(fixture_);
    h.tracker.begin_step();
    h.backward(batch_of(fixture_), 1);
    std::vector<Values> first;
    for (const Parameter& p : h.table().all()) first.push_back(h.gradient(p));
    h.tracker.begin_step();
    h.backward(batch_of(fixture_), 0.25f);
    for (const Parameter& p : h.table().all()) {
        Values scaled = h.gradient(p);
        for (double& value : scaled) value *= 4;
        EXPECT_EQ(scaled, first[p.id]) << p.name;
    }
}

// Logits used for sampling against the loss at the same position: −log softmax over the unpadded vocabulary, summed
// over the weighted targets.
TEST_P(ModelFixtureTest, LogitsOfOneRowGiveItsLoss) {
    ModelHarness h = harness(DType::f32);
    h.load(fixture_);
    h.forward_loss(batch_of(fixture_));
    const Softcap cap = h.model.description().head->softcap();
    for (int64_t row : {0, 17, 35}) {
        const Values logits = h.read(h.model.logits_of(row));
        const auto capped = [&](int64_t i) {
            return cap.present() ? double{cap.cap} * std::tanh(logits[i] / double{cap.cap}) : logits[i];
        };
        double total = 0;
        for (int64_t i = 0; i < fixture_.model.vocab_size; ++i) total += std::exp(capped(i));
        double loss = 0;
        const std::vector<Scheduled<double>> weights = fixture_.model.parts.loss.weights;
        for (int64_t k = 0; k < static_cast<int64_t>(weights.size()); ++k) {
            if (fixture_.positions[row] + k >= fixture_.sequence_length) break;
            const int32_t target = fixture_.targets[row + k];
            if (target >= 0) loss += weights[static_cast<size_t>(k)] * (std::log(total) - capped(target));
        }
        EXPECT_NEAR(loss, fixture_.losses[row], 1e-5 * fixture_.loss) << row;
    }
}

}  // namespace speedrun::testing::model_fixture_test
