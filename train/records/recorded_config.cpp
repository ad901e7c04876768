#include "train/records/recorded_config.h"

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/config/config_json.h"

namespace speedrun {

namespace {

using ConfigJson = nlohmann::ordered_json;

// Removed switches of a preset, with their values there.
constexpr const char* kModernSwitches =
    R"({"norm": "rmsnorm", "norm_parameters": false, "activation": "relu_squared", "position": "rotary", "rotary_base": 10000,
        "qk_norm": true, "tied_head": false, "biases": false, "logit_softcap": 15, "attention_scale": 0,
        "zero_init_projections": true, "norm_embedding": true, "ngram_tables": 0})";
constexpr const char* kGpt2Switches =
    R"({"norm": "layernorm", "norm_parameters": true, "activation": "gelu_tanh", "position": "learned", "rotary_base": 10000,
        "qk_norm": false, "tied_head": true, "biases": true, "logit_softcap": 0, "attention_scale": 0,
        "zero_init_projections": false, "norm_embedding": false, "max_ngram": 0, "ngram_rows": 8192, "ngram_tables": 0})";

constexpr const char* kMix =
    R"([{"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]}])";

ConfigJson taken(ConfigJson& model, const char* key) {
    ConfigJson value = model.value(key, ConfigJson());
    model.erase(key);
    return value;
}

int64_t count_taken(ConfigJson& model, const char* key) {
    constexpr int64_t kMax = 1000;
    const ConfigJson value = taken(model, key);
    if (!value.is_number_integer() || value < 0 || value > kMax)
        throw_usage("model.{}: expected a whole number up to {}, got {}", key, kMax, shown(value));
    return value.get<int64_t>();
}

void replace_switches(ConfigJson& model) {
    const bool modern = model.value("preset", ConfigJson()) == "modern";
    const auto switches = parse_json<ConfigJson>(modern ? kModernSwitches : kGpt2Switches);
    for (const auto& [key, value] : switches.items())
        if (model.value(key, ConfigJson()) == value) model.erase(key);
    const int64_t layers = count_taken(model, "num_layers"), values = count_taken(model, "value_embeddings");
    ConfigJson each = {
        {"attention", {{"heads", taken(model, "num_heads")}, {"window", taken(model, "window")}}},
        {"mlp", {{"ratio", taken(model, "mlp_ratio")}}}};
    if (taken(model, "mix_first_embedding") == true) each["enter"] = parse_json<ConfigJson>(kMix);
    ConfigJson tables = ConfigJson::object(), at = ConfigJson::object();
    const ConfigJson max_ngram = modern ? taken(model, "max_ngram") : ConfigJson(0);
    const ConfigJson ngram_rows = modern ? taken(model, "ngram_rows") : ConfigJson(0);
    if (max_ngram != 0) {
        tables["ngram_embed"] = {{"rows", "ngrams"}, {"max_ngram", max_ngram}, {"num_rows", ngram_rows}};
        model["input"] = {{{"type", "table"}, {"table", "embed"}},
                          {{"type", "table"}, {"table", "ngram_embed"}},
                          {{"type", "norm"}}};
    }
    for (int64_t i = 0; i < values; ++i) {
        const std::string table = fmt::format("value_embed.{}", i);
        tables[table] = {{"init", {{"type", "normal"}, {"value", 1}}}};
        at[std::to_string(layers - values + i)] = {{"attention", {{"value_table", table}}}};
    }
    model["tables"] = std::move(tables);
    model["layers"] = {{"count", layers}, {"each", std::move(each)}, {"at", std::move(at)}};
}

}  // namespace

Config recorded_config(const std::string& text, const std::string& origin,
                       const std::vector<std::string>& settings) {
    ConfigJson config = parse_json<ConfigJson>(text);
    if (const auto model = config.find("model"); model != config.end() && model->contains("num_layers"))
        replace_switches(*model);
    return parse_config(config.dump(), origin, settings);
}

}  // namespace speedrun
