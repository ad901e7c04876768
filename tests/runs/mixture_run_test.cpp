// Runs on a mixture of sources: layout-independent, resumable, and counted.
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::mixture_run_test {

const Settings kRun = {"model.layers.count=1",
                       "batch.tokens_per_step=512",
                       "batch.microbatch_tokens=64",
                       "schedule.steps=8",
                       "checkpoint.every=3",
                       "eval.every=0",
                       "checkpoint.keep=100",
                       "threads=1",
                       "data.val_tokens=300",
                       "batch.sequence_length=32",
                       "device=cpu"};

class MixtureRunTest : public RankRunFixture {
  protected:
    void SetUp() override {
        RankRunFixture::SetUp();
        // The second source, of 1,280 tokens, has other documents.
        std::vector<uint16_t> tokens;
        for (int i = 0; i < 40 * 32; ++i)
            tokens.push_back(static_cast<uint16_t>(i % 32 == 0 ? kSeparator : (i * i + 7) % kSeparator));
        write_shard(other(), tokens);
        DatasetInfo info = read_dataset_info((folder_ / "dataset.json").string());
        info.shards.push_back(
            {"other.bin", "train", static_cast<int64_t>(tokens.size()), sha256_file(other())});
        write_dataset_info((folder_ / "dataset.json").string(), info);
    }
    std::string other() const { return (folder_ / "other.bin").string(); }
    std::string mixture(const std::string& first, const std::string& second) const {
        return fmt::format(
            R"(data.train=[{{"files": "{}", "weight": {}}}, {{"files": ["{}"], "weight": {}}}])",
            (folder_ / "train.bin").string(), first, other(), second);
    }
    Config make(const Settings& more = {}) const {
        return config(together({kRun, {mixture("3", "1")}}), more);
    }
};

TEST_F(MixtureRunTest, DoesNotDependOnRanksAndResumesBitwise) {
    const std::vector<Settings> variants = {
        {}, {"data.rows=documents"}, {"schedule.stages=[4,8]", "batch.sequence_length=[16,32]"}};
    int number = 0;
    for (const Settings& variant : variants) {
        SCOPED_TRACE(variant.empty() ? "stream" : variant.front());
        const std::string one = fmt::format("one{}", number), two = fmt::format("two{}", number);
        ++number;
        EXPECT_EQ(train(make(variant), 1, one), "");
        EXPECT_EQ(train(make(together({variant, {by("zero2")}})), 2, two), "");
        expect_near(losses(two), losses(one), kRanksTolerance, two);
        expect_continues(make(variant), 1, one, {3, 6});
        if (kSanitized) return;
    }
}

TEST_F(MixtureRunTest, CountsSources) {
    EXPECT_EQ(train(make(), 2, "run"), "");
    const Json summary = Json::parse(bytes_of(path("run") + "/summary.json"));
    const Json& sources = summary.at("sources");
    ASSERT_EQ(sources.size(), 2u);
    EXPECT_EQ(sources[1].at("files"), other());
    EXPECT_NEAR(sources[1].at("share").get<double>(), 0.25, 1e-12);
    EXPECT_EQ(sources[0].at("tokens").get<int64_t>() + sources[1].at("tokens").get<int64_t>(), 8 * 512);
    EXPECT_NEAR(sources[1].at("rows").get<double>(), 32, 5);
    EXPECT_EQ(sources[1].at("epoch_tokens_seen").get<int64_t>() +
                  sources[1].at("epoch_tokens_dropped").get<int64_t>(),
              1280);
    EXPECT_EQ(
        summary.at("epoch_tokens_seen").get<int64_t>() + summary.at("epoch_tokens_dropped").get<int64_t>(),
        800 * 32 + 1280);
    EXPECT_THAT(bytes_of(path("run") + "/run.log"), HasSubstr("source 1, 25% of the rows"));
    EXPECT_EQ(train(config(kRun), 1, "plain"), "");
    EXPECT_FALSE(Json::parse(bytes_of(path("plain") + "/summary.json")).contains("sources"));
}

// A mixture of one source is the source.
TEST_F(MixtureRunTest, OneSourceIsBitwiseThePlainRun) {
    const std::string one =
        fmt::format(R"(data.train=[{{"files": "{}", "weight": 7}}])", (folder_ / "train.bin").string());
    EXPECT_EQ(train(config(kRun), 1, "plain"), "");
    EXPECT_EQ(train(config(kRun, {one}), 1, "one"), "");
    EXPECT_EQ(curve("one"), curve("plain"));
    EXPECT_EQ(train(make(), 1, "mixed"), "");
    EXPECT_NE(curve("mixed"), curve("plain"));
}

TEST_F(MixtureRunTest, WeightsBelongToTheCheckpoint) {
    EXPECT_EQ(train(make(), 1, "run"), "");
    expect_refused(ExitCode::usage, "data.train.1.weight: 1.0 there, 2.0 here", checkpoint("run", 3), "later",
                   make({mixture("3", "2")}));
    expect_refused(ExitCode::usage, "data.train.0", checkpoint("run", 3), "later", config(kRun));
    DataIdentity one, two;
    one.train = two.train = identify_split({(folder_ / "train.bin").string(), other()});
    one.train.source_shards = {1, 1};
    EXPECT_EQ(data_differences(one, data_identity_from_json(data_identity_to_json(one))),
              std::vector<std::string>());
    EXPECT_EQ(data_differences(one, two),
              std::vector<std::string>{"data.train: sources have [1, 1] shards there, [] here"});
}

TEST_F(MixtureRunTest, RefusesBadWeights) {
    const auto refuse = [&](const std::vector<std::string>& parts, const std::string& setting) {
        expect_error(ExitCode::usage, parts, [&] { config(kRun, {setting}); });
    };
    refuse({"data.train[0].weight: 0 is outside"}, mixture("0", "1"));
    refuse({"data.train[1].weight: -1 is outside"}, mixture("1", "-1"));
    refuse({"data.train[1].weight: expected a number"}, mixture("1", "\"nan\""));
    refuse({"data.train[1].weight: 1e+300 is outside"}, mixture("1", "1e300"));
    refuse({"data.train[0].weight 1e-09 is a share of 1.0e-18 of the rows"}, mixture("1e-9", "1e9"));
    refuse({"data.train: expected a list of strings or a list of objects, not both"},
           R"(data.train=["a.bin", {"files": "b.bin"}])");
    refuse({"data.train[0].files is empty"}, R"(data.train=[{"weight": 1}])");
    refuse({"data.train[0].file: unknown key"}, R"(data.train=[{"file": "a.bin"}])");
    const Config c = parse_config(config_to_json(make()), "again", {});
    EXPECT_EQ(c.data.sources.size(), 2u);
    EXPECT_EQ(c.data.train.size(), 2u);
    EXPECT_EQ(config_to_json(c), config_to_json(make()));
    EXPECT_EQ(config(kRun, {mixture("3", "1"), "data.train.1.weight=9"}).data.sources[1].weight, 9);
}

}  // namespace speedrun::testing::mixture_run_test
