// Whole runs on meshes of ranks, which share rows, matrices or state: they train, validate, save and continue as one rank does.
// Covers: train/model/tensor_axis.cpp
#include <algorithm>
#include <map>
#include <sstream>

#include "tests/runs/recipe_settings.h"
#include "train/model/build_model.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing::mesh_run_test {

const Settings kShared = {"eval.every=5", "threads=1"};
// Rows of 30 tokens, which 2, 3 and 6 chunks divide but 4 and 8 do not; a window, and separate validation rows.
const Settings kRows = {"batch.sequence_length=30", "model.windows.window=11", "eval.sequence_length=50",
                        "eval.windows={\"window\": 0}"};
const Settings kContext = {"batch.microbatch_tokens=240", "batch.tokens_per_step=480"};
// Loss weights of three further tokens, with hashed n-grams, smeared rows and keys of the previous token: each token's values
// depend on its whole row.
const Settings kFurther = {R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
    "tables": {"embed": {"init": {"type": "normal", "value": 1}},
               "grams": {"rows": "ngrams", "max_ngram": 3, "num_rows": 101, "init": {"type": "normal", "value": 1}}},
    "windows": {"window": 11},
    "input": [{"type": "table", "table": "embed"}, {"type": "table", "table": "grams"},
              {"type": "smear", "start": 0.5}, {"type": "norm"}],
    "layers": {"count": 2, "each": {
        "attention": {"heads": 2, "window": "window", "rotary": {"fraction": 0.5}, "key_offset": true,
                      "init": {"type": "normal", "value": 0.2}},
        "mlp": {"init": {"type": "normal", "value": 0.2}}}},
    "output": [{"type": "norm"}], "head": {"init": {"type": "normal", "value": 0.1}},
    "loss": {"weights": [1, 0.5, 0.25]}})"};
// A width of 60 in 3 heads; a vocabulary of 64 and 101 n-gram rows, not divisible by 3; value embeddings.
const Settings kMatrices = {"batch.microbatch_tokens=180", "batch.tokens_per_step=360"};
const Settings kTensor = together({kMatrices,
                                   {"model.model_dim=60", "model.layers.each.attention.heads=3", kMix},
                                   with_tables({.values = 1, .max_ngram = 3, .ngram_rows = 101}),
                                   nonzero_outputs()});
const Settings kMuon = {
    R"(optimizers.groups=[{"params": ["blocks.*.weight"], "type": "muon", "lr": 0.02, "normuon": true},
                          {"params": ["*"], "lr": 0.003}])"};
// Whole attention and sharded attention, with heads of several sizes of which two form one matrix: one mesh stores matrix state in pieces, another
// as a whole.
const Settings kWhole = {
    R"(model={"preset": "none", "model_dim": 48, "vocab_size": 32,
    "tables": {"embed": {"init": {"type": "normal", "value": 1}}, "values": {"init": {"type": "normal", "value": 1}}},
    "networks": {"early": {"hidden": 20}}, "windows": {"window": 11},
    "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
    "layers": {"count": 3, "each": {
        "attention": {"heads": 6, "window": "window", "exclude_own_value": {"network": "early", "start": 0.2},
                      "out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true}}},
        "at": {"0": {"attention": {"paired": true, "qk_head_dim": 4}},
               "1": {"attention": {"qk_head_dim": 10, "v_head_dim": 4}},
               "2": {"attention": {"value_table": "values", "value_gate": {}, "values": [{"of": "input", "scale": 0.1}]}}}},
    "output": [{"type": "sum", "terms": [{"of": "stream"}, {"table": "values", "scale": 0.1}]}, {"type": "norm"}]})",
    R"(optimizers.groups=[{"params": ["blocks.*.attn.*.weight"], "type": "muon", "lr": 0.02, "normuon": true, "heads_per_matrix": 2},
                          {"params": ["*"], "lr": 0.003}])"};
const Settings kDocuments = {"data.rows=documents"};
const Settings kPairs = {"model.layers.each.attention.paired=true",
                         "model.layers.at.1.attention.paired=false",
                         "model.layers.at.1.attention.key_offset=true"};
const Settings kOffset = {"model.layers.at.1.attention.key_offset=true"};

