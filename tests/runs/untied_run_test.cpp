// Whole runs with a head that is untied from the embedding: stopped and continued before and after the step of
// untying.
#include "tests/runs/forwarded_state.h"
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::untied_run_test {

// Checkpoints before, at and after the step that unties the head.
const std::vector<int> kSaved = kSanitized ? std::vector<int>{6} : std::vector<int>{4, 6, 8};

// Saves masters without refreshing them.
class Stale final : public ForwardedState {
  public:
    using ForwardedState::ForwardedState;
    void refresh_copies() override {}
};

class UntiedRunTest : public RankRunFixture {
  protected:
    Config untied(const Settings& more = {}) const {
        Settings all = two_groups(R"("mlp": {})", R"({"tied_to": "embed", "untied_after": 0})");
        all.emplace_back("schedule.stages=[6, 10]");
        return config(all, more);
    }
};

TEST_F(UntiedRunTest, ContinuesBitwiseBeforeAtAndBehindTheStep) {
    for (const std::string& strategy : strategies()) {
        const Config c = untied({by(strategy)});
        train(c, 2, strategy);
        expect_continues(c, 2, strategy, kSaved);
    }
}

// Before, at and after the step, the checkpoint of a stop equals the periodic one of that step.
TEST_F(UntiedRunTest, AStopSavesWhatARunThatGoesOnDoes) {
    for (const std::string& strategy : strategies()) {
        const Config c = untied({by(strategy)});
        train(c, 2, strategy);
        for (const int step : {4, 6, 8}) {
            const std::string stopped = fmt::format("{}_stopped{}", strategy, step),
                              later = stopped + "_later";
            train(untied({by(strategy), "checkpoint.every=0"}), 2, stopped, checkpoint(strategy, step - 2),
                  {.stop = true});
            expect_same_bytes(checkpoint(stopped, step), checkpoint(strategy, step), 2);
            EXPECT_EQ(metrics(stopped).back()["loss"], losses(strategy, step).front())
                << "the validation of the stop";
            train(c, 2, later, checkpoint(stopped, step));
            EXPECT_EQ(curve(later), curve(strategy, step)) << later;
        }
    }
}

// A checkpoint of a program without the refresh: the head has its initial values.
TEST_F(UntiedRunTest, AHeadThatWasSavedStaleIsThatOfTheEmbedding) {
    struct Point {
        int step, eval;  // eval 0: refreshed by the first steps instead of a validation
    };
    for (const auto& [step, eval] : {Point{4, 2}, Point{6, 2}, Point{6, 0}}) {
        const Config c = untied({fmt::format("eval.every={}", eval)});
        const std::string folder = (folder_ / "stale").string(), name = fmt::format("from{}_{}", step, eval),
                          whole = "whole_" + name;
        train(c, 1, whole);
        fs::remove_all(folder);
        Runtime runtime(runtime_options(c));
        StepRunner runner(c, runtime);
        RunnerState state(runner);
        Stale stale(state);
        runner.state().initialize(77);
        const CheckpointReader reader(checkpoint(whole, step));
        CheckpointReader indexed(reader.folder());
        indexed.index();
        load_checkpoint(indexed, runtime, state);
        const Parameter& head = runner.state().model().table().find("head.weight");
        runner.state().model().parameters().assign(head, std::vector<float>(head.numel(), 0.5F).data());
        fs::create_directories(folder);
        Checkpointer saver(c, {}, runtime, stale, folder, [](auto&&...) {}, {});
        CheckpointInfo info = reader.info();
        info.files.clear();
        saver.save(info);
        const std::string saved = folder + "/checkpoints/" + checkpoint_name(step);
        EXPECT_NE(bytes_of(saved + "/rank-00000.safetensors"),
                  bytes_of(checkpoint(whole, step) + "/rank-00000.safetensors"));
        train(c, 1, name, saved);
        EXPECT_EQ(curve(name), curve(whole, step)) << name;
    }
}

// Other ranks continue a saved run, before and after untying.
TEST_F(UntiedRunTest, AnyRanksContinueWhatOthersSaved) {
    if (!kSanitized) {
        train(untied(), 1, "one");
        train(untied({by("zero3")}), 2, "two");
        expect_near(curve("two"), curve("one"), kRanksTolerance, "two ranks");
    }
    for (const int step : kSaved) {
        const std::string name = "from" + std::to_string(step);
        train(untied({by("zero1"), "batch.tokens_per_step=384"}), 3, "three" + name);
        train(untied({"batch.tokens_per_step=384"}), 1, name, checkpoint("three" + name, step));
        expect_near(losses(name), losses("three" + name, step), kRanksTolerance, name);
    }
}

// Until that step, everything equals a run with a tied head, including validation without an earlier checkpoint.
TEST_F(UntiedRunTest, IsATiedRunUpToTheStep) {
    if (kSanitized) GTEST_SKIP() << "results of whole runs: release build only";
    train(untied({"checkpoint.every=0"}), 1, "apart");
    train(untied({"checkpoint.every=0", "model.head.untied_after=-1"}), 1, "tied");
    const auto first = [this](const std::string& name) {
        std::vector<double> values;
        for (const Json& line : metrics(name))
            if (line["step"].get<int64_t>() + (line["event"] == "step" ? 1 : 0) <= 6)
                values.push_back(line["loss"]);
        return values;
    };
    EXPECT_GE(first("apart").size(), 8u);
    EXPECT_EQ(first("apart"), first("tied"));
    EXPECT_NE(curve("apart"), curve("tied"));
}

}  // namespace speedrun::testing::untied_run_test
