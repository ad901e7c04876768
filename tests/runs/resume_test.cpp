// Runs that are stopped and continued: bitwise equal to uninterrupted runs on the same ranks, and with the same
// parameters and state on any other ranks. Also runs that cannot write their checkpoints.
#include <set>

#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::resume_test {

class ResumeTest : public RankRunFixture {};

// The continued run's checkpoints were taken during normal training.
TEST_F(ResumeTest, ContinuesBitwiseOnTheSameRanks) {
    std::vector<Ways> all = {{1, 1, "ddp", "adamw"},
                             {1, 1, "ddp", "normuon", "f32", 256},
                             {2, 1, "ddp", "muon"},
                             {2, 1, "zero1", "normuon"},
                             {2, 1, "zero1", "adamw", "f32", 128},
                             {4, 2, "zero1", "muon"},
                             {2, 1, "zero2", "muon"},
                             {2, 1, "zero3", "normuon"},
                             {4, 2, "zero3", "adamw"},
                             {1, 1, "ddp", "normuon", "bf16"},
                             {2, 1, "zero1", "normuon", "bf16"},
                             {4, 1, "zero3", "normuon", "bf16"}};
    if (kSanitized) all = {{1, 1, "ddp", "adamw"}, {2, 1, "zero3", "normuon"}};
    int number = 0;
    for (const Ways& ways : all) {
        SCOPED_TRACE(fmt::format("{} {}x{} {} {}", ways.strategy, ways.replicate, ways.ranks, ways.optimizer,
                                 ways.precision));
        const std::string whole = fmt::format("whole{}", number), later = fmt::format("later{}", number);
        ++number;
        const Config often = config_of(ways, {"checkpoint.every=3"}), never = config_of(ways);
        EXPECT_EQ(train(often, ways.ranks, whole), "");
        EXPECT_EQ(train(never, ways.ranks, later, checkpoint(whole, 3)), "");
        const std::vector<double> expected = curve(whole, 3);
        ASSERT_EQ(expected.size(), 7u * 2 + 2);
        EXPECT_EQ(curve(later), expected);
        expect_same_bytes(checkpoint(whole, 10), checkpoint(later, 10), ways.ranks);
        // In its own folder, from the newest checkpoint; later output is written again.
        fs::remove_all(checkpoint(whole, 10));
        EXPECT_EQ(train(often, ways.ranks, whole, "auto"), "");
        EXPECT_EQ(curve(whole, 3), expected);
        EXPECT_EQ(metrics(whole).size(), 12u);
        expect_same_bytes(checkpoint(whole, 10), checkpoint(later, 10), ways.ranks);
    }
}

// Documents of 32 tokens are cut at 10, so four of them form a row of 33, with 200 rows per epoch: the run of 320 rows begins
// the second epoch at step 6. Batches include n-grams.
TEST_F(ResumeTest, RowsOfDocumentsContinueBitwise) {
    const Settings documents = {"data.rows=documents", "data.max_document_tokens=10",
                                "batch.tokens_per_step=1024", "checkpoint.every=3"};
    for (const bool shuffle : {true, false}) {
        for (const int ranks : {1, 2}) {
            if (kSanitized && ranks == 1) continue;
            const std::string name = fmt::format("{}{}", shuffle ? "shuffled" : "in_order", ranks);
            const Config c = config_of(
                {ranks, 1, "zero1"},
                together(
                    {documents, with_tables({.max_ngram = 3}), {fmt::format("data.shuffle={}", shuffle)}}));
            EXPECT_EQ(train(c, ranks, name), "");
            expect_continues(c, ranks, name, {3, 9});
            const Json summary = Json::parse(bytes_of(path(name) + "/summary.json"));
            EXPECT_EQ(summary["epoch_tokens_seen"], 200 * 33);
            EXPECT_EQ(summary["epoch_tokens_dropped"], 800 * 32 - 200 * 33);
            EXPECT_THAT(bytes_of(path(name) + "/run.log"), HasSubstr("rows of documents: 200 an epoch"));
        }
        if (kSanitized) return;
        // Two ranks read one rank's rows, and sum in another order: f32 rounding, amplified by ten steps.
        const std::string name = shuffle ? "shuffled" : "in_order";
        expect_near(curve(name + "2"), curve(name + "1"), kRanksTolerance, name);
    }
    EXPECT_NE(curve("shuffled1"), curve("in_order1"));
}

// The values kept for backward may change at a resume, e.g. on a machine with less memory.
TEST_F(ResumeTest, ContinuesBitwiseWithOtherActivationCheckpointing) {
    for (const char* precision : {"f32", "bf16"}) {
        const std::string whole = std::string("whole_") + precision;
        const Ways ways{1, 1, "ddp", "normuon", precision};
        const Config none = config_of(ways, {"checkpoint.every=3", "memory.activation_checkpointing=none"});
        EXPECT_EQ(train(none, 1, whole), "");
        for (const char* kept : {"full", "selective"}) {
            const std::string later = whole + "_" + kept;
            const Config other = config_of(ways, {"memory.activation_checkpointing=" + std::string(kept)});
            EXPECT_EQ(train(other, 1, later, checkpoint(whole, 3)), "");
            EXPECT_EQ(curve(later), curve(whole, 3));
            expect_same_bytes(checkpoint(whole, 10), checkpoint(later, 10), 1);
        }
    }
}

