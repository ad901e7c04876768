// Impossible values in checkpoint.json and file names outside its folder are refused with a short message.
#include "train/checkpoint/checkpoint_info.h"

#include <nlohmann/json.hpp>

#include "tests/data/test_files.h"

namespace speedrun::checkpoint_info_test {

using Json = nlohmann::json;

const Json kGood = {{"format", "speedrun-checkpoint"},
                    {"format_version", 3},
                    {"written_by", "x"},
                    {"step", 2},
                    {"tokens", 9},
                    {"loader", {{"next_row", 3}}},
                    {"seed", 1},
                    {"schedule", {{"next_lr_factor", 0.5}}},
                    {"train_loss", 2.0},
                    {"precision", "f32"},
                    {"ranks", 1},
                    {"mesh", "1"},
                    {"strategy", "ddp"},
                    {"config", {{"seed", 1}}},
                    {"tensors", {{{"name", "master/a"}, {"shape", {2, 3}}}}},
                    {"files", {{{"file", "rank-00000.safetensors"}, {"bytes", 70}}}},
                    {"measured",
                     {{"train_ms", 1},
                      {"data_ms", 0},
                      {"optimizer_ms", 0},
                      {"comm_exposed_ms", 0},
                      {"time_to_target_ms", nullptr}}}};

TEST(CheckpointInfoTest, AbsurdNumbersAndNamesAreRefused) {
    EXPECT_EQ(parse_checkpoint_info(kGood.dump(), "good").step, 2);
    const std::vector<std::tuple<const char*, Json, std::string>> cases = {
        {"/step", 1LL << 62, "step: no run has 4611686018427387904 steps"},
        {"/measured/train_ms", -1e9, "train_ms: expected a number from 0 to 1e+13"},
        {"/measured/train_ms", 1e308, "train_ms: expected"},
        {"/measured/time_to_target_ms", -1, "time_to_target_ms: expected"},
        {"/schedule/next_lr_factor", -1, "next_lr_factor: expected"},
        {"/files/0/file", "../../outside/x",
         "files: expected rank-00000.safetensors, found \"../../outside/x\""},
        {"/files/0/file", "rank-00001.safetensors", "files: expected rank-00000.safetensors"},
        {"/files/0/file", std::string(1'000'000, 'x'), "files: expected rank-00000.safetensors"},
        {"/files", Json::object(), "type_error"},
        {"/tensors", 5, "type_error"},
        {"/format", std::string(1'000'000, 'x'), "this program reads"}};
    for (const auto& [key, value, part] : cases) {
        Json json = kGood;
        json[Json::json_pointer(key)] = value;
        const std::string error =
            error_of(ExitCode::data, [&] { parse_checkpoint_info(json.dump(), "bad"); });
        EXPECT_THAT(error, HasSubstr(part)) << key << ": " << error;
        EXPECT_LT(error.size(), 1000u);
    }
}

TEST(CheckpointInfoTest, ALineOfSumsIsShownCut) {
    const TempDir dir;
    const std::string path = dir.write("XXH128SUMS", std::string(10'000'000, 'a'));
    expect_error(ExitCode::data, {path + ": line 1: ", "found '" + std::string(100, 'a') + "...'"},
                 [&] { read_sums(path); });
}

}  // namespace speedrun::checkpoint_info_test
