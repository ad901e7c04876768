// Whole runs of a model with the parts of speedrun recipes on one rank: frequencies of YaRN, divisors of gradients, and values kept
// for backward, which have no effect on results. mesh_run_test.cpp: on several ranks.
#include "tests/runs/recipe_settings.h"

namespace speedrun::testing::recipe_run_test {

class RecipeRunTest : public RankRunFixture {
  protected:
    Config recipe(const Settings& more) const { return config(recipe_settings(), more); }
};

// Learning rate 0, so that the initial model is validated. The validation window selects the visible keys; YaRN depends on the
// windows of previous stages.
TEST_F(RecipeRunTest, YarnFollowsTheStagesAndNotTheWindowOfValidation) {
    const auto validation = [&](const std::string& name, const std::string& windows,
                                const std::string& final) {
        run(recipe({"optimizers.groups.0.lr=0", "optimizers.groups.1.lr=0", "eval.every=0",
                    "model.windows={\"short\": 4, \"long\": " + windows + "}",
                    "eval.windows={\"long\": " + final + "}"}),
            name);
        return metrics(name).back()["loss"].get<double>();
    };
    const double still = validation("still", "[7, 7, 7]", "25"),
                 grown = validation("grown", "[7, 7, 25]", "25");
    EXPECT_NE(still, grown) << "what grew is rescaled";
    EXPECT_EQ(validation("number", "7", "25"), still);
    EXPECT_EQ(validation("early", "[7, 25, 25]", "25"), grown);
    EXPECT_NE(validation("twice", "[7, 13, 25]", "25"), grown)
        << "each change starts from the current frequencies";
}

// A step has 512 targets: the sum divided by 512 equals the mean bitwise. Divided by 64, gradients are 8 times as large, which
// the step's own loss does not show. Both are powers of two, so the order of division does not affect rounding.
TEST_F(RecipeRunTest, GradientsMayBeThoseOfASum) {
    const auto first = [&](const std::string& divisor) {
        run(recipe({"model.loss.gradient_divisor=" + divisor}), "by_" + divisor);
        return metrics("by_" + divisor).front();
    };
    const Json mean = first("0"), sum = first("64");
    first("512");
    EXPECT_EQ(curve("by_512"), curve("by_0"));
    EXPECT_EQ(sum["loss"], mean["loss"]);
    EXPECT_EQ(sum["grad_norm"].get<double>(), 8 * mean["grad_norm"].get<double>());
}

TEST_F(RecipeRunTest, WhatIsKeptForBackwardChangesNoBit) {
    for (const char* precision : {"precision=f32", "precision=bf16"}) {
        const std::string all = std::string("all_") + precision;
        run(recipe({precision}), all);
        for (const double value : curve(all)) EXPECT_TRUE(std::isfinite(value));
        for (const char* kept : {"selective", "full"}) {
            const std::string name = std::string(kept) + precision;
            run(recipe({precision, std::string("memory.activation_checkpointing=") + kept}), name);
            EXPECT_EQ(curve(name), curve(all)) << name;
        }
    }
}

}  // namespace speedrun::testing::recipe_run_test
