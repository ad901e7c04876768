// Whole runs with ranks that share matrices: they train, validate, save and continue as one rank does.
// Covers: train/model/tensor_axis.cpp
#include <cmath>

#include "tests/runs/rank_run_fixture.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing {
namespace tensor_run_test {

constexpr MeshCase kAlone{1, 1, 1, false, "ddp"};

std::string name_of(const MeshCase& mesh) {
    return fmt::format("{}_{}_context_{}_{}_{}", mesh.strategy, mesh.ranks, mesh.context,
                       mesh.sequence ? "sequence" : "tensor", mesh.tensor);
}

class TensorRunTest : public RankRunFixture {
  protected:
    // A width of 60 in 3 heads; a vocabulary of 64 and 101 n-gram rows, not divisible by 3; rows of 30 tokens, divisible into
    // chunks of 3 ranks but not of 2; a window, value embeddings, and separate validation rows.
    Config shared(const MeshCase& mesh, const Settings& more = {}) const {
        Settings all = {"model.model_dim=60",
                        "model.layers.each.attention.heads=3",
                        "model.windows.window=11",
                        kMix,
                        "schedule.steps=12",
                        "batch.sequence_length=30",
                        "batch.microbatch_tokens=180",
                        "batch.tokens_per_step=360",
                        "eval.every=5",
                        "eval.sequence_length=50",
                        "eval.windows={\"window\": 0}",
                        "checkpoint.every=4",
                        "checkpoint.keep=100",
                        "threads=1",
                        "parallel.context=" + std::to_string(mesh.context),
                        "parallel.tensor=" + std::to_string(mesh.tensor),
                        std::string("parallel.sequence=") + (mesh.sequence ? "true" : "false"),
                        std::string("parallel.strategy=") + mesh.strategy};
        return config(together(
            {all, with_tables({.values = 1, .max_ngram = 3, .ngram_rows = 101}), nonzero_outputs(), more}));
    }
};

TEST_F(TensorRunTest, RanksThatShareMatricesTrainAsOneDoes) {
    for (const char* rows : {"stream", "documents"}) {
        if (kSanitized && std::string(rows) == "stream") continue;
        const std::string of_rows = std::string("data.rows=") + rows, one = std::string("one_") + rows;
        run_on(1, shared(kAlone, {of_rows}), one);
        for (const MeshCase& mesh : {MeshCase{3, 1, 3, false, "ddp"}, MeshCase{3, 1, 3, true, "zero1"},
                                     MeshCase{6, 1, 3, true, "zero3"}, MeshCase{9, 3, 3, false, "zero2"}}) {
            if (kSanitized && mesh.ranks != 6) continue;
            const std::string name = name_of(mesh) + rows;
            run_on(mesh.ranks, shared(mesh, {of_rows}), name);
            expect_near(curve(name), curve(one), kRanksTolerance, name);
        }
    }
}

// Another mesh continues a saved run; the same mesh bitwise. Includes Muon's state of whole matrices.
TEST_F(TensorRunTest, AnyMeshContinuesWhatAnotherSaved) {
    const Settings muon = {
        R"(optimizers.groups=[{"params": ["blocks.*.weight"], "type": "muon", "lr": 0.02, "normuon": true},
                              {"params": ["*"], "lr": 0.003}])"};
    const MeshCase saved{kSanitized ? 6 : 12, 2, 3, true, "zero1"};
    run_on(saved.ranks, shared(saved, muon), "saved");
    for (const MeshCase& mesh :
         {saved, kAlone, MeshCase{3, 1, 3, false, "zero3"}, MeshCase{7, 7, 1, false, "zero2"},
          MeshCase{3, 3, 1, false, "ddp"}, MeshCase{6, 1, 3, true, "ddp"}}) {
        if (kSanitized && (mesh.ranks != 3 || mesh.tensor != 3)) continue;
        const std::string name = name_of(mesh);
        run_on(mesh.ranks, shared(mesh, muon), name, checkpoint_of("saved", 4));
        const std::vector<double> expected = curve_behind("saved", 4), actual = curve_behind(name, 0);
        if (mesh.ranks == saved.ranks) {
            EXPECT_EQ(actual, expected);
        } else {
            expect_near(actual, expected, kRanksTolerance, name);
        }
    }
}

