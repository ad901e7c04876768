#include "train/config/config_json.h"

#include <sstream>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/config/config_reader.h"
#include "train/config/presets.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20, kMaxConfigKeys = 10'000;

Json json_of(const std::optional<double>& value) {
    return value ? Json(*value) : Json();
}

template <class T>
Json json_of(const Scheduled<T>& value) {
    if (value.is_number()) return value.entries().front().from;
    Json list = Json::array();
    for (const auto& entry : value.entries())
        list.push_back(entry.is_number() ? Json(entry.from) : Json::array({entry.from, entry.to}));
    return list;
}

Json json_of(const std::vector<Scheduled<double>>& values) {
    Json list = Json::array();
    for (const Scheduled<double>& value : values) list.push_back(json_of(value));
    return list;
}

class Writer final : public FieldVisitor {
  public:
    Json json = Json::object();

    void field(const char* name, int64_t& value, const char*, Limits) override { json[name] = value; }
    void field(const char* name, double& value, const char*, Limits) override { json[name] = value; }
    void field(const char* name, std::optional<double>& value, const char*, Limits) override {
        json[name] = json_of(value);
    }
    void field(const char* name, Scheduled<int64_t>& value, const char*, Limits) override {
        json[name] = json_of(value);
    }
    void field(const char* name, Scheduled<double>& value, const char*, Limits) override {
        json[name] = json_of(value);
    }
    void field(const char* name, std::vector<Scheduled<double>>& value, const char*, Limits) override {
        json[name] = json_of(value);
    }
    void field(const char* name, std::vector<int64_t>& value, const char*, Limits) override {
        json[name] = value;
    }
    void field(const char* name, bool& value, const char*) override { json[name] = value; }
    void field(const char* name, std::string& value, const char*) override { json[name] = value; }
    void field(const char* name, std::vector<std::string>& value, const char*) override {
        json[name] = value;
    }
    void one_of(const char* name, std::string& value, const std::vector<std::string>&, const char*) override {
        json[name] = value;
    }
    void section(const char* name, const char*, const Fields& fields) override {
        Writer inner;
        fields(inner);
        json[name] = inner.json;
    }
    void optional_section(const char* name, bool& present, const char* doc, const Fields& fields) override {
        json[name] = nullptr;
        if (present) section(name, doc, fields);
    }
    std::vector<std::string> own_keys(const std::vector<std::string>& known) override { return known; }
    void list(const char* name, const char*, size_t size, const std::function<void(size_t)>&,
              const std::function<void(size_t, FieldVisitor&)>& element) override {
        json[name] = Json::array();
        for (size_t i = 0; i < size; ++i) {
            Writer inner;
            element(i, inner);
            json[name].push_back(inner.json);
        }
    }
};

// Returns the text as JSON if it parses, else as a string.
Json value_of(const std::string& setting, const std::string& text) {
    try {
        return parse_json<Json>(text);
    } catch (const JsonError&) {
        Json value = text;
        try {
            (void)value.dump();
        } catch (const Json::type_error&) {
            throw_usage("--set {}: the value is not valid UTF-8", setting);
        }
        return value;
    }
}

void apply_setting(Json& root, const std::string& setting) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
        throw_usage("--set {}: expected dotted.key=value, for example --set schedule.steps=100", setting);
    }
    const std::string key = setting.substr(0, equals), text = setting.substr(equals + 1);
    const Json value = value_of(setting, text);
    Json* node = &root;
    std::istringstream parts(key);
    std::vector<std::string> names;
    for (std::string part; std::getline(parts, part, '.');) names.push_back(part);
    if (names.size() > kMaxJsonDepth)
        throw_usage("--set {}: {} nested keys", setting.substr(0, 60), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
        const std::string& name = names[i];
        if (node->is_array()) {
            const bool digits =
                !name.empty() && name.size() < 9 && name.find_first_not_of("0123456789") == std::string::npos;
            if (!digits || std::stoul(name) >= node->size()) {
                throw_usage("--set {}: '{}' is not an index below {}", setting, name, node->size());
            }
            node = &(*node)[std::stoul(name)];
        } else if (node->is_object() || node->is_null()) {
            node = &(*node)[name];
        } else {
            throw_usage("--set {}: '{}' is inside a value that is not an object", setting, name);
        }
    }
    *node = value;
}

// "$schema" is the path of the schema, for editors. The program ignores it.
void drop_schema_name(Json& root) {
    if (!root.is_object() || !root.contains("$schema")) return;
    if (!root["$schema"].is_string())
        throw_usage("$schema: expected a string, got {} (path of the schema, for editors)",
                    shown(root["$schema"]));
    root.erase("$schema");
}

}  // namespace

Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& settings) {
    Json root;
    try {
        root = parse_json<Json>(text, {.keys = kMaxConfigKeys});
    } catch (const JsonError& error) {
        throw_usage("{}: not valid JSON: {}", origin, error.what());
    }
    for (const std::string& setting : settings) apply_setting(root, setting);
    drop_schema_name(root);

    Config config;
    if (root.is_object()) merge_over_preset(root.emplace("model", Json::object()).first.value());
    read_fields(root, config);
    config.validate();
    return config;
}

ModelConfig preset_model(const std::string& preset) {
    Json root = {{"model", {{"preset", preset}}}};
    merge_over_preset(root["model"]);
    Config config;
    read_fields(root, config);
    return config.model;
}

Config read_config(const std::string& path, const std::vector<std::string>& settings) {
    std::string text;
    try {
        text = read_text_file(path, kMaxConfigBytes);
    } catch (const Error& error) {
        throw_usage("{}", error.what());
    }
    return parse_config(text, path, settings);
}

std::string config_to_json(Config config) {
    Writer writer;
    config.fields(writer);
    return writer.json.dump(2) + "\n";
}

}  // namespace speedrun
