// GPT-2's pre-tokenizer: cuts text into pieces that byte-pair merges never cross.
#pragma once

#include <cstddef>
#include <string_view>

namespace speedrun {

// Returns the length in bytes of the first piece of `text`, which must not be empty. The rule is GPT-2's pattern
// (Radford et al. 2019; encoder.py of the release):
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with Unicode's categories and White_Space for \s. A byte outside valid UTF-8 counts as a character that is neither
// letter, number nor space, like the replacement character, but keeps its value.
size_t gpt2_piece_length(std::string_view text);

}  // namespace speedrun
