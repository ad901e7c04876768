// Groups with lr 0: their parameters do not change, have no state, and do not count in the gradient norm.
#include <numeric>
#include "tests/runs/rank_run_fixture.h"

#include "train/sharding/step_collectives.h"

namespace speedrun::testing::frozen_group_test {

// Matrices of the first layer, and the embedding, are frozen.
const Settings kFrozen = {
    R"(optimizers.groups=[{"params": ["blocks.0.*.weight"], "type": "muon", "lr": 0},
                          {"params": ["embed.weight"], "lr": 0, "weight_decay": 0.5},
                          {"params": ["blocks.*.weight"], "type": "muon", "lr": 0.02},
                          {"params": ["*"], "lr": 0.01}])"};
const Settings kRun = {"model.layers.count=2",
                       "batch.tokens_per_step=256",
                       "batch.microbatch_tokens=64",
                       "schedule.steps=6",
                       "checkpoint.every=3",
                       "eval.every=0",
                       "checkpoint.keep=100",
                       "threads=1",
                       "data.val_tokens=300",
                       "batch.sequence_length=32",
                       "device=cpu"};

bool is_frozen(const std::string& parameter) {
    return parameter.starts_with("blocks.0.") || parameter == "embed.weight";
}

class FrozenGroupTest : public RankRunFixture {
  protected:
    Config make(const Settings& more = {}) const { return config(together({kRun, kFrozen}), more); }
};

TEST_F(FrozenGroupTest, WeightsDoNotChangeOnAnyMesh) {
    EXPECT_EQ(train(make({"schedule.steps=0"}), 1, "untrained"), "");
    EXPECT_EQ(train(make(), 1, "one"), "");
    std::vector<std::pair<int, Settings>> meshes = {{1, {}},
                                                    {2, {by("ddp")}},
                                                    {2, {by("zero1")}},
                                                    {2, {by("zero2")}},
                                                    {2, {by("zero3")}},
                                                    {2, {by("zero2"), "parallel.optimizer_step=in_backward"}},
                                                    {2, {by("zero3"), "precision=bf16"}},
                                                    {2, {by("zero1"), "precision=bf16"}},
                                                    {2, {"parallel.tensor=2"}},
                                                    {2, {"parallel.context=2"}},
                                                    {4, {"parallel.tensor=2", by("zero3")}}};
    if (kSanitized) meshes = {{2, {by("zero3")}}};
    int number = 0;
    for (const auto& [ranks, mesh] : meshes) {
        SCOPED_TRACE(mesh.empty() ? "one rank" : fmt::format("{}", fmt::join(mesh, " ")));
        const std::string name = fmt::format("run{}", number++);
        EXPECT_EQ(train(make(mesh), ranks, name), "");
        const std::string last = checkpoint(name, 6), before = checkpoint("untrained", 0);
        const CheckpointReader reader(last);
        int frozen = 0, trained = 0;
        for (const CheckpointTensor& tensor : reader.info().tensors) {
            const auto [kind, parameter] = std::pair(tensor.name.substr(0, tensor.name.find('/')),
                                                     tensor.name.substr(tensor.name.find('/') + 1));
            EXPECT_TRUE(kind == "master" || !is_frozen(parameter)) << tensor.name;
            if (kind != "master") continue;
            EXPECT_EQ(tensor_in(last, tensor.name) == tensor_in(before, tensor.name), is_frozen(parameter))
                << tensor.name;
            ++(is_frozen(parameter) ? frozen : trained);
        }
        EXPECT_GT(frozen, 3);
        EXPECT_GT(trained, 3);
        const bool f32 = mesh.empty() || mesh.back() != "precision=bf16";
        if (f32) expect_near(losses(name), losses("one"), kRanksTolerance, name);
    }
}

