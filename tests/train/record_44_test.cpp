// modded-nanogpt's 44th record at small width, as a whole recipe, against an independent float64 twin
// (fixtures/recipe_twin.py).
// Covers: train/engine/validation.cpp
#include "tests/train/recipe_fixture.h"

namespace speedrun::testing::record_44_test {

class Record44ModelFixtureTest : public RecipeTest {
  protected:
    Record44ModelFixtureTest() : RecipeTest("record_44", {}, fixture_path("record_44_config.json")) {}
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

// Moments agree to f32 precision, so almost all of them round to the same bf16 value. bf16 moments change the last
// loss by twenty times the tolerance.
TEST_F(Record44ModelFixtureTest, TenStepsWithMomentsOfBf16AreTheTwins) {
    Settings settings;
    for (const char* group : {"0", "1", "4"})
        settings.push_back(fmt::format("optimizers.groups.{}.moments_dtype=bf16", group));
    expect_losses(run(1, settings).losses, fixture_.step_losses_with_bf16_moments);
}

}  // namespace speedrun::testing::record_44_test
