// Averages of weights: against float64 over the checkpoints of a run without, continued, on several ranks, and their refusals.
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::weight_average_run_test {

// Samples of the weights of a run of 10 steps after its steps `start`, `start` + `every` …, counted from 0.
struct Average {
    int64_t start = 4, every = 2;
    double decay = 0.6, blend = 0.65;
    std::string setting(int group) const {
        return fmt::format(
            R"(optimizers.groups.{}.average={{"start": {}, "every": {}, "decay": {}, "blend": {}}})", group,
            start, every, decay, blend);
    }
};

class WeightAverageRunTest : public RankRunFixture {
  protected:
    Config averaged(const Ways& ways, const Average& average, Settings more = {}) const {
        more.insert(more.end(), {average.setting(0), average.setting(1), "checkpoint.every=1"});
        return config_of(ways, more);
    }
    std::vector<float> tensor(const std::string& run, int64_t step, const std::string& name) const {
        return tensor_in(checkpoint(run, step), name);
    }
    std::vector<std::string> parameters(const std::string& run) const {
        std::vector<std::string> names;
        CheckpointReader reader(checkpoint(run, 10));
        for (const CheckpointTensor& tensor : reader.info().tensors)
            if (tensor.name.rfind("master/", 0) == 0) names.push_back(tensor.name.substr(7));
        return names;
    }
    // Tolerance: an f32 product, or a sum, is rounded to 2^-24 of values below 1; at most 6 samples.
    void expect_reference(const std::string& plain, const std::string& run, const Average& a) const {
        for (const std::string& name : parameters(plain)) {
            std::vector<double> mean;
            int samples = 0;
            for (int64_t step = a.start; step < 10; step += a.every) {
                const std::vector<float> weights = tensor(plain, step + 1, "master/" + name);
                mean.resize(weights.size());
                ++samples;
                const double share = samples == 1 ? 1 : a.decay > 0 ? 1 - a.decay : 1.0 / samples;
                for (size_t i = 0; i < mean.size(); ++i) mean[i] += share * (weights[i] - mean[i]);
            }
            const std::vector<float> last = tensor(plain, 10, "master/" + name),
                                     master = tensor(run, 10, "master/" + name),
                                     average = tensor(run, 10, "average/" + name);
            ASSERT_EQ(average.size(), mean.size()) << name;
            for (size_t i = 0; i < mean.size(); ++i) {
                ASSERT_NEAR(average[i], mean[i], 1e-6 * (1 + std::abs(mean[i]))) << name << ", element " << i;
                ASSERT_NEAR(master[i], last[i] + a.blend * (mean[i] - last[i]),
                            1e-6 * (1 + std::abs(last[i])))
                    << name << ", element " << i;
            }
        }
    }
};

TEST_F(WeightAverageRunTest, FollowsFloat64AndChangesNothingBeforeTheLastUpdate) {
    train(config_of(kOneRank, {"checkpoint.every=1"}), 1, "plain");
    int number = 0;
    for (const Average& average :
         {Average{}, Average{.start = 5, .every = 1, .decay = 0, .blend = 1},
          Average{.start = 0, .every = 4, .decay = 0.9, .blend = 0.35}, Average{.start = 9}}) {
        const std::string name = fmt::format("averaged{}", number++);
        train(averaged(kOneRank, average), 1, name);
        expect_reference("plain", name, average);
        for (const std::string& p : parameters("plain"))
            for (const int64_t step : {5, 9})
                EXPECT_EQ(tensor(name, step, "master/" + p), tensor("plain", step, "master/" + p)) << p;
        const std::vector<double> losses = curve(name), plain = curve("plain");
        ASSERT_EQ(losses.size(), plain.size());
        EXPECT_TRUE(std::equal(losses.begin(), losses.end() - 1, plain.begin()));
        if (average.start < 9) {
            EXPECT_NE(losses.back(), plain.back()) << "the last validation is of blended weights";
        }
    }
}

// The blend belongs to the last update: a run that continues at its end, or in the window, blends once.
TEST_F(WeightAverageRunTest, ContinuesBitwiseBeforeInsideAndAfterTheWindow) {
    int number = 0;
    for (const Ways& ways : std::vector<Ways>{{1, 1, "ddp", "normuon", "f32", 256},
                                              {2, 1, "ddp", "muon"},
                                              {2, 1, "zero1", "adamw"},
                                              {2, 1, "zero2", "normuon"},
                                              {4, 2, "zero3", "normuon"},
                                              {2, 1, "zero3", "normuon", "bf16"}}) {
        if (kSanitized && std::string(ways.strategy) != "zero2") continue;
        const std::string whole = fmt::format("whole{}", number++);
        const Config c = averaged(ways, {});
        train(c, ways.ranks, whole);
        expect_continues(c, ways.ranks, whole, {3, 6, 9, 10});
    }
}

// Ranks sum in another order: f32 rounding, amplified by ten steps. The state of one mesh continues on another.
TEST_F(WeightAverageRunTest, RanksAgreeWithOne) {
    train(averaged(kOneRank, {}), 1, "alone");
    for (const char* strategy : {"ddp", "zero1", "zero3"}) {
        if (kSanitized && std::string(strategy) != "zero3") continue;
        train(averaged({2, 1, strategy, "normuon"}, {}), 2, strategy);
        const std::string later = std::string(strategy) + "_alone";
        train(averaged(kOneRank, {}), 1, later, checkpoint(strategy, 7));
        expect_near(curve(strategy), curve("alone"), kRanksTolerance, strategy);
        expect_near(curve(later), curve("alone", 7), kRanksTolerance, later);
        for (const std::string& name : parameters("alone")) {
            const std::vector<float> a = tensor("alone", 10, "average/" + name),
                                     b = tensor(strategy, 10, "average/" + name);
            ASSERT_EQ(a.size(), b.size());
            for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], 1e-3) << strategy << ", " << name;
        }
    }
}

