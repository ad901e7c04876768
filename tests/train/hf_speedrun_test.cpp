// Models with own Python code for the transformers library: the description that the code reads, and refused parts.
// tests/runs/hf_export_test.py compares logits.
#include "train/hf/hf_speedrun.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "data/json_text.h"
#include "data/text_file.h"
#include "tests/data/test_files.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"

namespace speedrun::hf_speedrun_test {

using Json = nlohmann::json;

Config config_of(const std::string& name, const std::vector<std::string>& settings = {}) {
    return read_config(std::string(SPEEDRUN_SOURCE_ROOT) + "/configs/" + name + ".json", settings);
}

struct Written {
    Json config;
    std::vector<NamedTensor> tensors;
    size_t model_parameters = 0;
};

Written written(const TempDir& dir, const Config& whole) {
    const Config config = whole.in_validation();
    const ParameterTable table = parameters_of(whole.model, whole.longest_sequence());
    const ReadMaster read = [](const Parameter& p, float* host) { std::fill(host, host + p.numel(), 0.5f); };
    const std::string folder = dir.file("hf");
    std::filesystem::remove_all(folder);
    write_hf_speedrun(folder, config, table, read, {.dtype = DType::bf16, .separator = 256});
    for (const auto& [name, text] : hf_python_files()) EXPECT_EQ(read_text_file(folder + "/" + name), text);
    return {.config = parse_json<Json>(read_text_file(folder + "/config.json")),
            .tensors = read_safetensors(folder + "/model.safetensors"),
            .model_parameters = table.all().size()};
}

// Learned numbers of sums, [parameter, element], at any depth.
void collect(const Json& json, std::set<std::pair<std::string, int64_t>>& numbers) {
    if (json.is_object() && json.contains("constant")) {
        for (const char* kind : {"scale", "gain", "gate"})
            if (!json[kind].is_null()) numbers.emplace(json[kind][0], json[kind][1]);
    } else if (json.is_structured()) {
        for (const Json& part : json) collect(part, numbers);
    }
}

// Each learned number of a sum is an element of a parameter, and a parameter of sums has no other element.
TEST(HfSpeedrunTest, SumsNameTheirParameters) {
    const TempDir dir;
    for (const char* name : {"124m_modern", "kjv_parts", "kjv_dense", "kjv_modern"}) {
        SCOPED_TRACE(name);
        const Config whole = config_of(name, {"model.model_dim=48", "model.vocab_size=300"});
        const Written there = written(dir, whole);
        EXPECT_EQ(there.tensors.size(), there.model_parameters);
        std::set<std::pair<std::string, int64_t>> numbers, expected;
        collect(there.config["model"], numbers);
        for (const auto& [parameter, element] : numbers) {
            ASSERT_TRUE(there.config["parameters"].contains(parameter)) << parameter;
            const auto size = there.config["parameters"][parameter][0].get<int64_t>();
            for (int64_t i = 0; i < size; ++i) expected.emplace(parameter, i);
        }
        EXPECT_EQ(numbers, expected);
        EXPECT_EQ(numbers.empty(), std::string(name) == "kjv_dense");
    }
}

TEST(HfSpeedrunTest, DescribesTheLastStage) {
    const TempDir dir;
    const Json config = written(dir, config_of("kjv_dense")).config;
    EXPECT_EQ(config["max_position_embeddings"], 256);
    const Json& layers = config["model"]["layers"];
    EXPECT_EQ(layers[0]["attention"]["window"], 64);
    EXPECT_EQ(layers[3]["attention"]["window"], 256);
    EXPECT_EQ(layers[3]["attention"]["value_gate_columns"], 6);
    EXPECT_EQ(layers[0]["attention"]["paired"], true);
    EXPECT_EQ(config["model"]["separator"], 256);
    EXPECT_TRUE(written(dir, config_of("kjv_dense", {"data.document_mask=false"}))
                    .config["model"]["separator"]
                    .is_null());
    EXPECT_EQ(config["parameters"]["embed.weight"], Json({257, 128}));  // without padding
}

TEST(HfSpeedrunTest, RefusesPartsByName) {
    const TempDir dir;
    expect_error(
        ExitCode::usage,
        {"the library's code has no model.networks, model.tables.bigram.sign_rows, attention.compose_heads of"},
        [&] { written(dir, config_of("kjv_newest")); });
    EXPECT_FALSE(std::filesystem::exists(dir.file("hf")));
    const Config composed =
        config_of("kjv_modern", {"model.layers.each.attention.compose_heads={\"keys\": 8}"});
    EXPECT_EQ(hf_speedrun_problems(composed.model).find("attention.compose_heads of layer 0, "), 0u);
    EXPECT_EQ(hf_speedrun_problems(config_of("kjv_modern").model), "");
    std::filesystem::create_directory(dir.file("there"));
    const Config config = config_of("kjv_modern");
    expect_error(ExitCode::usage, {"there exists: export into a new folder"}, [&] {
        write_hf_speedrun(dir.file("there"), config.in_validation(), parameters_of(config.model, 256),
                          [](const Parameter& p, float* host) { std::fill(host, host + p.numel(), 0.f); },
                          {});
    });
}

}  // namespace speedrun::hf_speedrun_test
