// Configs key by key, for comparing them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace speedrun {

// Dotted key -> value as JSON, of the text of a JSON object that is valid: "schedule.steps" -> "100".
std::map<std::string, std::string> flat_keys(const std::string& json);

struct KeyDifference {
    std::string key, before, after;  // values as JSON; "nothing" where there is no such key
};
// In order of the keys.
std::vector<KeyDifference> key_differences(const std::string& before, const std::string& after);

}  // namespace speedrun
