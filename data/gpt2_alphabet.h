// GPT-2's alphabet: the characters that stand for bytes in its vocabulary files.
#pragma once

#include <string>
#include <string_view>

namespace speedrun {

// Returns the bytes of a text in the alphabet. Throws a data error with path and `where` for other characters.
std::string gpt2_bytes(const std::string& path, const std::string& where, const std::string& text);

// Returns bytes as a text in the alphabet.
std::string gpt2_text(std::string_view bytes);

// Returns the bytes in the order of their characters' code points.
std::string gpt2_byte_order();

}  // namespace speedrun
