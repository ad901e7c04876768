#include "data/token_prefixes.h"

#include <string_view>
#include <unordered_map>

namespace speedrun {

std::vector<int32_t> longest_prefixes(const std::vector<std::string>& tokens) {
    std::unordered_map<std::string_view, int32_t> ids;
    ids.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id)
        if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
    std::vector<int32_t> prefixes;
    prefixes.reserve(tokens.size());
    for (const std::string& token : tokens) {
        int32_t prefix = -1;
        for (size_t length = token.size(); prefix < 0 && length-- > 1;) {
            const auto found = ids.find(std::string_view(token).substr(0, length));
            if (found != ids.end()) prefix = found->second;
        }
        prefixes.push_back(prefix);
    }
    return prefixes;
}

}  // namespace speedrun
