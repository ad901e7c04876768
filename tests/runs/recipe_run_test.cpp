// Whole runs of a model with the parts that speedrun recipes are made of: several ranks train as one does, however they
// share rows and matrices, and nothing depends on what is kept for backward.
#include <cmath>

#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing {
namespace recipe_run_test {

class RecipeRunTest : public RankRunFixture {
  protected:
    // Values by token in layer 2 alone. No matrix starts at zero, so that every part counts from the first step.
    Config recipe(const MeshCase& mesh, const Settings& more = {}) const {
        Settings all = {
            R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
                "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                           "values": {"init": {"type": "normal", "value": 1}}},
                "norms": {"epsilon": 0.001},
                "windows": {"short": [4, 5, 9], "long": [7, 9, 17]},
                "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
                "layers": {"count": 3,
                    "each": {"attention": {"heads": 2, "window": "short", "value_scale": true,
                                           "rotary": {"base": 64, "fraction": 0.5, "endpoint": true,
                                                      "yarn": {"window": "long", "beta": 4}},
                                           "out_init": {"type": "normal", "value": 0.2}},
                             "mlp": {"ratio": 2, "down_init": {"type": "normal", "value": 0.2}}},
                    "at": {"0": {"attention": {"exclude_own_value": {"start": 0.5}}},
                           "1": {"attention": {"window": "long"}},
                           "2": {"attention": {"value_table": "values", "exclude_own_value": {"start": -0.5}}}}},
                "output": [{"type": "norm"}],
                "head": {"init": {"type": "normal", "value": 0.1}, "softcap": 23, "softcap_function": "sigmoid",
                         "logit_shift": 5, "logit_scale": 7.5},
                "loss": {"gradient_divisor": 4}})",
            kSanitized ? "schedule.steps=3" : "schedule.steps=12",
            kSanitized ? "schedule.stages=[1, 2, 3]" : "schedule.stages=[4, 8, 12]",
            "eval.windows={\"long\": 25}",
            "batch.sequence_length=32",
            "batch.microbatch_tokens=128",
            "batch.tokens_per_step=512",
            "eval.every=5",
            "threads=1",
            "parallel.context=" + std::to_string(mesh.context),
            "parallel.tensor=" + std::to_string(mesh.tensor),
            std::string("parallel.sequence=") + (mesh.sequence ? "true" : "false"),
            std::string("parallel.strategy=") + mesh.strategy};
        all.insert(all.end(), more.begin(), more.end());
        return config(all);
    }
    static constexpr MeshCase kAlone{1, 1, 1, false, "ddp"};
};

TEST_F(RecipeRunTest, AnyMeshTrainsAsOneRankDoes) {
    run_on(1, recipe(kAlone), "one");
    for (const MeshCase& mesh : {MeshCase{2, 1, 1, false, "zero1"}, MeshCase{4, 1, 1, false, "zero3"},
                                 MeshCase{2, 2, 1, false, "ddp"}, MeshCase{2, 1, 2, false, "ddp"},
                                 MeshCase{4, 2, 2, true, "zero2"}}) {
        if (kSanitized && mesh.tensor * mesh.context < 4) continue;
        const std::string name =
            fmt::format("{}_{}_context_{}_tensor_{}", mesh.strategy, mesh.ranks, mesh.context, mesh.tensor);
        run_on(mesh.ranks, recipe(mesh), name);
        expect_near(curve(name), curve("one"), kRanksTolerance, name);
    }
}

// Keys of the token before in a layer, heads in pairs in the others.
TEST_F(RecipeRunTest, RanksWithPairsAndOffsetKeysTrainAsOneDoes) {
    const Settings pairs = {"model.layers.each.attention.paired=true",
                            "model.layers.at.1.attention.paired=false",
                            "model.layers.at.1.attention.key_offset=true"};
    run_on(1, recipe(kAlone, pairs), "one");
    if (!kSanitized) {
        run_on(1, recipe(kAlone), "without");
        EXPECT_NE(curve("one"), curve("without"));
    }
    for (const MeshCase& mesh : {MeshCase{2, 1, 1, false, "ddp"}, MeshCase{4, 1, 1, false, "zero3"}}) {
        if (kSanitized && mesh.ranks == 4) continue;
        run_on(mesh.ranks, recipe(mesh, pairs), mesh.strategy);
        expect_near(curve(mesh.strategy), curve("one"), kRanksTolerance, mesh.strategy);
    }
}

// Where another rank may have the token before.
TEST_F(RecipeRunTest, RanksThatShareRowsOffsetKeysAsOneDoes) {
    const Settings offset = {"model.layers.at.1.attention.key_offset=true"};
    run_on(1, recipe(kAlone, offset), "one");
    if (!kSanitized) {
        run_on(1, recipe(kAlone), "without");
        EXPECT_NE(curve("one"), curve("without"));
    }
    for (const MeshCase& mesh : {MeshCase{2, 2, 1, false, "ddp"}, MeshCase{4, 2, 2, true, "zero2"}}) {
        if (kSanitized && mesh.tensor == 2) continue;
        const std::string name = mesh.strategy;
        run_on(mesh.ranks, recipe(mesh, offset), name);
        expect_near(curve(name), curve("one"), kRanksTolerance, name);
    }
}

// Nothing is learned, so that validation is of the model that begins. Its window says which keys are seen; what YaRN does goes
// by the windows of the stages before.
TEST_F(RecipeRunTest, YarnFollowsTheStagesAndNotTheWindowOfValidation) {
    const auto validation = [&](const std::string& name, const std::string& windows,
                                const std::string& final) {
        run(recipe(kAlone, {"optimizers.groups.0.lr=0", "optimizers.groups.1.lr=0", "eval.every=0",
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
        << "each change goes from the frequencies at hand";
}

// A step has 512 targets: divided by so many, the sum is the mean in every bit. By 64, gradients are 8 times as large, which
// the step's own loss does not show; both are powers of two, and what is divided late or early rounds alike.
TEST_F(RecipeRunTest, GradientsMayBeThoseOfASum) {
    const auto first = [&](const std::string& divisor) {
        run(recipe(kAlone, {"model.loss.gradient_divisor=" + divisor}), "by_" + divisor);
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
        run(recipe(kAlone, {precision}), all);
        for (const double value : curve(all)) EXPECT_TRUE(std::isfinite(value));
        for (const char* kept : {"selective", "full"}) {
            const std::string name = std::string(kept) + precision;
            run(recipe(kAlone, {precision, std::string("memory.activation_checkpointing=") + kept}), name);
            EXPECT_EQ(curve(name), curve(all)) << name;
        }
    }
}

}  // namespace recipe_run_test
}  // namespace speedrun::testing
