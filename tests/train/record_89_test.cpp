// modded-nanogpt's 89th record (configs/fineweb_newest_8xh100.json) at small width, as a whole recipe, against an independent float64 twin
// (fixtures/recipe_twin.py). Each of its parts, and of the 44th record's, is also tested alone in a plain model.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/sanitized.h"
#include "tests/train/recipe_fixture.h"
#include "train/config/config_json.h"

namespace speedrun::testing::record_89_test {

// Values pass through 21 sublayers. Errors of the f32 twin: 2.3e-6 in token losses, 4.1e-5 in gradients of stream
// factors, 6e-6 in other gradients. The engine on AVX2 has at most these errors. After ten steps its total changes
// err by 9e-5 for stream factors and 8e-5 for orthogonalised matrices. Tolerances are two to three times as large.
constexpr RecipeTolerances kWhole{.token_loss = 5e-6,
                                  .mean_loss = 1e-6,
                                  .gradient = 1.2e-5,
                                  .stream_gradient = 2e-4,
                                  .adam = 2e-5,
                                  .polar = 1.6e-4};
constexpr RecipeTolerances kAlone{};

// Sizes of the twin for the shipped config, f32 without FP8, and schedules of ten steps. The fixture assigns initial weights.
Settings small_sizes() {
    Settings settings = {
        "model.model_dim=48",
        "model.vocab_size=61",
        "model.tables.bigram.num_rows=40",
        "model.tables.bigram.sign_rows=8",
        "model.windows={\"short\": [5, 9, 9, 13, 17], \"long\": [9, 17, 17, 25, 33]}",
        "model.layers.each.mlp.ratio=2",
        "model.layers.each.mlp.up_fp8=null",
        "model.layers.each.mlp.down_fp8=null",
        "model.layers.at.10.attention.compose_heads.keys=5",
        "model.head.fp8=null",
        R"(model.loss.weights=[1, [0.5, [0.5, 0.33333333333333337], [0.33333333333333337, 0], 0, 0], [[0.25, 0], 0, 0, 0, 0]])",
        "model.loss.prefix_weight=[0.25, [0.25, 0.16666666666666669], [0.16666666666666669, 0], 0, 0]",
        "data.vocabulary=",
        "data.val_tokens=0",
        "data.max_document_tokens=[20, 40, 40, 40, 40]",
        "batch.sequence_length=[32, 48, 48, 64, 64]",
        "batch.microbatch_tokens=[256, 384, 384, 512, 512]",
        "batch.tokens_per_step=[256, 384, 384, 512, 512]",
        "optimizers.groups.2.lr=0.06505382386916238",
        "optimizers.groups.2.weight_decay=0.42426406871192845",
        "schedule.steps=10",
        "schedule.stages=[3, 4, 6, 8, 10]",
        "schedule.lr_factor=[1, 1.52, [1.52, 0.835], [0.94, 0.15], 0.15]",
        "eval.sequence_length=96",
        "eval.windows={\"long\": 41}",
        "parallel={}",
        "record={}",
        "precision=f32"};
    for (const char* network : {"early", "late", "mudd", "mudd_output"})
        settings.push_back(fmt::format("model.networks.{}.hidden=5", network));
    for (const int matrices : {0, 1, 2})
        for (const char* steps : {"warmup", "cooldown"})
            settings.push_back(fmt::format("optimizers.groups.{}.momentum_{}_steps=3", matrices, steps));
    for (const int group : {3, 4, 8, 9, 10, 12})
        settings.push_back(fmt::format("optimizers.groups.{}.weights_dtype=f32", group));
    return settings;
}

class Record89ModelFixtureTest : public RecipeTest {
  protected:
    Record89ModelFixtureTest()
        : RecipeTest("record_89", kWhole, SPEEDRUN_SOURCE_ROOT "/configs/fineweb_newest_8xh100.json",
                     small_sizes()) {}
    bool is_of_stream(const std::string& name) const override { return name.ends_with("_scale"); }
    bool is_orthogonalised(const std::string& name) const override {
        return name.starts_with("blocks.") && name.ends_with(".weight") && !name.ends_with("gate.weight");
    }
};

TEST_F(Record89ModelFixtureTest, EveryStageMatchesTwin) {
    ASSERT_EQ(fixture_.token_losses.size(), 4U);
    expect_gradients();
}

TEST_F(Record89ModelFixtureTest, TenStepsMatchTwin) {
    expect_agreement(run(1, {}));
}

TEST_F(Record89ModelFixtureTest, TenStepsOnSeveralRanksMatchTwin) {
    const std::string two_rows = "batch.microbatch_tokens=[64,96,96,128,128]";
    if (!kSanitized) {
        expect_agreement(run(2, {"parallel.strategy=zero1", two_rows}));
        expect_agreement(run(4, {"parallel.strategy=zero3", two_rows}));
    }
    expect_agreement(
        run(8, {"parallel.strategy=zero2", "parallel.tensor=2", "parallel.sequence=true", two_rows}));
}

class Record89ItemTest : public ::testing::TestWithParam<std::string> {};

bool of_stream(const std::string& name) {
    return name.ends_with("_scale") || name.ends_with("_gain") || name.ends_with(".skip") ||
           name.ends_with("mix") || name.starts_with("backout");
}

// In f32, losses and gradients. In bf16, the mean loss and norms: every stored value errs by up to 2^-9, and a gradient accumulates
// a few dozen mostly independent errors, one or two percent of its norm. That of a stream factor may cancel almost completely, so
// its error is compared with the largest gradient of such a factor. A wrong term would give an error of order 1.
void expect_item(const std::string& name, DType precision) {
    const nlohmann::json fixture = load_json_fixture("recipe_items");
    const nlohmann::json& item = fixture.at("items").at(name);
    Settings settings;
    for (const auto& [key, value] : item.at("settings").items()) settings.push_back(key + "=" + value.dump());
    const Config c = parse_config(fixture.at("config").dump(), name, settings);
    const int64_t length = c.batch.sequence_length;
    const auto tokens = fixture.at("tokens").get<std::vector<int32_t>>();
    HostBatch batch{.tokens = tokens, .targets = fixture.at("targets"), .positions = {}, .first_key = {}};
    for (size_t t = 0; t < tokens.size(); ++t) {
        const auto place = static_cast<int32_t>(t % static_cast<size_t>(length));
        batch.positions.push_back(place);
        const bool begins = place == 0 || tokens[t] == 60;
        batch.first_key.push_back(begins ? static_cast<int32_t>(t) : batch.first_key.back());
    }
    ModelHarness h(c.model, static_cast<int64_t>(tokens.size()), length, precision);
    h.prefixes = fixture.at("prefixes").get<std::vector<int32_t>>();
    const auto& parameters = item.at("parameters");
    ASSERT_EQ(static_cast<size_t>(h.table().size()), parameters.size());
    for (const Parameter& p : h.table().all()) {
        ASSERT_TRUE(parameters.contains(p.name)) << p.name;
        const RecipeParameter entry = recipe_parameter(parameters.at(p.name));
        ASSERT_EQ(p.shape, entry.shape) << p.name;
        h.set(p, entry.start);
    }
    h.tracker.begin_step();
    h.backward(batch, c.model.parts.loss.gradient_scale(static_cast<int64_t>(tokens.size())));
    const Values losses = h.read(h.model.losses()), expected = item.at("losses");
    ASSERT_EQ(losses.size(), expected.size());
    if (precision == DType::bf16) {
        EXPECT_LT(norm_of(difference_of(losses, expected)) / norm_of(expected), 0.01);
        double largest_of_stream = 0;
        for (const Parameter& p : h.table().all()) {
            const Values gradient = parameters.at(p.name).at("gradient");
            if (of_stream(p.name)) largest_of_stream = std::max(largest_of_stream, norm_of(gradient));
        }
        for (const Parameter& p : h.table().all()) {
            const Values gradient = parameters.at(p.name).at("gradient");
            const Values error = difference_of(sketch_of(h.gradient(p), p.shape), gradient);
            EXPECT_LT(norm_of(error) / (of_stream(p.name) ? largest_of_stream : norm_of(gradient)), 0.06)
                << p.name;
        }
        return;
    }
    for (size_t t = 0; t < losses.size(); ++t)
        EXPECT_NEAR(losses[t], expected[t], kAlone.token_loss * expected[t]) << "token " << t;
    for (const Parameter& p : h.table().all()) {
        const Values gradient = parameters.at(p.name).at("gradient");
        EXPECT_GT(largest_of(gradient), 0) << p.name;
        const Values error = difference_of(sketch_of(h.gradient(p), p.shape), gradient);
        EXPECT_LE(largest_of(error),
                  (of_stream(p.name) ? kAlone.stream_gradient : kAlone.gradient) * largest_of(gradient))
            << p.name;
    }
}

TEST_P(Record89ItemTest, LossesAndGradientsMatchTwin) {
    expect_item(GetParam(), DType::f32);
}

TEST_P(Record89ItemTest, HasThemInBf16Nearly) {
    expect_item(GetParam(), DType::bf16);
}

INSTANTIATE_TEST_SUITE_P(Items, Record89ItemTest,
                         ::testing::Values("plain", "smear", "smear of five columns", "mix", "value mix",
                                           "attention gate", "left out", "backout", "tanh cap", "bigram",
                                           "half rotary", "key offset", "paired heads", "own value",
                                           "composed heads", "sublayer factors", "value tables",
                                           "gate networks", "skip", "attention of an earlier layer",
                                           "added places", "capped logits", "tokens to come", "prefixes",
                                           "tied head"),
                         [](const auto& info) {
                             std::string name = info.param;
                             std::replace(name.begin(), name.end(), ' ', '_');
                             return name;
                         });

// Every item of the fixture is tested above.
TEST(Record89Items, AreAllTested) {
    EXPECT_EQ(load_json_fixture("recipe_items").at("items").size(), 25U);
}

}  // namespace speedrun::testing::record_89_test
