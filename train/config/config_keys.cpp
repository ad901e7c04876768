#include "train/config/config_keys.h"

#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// The library's flatten() is quadratic: it searches all keys for each added one.
void add_flat(const std::string& key, const Json& value, std::map<std::string, std::string>& values) {
    const auto inner = [&](const std::string& name) { return key.empty() ? name : key + "." + name; };
    if (!value.is_structured() || value.empty()) {
        if (!key.empty()) values[key] = value.is_structured() ? "null" : value.dump();
        return;
    }
    size_t index = 0;
    for (const auto& [name, member] : value.items())
        add_flat(inner(value.is_array() ? std::to_string(index++) : name), member, values);
}

}  // namespace

std::map<std::string, std::string> flat_keys(const std::string& json) {
    std::map<std::string, std::string> values;
    add_flat("", parse_json<Json>(json), values);
    return values;
}

std::vector<KeyDifference> key_differences(const std::string& before, const std::string& after) {
    const auto a = flat_keys(before), b = flat_keys(after);
    const auto value = [](const auto& values, const std::string& key) {
        const auto found = values.find(key);
        return found == values.end() ? std::string("nothing") : found->second;
    };
    std::map<std::string, std::string> all = a;
    all.insert(b.begin(), b.end());
    std::vector<KeyDifference> differences;
    for (const auto& [key, any] : all) {
        const std::string first = value(a, key), second = value(b, key);
        if (first != second) differences.push_back({key, first, second});
    }
    return differences;
}

}  // namespace speedrun
