// The JSON schema accepts and rejects the same configs as the reader.
// build: release
#include "train/config/config_schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/device/error.h"
#include "tests/temp_dir.h"
#include "train/config/config_json.h"

namespace speedrun::config_schema_test {

using Json = nlohmann::json;
const std::filesystem::path kConfigs = std::filesystem::path(SPEEDRUN_SOURCE_ROOT) / "configs";

bool has_type(const Json& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "number") return value.is_number();
    if (type == "integer") return value.is_number() && value == std::floor(value.get<double>());
    ADD_FAILURE() << "the schema has a type that this test does not know: " << type;
    return false;
}

std::string violation(const Json& schema, const Json& value, const std::string& path = "");

// First member that violates the schema: an unknown key, or a value that violates `properties` or
// `additionalProperties`. Empty if there is none.
std::string bad_member(const Json& schema, const Json& object, const std::string& path) {
    if (!object.is_object()) return "";
    const Json declared = schema.value("properties", Json::object());
    const Json& others = schema["additionalProperties"];
    for (const auto& [key, value] : object.items()) {
        if (!declared.contains(key) && others == false) return path + "/" + key + ": unknown";
        const Json& rule = declared.contains(key) ? declared[key] : others;
        if (auto bad = violation(rule, value, path + "/" + key); !bad.empty()) return bad;
    }
    return "";
}

// Checks the schema's keywords as draft-07 defines them. Returns the path and the violation, or "" if valid.
std::string violation(const Json& schema, const Json& value, const std::string& path) {
    static const std::set<std::string> kNotes = {"$schema", "title",      "description",
                                                 "default", "properties", "definitions"};
    for (const auto& [keyword, rule] : schema.items()) {
        bool good = true;
        if (keyword == "type") {
            const Json types = rule.is_array() ? rule : Json::array({rule});
            good = std::any_of(types.begin(), types.end(), [&](const Json& t) { return has_type(value, t); });
        } else if (keyword == "enum") {
            good = std::find(rule.begin(), rule.end(), value) != rule.end();
        } else if (keyword == "minimum") {
            good = !value.is_number() || value >= rule;
        } else if (keyword == "maximum") {
            good = !value.is_number() || value <= rule;
        } else if (keyword == "items") {
            for (size_t i = 0; value.is_array() && i < value.size(); ++i)
                if (auto bad = violation(rule, value[i], path + "/" + std::to_string(i)); !bad.empty())
                    return bad;
        } else if (keyword == "minItems") {
            good = !value.is_array() || value.size() >= rule.get<size_t>();
        } else if (keyword == "maxItems") {
            good = !value.is_array() || value.size() <= rule.get<size_t>();
        } else if (keyword == "anyOf") {
            good = std::any_of(rule.begin(), rule.end(),
                               [&](const Json& one) { return violation(one, value, path).empty(); });
        } else if (keyword == "allOf") {
            for (const Json& one : rule)
                if (auto bad = violation(one, value, path); !bad.empty()) return bad;
        } else if (keyword == "$ref") {
            static const Json kSchema = Json::parse(config_schema());
            return violation(kSchema.at(Json::json_pointer(rule.get<std::string>().substr(1))), value, path);
        } else if (keyword == "additionalProperties") {
            EXPECT_TRUE(rule == false || rule.is_object());
            if (auto bad = bad_member(schema, value, path); !bad.empty()) return bad;
        } else if (!kNotes.count(keyword)) {
            ADD_FAILURE() << "the schema has a keyword that this test does not know: " << keyword;
        }
        if (!good) return path + ": " + keyword + " " + rule.dump();
    }
    return "";
}

TEST(ConfigSchemaTest, AcceptsEveryConfig) {
    const Json schema = Json::parse(config_schema());
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
        if (entry.path().extension() != ".json" || entry.path().filename() == "schema.json") continue;
        const Json config = Json::parse(read_text(entry.path()));
        EXPECT_EQ(violation(schema, config), "") << entry.path();
        EXPECT_EQ(config.value("$schema", ""), "./schema.json") << entry.path();
        const std::string resolved = config_to_json(read_config(entry.path(), {}));
        EXPECT_EQ(violation(schema, Json::parse(resolved)), "") << entry.path() << ", resolved";
        EXPECT_EQ(config_to_json(parse_config(resolved, "resolved", {})), resolved) << entry.path();
        ++count;
    }
    EXPECT_GE(count, 4);
}

// Compares the defaults of a schema with a resolved value.
void expect_defaults(const Json& schema, const Json& rule, const Json& value, const std::string& path) {
    if (!value.is_object()) {
        if (rule.contains("default")) {
            EXPECT_EQ(rule["default"], value) << path;
        }
        return;
    }
    const std::string shared = rule.contains("allOf") ? rule["allOf"][0]["$ref"] : "";
    const Json& whole = shared.empty() ? rule : schema.at(Json::json_pointer(shared.substr(1)));
    if (!whole.contains("properties")) return;  // keys that the config chooses
    for (const auto& [key, inner] : value.items())
        expect_defaults(schema, whole["properties"].at(key), inner, path + "/" + key);
}

