// Configs of records with removed keys: the model is that of the shipped config of the same name.
#include "train/records/recorded_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"
#include "train/config/config_json.h"
#include "train/records/record_folder.h"

namespace speedrun::recorded_config_test {

using Json = nlohmann::ordered_json;

std::string model_text(const Config& config) {
    return Json::parse(config_to_json(config))["model"].dump();
}

TEST(RecordedConfigTest, ModelsAreThoseOfTheShippedConfigs) {
    const std::filesystem::path root = SPEEDRUN_SOURCE_ROOT;
    int compared = 0;
    for (const std::string& folder : record_folders((root / "records/kjv").string())) {
        const Record record = read_record(folder);
        const std::filesystem::path shipped = root / "configs" / ("kjv_" + record.name + ".json");
        if (record.config.find("num_layers") == std::string::npos || !std::filesystem::exists(shipped))
            continue;
        EXPECT_EQ(model_text(recorded_config(record.config, folder)),
                  model_text(read_config(shipped.string(), {})))
            << folder;
        ++compared;
    }
    EXPECT_GE(compared, 7);
}

TEST(RecordedConfigTest, OtherSwitchesAreRefused) {
    const std::filesystem::path root = SPEEDRUN_SOURCE_ROOT;
    const Json config = Json::parse(read_record((root / "records/kjv/2026-11-21_modern").string()).config);
    const auto error_of = [&](const char* key, const Json& value) -> std::string {
        Json changed = config;
        changed["model"][key] = value;
        try {
            recorded_config(changed.dump(), "test");
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_EQ(error_of("seed_of_layers", 1).substr(0, 33), "model.seed_of_layers: unknown key");
    EXPECT_EQ(error_of("biases", true).substr(0, 42), "model.biases: there is no such key any mor");
    EXPECT_EQ(error_of("num_layers", "x"), "model.num_layers: expected a whole number up to 1000, got \"x\"");
    EXPECT_EQ(error_of("num_heads", 8), "no error");
    Json gpt2 = Json::parse(read_record((root / "records/kjv/2026-11-21_muon").string()).config);
    gpt2["model"]["max_ngram"] = 3;
    EXPECT_THROW(recorded_config(gpt2.dump(), "test"), Error);
}

}  // namespace speedrun::recorded_config_test