// The table's rows are exchanged if it is trained.
TEST_F(FrozenGroupTest, TableWithExchangedRows) {
    const auto with_table = [&](const char* lr, const Settings& more) {
        const std::string groups = fmt::format(
            R"(optimizers.groups=[{{"params": ["grams.weight"], "lr": {}}}, {{"params": ["*"], "lr": 0.01}}])",
            lr);
        return config(
            together(
                {kRun,
                 {R"(model.tables.grams={"rows": "ngrams", "max_ngram": 2, "num_rows": 101, "exchange": "rows",
                                     "init": {"type": "normal", "value": 1}})",
                  R"(model.input=[{"type": "table", "table": "embed"}, {"type": "table", "table": "grams"},
                                     {"type": "norm"}])",
                  groups}}),
            more);
    };
    EXPECT_EQ(train(with_table("0", {}), 1, "one"), "");
    EXPECT_EQ(train(with_table("0.01", {}), 1, "trained"), "");
    EXPECT_NE(losses("one").back(), losses("trained").back());
    for (const char* strategy : {"ddp", "zero2", "zero3"}) {
        EXPECT_EQ(train(with_table("0", {by(strategy)}), 2, strategy), "");
        expect_near(losses(strategy), losses("one"), kRanksTolerance, strategy);
        if (kSanitized) return;
    }
}

TEST_F(FrozenGroupTest, ResumesBitwise) {
    for (const char* strategy : {"ddp", "zero3"}) {
        const std::string name = std::string("whole_") + strategy;
        EXPECT_EQ(train(make({by(strategy)}), 2, name), "");
        expect_continues(make({by(strategy)}), 2, name, {3});
        if (kSanitized) return;
    }
}

// The squares of the norms of two disjoint sets of parameters add up to that of all.
TEST_F(FrozenGroupTest, NormIsThatOfTrainedParameters) {
    // Gradients of an untrained model's blocks are zero.
    EXPECT_EQ(train(config(kRun), 1, "source"), "");
    const auto norm = [&](const std::string& name, double first, double second) {
        const std::string groups = fmt::format(
            R"(optimizers.groups=[{{"params": ["blocks.*"], "lr": {}}}, {{"params": ["*"], "lr": {}}}])",
            first, second);
        const Settings more = {groups, "schedule.steps=1", "checkpoint.every=0",
                               "model.init_from=" + checkpoint("source", 6)};
        EXPECT_EQ(train(config(kRun, more), 1, name), "");
        return metrics(name).front().at("grad_norm").get<double>();
    };
    const double all = norm("all", 0.01, 0.01), blocks = norm("blocks", 0.01, 0),
                 others = norm("others", 0, 0.01);
    EXPECT_GT(blocks, 0.01 * all);
    EXPECT_GT(others, 0.01 * all);
    EXPECT_NEAR(blocks * blocks + others * others, all * all, 1e-5 * all * all);
    EXPECT_EQ(norm("none", 0, 0), 0);
}

// State and gradient memory of the frozen blocks is gone, and their gradients are not reduced.
TEST_F(FrozenGroupTest, NeedsNoStateAndNoReduction) {
    const auto with_blocks = [&](double lr) {
        return config(together(
            {kRun,
             {"model.layers.count=8", by("zero1"),
              fmt::format(
                  R"(optimizers.groups=[{{"params": ["blocks.*"], "lr": {}}}, {{"params": ["*"], "lr": 0.01}}])",
                  lr)}}));
    };
    struct Needs {
        int64_t state, gradients;
        double sent;
    };
    const auto needs = [&](const Config& c) {
        const Ranks ranks = plan_ranks(c, 2);
        Runtime runtime(dry_runtime_options(c));
        const TrainState state(c, runtime, ranks);
        const auto sent = step_wire_bytes(state.reducer.collectives(), 1);
        return Needs{runtime.device().memory().total(MemoryCategory::optimizer_state),
                     runtime.device().memory().total(MemoryCategory::gradients),
                     std::accumulate(sent.begin(), sent.end(), 0.0)};
    };
    const Needs trained = needs(with_blocks(0.01)), frozen = needs(with_blocks(0));
    EXPECT_LT(frozen.state, trained.state / 5);
    EXPECT_LT(frozen.gradients, trained.gradients / 3);  // the gradient of one layer is left
    EXPECT_LT(frozen.sent, trained.sent / 5);
}

TEST_F(FrozenGroupTest, RefusesExtensions) {
    expect_error(ExitCode::usage, {"optimizers.groups[0].average is set, but optimizers.groups[0].lr is 0"},
                 [&] { config(kRun, {R"(optimizers.groups=[{"params": ["*"], "lr": 0, "average": {}}])"}); });
}

}  // namespace speedrun::testing::frozen_group_test