// The schema and the reader have the same defaults.
TEST(ConfigSchemaTest, DefaultsAreTheReaders) {
    const char* const kLeast = R"({"optimizers": {"groups": [{"params": ["*"]}]}})";
    Json resolved = Json::parse(config_to_json(parse_config(kLeast, "test", {})));
    resolved["model"]["preset"] = ModelConfig().preset;
    const Json schema = Json::parse(config_schema());
    expect_defaults(schema, schema, resolved, "");
}

// Each case changes one value of a valid config. Schema and reader must agree on its validity.
TEST(ConfigSchemaTest, AgreesWithTheReader) {
    const Json schema = Json::parse(config_schema());
    const struct {
        const char *pointer, *value;
        bool valid;
    } cases[] = {
        {"/model/layers/count", "3", true},
        {"/model/layers/count", "3.0", true},
        {"/model/layers/count", "3.5", false},
        {"/model/layers/count", "\"3\"", false},
        {"/model/layers/count", "0", false},
        {"/model/layers/count", "1001", false},
        {"/model/layers/cout", "2", false},
        {"/modle", "{}", false},
        {"/model", "[]", false},
        {"/model", "3", false},
        {"/model/layers/each/attention/qk_norm", "1", false},
        {"/model/layers/each/attention/qk_norm", "false", true},
        {"/model/norms/type", "\"batchnorm\"", false},
        {"/model/norms/type", "\"layernorm\"", true},
        {"/model/init_scale", "\"1\"", false},
        {"/model/init_scale", "0.5", true},
        {"/data/train", "\"one.bin\"", true},
        {"/data/train", "[\"a\", \"b\"]", true},
        {"/data/train", "[\"a\", 7]", false},
        {"/data/train", "7", false},
        {"/parallel/shard", "1", true},
        {"/parallel/shard", "\"auto\"", true},
        {"/parallel/shard", "true", false},
        {"/parallel/reshard_after_forward", "true", true},
        {"/parallel/reshard_after_forward", "1", false},
        {"/optimizers/clip_norm", "3", true},
        {"/optimizers/clip_norm", "\"inf\"", true},
        {"/optimizers/clip_norm", "4", false},
        {"/optimizers/groups/0/lr", "-0.1", false},
        {"/model/layers", R"({"each": {"attention": {"headz": 4}}})", false},
        {"/model/layers", R"({"at": {"1": {"attention": {"headz": 4}}}})", false},
        {"/optimizers/groups/0/weigth_decay", "0.1", false},
        {"/optimizers/groups/0/type", "\"muon\"", true},
        {"/optimizers/groups", "{}", false},
        {"/optimizers/groups/0", "3", false},
        {"/schedule/cooldown_fraction", "1.5", false},
        {"/schedule/stages", "[500, 1000]", true},
        {"/schedule/stages", "[]", true},
        {"/schedule/stages", "1000", false},
        {"/schedule/stages", "[999.5, 1000]", false},
        {"/schedule/stages", "[0, 1000]", false},
        {"/schedule/lr_factor", "[2]", true},
        {"/schedule/lr_factor", "[[0.5, 2]]", true},
        {"/schedule/lr_factor", "[]", false},
        {"/schedule/lr_factor", "[[0.5, 1, 2]]", false},
        {"/schedule/lr_factor", "[[0.5]]", false},
        {"/schedule/lr_factor", "[[0.5, -1]]", false},
        {"/schedule/lr_factor", "[\"1\"]", false},
        {"/model/windows/window", "[128]", true},
        {"/model/windows/window", "[[128, 256]]", false},
        {"/batch/sequence_length", "[256]", true},
        {"/batch/sequence_length", "[256.5]", false},
        {"/optimizers/groups/0/momentum", "[[0.85, 0.95]]", true},
        {"/eval/windows", "{\"keys\": 128}", true},
        {"/eval/windows", "{\"window\": [128]}", false},
        {"/eval/sequence_length", "-1", false},
        {"/seed", "9000000000000000", true},
        {"/seed", "-1", false},
        {"/seed", "null", false},
        {"/$schema", "\"./schema.json\"", true},
        {"/$schema", "3", false},
        {"/model/$schema", "\"./schema.json\"", false},
    };
    for (const auto& c : cases) {
        Json config = Json::parse(R"({"optimizers": {"groups": [{"params": ["*"]}]},
                                       "model": {"windows": {"keys": 1}}})");
        config[Json::json_pointer(c.pointer)] = Json::parse(c.value);
        std::string refused;
        try {
            parse_config(config.dump(), "test", {});
        } catch (const Error& error) {
            refused = error.what();
        }
        EXPECT_EQ(refused.empty(), c.valid) << c.pointer << " " << c.value << ": " << refused;
        const std::string wrong = violation(schema, config);
        EXPECT_EQ(wrong.empty(), c.valid) << c.pointer << " " << c.value << ": " << wrong;
    }
}

// The key "$schema" does not change the run.
TEST(ConfigSchemaTest, SchemaKeyIsIgnored) {
    const char* const with = R"({"$schema": "./schema.json", "optimizers": {"groups": [{"params": ["*"]}]}})";
    const char* const without = R"({"optimizers": {"groups": [{"params": ["*"]}]}})";
    EXPECT_EQ(config_to_json(parse_config(with, "test", {})),
              config_to_json(parse_config(without, "test", {})));
}

}  // namespace speedrun::config_schema_test
