// Checkpoints of whole runs: taken at the steps of the config, bitwise equal at the run's end and during it.
#include <set>

#include "tests/runs/forwarded_state.h"
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::saved_run_test {

class SavedRunTest : public RankRunFixture {
  protected:
    std::set<int64_t> saved(const std::string& name) const {
        std::set<int64_t> steps;
        for (const std::string& folder : list_checkpoints(path(name)))
            steps.insert(step_of_checkpoint(fs::path(folder).filename().string()));
        return steps;
    }
    std::string log_of(const std::string& name) const { return bytes_of(path(name) + "/run.log"); }
};

using Steps = std::set<int64_t>;

// All combinations of save and validation periods, on one rank and on two.
TEST_F(SavedRunTest, EveryStepThatIsDueIsSaved) {
    for (const int ranks : {1, 2}) {
        const Ways ways{ranks, 1, "zero1", "adamw", "f32", 128};
        for (const int64_t every : {1, 2, 3, 4, 9, 10, 11}) {
            for (const int64_t eval : {0, 1, 2, 3}) {
                if (kSanitized && (every != 1 || eval % 2 != 0)) continue;
                const std::string name = fmt::format("{}_{}_{}", ranks, every, eval);
                const Config c = config_of(
                    ways, {fmt::format("checkpoint.every={}", every), fmt::format("eval.every={}", eval)});
                EXPECT_EQ(train(c, ranks, name), "");
                Steps expected{10};
                for (int64_t step = every; step < 10; step += every) expected.insert(step);
                EXPECT_EQ(saved(name), expected) << name;
                for (const int64_t step : saved(name)) {
                    if (every > 1)
                        expect_same_bytes(checkpoint(fmt::format("{}_1_0", ranks), step),
                                          checkpoint(name, step), ranks);
                }
            }
        }
    }
}

// Resumes from a checkpoint of every step.
TEST_F(SavedRunTest, EveryStepContinuesBitwise) {
    const Config c = config_of({2, 1, "zero2", "normuon"}, {"checkpoint.every=1"});
    train(c, 2, "whole");
    expect_continues(c, 2, "whole", {1, 2, 5, 9});
}

// Checkpoints exclude gradients accumulated by a group with `every: k`. The last checkpoint is of the last whole period, is
// announced at the start, and continues to the same end.
TEST_F(SavedRunTest, StepsBehindTheLastPeriodAreNotLostSilently) {
    for (const int ranks : {1, 2}) {
        const auto configured = [&](int64_t steps, int64_t every, const Settings& more = {}) {
            const Settings all = {fmt::format("schedule.steps={}", steps), "eval.every=0",
                                  fmt::format("optimizers.groups.1.every={}", every)};
            return config_of({ranks, 1, "zero1", "adamw", "f32", 128}, together({all, more}));
        };
        const auto name_of = [&](const char* name) { return fmt::format("{}{}", name, ranks); };
        struct Expected {
            int steps, every, saved;
        };
        for (const auto& [steps, every, last] :
             {Expected{7, 2, 6}, Expected{8, 2, 8}, Expected{9, 4, 8}, Expected{11, 4, 8}}) {
            if (kSanitized && steps != 7) continue;
            const std::string name = fmt::format("{}_{}_{}", ranks, steps, every);
            const Config c = configured(steps, every);
            train(c, ranks, name);
            EXPECT_EQ(saved(name), Steps{last}) << name;
            const bool said = log_of(name).find(fmt::format("the last checkpoint is of step {}", last)) !=
                              std::string::npos;
            EXPECT_EQ(said, steps != last) << log_of(name);
            expect_continues(c, ranks, name, {last});
        }
        train(configured(7, 2, {"checkpoint.every=2"}), ranks, name_of("often"));
        EXPECT_EQ(saved(name_of("often")), (Steps{2, 4, 6}));
        train(configured(7, 2, {"checkpoint.last=false"}), ranks, name_of("none"));
        EXPECT_EQ(saved(name_of("none")), Steps{});
        EXPECT_EQ(log_of(name_of("none")).find("warning"), std::string::npos) << "was not asked for";
        train(configured(1, 2), ranks, name_of("short"));
        EXPECT_EQ(saved(name_of("short")), Steps{});
        EXPECT_THAT(log_of(name_of("short")), HasSubstr("no checkpoint is saved"));
    }
}

// The final checkpoint is read from the device, periodic ones from a snapshot. Pieces are one range or several boxes, each
// fetched in many rounds.
TEST_F(SavedRunTest, TheLastAndThePeriodicOnesAgreeBitForBit) {
    struct Mode {
        Ways ways;
        Settings settings;
    };
    const std::vector<Mode> modes = {
        {{1, 1, "ddp", "normuon", "f32", 256}, {}},
        {{1, 1, "ddp", "adamw", "bf16", 256}, {"optimizers.groups.0.moments_dtype=bf16"}},
        {{2, 1, "zero1", "heads", "f32", 128}, {}},
        {{2, 1, "zero3", "adamw", "f32", 128}, {}},
        {{2, 1, "zero1", "normuon", "f32", 256}, {"parallel.tensor=2"}},
        {{4, 1, "zero2", "adamw", "f32", 128}, {"parallel.tensor=2"}}};
    int number = 0;
    for (const auto& [ways, more] : modes) {
        if (kSanitized && number > 0 && more.empty()) continue;
        const auto configured = [&, &settings = more](int64_t every) {
            return config_of(
                ways, together({{"schedule.steps=4", fmt::format("checkpoint.every={}", every)}, settings}));
        };
        const std::string name = fmt::format("mode{}", number++), whole = name + "_whole";
        train(configured(2), ways.ranks, whole);  // in one round, from a snapshot
        for (const int64_t fetched : {int64_t{37}, int64_t{256}, kMostNumbersFetched}) {
            const How how{.most_fetched = fetched};
            const std::string last = fmt::format("{}_last{}", name, fetched),
                              periodic = fmt::format("{}_periodic{}", name, fetched),
                              stopped = fmt::format("{}_stopped{}", name, fetched);
            train(configured(0), ways.ranks, last, "", how);
            expect_same_bytes(checkpoint(whole, 4), checkpoint(last, 4), ways.ranks);
            train(configured(2), ways.ranks, periodic, "", how);
            for (const int64_t step : {2, 4})
                expect_same_bytes(checkpoint(whole, step), checkpoint(periodic, step), ways.ranks);
            if (ways.ranks == 1) continue;
            train(configured(0), ways.ranks, stopped, "", {.stop = true, .most_fetched = fetched});
            expect_same_bytes(checkpoint(whole, 2), checkpoint(stopped, 2), ways.ranks);
        }
    }
}

// Records whether the snapshot has been waited for.
class AwaitedState final : public ForwardedState {
  public:
    using ForwardedState::ForwardedState;
    void await_snapshot() override {
        ForwardedState::await_snapshot();
        awaited = true;
    }
    std::atomic<bool> awaited = false;
};

// Counts files created before the wait.
class EarlyFiles final : public FileSystem {
  public:
    explicit EarlyFiles(const AwaitedState& state) : state_(state) {}
    int create(const std::string& path) override {
        early += !state_.awaited;
        return FileSystem::create(path);
    }
    std::atomic<int> early = 0;

  private:
    const AwaitedState& state_;
};

TEST_F(SavedRunTest, ASnapshotIsWrittenOnlyWhenItIsThere) {
    const Config c = config_of({}, {"checkpoint.every=10"});
    train(c, 1, "run");
    Runtime runtime(runtime_options(c));
    StepRunner runner(c, runtime);
    RunnerState of_runner(runner);
    AwaitedState state(of_runner);
    EarlyFiles disk(state);
    CheckpointReader reader(checkpoint("run", 10));
    reader.index();
    load_checkpoint(reader, runtime, of_runner);
    fs::create_directories(path("copy"));
    Checkpointer saver(c, {}, runtime, state, path("copy"), [](auto&&...) {}, {.system = &disk});
    EXPECT_FALSE(saver.awaits_result());
    saver.snapshot(10);
    EXPECT_TRUE(saver.awaits_result());
    CheckpointInfo info = reader.info();
    info.files.clear();
    EXPECT_FALSE(saver.collected(9));
    EXPECT_TRUE(saver.awaits_result()) << "the result of another step";
    EXPECT_TRUE(saver.collected(10));
    saver.write_snapshot(info);
    EXPECT_FALSE(saver.awaits_result());
    saver.finish();
    EXPECT_EQ(saver.problem(), "");
    EXPECT_EQ(disk.early, 0);
    expect_same_numbers(checkpoint("run", 10), checkpoint("copy", 10));
}

// The first `failures` files of this step cannot be created.
class FailsAtFirst final : public FileSystem {
  public:
    FailsAtFirst(int64_t step, int failures) : step_(checkpoint_name(step)), left_(failures) {}
    int create(const std::string& path) override {
        if (path.find(step_) == std::string::npos || left_-- <= 0) return FileSystem::create(path);
        errno = ENOSPC;
        return -1;
    }

  private:
    const std::string step_;
    std::atomic<int> left_;
};

// A failed periodic checkpoint of the last step is retried at the run's end.
TEST_F(SavedRunTest, TheLastOneIsTriedAgain) {
    for (const int ranks : {1, 2}) {
        for (int bad = 0; bad < ranks; ++bad) {
            const Config c = config_of({ranks, 1, "zero1"}, {"checkpoint.every=5"});
            for (const int failures : {1, 2}) {
                FailsAtFirst disk(10, failures);
                const std::string name = fmt::format("{}_{}_{}", ranks, bad, failures);
                const std::string problem = train(c, ranks, name, "", {.disk = &disk, .disk_rank = bad});
                EXPECT_THAT(problem, HasSubstr("step-00000010 could not be saved"));
                EXPECT_EQ(saved(name), failures == 1 ? (Steps{5, 10}) : Steps{5});
                if (failures == 1) expect_good(checkpoint(name, 10), c);
            }
        }
    }
}

// A resume after the last step finds its checkpoint and writes none.
TEST_F(SavedRunTest, AFinishedRunSavesNothing) {
    for (const int ranks : {1, 2}) {
        const std::string name = fmt::format("run{}", ranks);
        const Config c = config_of({ranks, 1, "zero1"});
        train(c, ranks, name);
        FailsAtFirst disk(10, 1000);
        EXPECT_EQ(train(c, ranks, name, "auto", {.disk = &disk}), "");
        EXPECT_EQ(saved(name), Steps{10});
    }
}

// A disk that is slower than the timeout for lost ranks.
class SlowDisk final : public FileSystem {
  public:
    enum class Call { sync, sync_folder, rename, remove };
    explicit SlowDisk(Call slow) : slow_(slow) {}
    int sync(int file) override { return delay(Call::sync), FileSystem::sync(file); }
    int sync_folder(const std::string& path) override {
        return delay(Call::sync_folder), FileSystem::sync_folder(path);
    }
    int rename(const std::string& from, const std::string& to) override {
        return delay(Call::rename), FileSystem::rename(from, to);
    }
    int remove_folder(const std::string& path) override {
        return delay(Call::remove), FileSystem::remove_folder(path);
    }
    static constexpr double kTimeout_s = 0.5;

  private:
    void delay(Call call) const {
        if (call == slow_) std::this_thread::sleep_for(std::chrono::duration<double>(1.4 * kTimeout_s));
    }
    const Call slow_;
};

TEST_F(SavedRunTest, ASlowDiskOfAnyRankEndsNoRun) {
    if (kSanitized) GTEST_SKIP() << "waits in real time: release build only";
    using enum SlowDisk::Call;
    struct Trial {
        SlowDisk::Call call;
        int rank;
        int64_t every;  // 0: one checkpoint, at the end; 2: one that deletes another
        const char* strategy;
    };
    for (const auto& [call, rank, every, strategy] :
         {Trial{sync, 0, 4, "ddp"}, Trial{sync, 0, 0, "zero3"}, Trial{sync, 1, 0, "zero1"},
          Trial{sync_folder, 0, 4, "zero1"}, Trial{rename, 0, 4, "ddp"}, Trial{remove, 0, 2, "ddp"}}) {
        SlowDisk disk(call);
        const std::string name = fmt::format("{}_{}_{}", rank, static_cast<int>(call), every);
        const Config c = config_of({2, 1, strategy}, {fmt::format("checkpoint.every={}", every),
                                                      "checkpoint.keep=1", "schedule.steps=4"});
        const How how{.disk = &disk, .disk_rank = rank, .timeout_s = SlowDisk::kTimeout_s};
        EXPECT_NO_THROW(train(c, 2, name, "", how)) << name;
        EXPECT_EQ(saved(name), Steps{4}) << name;
    }
}

// The first rank deletes unfinished folders of an earlier process; this may exceed the timeout.
TEST_F(SavedRunTest, SlowDeletionAtTheStartEndsNoRun) {
    if (kSanitized) GTEST_SKIP() << "waits in real time: release build only";
    const Config c = config_of({2, 1, "zero1"}, {"checkpoint.every=5"});
    train(c, 2, "run");
    fs::remove_all(checkpoint("run", 10));
    fs::create_directories(path("run") + "/checkpoints/.step-00000010.part");
    SlowDisk disk(SlowDisk::Call::remove);
    EXPECT_NO_THROW(train(c, 2, "run", "auto", {.disk = &disk, .timeout_s = SlowDisk::kTimeout_s}));
    EXPECT_EQ(saved("run"), (Steps{5, 10}));
}

}  // namespace speedrun::testing::saved_run_test