Settings all_of(const std::vector<Settings>& parts) {
    Settings all = together(parts);
    // The model precedes changes of it.
    std::stable_partition(all.begin(), all.end(), [](const auto& key) { return key.starts_with("model={"); });
    return all;
}

// Ranks, strategy and keys of section `parallel`: "6 zero3 tensor=3 sequence=true".
struct RanksText {
    int ranks = 1;
    Settings settings;

    explicit RanksText(const std::string& text) {
        std::istringstream words(text);
        std::string word;
        words >> ranks >> word;
        settings = {"parallel.strategy=" + word};
        while (words >> word) settings.push_back("parallel." + word);
    }
};

class MeshRunTest : public RankRunFixture {
  protected:
    Config with(const Settings& settings, const std::string& mesh) const {
        return config(all_of({kShared, settings, RanksText(mesh).settings}));
    }
    void run(const Settings& settings, const std::string& mesh, const std::string& name,
             const std::string& from = "") {
        train(with(settings, mesh), RanksText(mesh).ranks, name, from);
    }
};

std::string run_name(const std::string& name, const std::string& mesh) {
    std::string run = name + "_on_" + mesh;
    std::replace(run.begin(), run.end(), ' ', '_');
    return run;
}

struct Training {
    std::string name;
    Settings settings;
    std::vector<std::string> meshes;
    size_t num_sanitized = 1;  // meshes with sanitizers, the first ones
};

std::vector<Training> trainings() {
    const Settings steps = {kSanitized ? "schedule.steps=6" : "schedule.steps=12"};
    const Settings rows = all_of({steps, kRows, kContext}), matrices = all_of({steps, kRows, kTensor}),
                   recipe = recipe_settings();
    const std::vector<std::string> context = {"4 zero2 context=2", "3 zero1 context=3", "2 ddp context=2",
                                              "4 zero3 context=4"},
                                   tensor = {"6 zero3 tensor=3 sequence=true", "3 ddp tensor=3",
                                             "3 zero1 tensor=3 sequence=true", "9 zero2 context=3 tensor=3"};
    return {{"further", all_of({rows, kFurther}), context, 2},
            {"stream", rows, context, 0},
            {"documents", all_of({rows, kDocuments}), context, 0},
            {"tensor_documents", all_of({matrices, kDocuments}), tensor},
            {"tensor_stream", matrices, tensor, 0},
            {"recipe",
             recipe,
             {"4 zero2 context=2 tensor=2 sequence=true", "2 zero1", "4 zero3", "2 ddp context=2",
              "2 ddp tensor=2"}},
            // Paired heads, and offset keys in one layer.
            {"pairs", all_of({recipe, kPairs}), {"2 ddp", "4 zero3"}},
            // The previous token may be on another rank.
            {"offset",
             all_of({recipe, kOffset}),
             {"2 ddp context=2", "4 zero2 context=2 tensor=2 sequence=true"}}};
}

TEST_F(MeshRunTest, AnyMeshMatchesOneRank) {
    std::map<std::string, std::vector<double>> of_one;
    for (auto& [name, settings, meshes, num_sanitized] : trainings()) {
        if (kSanitized) meshes.resize(num_sanitized);
        if (meshes.empty()) continue;
        run(settings, "1 ddp", "one_" + name);
        const std::vector<double> expected = of_one[name] = curve("one_" + name);
        for (const std::string& mesh : meshes) {
            const std::string each = run_name(name, mesh);
            run(settings, mesh, each);
            expect_near(curve(each), expected, kRanksTolerance, each);
        }
    }
    if (kSanitized) return;
    EXPECT_NE(of_one["pairs"], of_one["recipe"]);
    EXPECT_NE(of_one["offset"], of_one["recipe"]);
    EXPECT_NE(of_one["pairs"], of_one["offset"]);
}

