// A resume restores the clock, step times, sums and time to target in addition to parameters and optimizers. It refuses a
// checkpoint with a position that is impossible for its config.
#include <map>

#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::resume_state_test {

class ResumeStateTest : public RankRunFixture {
  protected:
    Json json_of(const std::string& file) const { return Json::parse(bytes_of(file)); }
    Json summary(const std::string& name) const { return json_of(path(name) + "/summary.json"); }
    Json info(const std::string& name, int64_t step) const {
        return json_of(checkpoint(name, step) + "/checkpoint.json");
    }
    // Validations in the metrics; key: step.
    std::map<int64_t, Json> validations(const std::string& name) const {
        std::map<int64_t, Json> found;
        for (const Json& line : metrics(name))
            if (line["event"] == "val") found[line["step"]] = line;
        return found;
    }
    // Removes the run's files of later steps, as after a crash.
    void forget_after(const std::string& name, int64_t step) const {
        for (const std::string& folder : list_checkpoints(path(name)))
            if (step_of_checkpoint(fs::path(folder).filename().string()) > step) fs::remove_all(folder);
        fs::remove(path(name) + "/summary.json");
    }
    // Changes a step's line of metrics.jsonl.
    void set_step_ms(const std::string& name, int64_t step, double ms) const {
        const std::string file = path(name) + "/metrics.jsonl";
        std::string text;
        for (Json line : metrics(name)) {
            if (line["event"] == "step" && line["step"] == step) line["step_ms"] = ms;
            text += line.dump() + "\n";
        }
        std::ofstream(file) << text;
    }
    // Changes a value in checkpoint.json and updates the file's hash.
    void set_info(const std::string& folder, const std::string& pointer, const Json& value) const {
        const std::string file = folder + "/checkpoint.json", sums = folder + "/XXH128SUMS";
        const std::string before = xxh128_file(file);
        Json json = json_of(file);
        json[Json::json_pointer(pointer)] = value;
        std::ofstream(file) << json.dump();
        std::string text = bytes_of(sums);
        text.replace(text.find(before), before.size(), xxh128_file(file));
        std::ofstream(sums) << text;
    }
    Config with(const Settings& more) const {
        return config_of({}, together({{"checkpoint.every=3", "eval.every=2"}, more}));
    }
};

TEST_F(ResumeStateTest, TheClockGoesOn) {
    for (const int ranks : {1, 2}) {
        const std::string name = fmt::format("run{}", ranks);
        const Config c = config_of({ranks, 1, "zero1"}, {"checkpoint.every=3"});
        train(c, ranks, name);
        for (const int64_t step : {3, 9}) {
            const std::string later = fmt::format("{}_{}", name, step);
            train(c, ranks, later, checkpoint(name, step));
            const Json first = metrics(later).front();
            ASSERT_EQ(first["step"], step);
            const double before = info(name, step)["measured"]["train_ms"];
            EXPECT_GT(before, 0);
            EXPECT_NEAR(first["train_ms"].get<double>() - first["step_ms"].get<double>(), before,
                        1e-6 * before);
            EXPECT_GT(summary(later)["train_ms"].get<double>(), before);
        }
    }
}

// A step before the checkpoint was by far the slowest.
TEST_F(ResumeStateTest, StepTimesOfEarlierStepsCount) {
    const Config c = with({});
    train(c, 1, "run");
    forget_after("run", 6);
    for (const int64_t step : {1, 4, 5}) set_step_ms("run", step, 1e6 + static_cast<double>(step));
    set_step_ms("run", 7, 5e6);  // repeated step
    train(c, 1, "run", "auto");
    const Json times = summary("run")["step_ms"];
    EXPECT_EQ(times["max"], 1e6 + 5);
    EXPECT_EQ(times["max_at_step"], 5);
    EXPECT_EQ(times["p99"], 1e6 + 5);
    EXPECT_LT(times["p50"].get<double>(), 1e6);
    forget_after("run", 6);
    for (const int64_t step : {0, 2, 3}) set_step_ms("run", step, 1e6);
    train(c, 1, "run", "auto");
    EXPECT_GE(summary("run")["step_ms"]["p50"].get<double>(), 1e6) << "six steps of ten";
}