// Two ranks exchange tables' gradients as rows or whole; tables are stepped every two steps. The mode does not affect results: a
// run may be continued with the other one.
TEST_F(ResumeTest, GoOnBitwiseWithEitherExchangeOfTables) {
    const auto exchanging = [&](TableExchange exchange, const std::string& every) {
        Config c = config_of({2, 1, "zero1", "muon"},
                             together({{"checkpoint.every=" + every, "optimizers.groups.1.every=2",
                                        "parallel.bucket_bytes=4096"},
                                       with_tables({.max_ngram = 3, .ngram_rows = 400})}));
        for (auto& [name, table] : c.model.parts.tables) table.exchange = exchange;
        return parse_config(config_to_json(c), "resolved", {});
    };
    train(exchanging(TableExchange::rows, "4"), 2, "rows");
    ASSERT_EQ(curve("rows", 4).size(), 6u * 2 + 2);
    for (const TableExchange exchange : {TableExchange::rows, TableExchange::whole}) {
        const std::string name = std::string("later_") + word_of(exchange);
        train(exchanging(exchange, "0"), 2, name, checkpoint("rows", 4));
        EXPECT_EQ(curve(name), curve("rows", 4)) << name;
    }
}

// 1 -> 2 -> 4 -> 2 -> 1 ranks, every strategy. A save directly after loading must be bitwise equal to the loaded state.
TEST_F(ResumeTest, AnyMeshContinuesAnyOther) {
    for (const char* optimizer : {"normuon", "heads", "adamw"}) {
        if (kSanitized && std::string(optimizer) != "normuon") continue;
        const std::vector<Ways> meshes = {{1, 1, "ddp", optimizer, "f32", 256},
                                          {2, 1, "zero1", optimizer, "f32", 64},
                                          {4, 2, "zero3", optimizer, "f32", 32},
                                          {2, 1, "zero2", optimizer, "f32", 64},
                                          {1, 1, "ddp", optimizer, "f32", 256}};
        const std::string prefix = optimizer, reference = prefix + "_reference";
        train(config_of(meshes[0]), 1, reference);
        std::string from;
        for (size_t i = 0; i < meshes.size(); ++i) {
            const Ways& ways = meshes[i];
            const std::string name = prefix + std::to_string(i);
            const Config c = config_of(ways, {"checkpoint.every=2"});
            if (!from.empty()) {
                run_ranks(ways.ranks, [&](World& world) {
                    const Ranks ranks = resolve_ranks(c, world);
                    Runtime runtime(runtime_options(c, ranks));
                    StepRunner runner(c, runtime, ranks);
                    runner.state().initialize(77);  // another seed: none of its values may stay
                    const auto reader = open_checkpoint(world, from, c);
                    RunnerState state(runner);
                    load_checkpoint(*reader, runtime, state);
                    if (world.rank() == 0) fs::create_directories(path(name + "_copy"));
                    Checkpointer saver(c, ranks, runtime, state, path(name + "_copy"), [](auto&&...) {}, {});
                    world.barrier();
                    CheckpointInfo info = reader->info();
                    info.files.clear();
                    saver.save(info);
                    saver.finish();
                    EXPECT_EQ(saver.problem(), "");
                });
                expect_same_numbers(from, checkpoint(name + "_copy", 2 * static_cast<int64_t>(i)));
            }
            EXPECT_EQ(train(c, ways.ranks, name, from), "");
            // Compared with one uninterrupted rank. Other meshes sum in another order: f32 rounding, amplified by ten steps, as
            // in the engine's tests.
            const int64_t step = 2 * static_cast<int64_t>(i);
            expect_near(curve(name, step), curve(reference, step), kRanksTolerance, name);
            from = checkpoint(name, step + 2);
        }
    }
}