// A run on the mesh that saved continues bitwise.
TEST_F(MeshRunTest, ResumesOnAnyMesh) {
    const Settings saves = {kSanitized ? "schedule.steps=6" : "schedule.steps=12", "checkpoint.every=4",
                            "checkpoint.keep=100"};
    const Settings rows = all_of({saves, kRows, kContext}), matrices = all_of({saves, kRows, kTensor});
    const std::vector<std::string> meshes = {"4 zero1 context=2", "1 ddp",   "3 zero1 context=3",
                                             "3 zero3 context=3", "2 zero2", "4 ddp context=4"};
    // The first mesh saves; with sanitizers the last alone continues.
    const std::map<std::string, std::pair<Settings, std::vector<std::string>>> cases = {
        {"stream", {rows, meshes}},
        {"further",
         {all_of({rows, kFurther}),
          {"3 zero1 context=3", "1 ddp", "3 zero3 context=3", "2 zero2", "4 ddp context=4",
           "4 zero1 context=2"}}},
        // Includes Muon's state of whole matrices.
        {"matrices",
         {all_of({matrices, kMuon}),
          {kSanitized ? "6 zero1 context=2 tensor=3 sequence=true"
                      : "12 zero1 context=2 tensor=3 sequence=true",
           "1 ddp", "7 zero2 context=7", "3 ddp context=3", "6 ddp tensor=3 sequence=true",
           "3 zero3 tensor=3"}}},
        {"whole",
         {all_of({saves, kRows, kMatrices, kWhole}),
          {"4 zero1 tensor=2 sequence=true", "1 ddp", "2 ddp tensor=2", "2 zero2", "3 zero3 tensor=3"}}}};
    for (const auto& [name, settings_and_meshes] : cases) {
        const auto& [settings, continuing] = settings_and_meshes;
        if (kSanitized && name == "stream") continue;
        run(settings, continuing.front(), name);
        for (const std::string& mesh : kSanitized ? std::vector{continuing.back()} : continuing) {
            const std::string each = run_name(name, mesh);
            run(settings, mesh, each, checkpoint(name, 4));
            if (mesh == continuing.front())
                EXPECT_EQ(curve(each), curve(name, 4)) << each;
            else
                expect_near(losses(each), losses(name, 4), kRanksTolerance, each);
        }
    }
}

TEST_F(MeshRunTest, RejectsIndivisibleSizes) {
    const auto refusal = [&](const Settings& settings, const std::string& mesh) {
        return error_of(ExitCode::usage, [&] {
            plan_ranks(with(all_of({kRows, settings}), mesh), RanksText(mesh).ranks);
        });
    };
    EXPECT_THAT(refusal(kContext, "16 ddp context=16"),
                HasSubstr("parallel.context is 16, but rows have 30 tokens"));
    EXPECT_EQ(refusal(kContext, "15 ddp context=15"), "accepted");
    EXPECT_THAT(refusal(all_of({kContext, {"eval.sequence_length=6"}}), "4 ddp context=4"),
                HasSubstr("rows have 6 tokens"));
    EXPECT_EQ(refusal(kTensor, "3 ddp tensor=3 sequence=true"), "accepted");
    EXPECT_EQ(
        refusal(kTensor, "2 ddp tensor=2"),
        "parallel.tensor is 2, but attention of layer 0 has 3 heads, not divisible by it: of sizes up to 64, 1, 3 are "
        "possible");
    EXPECT_EQ(
        refusal(all_of({kTensor,
                        {"batch.tokens_per_step=480", "batch.microbatch_tokens=160",
                         "batch.sequence_length=10"}}),
                "3 ddp tensor=3 sequence=true"),
        "parallel.tensor is 3, but a microbatch has 160 tokens on a rank (parallel.sequence shares them), "
        "not divisible by it: of sizes up to 64, 1, 2, 4, 5, 8, 10, 16, 20, 32, 40 are possible");
    // 64 vocabulary rows are padded for 3 ranks, which elementwise optimizers support.
    const Config muon =
        with(all_of({kRows,
                     kTensor,
                     {R"(optimizers.groups=[{"params": ["*.weight"], "type": "muon"}, {"params": ["*"]}])"}}),
             "3 ddp tensor=3 sequence=true");
    expect_error(ExitCode::usage, {"embed.weight has 64 rows, not a multiple of it"}, [&] {
        bucket_rules(plan_ranks(muon, 3), parameters_of(muon.model, 50, {.size = 3}), muon.optimizers);
    });
}

}  // namespace speedrun::testing::mesh_run_test
