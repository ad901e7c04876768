// Whole runs with schedule stages, in process. Equal stages change nothing; different ones train with their own settings, on
// one rank and on several. Validation has separate rows and windows.
// Covers: train/engine/run_stages.cpp
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::staged_run_test {

// Rows of 16, 64 and 32 tokens; one, two and four microbatches per step; a window and a rate for each stage.
const Settings kStages = {"schedule.steps=12",
                          "schedule.stages=[4, 8, 12]",
                          "schedule.lr_factor=[0.5, [0.5, 1], 0.8]",
                          "batch.sequence_length=[16, 64, 32]",
                          "batch.microbatch_tokens=[256, 256, 128]",
                          "batch.tokens_per_step=[256, 512, 512]",
                          "model.windows.window=[4, 16, 0]",
                          "optimizers.groups.0.momentum=[0.9, [0.9, 0.95], 0.95]",
                          "threads=1"};

Settings rows_of(const std::string& kind) {
    if (kind == "stream") return {};
    return {"data.rows=documents", "data.max_document_tokens=[8, 24, 16]"};
}

class StagedRunTest : public RankRunFixture {
  protected:
    Config staged(const Settings& more = {}) const { return config(kStages, more); }
    double validation_of(const std::string& name) const { return metrics(name).back()["loss"]; }
};

TEST_F(StagedRunTest, EqualStagesAreOneRun) {
    const Settings whole = {"schedule.steps=10", "model.windows.window=8", "eval.every=5"};
    run(config(whole), "whole");
    run(config(whole, {"schedule.stages=[3, 4, 10]", "model.windows.window=[8, 8, 8]",
                       "batch.sequence_length=[32, 32, 32]", "schedule.lr_factor=[1, [1, 1], 1]"}),
        "stages");
    EXPECT_EQ(curve("stages"), curve("whole"));
}

// A momentum list by stage and a cooldown over the same steps must give equal runs. The momenta differ by an f64 rounding,
// which f32 shows in one of 2^29 cases.
TEST_F(StagedRunTest, MomentumCoolsDownAsAStageWouldSay) {
    const std::string momentum = "optimizers.groups.0.momentum=";
    const Settings whole = {"schedule.steps=12", "optimizers.groups.0.momentum_warmup_steps=3",
                            "optimizers.groups.0.momentum_start=0.5"};
    run(config(whole), "whole");
    run(config(whole, {"schedule.stages=[8, 12]", momentum + "[0.95, [0.95, 0.5]]"}), "stages");
    run(config(whole, {"optimizers.groups.0.momentum_cooldown_steps=4"}), "cooldown");
    expect_near(curve("cooldown"), curve("stages"), 1e-6, "by stages");
    EXPECT_NE(curve("cooldown").back(), curve("whole").back());
}

// A run consists of its scheduled steps, then the final steps at the last rate. A checkpoint is taken within the final steps.
TEST_F(StagedRunTest, FinalStepsFollowTheSchedule) {
    const Settings scheduled = {"schedule.steps=6", "schedule.final_lr_fraction=0.25", "checkpoint.every=7",
                                "threads=1"};
    const Config more = config(scheduled, {"schedule.final_steps=3"});
    run(config(scheduled), "scheduled");
    const RunSummary summary = run(more, "more");
    EXPECT_EQ(summary.steps, 9);
    EXPECT_EQ(summary.tokens, 9 * 512);
    std::vector<double> expected = curve("scheduled"), actual = curve("more");
    ASSERT_EQ(actual.size(), 2u * 9 + 1);
    expected.resize(2 * 6);
    actual.resize(2 * 6);
    EXPECT_EQ(actual, expected);
    const std::vector<Json> lines = metrics("more");
    for (int step = 6; step < 9; ++step)
        EXPECT_DOUBLE_EQ(lines[step]["lr"].get<double>(), 0.25 * 0.02) << step;
    EXPECT_EQ(lines.back()["event"], "val");
    EXPECT_EQ(lines.back()["step"], 9);

    train(more, 1, "later", checkpoint("more", 7));
    EXPECT_EQ(curve("later").back(), curve("more").back());
}

// In file order, short rows are equal whether or not they are cut from longer windows.
TEST_F(StagedRunTest, TheFirstStageIsARunOfItsOwn) {
    const Config c = staged({"data.shuffle=false", "schedule.decay=constant"});
    Config first = c.in_stage(0);
    first.schedule.steps = 4;
    run(c, "staged");
    run(first, "first");
    std::vector<double> staged = curve("staged"), alone = curve("first");
    ASSERT_EQ(staged.size(), 2u * 12 + 1);
    for (const double value : staged) EXPECT_TRUE(std::isfinite(value));
    staged.resize(2 * 4);
    alone.resize(2 * 4);
    EXPECT_EQ(staged, alone);
}

TEST_F(StagedRunTest, MetricsCountTheTokensOfEachStage) {
    const RunSummary summary = run(staged(), "run");
    int64_t tokens = 0;
    for (const Json& line : metrics("run")) {
        if (line["event"] != "step") continue;
        tokens += line["step"].get<int64_t>() < 4 ? 256 : 512;
        EXPECT_EQ(line["tokens"], tokens) << line["step"];
        EXPECT_NEAR(line["tokens_per_s"].get<double>() * line["step_ms"].get<double>() * 1e-3,
                    line["step"].get<int64_t>() < 4 ? 256 : 512, 1e-6);
    }
    EXPECT_EQ(summary.tokens, tokens);
}

TEST_F(StagedRunTest, RerunsAndWarmUpChangeNothing) {
    for (const char* rows : {"stream", "documents"}) {
        const Config c = staged(rows_of(rows));
        run(c, std::string("warm") + rows, {.quiet = true, .warm_up = true});
        run(c, std::string("cold") + rows, {.quiet = true, .warm_up = false});
        EXPECT_EQ(curve(std::string("warm") + rows), curve(std::string("cold") + rows));
    }
    EXPECT_NE(curve("warmstream"), curve("warmdocuments"));
}

TEST_F(StagedRunTest, AnyRanksTrainAlike) {
    const Settings validation = {"eval.sequence_length=128", "eval.windows={\"window\": 8}", "eval.every=5"};
    train(staged(validation), 1, "one");
    for (const std::string& strategy : strategies()) {
        const Settings shared = {by(strategy), "batch.microbatch_tokens=[128, 128, 64]"};
        train(staged(together({validation, shared})), 2, strategy);
        expect_near(curve(strategy), curve("one"), kRanksTolerance, strategy);
    }
}

// Within stages and at stage boundaries, with every kind of rows.
TEST_F(StagedRunTest, EveryStageContinuesBitwise) {
    for (const char* rows : {"stream", "documents"}) {
        for (const int ranks : {1, 2}) {
            if (kSanitized && (ranks == 1 || std::string(rows) == "stream")) continue;
            const Config c = staged(together({rows_of(rows),
                                              {"batch.microbatch_tokens=[128, 128, 64]", "checkpoint.every=2",
                                               "checkpoint.keep=100", "eval.every=5"}}));
            const std::string whole = fmt::format("{}{}", rows, ranks);
            train(c, ranks, whole);
            expect_continues(c, ranks, whole, kSanitized ? std::vector{4, 6} : std::vector{2, 4, 6, 8, 10});
        }
    }
}

// GPT-2's position table has the length of the longest row; shorter rows use its first entries.
TEST_F(StagedRunTest, APositionTableIsAsLongAsTheLongestRow) {
    Config c = staged({"model.preset=gpt2", "eval.sequence_length=128"});
    c.optimizers.groups[0].params = {"blocks.*.attn.*.weight", "blocks.*.mlp.*.weight"};
    Runtime runtime(runtime_options(c));
    EXPECT_EQ(StepRunner(c, runtime).state().table().find("position.weight").shape[0], 128);
    run(c, "gpt2");
    EXPECT_TRUE(std::isfinite(validation_of("gpt2")));
}

// Learning rate 0, so that all validations are of the initial model.
TEST_F(StagedRunTest, ValidationHasRowsAndWindowsOfItsOwn) {
    const Settings still = {"optimizers.groups.0.lr=0", "optimizers.groups.1.lr=0", "schedule.steps=2"};
    const auto validate = [&](const std::string& name, const Settings& more) {
        run(config(together({still, nonzero_outputs(), more})), name);
        return validation_of(name);
    };
    const double full = validate("full", {"batch.sequence_length=64"});
    const double narrow = validate("narrow", {"batch.sequence_length=64", "model.windows.window=2"});
    EXPECT_NE(narrow, full);
    EXPECT_EQ(validate("rows", {"batch.sequence_length=32", "eval.sequence_length=64"}), full);
    EXPECT_EQ(validate("windows", {"batch.sequence_length=64", "model.windows.window=2",
                                   "eval.windows={\"window\": 0}"}),
              full);
    EXPECT_EQ(validate("both", {"batch.sequence_length=[16, 32]", "schedule.stages=[1, 2]",
                                "model.windows.window=[4, 8]", "eval.sequence_length=64",
                                "eval.windows={\"window\": 2}"}),
              narrow);
    EXPECT_EQ(validate("last", {"batch.sequence_length=[16, 64]", "schedule.stages=[1, 2]",
                                "model.windows.window=[4, 0]"}),
              full)
        << "else as in the last stage";
}

// Validation rows may be much longer than training rows: only one layer's activations are in memory at a time.
TEST_F(StagedRunTest, RowsOfValidationAreNotKeptForBackward) {
    const auto bytes = [&](int64_t training, int64_t validation) {
        const std::string tokens = std::to_string(training);
        return plan_memory(config({"model.layers.count=12", "batch.sequence_length=" + tokens,
                                   "batch.microbatch_tokens=" + tokens, "batch.tokens_per_step=" + tokens,
                                   "eval.sequence_length=" + std::to_string(validation)}))
            .bytes;
    };
    EXPECT_LT(bytes(64, 4096), bytes(4096, 4096) / 4);
    EXPECT_GT(bytes(64, 4096), bytes(64, 64));
}

TEST_F(StagedRunTest, ValidationOfItsOwnChangesNoStep) {
    run(staged({"eval.every=2"}), "plain");
    run(staged({"eval.every=2", "eval.sequence_length=128", "eval.windows={\"window\": 8}"}), "own");
    EXPECT_EQ(step_losses("plain"), step_losses("own"));
    EXPECT_NE(validation_of("plain"), validation_of("own"));
}

// A zero head gives every token the same probability, and learning rate 0 keeps it: ln 32 nats per target. The last token of a
// row of 32 has no second target.
TEST_F(StagedRunTest, WeightsOfTheLossGoByStage) {
    const Config c =
        config({R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32, "tables": {"embed": {}},
                   "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
                   "layers": {"count": 1, "each": {"attention": {"heads": 2}, "mlp": {}}},
                   "output": [{"type": "norm"}], "loss": {"weights": [1, [[1, 0.5], 0.25, 0]]}})",
                "optimizers.groups.0.lr=0", "optimizers.groups.1.lr=0", "schedule.steps=6",
                "schedule.stages=[2, 4, 6]"});
    run(c, "weights");
    const double one = std::log(32.0), second = one * 31 / 32;
    const double weights[] = {1, 0.75, 0.25, 0.25, 0, 0};
    const std::vector<Json> lines = metrics("weights");
    ASSERT_EQ(lines.size(), 7u);
    for (size_t step = 0; step < 6; ++step)
        EXPECT_NEAR(lines[step]["loss"].get<double>(), one + weights[step] * second, 1e-5) << step;
    EXPECT_NEAR(validation_of("weights"), one, 1e-5) << "of the next token alone";
}

// Stages share the memory of activations, which has the size of the largest.
TEST_F(StagedRunTest, StagesShareMemory) {
    const auto activations = [](const Config& c) {
        Runtime runtime(runtime_options(c));
        StepRunner runner(c, runtime);
        return runtime.device().memory().total(MemoryCategory::activations);
    };
    const Config c = staged();
    int64_t largest = 0;
    for (int64_t stage = 0; stage < 3; ++stage) largest = std::max(largest, activations(c.in_stage(stage)));
    // Each stage has its own batch and losses: fewer than eight values per token.
    const int64_t numbers = (256 + 256 + 128) * 8;
    EXPECT_LT(activations(c), largest + numbers * size_of(DType::f32));
    EXPECT_GE(activations(c), largest);
}

}  // namespace speedrun::testing::staged_run_test
