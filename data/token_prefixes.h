// Which tokens begin as others do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

// By token: the token whose bytes are its longest proper prefix, −1 where none is. Tokens without bytes (separators) have no
// prefix, and are none. Time: linear in the square of the tokens' lengths.
std::vector<int32_t> longest_prefixes(const std::vector<std::string>& tokens);

}  // namespace speedrun