// A run after its last step prints the same result after a resume.
TEST_F(ResumeStateTest, SumsAreThoseOfTheWholeRun) {
    for (const int ranks : {1, 2}) {
        const std::string name = fmt::format("run{}", ranks);
        const Config c = config_of({ranks, 1, "zero1"}, {"record.target_loss=50", "eval.every=2"});
        train(c, ranks, name);
        const Json before = summary(name);
        const std::map<const char*, double> measured = {
            {"data_ms", 17.5}, {"optimizer_ms", 33.25}, {"comm_exposed_ms", 8.125}};
        for (const auto& [key, ms] : measured)
            set_info(checkpoint(name, 10), std::string("/measured/") + key, ms);
        train(c, ranks, name, "auto");
        const Json after = summary(name);
        for (const char* key :
             {"steps", "tokens", "train_loss", "val_loss", "time_to_target_ms", "target_reached"})
            EXPECT_EQ(after[key], before[key]) << key;
        EXPECT_GE(after["train_ms"].get<double>(), info(name, 10)["measured"]["train_ms"].get<double>());
        for (const auto& [key, ms] : measured) EXPECT_EQ(after[key], ms) << key;
    }
}

TEST_F(ResumeStateTest, TimeToTargetIsThatOfTheFirstValidationThatReachedIt) {
    const Config c = with({"record.target_loss=50"});
    train(c, 1, "run");
    const double reached = validations("run").at(2)["train_ms"];
    EXPECT_EQ(summary("run")["time_to_target_ms"], reached);
    forget_after("run", 6);
    train(c, 1, "run", "auto");
    EXPECT_EQ(summary("run")["time_to_target_ms"], reached);
    train(c, 1, "other", checkpoint("run", 6));
    EXPECT_EQ(summary("other")["time_to_target_ms"], reached) << "in a folder of its own too";
}

// Validation losses decrease, so that a target can be placed between any two.
TEST_F(ResumeStateTest, TimeToAnotherTargetIsFoundInTheRunsValidations) {
    train(with({"record.target_loss=50"}), 1, "run");
    const std::map<int64_t, Json> made = validations("run");
    const auto loss = [&](int64_t step) { return made.at(step)["loss"].get<double>(); };
    // After a resume at step 6, the time to target must be the training time at the validation of `step`; 0: not reached.
    const auto expect_reached = [&](double target, int64_t step) {
        forget_after("run", 6);
        train(with({fmt::format("record.target_loss={}", target)}), 1, "run", "auto");
        const Json expected = step > 0 ? validations("run").at(step)["train_ms"] : Json(nullptr);
        EXPECT_EQ(summary("run")["time_to_target_ms"], expected) << target;
    };
    ASSERT_LT(loss(4), loss(2));
    ASSERT_LT(loss(8), loss(4));
    expect_reached(loss(4), 4);
    expect_reached(loss(8), 8);
    expect_reached(0.001, 0);
    expect_reached(0, 0);
    expect_reached(49, 2);
    expect_reached(50, 2);
    // A run in another folder has no record of earlier validations.
    train(with({"record.target_loss=40"}), 1, "other", checkpoint("run", 6));
    EXPECT_EQ(summary("other")["time_to_target_ms"], validations("other").at(6)["train_ms"]);
    EXPECT_THAT(bytes_of(path("other") + "/run.log"), HasSubstr("validations before step 6 do not count"));
}