// Whole attention and sharded attention, with heads of which two form one matrix: one mesh stores matrix state in pieces,
// another as a whole.
TEST_F(TensorRunTest, AnyMeshContinuesWhatHasWholeAttention) {
    const Settings newest = {
        R"(model={"preset": "none", "model_dim": 48, "vocab_size": 32,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}, "values": {"init": {"type": "normal", "value": 1}}},
            "networks": {"early": {"hidden": 20}}, "windows": {"window": 11},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
            "layers": {"count": 3, "each": {
                "attention": {"heads": 6, "window": "window", "exclude_own_value": {"network": "early", "start": 0.2},
                              "out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true}}},
                "at": {"0": {"attention": {"paired": true}},
                       "2": {"attention": {"value_table": "values", "value_gate": {}, "values": [{"of": "input", "scale": 0.1}]}}}},
            "output": [{"type": "sum", "terms": [{"of": "stream"}, {"table": "values", "scale": 0.1}]}, {"type": "norm"}]})",
        R"(optimizers.groups=[{"params": ["blocks.*.attn.*.weight"], "type": "muon", "lr": 0.02, "normuon": true, "heads_per_matrix": 2},
                              {"params": ["*"], "lr": 0.003}])"};
    const auto settings = [&](const MeshCase& mesh) { return shared(mesh, newest); };
    const MeshCase saved{4, 1, 2, true, "zero1"};
    run_on(saved.ranks, settings(saved), "saved");
    for (const MeshCase& mesh : {saved, kAlone, MeshCase{3, 1, 3, false, "zero3"},
                                 MeshCase{2, 1, 2, false, "ddp"}, MeshCase{2, 1, 1, false, "zero2"}}) {
        if (kSanitized && mesh.ranks != 3) continue;
        const std::string name = name_of(mesh);
        run_on(mesh.ranks, settings(mesh), name, checkpoint_of("saved", 4));
        const std::vector<double> expected = curve_behind("saved", 4), actual = curve_behind(name, 0);
        if (mesh.ranks == saved.ranks) {
            EXPECT_EQ(actual, expected);
        } else {
            expect_near(actual, expected, kRanksTolerance, name);
        }
    }
}

TEST_F(TensorRunTest, RefusesWhatCannotBeShared) {
    const auto refusal = [&](const MeshCase& mesh, const Settings& more = {}) -> std::string {
        try {
            plan_ranks(shared(mesh, more), mesh.ranks);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::usage);
            return error.what();
        }
        return "accepted";
    };
    const MeshCase heads_of_three{3, 1, 3, true, "ddp"};
    EXPECT_EQ(refusal(heads_of_three), "accepted");
    EXPECT_EQ(refusal({2, 1, 2, false, "ddp"}),
              "parallel.tensor is 2, but attention of layer 0 has 3 heads, which so many ranks cannot share "
              "evenly: of sizes up to 64, 1, 3 would do");
    EXPECT_EQ(
        refusal(heads_of_three,
                {"batch.tokens_per_step=480", "batch.microbatch_tokens=160", "batch.sequence_length=10"}),
        "parallel.tensor is 3, but a microbatch has 160 tokens on a rank (parallel.sequence shares them), "
        "which so many ranks cannot share evenly: of sizes up to 64, 1, 2, 4, 5, 8, 10, 16, 20, 32, 40 "
        "would do");
    // 64 vocabulary rows are padded for 3 ranks, which elementwise optimizers support.
    const Config muon =
        shared(heads_of_three, {R"(optimizers.groups=[{"params": ["*.weight"], "type": "muon"},
                                                                      {"params": ["*"]}])"});
    try {
        bucket_rules(plan_ranks(muon, 3), parameters_of(muon.model, 50, {.size = 3}), muon.optimizers);
        ADD_FAILURE() << "padding in an orthogonalised matrix was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        EXPECT_NE(std::string(error.what()).find("embed.weight has 64 rows, which so many ranks"),
                  std::string::npos)
            << error.what();
    }
}

}  // namespace tensor_run_test
}  // namespace speedrun::testing
