// Whole runs, in process: a toy task to convergence, bitwise equal reruns, warm-up without effect on results, divergence,
// accumulation, and the files of a run folder.
// build: in run_test_cases
// Covers: train/engine/batch_sources.cpp train/runlog/environment.cpp train/runlog/progress.cpp train/runlog/run_folder.cpp
// Covers: train/engine/finite_check.cpp train/engine/warm_up.cpp
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>

#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "tests/runs/run_fixture.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::trainer_test {

class TrainerTest : public RunFixture {};

TEST_F(TrainerTest, ToyTaskConverges) {
    for (const char* preset : {"modern", "gpt2"}) {
        Config toy =
            config({"schedule.steps=250", std::string("model.preset=") + preset, "data.shuffle=false"});
        if (std::string(preset) == "gpt2")
            toy.optimizers.groups[0].params = {"blocks.*.attn.*.weight", "blocks.*.mlp.*.weight"};
        const RunSummary summary = run(toy, preset);
        // Unshuffled, every row is one document. Among its 32 tokens, the first is drawn from 31 values and the second from 3:
        // the entropy is (ln 31 + ln 3) / 32 = 0.14 nats. A limit of 0.2 allows for a small model and still requires attention
        // to previous tokens.
        EXPECT_LT(*summary.val_loss, 0.2) << preset;
        EXPECT_GT(*summary.val_loss, 0.14) << preset << ": below the entropy: it sees the future";
    }
}

TEST_F(TrainerTest, RerunsAreBitwiseEqual) {
    const Config c = config({"schedule.steps=20", "eval.every=10"});
    run(c, "first");
    run(c, "second");
    EXPECT_EQ(curve("first"), curve("second"));
    EXPECT_EQ(curve("first").size(), 20u * 2 + 2);
}

TEST_F(TrainerTest, WarmUpIsBitwiseNeutral) {
    const Config c = config({"schedule.steps=10", "batch.tokens_per_step=1024"});
    run(c, "warm", {.quiet = true, .warm_up = true});
    run(c, "cold", {.quiet = true, .warm_up = false});
    EXPECT_EQ(curve("warm"), curve("cold"));
}

TEST_F(TrainerTest, ValidationIsBitwiseNeutral) {
    run(config({"schedule.steps=10"}), "without");
    run(config({"schedule.steps=10", "eval.every=2"}), "with");
    EXPECT_EQ(step_losses("without"), step_losses("with"));
}

TEST_F(TrainerTest, AccumulationEqualsOneBatch) {
    // 35 rows of validation: 16, 16 and 3 in microbatches of 512 tokens.
    const Settings common = {"schedule.steps=10", "batch.tokens_per_step=2048", "data.val_tokens=1100"};
    run(config(common, {"batch.microbatch_tokens=2048"}), "whole");
    run(config(common, {"batch.microbatch_tokens=512"}), "parts");
    const std::vector<double> whole = curve("whole"), parts = curve("parts");
    ASSERT_EQ(whole.size(), parts.size());
    // Equal terms are summed in another order: f32 rounding, amplified by ten steps of Muon (small singular values of the
    // matrix are mostly rounding).
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 2e-3 * std::abs(whole[i])) << i;
    // The first step's loss and norm precede all updates.
    EXPECT_NEAR(parts[0], whole[0], 1e-6 * whole[0]);
    EXPECT_NEAR(parts[1], whole[1], 1e-5 * whole[1]);
}

TEST_F(TrainerTest, DivergenceNamesStepAndParameter) {
    expect_error(ExitCode::diverged, {"diverged at step", "weight"}, [&] {
        run(config({"schedule.steps=20", "optimizers.groups.1.lr=1000",
                    "optimizers.groups.1.weight_decay=1000"}),
            "wild");
    });
    std::ifstream file(folder_ / "logs" / "wild" / "summary.json");
    EXPECT_EQ(Json::parse(file)["status"], "diverged");
}

// A NaN in a parameter that affects no step's loss: only the check of parameters finds it.
void spoil_unused_row(Trainer& trainer, const Config& config) {
    StepRunner& runner = trainer.runner();
    std::vector<std::vector<float>> values;
    for (const Parameter& p : runner.state().table().all()) {
        values.emplace_back(static_cast<size_t>(p.whole_numel()));
        runner.state().read_master(p, values.back().data());
        if (p.name == "embed.weight")
            values
                .back()[static_cast<size_t>(config.model.padded_vocab_size() - 1) * config.model.model_dim] =
                NAN;
    }
    runner.state().assign(values);
}

TEST_F(TrainerTest, NonFiniteFinalParametersAreDivergence) {
    for (const char* precision : {"f32", "bf16"}) {
        const Config c =
            config({"schedule.steps=5", "checkpoint.every=2", "model.vocab_size=33",
                    R"(model.input=[{"type": "table", "table": "embed"}])",
                    "model.tables.embed.init.value=0.02", std::string("precision=") + precision});
        Runtime runtime(runtime_options(c));
        RunFolder run_folder((folder_ / "logs").string(), precision);
        Trainer trainer(c, runtime, {}, run_folder, {.quiet = true});
        spoil_unused_row(trainer, c);
        expect_error(ExitCode::diverged,
                     {"diverged in step 4: first bad parameter: embed.weight (1 of 2048 values"},
                     [&] { trainer.run(); });
        std::ifstream file(folder_ / "logs" / precision / "summary.json");
        EXPECT_EQ(Json::parse(file)["status"], "diverged");
        EXPECT_TRUE(list_checkpoints((folder_ / "logs" / precision).string()).empty())
            << "one that cannot go on";
        EXPECT_THAT(trainer.problem(), HasSubstr("master/embed.weight holds numbers that are not finite"));
    }
}

