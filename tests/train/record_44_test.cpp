// A whole recipe, that of modded-nanogpt's 44th record at small width, against an independent float64 twin
// (fixtures/record_44_twin.py).
#include "tests/train/recipe_fixture.h"

namespace speedrun::testing {
namespace record_44_test {

class Record44ModelFixtureTest : public RecipeTest {
  protected:
    // Two to four times what the f32 engine comes to on AVX2, which is in parentheses. A loss is a few dozen roundings of 6e-8
    // (9.5e-7 of one token, 1.4e-7 of a mean of 384); an element of a gradient errs as the largest terms of its sum do (1.1e-6
    // of the largest element). Factors of a whole stream have sums over all of it for gradients, most of which cancels (4e-6).
    // Errors of what a parameter has changed: Adam's (4e-6), and those of orthogonalised matrices. Polar Express begins with a
    // slope of 16 near a singular value of 1 and stretches small ones a thousandfold, so that roundings of 6e-8 grow: those of
    // its coefficients alone are 1e-5 for the gate of the smear, all of them 2e-5. The twin in f32 errs by 1.2e-5. Other
    // initial weights, with smaller singular values, came to 1.2e-4, engine and f32 twin alike.
    Record44ModelFixtureTest()
        : RecipeTest("record_44", {.token_loss = 3e-6,
                                   .mean_loss = 5e-7,
                                   .gradient = 3e-6,
                                   .stream_gradient = 1.5e-5,
                                   .adam = 1e-5,
                                   .polar = 4e-5}) {}
    bool is_of_stream(const std::string& name) const override {
        return name.ends_with(".mix") || name.ends_with(".skip") || name.ends_with("value_scale") ||
               name == "smear.scale";
    }
    bool is_orthogonalised(const std::string& name) const override {
        return (name.starts_with("blocks.") || name == "smear.gate.weight") && name.ends_with(".weight");
    }
};

TEST_F(Record44ModelFixtureTest, EveryStageHasTheTwinsLossesAndGradients) {
    ASSERT_EQ(static_cast<int64_t>(fixture_.token_losses.size()), config().schedule.num_stages());
    expect_gradients();
}

TEST_F(Record44ModelFixtureTest, TenStepsAreTheTwins) {
    expect_agreement(run(1, {}));
}

TEST_F(Record44ModelFixtureTest, TenStepsOnSeveralRanksAreTheTwins) {
    const Settings mesh = {"parallel.strategy=zero2", "parallel.context=2", "parallel.tensor=2",
                           "parallel.sequence=true", "batch.microbatch_tokens=192"};
    for (const auto& [ranks, settings] : {std::pair{2, Settings{"parallel.strategy=zero1"}},
                                          {4, Settings{"parallel.strategy=zero3"}},
                                          {4, mesh}}) {
        SCOPED_TRACE(::testing::PrintToString(settings));
        expect_agreement(run(ranks, settings));
    }
}

// Moments of bf16 are roundings of moments that agree to f32's, hardly one of which goes the other way. They change the last
// loss by twenty times the tolerance.
TEST_F(Record44ModelFixtureTest, TenStepsWithMomentsOfBf16AreTheTwins) {
    Settings settings;
    for (const char* group : {"0", "1", "4"})
        settings.push_back(fmt::format("optimizers.groups.{}.moments_dtype=bf16", group));
    expect_losses(run(1, settings).losses, fixture_.step_losses_with_bf16_moments);
}

}  // namespace record_44_test
}  // namespace speedrun::testing
