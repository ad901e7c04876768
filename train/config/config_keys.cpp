#include "train/config/config_keys.h"

#include <algorithm>

#include "data/json_text.h"

namespace speedrun {

std::map<std::string, std::string> flat_keys(const std::string& json) {
    std::map<std::string, std::string> values;
    const auto flat = parse_json<nlohmann::ordered_json>(json).flatten();
    for (const auto& [pointer, value] : flat.items()) {
        if (pointer.empty()) continue;  // of an empty object
        std::string key = pointer.substr(1);
        std::replace(key.begin(), key.end(), '/', '.');
        values[key] = value.dump();
    }
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
