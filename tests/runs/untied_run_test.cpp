// Whole runs with a head that is untied from the embedding: stopped and continued before and after the step of
// untying.
#include <iterator>
#include <vector>

#include "tests/runs/forwarded_state.h"
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing {
namespace untied_run_test {

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
    static std::string bytes_of(const std::string& file) {
        std::ifstream stream(file, std::ios::binary);
        EXPECT_TRUE(stream) << file;
        return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    }
    static void expect_same_files(const std::string& a, const std::string& b, int ranks) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
            const std::string file = "/" + rank_file_name(rank);
            EXPECT_EQ(bytes_of(a + file) == bytes_of(b + file), true) << a << " and " << b << file;
        }
    }
    Config untied(const Settings& more = {}) const {
        Settings all = {
            R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
                "tables": {"embed": {"init": {"type": "normal", "value": 0.5}}},
                "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
                "layers": {"count": 2, "each": {"attention": {"heads": 2}, "mlp": {}}},
                "output": [{"type": "norm"}], "head": {"tied_to": "embed", "untied_after": 0}})",
            R"(optimizers.groups=[{"params": ["blocks.*.weight"], "type": "muon", "lr": 0.02}, {"params": ["*"], "lr": 0.003, "every": 2}])",
            "schedule.steps=10",
            "schedule.stages=[6, 10]",
            "checkpoint.every=2",
            "checkpoint.keep=100",
            "eval.every=2",
            "batch.microbatch_tokens=128",
            "threads=1"};
        all.insert(all.end(), more.begin(), more.end());
        return config(all);
    }
};

TEST_F(UntiedRunTest, ContinuesBitwiseBeforeAtAndBehindTheStep) {
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        if (kSanitized && std::string(strategy) != "zero2") continue;
        const Config c = untied({std::string("parallel.strategy=") + strategy});
        run_on(2, c, strategy);
        for (const int step : kSaved) {
            const std::string name = strategy + std::to_string(step);
            run_on(2, c, name, checkpoint_of(strategy, step));
            EXPECT_EQ(curve_behind(name, step), curve_behind(strategy, step)) << name;
        }
    }
}

// Before, at and after the step, the checkpoint of a stop equals the periodic one of that step.
TEST_F(UntiedRunTest, AStopSavesWhatARunThatGoesOnDoes) {
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        if (kSanitized && std::string(strategy) != "zero2") continue;
        const std::string parallel = std::string("parallel.strategy=") + strategy;
        run_on(2, untied({parallel}), strategy);
        for (const int step : {4, 6, 8}) {
            const std::string stopped = fmt::format("{}_stopped{}", strategy, step),
                              later = stopped + "_later";
            run_on(2, untied({parallel, "checkpoint.every=0"}), stopped, checkpoint_of(strategy, step - 2),
                   true);
            expect_same_files(checkpoint_of(stopped, step), checkpoint_of(strategy, step), 2);
            EXPECT_EQ(metrics(stopped).back()["loss"], curve_behind(strategy, step).front())
                << "the validation of the stop";
            run_on(2, untied({parallel}), later, checkpoint_of(stopped, step));
            EXPECT_EQ(curve_behind(later, step), curve_behind(strategy, step)) << later;
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
        run_on(1, c, whole);
        fs::remove_all(folder);
        Runtime runtime(runtime_options(c));
        StepRunner runner(c, runtime);
        RunnerState state(runner);
        Stale stale(state);
        runner.state().initialize(77);
        const CheckpointReader reader(checkpoint_of(whole, step));
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
                  bytes_of(checkpoint_of(whole, step) + "/rank-00000.safetensors"));
        run_on(1, c, name, saved);
        EXPECT_EQ(curve_behind(name, step), curve_behind(whole, step)) << name;
    }
}

// Other ranks continue a saved run, before and after untying.
TEST_F(UntiedRunTest, AnyRanksContinueWhatOthersSaved) {
    if (!kSanitized) {
        run_on(1, untied(), "one");
        run_on(2, untied({"parallel.strategy=zero3"}), "two");
        expect_near(curve("two"), curve("one"), kRanksTolerance, "two ranks");
    }
    for (const int step : kSaved) {
        const std::string name = "from" + std::to_string(step);
        run_on(3, untied({"parallel.strategy=zero1", "batch.tokens_per_step=384"}), "three" + name);
        run_on(1, untied({"batch.tokens_per_step=384"}), name, checkpoint_of("three" + name, step));
        expect_near(curve_behind(name, step), curve_behind("three" + name, step), kRanksTolerance, name);
    }
}

// Until that step, everything equals a run with a tied head, including validation without an earlier checkpoint.
TEST_F(UntiedRunTest, IsATiedRunUpToTheStep) {
    if (kSanitized) GTEST_SKIP() << "results of whole runs: release build only";
    run_on(1, untied({"checkpoint.every=0"}), "apart");
    run_on(1, untied({"checkpoint.every=0", "model.head.untied_after=-1"}), "tied");
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

}  // namespace untied_run_test
}  // namespace speedrun::testing
