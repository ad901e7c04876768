#include "train/config/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "data/json_text.h"
#include "train/config/config.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Writes 1e9 as 1000000000, not as 1000000000.0.
Json plain(double value) {
    constexpr double kExact = 9007199254740992;  // 2^53: doubles represent every smaller integer exactly
    const bool whole = value == std::floor(value) && std::abs(value) < kExact;
    return whole ? Json(static_cast<int64_t>(value)) : Json(value);
}

class SchemaWriter final : public FieldVisitor {
  public:
    Json properties = Json::object();

    void field(const char* name, int64_t& value, const char* doc, Limits limits) override {
        add(name, {{"type", "integer"}}, doc, value, limits);
    }
    void field(const char* name, double& value, const char* doc, Limits limits) override {
        add(name, {{"type", "number"}}, doc, plain(value), limits);
    }
    void field(const char* name, std::optional<double>& value, const char* doc, Limits limits) override {
        add(name, {{"type", {"number", "null"}}}, doc, value ? plain(*value) : Json(), limits);
    }
    void field(const char* name, Scheduled<int64_t>& value, const char* doc, Limits limits) override {
        add(name, scheduled(bounded({{"type", "integer"}}, limits)), doc, value.in(0).from);
    }
    void field(const char* name, Scheduled<double>& value, const char* doc, Limits limits) override {
        add(name, scheduled(number_or_pair(limits)), doc, plain(value.in(0).from));
    }
    void field(const char* name, std::vector<Scheduled<double>>& value, const char* doc,
               Limits limits) override {
        Json defaults = Json::array();
        for (const Scheduled<double>& one : value) defaults.push_back(plain(one.in(0).from));
        add(name, {{"type", "array"}, {"items", scheduled(number_or_pair(limits))}}, doc, defaults);
    }
    void field(const char* name, std::vector<int64_t>& value, const char* doc, Limits limits) override {
        add(name, {{"type", "array"}, {"items", bounded({{"type", "integer"}}, limits)}}, doc, value);
    }
    void field(const char* name, bool& value, const char* doc) override {
        add(name, {{"type", "boolean"}}, doc, value);
    }
    void field(const char* name, std::string& value, const char* doc) override {
        add(name, {{"type", {"string", "integer"}}}, doc, value);  // 8 is read as "8"
    }
    void field(const char* name, std::vector<std::string>& value, const char* doc) override {
        add(name, {{"type", {"array", "string"}}, {"items", {{"type", "string"}}}}, doc, value);
    }
    void one_of(const char* name, std::string& value, const std::vector<std::string>& choices,
                const char* doc) override {
        Json all = choices;
        for (const std::string& choice : choices) {  // true is read as "true", 2 as "2"
            try {
                all.push_back(parse_json<Json>(choice));
            } catch (const JsonError&) {  // the word is valid only as a string
            }
        }
        add(name, {{"enum", all}}, doc, value);
    }
    void section(const char* name, const char* doc, const Fields& fields) override {
        SchemaWriter inner;
        fields(inner);
        properties[name] = {{"description", doc}};
        properties[name].update(inner.object());
    }
    void optional_section(const char* name, bool& present, const char* doc, const Fields& fields) override {
        section(name, doc, fields);
        properties[name]["type"] = {"object", "null"};
        if (!present) properties[name]["default"] = nullptr;
    }
    std::vector<std::string> own_keys(const std::vector<std::string>&) override {
        any_key_ = true;
        return {kAnyKey};
    }
    void list(const char* name, const char* doc, size_t, const std::function<void(size_t)>& resize,
              const std::function<void(size_t, FieldVisitor&)>& element) override {
        resize(1);
        SchemaWriter inner;
        element(0, inner);
        properties[name] = {{"description", doc}, {"type", "array"}, {"items", inner.object()}};
    }

    void strings_or_list(const char* name, std::vector<std::string>& strings, const char* doc, size_t,
                         const std::function<void(size_t)>& resize,
                         const std::function<void(size_t, FieldVisitor&)>& element) override {
        field(name, strings, doc);
        resize(1);
        SchemaWriter inner;
        element(0, inner);
        properties[name]["items"] = {{"anyOf", {properties[name]["items"], inner.object()}}};
    }

    Json object() const {
        if (any_key_) return {{"type", "object"}, {"additionalProperties", properties[kAnyKey]}};
        return {{"type", "object"}, {"additionalProperties", false}, {"properties", properties}};
    }

