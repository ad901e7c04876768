#include "tests/train/fixture.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "train/config/config_json.h"

namespace speedrun::testing {

namespace {

using Json = nlohmann::json;

// Lists of an object with integer keys.
std::map<int, Values> numbered(const Json& json) {
    std::map<int, Values> lists;
    for (const auto& [number, values] : json.items()) lists[std::stoi(number)] = values.get<Values>();
    return lists;
}

OptimizerFixture::Entry optimizer_entry(const Json& json) {
    return {
        .start = json.at("start"), .gradients = json.at("gradients"), .after = numbered(json.at("after"))};
}

}  // namespace

Json load_json_fixture(const std::string& name) {
    const std::string path = fixture_path(name + ".json");
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + ": the fixture cannot be read");
    return Json::parse(file);
}

int64_t ModelFixture::valid_targets() const {
    int64_t count = 0;
    for (int32_t target : targets) count += target >= 0;
    return count;
}

ModelFixture load_model_fixture(const std::string& name) {
    const Json json = load_json_fixture(name);
    ModelFixture fixture;
    // Parsed with the config reader; sections other than `model` keep their defaults.
    const Json config = {{"model", json.at("model")},
                         {"optimizers", {{"groups", {{{"type", "adamw"}, {"params", {"*"}}}}}}}};
    fixture.model = parse_config(config.dump(), name + ".json", {}).model;
    fixture.sequence_length = json.at("sequence_length");
    fixture.tokens = json.at("tokens").get<std::vector<int32_t>>();
    fixture.targets = json.at("targets").get<std::vector<int32_t>>();
    fixture.positions = json.at("positions").get<std::vector<int32_t>>();
    fixture.first_key = json.at("first_key").get<std::vector<int32_t>>();
    fixture.loss = json.at("loss");
    fixture.losses = json.at("losses").get<Values>();
    for (const auto& [parameter, entry] : json.at("parameters").items()) {
        fixture.parameters[parameter] = {entry.at("shape"), entry.at("values"), entry.at("gradient")};
    }
    return fixture;
}

OptimizerFixture load_optimizer_fixture(const std::string& name) {
    const Json json = load_json_fixture(name);
    Json group = json.at("group");
    group["type"] = name;
    group["params"] = {"*"};
    const Json config = {{"optimizers", {{"groups", {group}}}}};
    OptimizerFixture fixture;
    fixture.group = parse_config(config.dump(), name + ".json", {}).optimizers.groups.front();
    fixture.lr_factors = json.at("lr_factors").get<Values>();
    fixture.model_dim = json.value("model_dim", 0);
    fixture.mlp_ratio = json.value("mlp_ratio", 0);
    if (json.contains("start")) fixture.parameters[""] = optimizer_entry(json);
    const Json parameters = json.value("parameters", Json::object());
    for (const auto& [parameter, entry] : parameters.items())
        fixture.parameters[parameter] = optimizer_entry(entry);
    return fixture;
}

std::string fixture_path(const std::string& file) {
    return std::string(SPEEDRUN_TRAIN_FIXTURES) + "/" + file;
}

}  // namespace speedrun::testing