TEST_F(ResumeTest, AutoSkipsTheDamagedAndStartsAfreshWithoutAny) {
    if (kSanitized) GTEST_SKIP() << "slow with sanitizers; resume_cli covers the same code";
    const Config c = config_of({}, {"checkpoint.every=3"});
    train(c, 1, "run", "auto");  // nothing there: a new run
    ASSERT_EQ(metrics("run").size(), 12u);
    const std::vector<double> expected = curve("run");
    const auto flip = [&](int64_t step) {
        const std::string file = checkpoint("run", step) + "/" + rank_file_name(0);
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(-5, std::ios::end);
        stream.put('\x7f');
    };
    flip(10);
    fs::remove(checkpoint("run", 9) + "/" + rank_file_name(0));
    run_ranks(2, [&](World& world) {
        const ResumePoint point = find_resume_point(world, "auto", path("run"), c);
        ASSERT_NE(point.reader, nullptr);
        EXPECT_EQ(point.reader->info().step, 6);
        EXPECT_TRUE(point.in_place);
        ASSERT_EQ(point.messages.size(), 2u);
        EXPECT_THAT(point.messages[0], HasSubstr("XXH128"));
        EXPECT_THAT(point.messages[1], HasSubstr("No such file"));
    });
    train(c, 1, "run", "auto");  // replaces the damaged one
    EXPECT_EQ(curve("run"), expected);
    for (const int64_t step : {9, 10}) expect_good(checkpoint("run", step), c);
    for (const int64_t step : {3, 6, 9, 10}) flip(step);
    expect_refused(ExitCode::data, "no checkpoint of", "auto", "run", c);
    expect_refused(ExitCode::data, "XXH128", checkpoint("run", 10), "new", c);
    expect_refused(ExitCode::usage, "newer checkpoint", checkpoint("run", 6), "run", c);
    expect_refused(ExitCode::usage, "neither a checkpoint nor", path("nothing"), "new", c);
    fs::remove_all(path("run") + "/checkpoints");
    expect_refused(ExitCode::usage, "has ended", "auto", "run", c);
    fs::remove(path("run") + "/summary.json");  // as a run that dies before its first checkpoint
    train(c, 1, "run", "auto");
    EXPECT_EQ(curve("run"), expected);
}

TEST_F(ResumeTest, ADifferentConfigIsRefusedKeyByKey) {
    const Config c = config_of({}, {"schedule.steps=1"});
    train(c, 1, "run");
    const std::string from = checkpoint("run", 1);
    expect_refused(ExitCode::usage, "model.layers.count: 1 there, 2 here", from, "new",
                   config_of({}, {"schedule.steps=1", "model.layers.count=2"}));
    expect_refused(ExitCode::usage, "optimizers.groups.1.lr: 0.02 there, 0.03 here", "auto", "run",
                   config_of({}, {"optimizers.groups.1.lr=0.03"}));
    expect_refused(ExitCode::usage, "optimizers.groups.0.type: \"adamw\" there, \"muon\" here", from, "new",
                   config_of({1, 1, "ddp", "muon"}));
    expect_refused(ExitCode::usage, "seed: 3 there, 4 here", from, "new", config_of({}, {"seed=4"}));
    const Config other = config_of(
        {2, 1, "zero1", "adamw", "f32", 32},
        {"schedule.steps=1", "eval.every=7", "checkpoint.every=9", "threads=2", "record.target_loss=3"});
    EXPECT_EQ(training_differences(c, other), std::vector<std::string>{});
}

// When one rank makes its file of step 6: the disk is full, or the run's folder is gone.
class LostDisk final : public FileSystem {
  public:
    explicit LostDisk(std::string remove = "") : remove_(std::move(remove)) {}
    int create(const std::string& path) override {
        if (path.find("step-00000006") == std::string::npos) return FileSystem::create(path);
        if (!remove_.empty()) fs::remove_all(remove_);
        errno = ENOSPC;
        return remove_.empty() ? -1 : FileSystem::create(path);
    }

  private:
    const std::string remove_;
};

TEST_F(ResumeTest, AFullDiskStopsNoTrainingAndHarmsNoCheckpoint) {
    for (const int ranks : {1, 2}) {
        const std::string name = fmt::format("run{}", ranks);
        const Config c = config_of({ranks, 1, "zero1"}, {"checkpoint.every=3"});
        LostDisk disk;
        const std::string problem = train(c, ranks, name, "", {.disk = &disk, .disk_rank = ranks - 1});
        EXPECT_THAT(problem, HasSubstr("step-00000006 could not be saved"));
        EXPECT_THAT(problem, HasSubstr("No space left on device"));
        if (ranks > 1) {
            EXPECT_THAT(problem, HasSubstr("rank 1: "));
        }
        EXPECT_EQ(curve(name).size(), 10u * 2 + 2);
        for (const int64_t step : {3, 9, 10}) expect_good(checkpoint(name, step), c);
        std::set<std::string> folders;
        for (const auto& entry : fs::directory_iterator(path(name) + "/checkpoints"))
            folders.insert(entry.path().filename().string());
        EXPECT_EQ(folders, (std::set<std::string>{"step-00000003", "step-00000009", "step-00000010"}));
    }
}

TEST_F(ResumeTest, AVanishedFolderStopsNoTraining) {
    const Config c = config_of({}, {"checkpoint.every=3"});
    LostDisk disk(path("run"));
    const std::string problem = train(c, 1, "run", "", {.disk = &disk});
    EXPECT_THAT(problem, HasSubstr("step-00000006 could not be saved"));
    EXPECT_THAT(problem, HasSubstr("No such file"));
    EXPECT_FALSE(fs::exists(path("run"))) << "a removed folder is not created again";
}

}  // namespace speedrun::testing::resume_test