  private:
    void add(const char* name, const Json& type, const char* doc, const Json& value) {
        std::string description = doc;
        // Another optimizer may have declared the key.
        if (properties.contains(name))
            description = properties[name]["description"].get<std::string>() + "; " + description;
        properties[name] = {{"description", description}};
        properties[name].update(type);
        properties[name]["default"] = value;
    }
    static Json bounded(Json type, Limits limits) {
        type["minimum"] = plain(limits.low);
        if (std::isfinite(limits.high)) type["maximum"] = plain(limits.high);
        return type;
    }
    static Json number_or_pair(Limits limits) {
        const Json number = bounded({{"type", "number"}}, limits);
        const Json pair = {{"type", "array"}, {"items", number}, {"minItems", 2}, {"maxItems", 2}};
        return {{"anyOf", {number, pair}}};
    }
    // A number, or one entry for each stage.
    static Json scheduled(const Json& entry) {
        const Json number = entry.contains("anyOf") ? entry["anyOf"][0] : entry;
        const Json list = {{"type", "array"}, {"items", entry}, {"minItems", 1}};
        return {{"anyOf", {number, list}}};
    }
    void add(const char* name, const Json& type, const char* doc, const Json& value, Limits limits) {
        add(name, type, doc, value);
        properties[name].update(bounded(Json::object(), limits));
    }

    static constexpr const char* kAnyKey = "NAME";
    bool any_key_ = false;  // the keys are chosen by the user and share one schema
};

// Moves subschemas that occur more than once to `definitions`. "allOf" holds the reference: draft-07 ignores the
// description next to a "$ref".
class SharedParts {
  public:
    Json definitions = Json::object();

    void count(const Json& schema) {
        const std::string text = body_of(schema).dump();
        if (text.size() >= kMinSize && ++times_[text] > 1) return;
        for_each_inner(schema, [&](const std::string&, const Json& inner) { count(inner); });
    }
    void move(const std::string& key, Json& schema) {
        Json body = body_of(schema);
        const std::string text = body.dump();
        const auto found = times_.find(text);
        if (found == times_.end() || found->second == 1)
            return for_each_inner(schema, [&](const std::string& name, Json& inner) { move(name, inner); });
        if (!names_.contains(text)) {
            std::string name = key;
            for (int number = 2; definitions.contains(name); ++number)
                name = fmt::format("{}_{}", key, number);
            names_[text] = name;
            definitions[name] = nullptr;  // reserves the name
            for_each_inner(body, [&](const std::string& inner_key, Json& inner) { move(inner_key, inner); });
            definitions[name] = body;
        }
        for (const auto& [keyword, value] : body.items()) schema.erase(keyword);
        schema["allOf"] = {{{"$ref", "#/definitions/" + names_[text]}}};
    }

  private:
    static constexpr size_t kMinSize = 400;  // characters

    static Json body_of(Json schema) {
        schema.erase("description");
        schema.erase("default");
        return schema;
    }
    template <class Schema, class Visit>
    static void for_each_inner(Schema& schema, const Visit& visit) {
        if (schema.contains("properties"))
            for (auto it = schema["properties"].begin(); it != schema["properties"].end(); ++it)
                visit(it.key(), *it);
        for (const char* keyword : {"additionalProperties", "items"})
            if (schema.contains(keyword) && schema[keyword].is_object()) visit(keyword, schema[keyword]);
    }

    std::map<std::string, int> times_;
    std::map<std::string, std::string> names_;
};

bool has_properties(const Json& json) {
    return json.is_object() &&
           (json.contains("properties") || std::any_of(json.begin(), json.end(), has_properties));
}

// Returns JSON text with one line per key of a config.
std::string text_of(const Json& json, const std::string& indent, bool is_open) {
    if (!is_open) return json.dump();
    std::string text;
    for (const auto& [key, value] : json.items()) {
        const bool opens = has_properties(value) || key == "properties" || key == "definitions";
        text += fmt::format("{}{}  {}: {}", text.empty() ? "{\n" : ",\n", indent, Json(key).dump(),
                            text_of(value, indent + "  ", opens));
    }
    return text + "\n" + indent + "}";
}

}  // namespace

std::string config_schema() {
    Config config;
    SchemaWriter writer;
    config.fields(writer);
    Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                   {"title", "Config of speedrun train"},
                   {"description", "Made by: speedrun plan --schema"}};
    schema.update(writer.object());
    schema["properties"]["$schema"] = {
        {"description", "path of this schema, for editors; ignored by speedrun"}, {"type", "string"}};
    SharedParts shared;
    shared.count(schema);
    shared.move("config", schema);
    schema["definitions"] = shared.definitions;
    return text_of(schema, "", true) + "\n";
}

}  // namespace speedrun