// The last update of a group with `every` is not the last step of the run, and only groups with the key have a state.
TEST_F(WeightAverageRunTest, CountsUpdatesOfItsGroup) {
    const Average average{.start = 1, .every = 1, .decay = 0, .blend = 0.5};
    const Ways ways = {1, 1, "ddp", "adamw", "f32", 256};
    const Settings every = {"optimizers.groups.1.every=3", "schedule.steps=11", "checkpoint.every=3"};
    Settings more = every;
    more.push_back(average.setting(1));
    train(config_of(ways, more), 1, "averaged");
    train(config_of(ways, every), 1, "plain");
    const auto embedding = [&](const char* run, int64_t step, const char* kind) {
        return tensor(run, step, std::string(kind) + "/embed.weight");
    };
    // Samples after its updates 1 and 2, the last one: after steps 6 and 9 of the run.
    const std::vector<float> first = embedding("plain", 6, "master"), last = embedding("plain", 9, "master"),
                             mean = embedding("averaged", 9, "average"),
                             blended = embedding("averaged", 9, "master");
    ASSERT_FALSE(last.empty());
    EXPECT_NE(first, last);
    for (size_t i = 0; i < last.size(); ++i) {
        EXPECT_NEAR(mean[i], (first[i] + last[i]) / 2, 1e-6);
        EXPECT_NEAR(blended[i], last[i] + (first[i] - last[i]) / 4, 1e-6);
    }
    EXPECT_EQ(embedding("averaged", 6, "master"), first);
    EXPECT_TRUE(tensor("averaged", 9, "average/blocks.0.mlp.up.weight").empty())
        << "the other group has none";
}

TEST_F(WeightAverageRunTest, AStoppedRunIsNotBlended) {
    const Ways ways = {2, 1, "zero1", "normuon"};
    const Average average{.start = 0, .every = 1};
    train(averaged(ways, average), 2, "stopped", "", {.stop = true});
    train(config_of(ways, {"checkpoint.every=1"}), 2, "plain", "", {.stop = true});
    EXPECT_EQ(curve("stopped"), curve("plain"));
    for (const char* name : {"master/embed.weight", "master/blocks.0.mlp.up.weight"})
        EXPECT_EQ(tensor("stopped", 2, name), tensor("plain", 2, name)) << name;
}

TEST_F(WeightAverageRunTest, RefusesValuesThatHaveNoMeaning) {
    const std::string group = "optimizers.groups.0.";
    const auto refused = [&](const std::string& text, const Settings& keys) {
        expect_error(ExitCode::usage, {text}, [&] { config(keys); });
    };
    refused(
        "optimizers.groups[0].average.start 150 is not below the 150 updates of the group in 150 steps of the run (every 1)",
        {group + R"(average={"start": 150})"});
    refused("average.start 75 is not below the 75 updates",
            {group + R"(average={"start": 75})", group + "every=2"});
    refused("blend: 1.5 is outside [0, 1]", {group + R"(average={"blend": 1.5})"});
    refused("blend: -0.5 is outside [0, 1]", {group + R"(average={"blend": -0.5})"});
    refused("decay: 1 is outside [0, 0.999999]", {group + R"(average={"decay": 1})"});
    refused("every: 0 is outside", {group + R"(average={"every": 0})"});
    refused("optimizers.groups[0].average is set, but weights_dtype is bf16",
            {group + R"(average={"start": 5})", group + "weights_dtype=bf16", "precision=bf16"});
    refused("unknown key", {group + R"(average={"start": 5, "rate": 0.1})"});
}

}  // namespace speedrun::testing::weight_average_run_test
