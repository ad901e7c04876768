// Whole runs with ranks that share rows: they train, validate, save and continue as one rank does.
#include <cmath>

#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing {
namespace context_run_test {

struct SharedRows {
    int ranks, context;
    std::string strategy;
    bool operator==(const SharedRows&) const = default;
};

class ContextRunTest : public RankRunFixture {
  protected:
    // Rows of 30 tokens, which 6 chunks divide but 4 and 8 do not; a window, and separate validation rows.
    Config shared(int context, const Settings& more = {}) const {
        Settings all = {kSanitized ? "schedule.steps=6" : "schedule.steps=12",
                        "batch.sequence_length=30",
                        "batch.microbatch_tokens=240",
                        "batch.tokens_per_step=480",
                        "model.windows.window=11",
                        "eval.every=5",
                        "eval.sequence_length=50",
                        "eval.windows={\"window\": 0}",
                        "checkpoint.every=4",
                        "checkpoint.keep=100",
                        "threads=1",
                        "parallel.context=" + std::to_string(context)};
        all.insert(all.end(), more.begin(), more.end());
        return config(all);
    }
    // A loss with weights for three further tokens, hashed n-grams, smeared rows and keys of the previous token: each
    // token's values depend on its whole row.
    static std::string model_of_further_tokens() {
        return R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
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
            "loss": {"weights": [1, 0.5, 0.25]}})";
    }
};

TEST_F(ContextRunTest, RanksThatShareRowsTrainAsOneDoes) {
    const struct {
        const char* name;
        Settings settings;
    } kinds[] = {
        {"stream", {}}, {"documents", {"data.rows=documents"}}, {"further", {model_of_further_tokens()}}};
    for (const auto& kind : kinds) {
        if (kSanitized && std::string(kind.name) != "further") continue;
        const std::string one = std::string("one_") + kind.name;
        run_on(1, shared(1, kind.settings), one);
        std::vector<SharedRows> meshes = {{4, 2, "zero2"}, {3, 3, "zero1"}};
        if (!kSanitized) {
            const SharedRows more[] = {{2, 2, "ddp"}, {4, 4, "zero3"}};
            meshes.insert(meshes.end(), std::begin(more), std::end(more));
        }
        for (const SharedRows& mesh : meshes) {
            Settings settings = {"parallel.strategy=" + mesh.strategy};
            settings.insert(settings.begin(), kind.settings.begin(), kind.settings.end());
            const std::string name = fmt::format("{}_{}_{}", kind.name, mesh.strategy, mesh.context);
            run_on(mesh.ranks, shared(mesh.context, settings), name);
            expect_near(curve(name), curve(one), kRanksTolerance, name);
        }
    }
}

// Another mesh continues a saved run; the same mesh bitwise.
TEST_F(ContextRunTest, AnyMeshContinuesWhatAnotherSaved) {
    Settings model;
    const auto run = [&](const SharedRows& mesh, const std::string& name, const std::string& from = "") {
        Settings settings = model;
        settings.push_back("parallel.strategy=" + mesh.strategy);
        run_on(mesh.ranks, shared(mesh.context, settings), name, from);
    };
    const std::vector<SharedRows> meshes = {{4, 2, "zero1"}, {1, 1, "ddp"},   {3, 3, "zero1"},
                                            {3, 3, "zero3"}, {2, 1, "zero2"}, {4, 4, "ddp"}};
    for (const SharedRows& saving : {meshes[0], meshes[2]}) {
        const bool further = saving.context == 3;
        if (kSanitized && !further) continue;
        if (further) model = {model_of_further_tokens()};
        const std::string saved = further ? "saved_further" : "saved";
        run(saving, saved);
        for (const SharedRows& mesh : meshes) {
            if (kSanitized && mesh != meshes[0]) continue;
            const std::string name =
                fmt::format("{}_{}_on_{}_of_{}", saved, mesh.strategy, mesh.context, mesh.ranks);
            run(mesh, name, checkpoint_of(saved, 4));
            const std::vector<double> expected = curve_behind(saved, 4), actual = curve_behind(name, 0);
            if (mesh == saving) {
                EXPECT_EQ(actual, expected);
            } else {
                expect_near(actual, expected, kRanksTolerance, name);
            }
        }
    }
}

TEST_F(ContextRunTest, RefusesRowsThatCannotBeShared) {
    const auto refusal = [&](const Config& c, int ranks) -> std::string {
        try {
            plan_ranks(c, ranks);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::usage);
            return error.what();
        }
        return "accepted";
    };
    EXPECT_NE(refusal(shared(16), 16).find("parallel.context is 16, but rows have 30 tokens"),
              std::string::npos);
    EXPECT_EQ(refusal(shared(15), 15), "accepted");
    EXPECT_NE(refusal(shared(4, {"eval.sequence_length=6"}), 4).find("rows have 6 tokens"),
              std::string::npos);
}

}  // namespace context_run_test
}  // namespace speedrun::testing
