// Configs key by key, for comparing them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace speedrun {

// Returns dotted key -> value as JSON for a valid JSON object: "schedule.steps" -> "100".
std::map<std::string, std::string> flat_keys(const std::string& json);

struct KeyDifference {
    std::string key, before, after;  // values as JSON; "nothing" if the key is absent
};
// Returns the differences in order of the keys.
std::vector<KeyDifference> key_differences(const std::string& before, const std::string& after);

}  // namespace speedrun
