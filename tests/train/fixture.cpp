#include "tests/train/fixture.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace speedrun::testing {

namespace {

using Json = nlohmann::json;

Json load(const std::string& name) {
    const std::string path = std::string(SPEEDRUN_TRAIN_FIXTURES) + "/" + name + ".json";
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + ": the fixture cannot be read");
    return Json::parse(file);
}

OptimizerFixture::Entry optimizer_entry(const Json& json) {
    OptimizerFixture::Entry entry{.start = json.at("start"), .gradients = json.at("gradients"), .after = {}};
    for (const auto& [step, values] : json.at("after").items())
        entry.after[std::stoi(step)] = values.get<Values>();
    return entry;
}

OptimizerFixture optimizer_settings(const Json& json) {
    OptimizerFixture fixture;
    fixture.group.lr = json.at("lr");
    fixture.group.weight_decay = json.at("weight_decay");
    fixture.lr_factors = json.at("lr_factors").get<Values>();
    return fixture;
}

}  // namespace

int64_t ModelFixture::valid_targets() const {
    int64_t count = 0;
    for (int32_t target : targets) count += target >= 0;
    return count;
}

ModelFixture load_model_fixture(const std::string& name) {
    const Json json = load(name);
    const Json& model = json.at("model");
    ModelFixture fixture;
    fixture.model.preset = choice_of<Family>(model.at("preset").get<std::string>());
    fixture.model.apply_preset();
    fixture.model.num_layers = model.at("num_layers");
    fixture.model.model_dim = model.at("model_dim");
    fixture.model.num_heads = model.at("num_heads");
    fixture.model.mlp_ratio = model.at("mlp_ratio");
    fixture.model.vocab_size = model.at("vocab_size");
    fixture.model.mix_first_embedding = model.value("mix_first_embedding", false);
    fixture.model.value_embeddings = model.value("value_embeddings", 0);
    fixture.model.max_ngram = model.value("max_ngram", 0);
    fixture.model.ngram_rows = model.value("ngram_rows", fixture.model.ngram_rows);
    fixture.model.window = model.value("window", 0);
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

OptimizerFixture load_adamw_fixture() {
    const Json json = load("adamw");
    OptimizerFixture fixture = optimizer_settings(json);
    fixture.group.type = OptimizerKind::adamw;
    fixture.group.beta1 = json.at("beta1");
    fixture.group.beta2 = json.at("beta2");
    fixture.group.epsilon = json.at("epsilon");
    fixture.parameters[""] = optimizer_entry(json);
    return fixture;
}

OptimizerFixture load_muon_fixture() {
    const Json json = load("muon");
    OptimizerFixture fixture = optimizer_settings(json);
    fixture.group.type = OptimizerKind::muon;
    fixture.group.momentum = json.at("momentum");
    fixture.group.momentum_start = json.at("momentum_start");
    fixture.group.momentum_warmup_steps = json.at("momentum_warmup_steps");
    fixture.model_dim = json.at("model_dim");
    fixture.mlp_ratio = json.at("mlp_ratio");
    for (const auto& [name, entry] : json.at("parameters").items()) {
        fixture.parameters[name] = optimizer_entry(entry);
    }
    return fixture;
}

}  // namespace speedrun::testing
