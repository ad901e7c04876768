// Longest-prefix table of a vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

// Index: token. The token that is its longest proper prefix in bytes, −1 without one. Tokens without bytes (separators)
// have no prefix and are no prefix. Time: linear in the sum of the squared token lengths.
std::vector<int32_t> longest_prefixes(const std::vector<std::string>& tokens);

}  // namespace speedrun
