// Tracks: their definitions, the dataset of prepare.sh, and the configs of their records are consistent.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "train/config/config_json.h"
#include "train/hf/hf_config.h"
#include "train/model/build_model.h"
#include "train/records/track.h"

namespace speedrun::track_test {

using Json = nlohmann::json;

Json read(const std::filesystem::path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    return Json::parse(file);
}

const std::filesystem::path kRoot = SPEEDRUN_SOURCE_ROOT;

// True for the current or a past target of a class; a budget class has target 0.
bool is_target_of(const Track& track, double target) {
    return std::any_of(track.classes.begin(), track.classes.end(), [&](const TrackClass& c) {
        const auto is_same = [&](const PastTarget& past) { return past.target_loss == target; };
        return c.had_target(target, "") || std::any_of(c.history.begin(), c.history.end(), is_same);
    });
}

TEST(TrackTest, ConfigsAimAtATargetOfTheTrack) {
    const Json track = read(kRoot / "records/kjv/track.json");
    const Track parsed = read_track((kRoot / "records/kjv").string());
    EXPECT_FALSE(is_target_of(parsed, 1.3));
    int num_configs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with("kjv") || !name.ends_with(".json")) continue;
        ++num_configs;
        const Config config = read_config(entry.path().string(), {});
        EXPECT_EQ(config.record.track, track["name"].get<std::string>()) << name;
        EXPECT_TRUE(is_target_of(parsed, config.record.target_loss)) << name;
        EXPECT_EQ(config.data.val_tokens, 0) << name << " must validate on all of the held-out text";
        EXPECT_EQ(config.model.vocab_size, track["dataset"]["vocab_size"].get<int64_t>()) << name;
    }
    EXPECT_GE(num_configs, 2);
}

TEST(TrackTest, FinewebConfigsAimAtTheCommunitysTarget) {
    const Json track = read(kRoot / "records/fineweb/track.json");
    const Track parsed = read_track((kRoot / "records/fineweb").string());
    EXPECT_EQ(parsed.validation_tokens, 10'485'760);
    EXPECT_EQ(parsed.target_loss, 3.28);
    EXPECT_EQ(parsed.lock, (kRoot / "data/fineweb10B/shards.lock").string());
    EXPECT_EQ(parsed.prepare, "data/fineweb10B/download.sh");
    for (const char* name : {"fineweb_r44_8xh100.json", "fineweb_newest_8xh100.json"}) {
        const Config config = read_config((kRoot / "configs" / name).string(), {});
        EXPECT_EQ(config.record.track, parsed.name) << name;
        EXPECT_EQ(config.record.target_loss, parsed.target_loss) << name;
        EXPECT_EQ(config.data.val_tokens, parsed.validation_tokens) << name;
        EXPECT_EQ(config.model.vocab_size, track["dataset"]["vocab_size"].get<int64_t>()) << name;
    }
}

TEST(TrackTest, PreparedDataIsTheTracks) {
    const auto path = kRoot / "data/kjv/dataset.json";
    if (!std::filesystem::exists(path))
        GTEST_SKIP() << "no dataset: run data/kjv/prepare.sh build/release/speedrun";
    const Json track = read(kRoot / "records/kjv/track.json"), data = read(path);
    EXPECT_EQ(data["shards"], track["dataset"]["shards"]);
    EXPECT_EQ(data["shards"][1]["tokens"].get<int64_t>() - 1, track["validation"]["tokens"].get<int64_t>());
}

TEST(TrackTest, RulesAreThoseOfTheSpecification) {
    const Track track = read_track((kRoot / "records/kjv").string());
    EXPECT_EQ(track.rules.min_runs, 5);
    EXPECT_EQ(track.rules.max_loss_p, 0.01);
    EXPECT_EQ(track.rules.max_time_p, 0.01);
    EXPECT_EQ(track.validation_tokens, 206985);
    EXPECT_EQ(track.shards.size(), 2u);
}

TEST(TrackTest, BaselineIsSmallEnough) {
    const Config config = read_config((kRoot / "configs/kjv_baseline.json").string(), {});
    EXPECT_EQ(gpt2_problems(config.model), "");
    for (const OptimizerGroupConfig& group : config.optimizers.groups)
        EXPECT_EQ(group.type, OptimizerKind::adamw);
    EXPECT_LE(parameters_of(config.model, config.batch.sequence_length).numel(), 4'000'000);
}

}  // namespace speedrun::track_test