TEST_F(TrainerTest, LogsNormBeforeClipping) {
    run(config({"schedule.steps=2"}), "free");
    run(config({"schedule.steps=2", "optimizers.clip=0.001"}), "clipped");
    EXPECT_EQ(curve("free")[1], curve("clipped")[1]);  // the norm is logged before clipping
}

TEST_F(TrainerTest, WritesFilesOfRun) {
    const RunSummary summary = run(config({"schedule.steps=6", "eval.every=3", "record.target_loss=100"}),
                                   "files", {.quiet = true, .trace_first = 4, .trace_last = 5});
    EXPECT_TRUE(summary.target_reached);
    const std::vector<Json> lines = metrics("files");
    ASSERT_EQ(lines.size(), 8u);  // 6 steps, validation after 3 and after 6
    EXPECT_EQ(lines[3]["event"], "val");
    EXPECT_EQ(lines[3]["step"], 3);
    EXPECT_EQ(lines[7]["event"], "val");
    double before = 0;
    for (const Json& line : lines) {
        EXPECT_GE(line["train_ms"].get<double>(), before);
        before = line["train_ms"];
        if (line["event"] != "step") continue;
        for (const char* key :
             {"step", "loss", "grad_norm", "lr", "step_ms", "tokens", "tokens_per_s", "comm_exposed_ms"}) {
            EXPECT_TRUE(line.contains(key)) << key;
        }
    }
    // Validation is outside the clock: the next step starts at the same clock value. The last validation, which takes longer
    // than all steps together, adds only the host's wake-up after the last step.
    const auto number = [&](size_t line, const char* key) { return lines[line][key].get<double>(); };
    EXPECT_NEAR(number(4, "train_ms") - number(3, "train_ms"), number(4, "step_ms"), 1e-6);
    constexpr double kWakeUpMs = 100;  // wake-up of a thread on an overloaded machine
    EXPECT_LT(number(7, "train_ms") - number(6, "train_ms"), kWakeUpMs);
    std::ifstream trace(folder_ / "logs" / "files" / "trace.json");
    const Json events = Json::parse(trace)["traceEvents"];
    int attention = 0;
    for (const Json& event : events)  // on a GPU: of the kernel
        attention += event["name"].get<std::string>().find("attention_forward") != std::string::npos;
    EXPECT_EQ(attention, 2 * 2);  // two steps of two layers
    EXPECT_THROW(RunFolder((folder_ / "logs").string(), "files"), Error);
}

TEST_F(TrainerTest, SilentFolderWritesNothing) {
    const std::string path = (folder_ / "logs" / "quiet").string();
    RunFolder silent = RunFolder::silent(path);
    EXPECT_EQ(silent.path(), path);
    silent.write_config("{}");
    silent.write_environment("{}");
    silent.write_step({});
    silent.write_validation({});
    silent.write_summary({});
    silent.log("nothing");
    EXPECT_FALSE(fs::exists(folder_ / "logs"));
}

// Only one rank receives the signal, before the first step: all ranks stop after the same step.
TEST_F(TrainerTest, SignalToOneRankStopsAll) {
    const Config c =
        config({"schedule.steps=100000", "batch.microbatch_tokens=256", "threads=1", "device=cpu"});
    const std::string path = (folder_ / "logs" / "stopped").string();
    std::array<RunSummary, 2> summaries;
    run_ranks(2, [&](World& world) {
        const Ranks ranks = resolve_ranks(c, world);
        const std::atomic<int> signal = ranks.first() ? 0 : SIGTERM;
        Runtime runtime(runtime_options(c, ranks));
        RunFolder run_folder =
            ranks.first() ? RunFolder((folder_ / "logs").string(), "stopped") : RunFolder::silent(path);
        Trainer trainer(c, runtime, ranks, run_folder, {.quiet = true, .stop_signal = &signal});
        summaries[static_cast<size_t>(world.rank())] = trainer.run();
    });
    for (const RunSummary& summary : summaries) {
        EXPECT_EQ(summary.status, "stopped");
        EXPECT_EQ(summary.ranks, 2);
        EXPECT_EQ(summary.mesh, "replicate 1 x shard 2 x context 1 x tensor 1");
        EXPECT_EQ(summary.steps, summaries[0].steps);
        EXPECT_LE(summary.steps, 2);  // a step's result is read while the next one runs
    }
    const std::vector<Json> lines = metrics("stopped");
    ASSERT_EQ(lines.size(), static_cast<size_t>(summaries[0].steps) + 1);  // and one validation
}

}  // namespace speedrun::testing::trainer_test