TEST_F(ResumeStateTest, ValidationsOfOtherDataDoNotCountForTheTarget) {
    const std::vector<Settings> others = {{"data.val_tokens=200"},
                                          {"data.val=" + (folder_ / "train.bin").string()},
                                          {"eval.sequence_length=16"}};
    for (size_t i = 0; i < others.size(); ++i) {
        const std::string name = fmt::format("run{}", i);
        train(with({"record.target_loss=50"}), 1, name);
        forget_after(name, 6);
        Settings settings = together({{"record.target_loss=50"}, others[i]});
        train(with(settings), 1, name, "auto");
        EXPECT_EQ(summary(name)["time_to_target_ms"], validations(name).at(6)["train_ms"]) << name;
        EXPECT_THAT(bytes_of(path(name) + "/run.log"), HasSubstr("validations before step 6 do not count"));
        // Repeated with another target.
        forget_after(name, 9);
        settings[0] = "record.target_loss=40";
        train(with(settings), 1, name, "auto");
        EXPECT_EQ(summary(name)["time_to_target_ms"], validations(name).at(6)["train_ms"]) << name;
    }
}

TEST_F(ResumeStateTest, FilesOfAllRanksAreVerified) {
    const Config c = config_of({4, 1, "zero1", "adamw", "f32", 64});
    train(c, 4, "run");
    for (int64_t damaged = 0; damaged < 4; ++damaged) {
        const std::string file = checkpoint("run", 10) + "/" + rank_file_name(damaged);
        const std::string good = bytes_of(file);
        std::string bad = good;
        bad[bad.size() - 5] ^= 1;
        std::ofstream(file, std::ios::binary) << bad;
        for (const int ranks : {1, 2, 3, 5})
            expect_refused(ExitCode::data, rank_file_name(damaged) + ": XXH128 is", checkpoint("run", 10),
                           "new", c, ranks);
        std::ofstream(file, std::ios::binary) << good;
    }
    expect_good(checkpoint("run", 10), c);
}

TEST_F(ResumeStateTest, APositionThatTheConfigDoesNotHaveIsRefused) {
    const Config c = config_of({}, {"optimizers.groups.1.every=2", "checkpoint.every=4",
                                    "schedule.warmup_steps=6", "schedule.cooldown_fraction=0.3"});
    train(c, 1, "run");
    const std::string folder = checkpoint("run", 4);
    struct Change {
        const char* pointer;
        Json value;
        const char* text;
    };
    const std::vector<Change> changes = {
        {"/step", int64_t{1} << 62, "no run has 4611686018427387904 steps"},
        {"/step", 12, "step 12 is after the last step of its config's schedule, 10"},
        {"/step", 3, "step 3 is not a multiple of optimizers.groups[1].every 2"},
        {"/step", 6, "tokens is 1024, expected 1536 after 6 steps"},
        {"/tokens", 0, "tokens is 0, expected 1024"},
        {"/loader/next_row", 999999, "loader.next_row is 999999, expected 32"},
        {"/loader/next_row", 31, "loader.next_row is 31, expected 32"},
        {"/seed", 77, "seed is 77, expected 3"},
        {"/schedule/next_lr_factor", 0.25, "schedule.next_lr_factor is 0.25, expected 0.83"},
        {"/measured/train_ms", -1e9, "train_ms: expected a number from 0 to 1e+13, got -1000000000"},
        {"/measured/train_ms", 1e308, "train_ms: expected a number from 0 to 1e+13, got 1e+308"},
        {"/measured/data_ms", -1, "data_ms: expected a number from 0 to 1e+13, got -1"},
        {"/measured/time_to_target_ms", -1, "time_to_target_ms: expected a number from 0 to 1e+13, got -1"},
    };
    for (const auto& [pointer, value, text] : changes) {
        const Json before = info("run", 4).at(Json::json_pointer(pointer));
        set_info(folder, pointer, value);
        expect_refused(ExitCode::data, text, folder, "new", c);
        set_info(folder, pointer, before);
    }
    expect_good(folder, c);
}

}  // namespace speedrun::testing::resume_state_test
