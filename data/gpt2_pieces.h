// GPT-2's pre-tokenizer: cuts text into the pieces that byte-pair merges never cross.
#pragma once

#include <cstddef>
#include <string_view>

namespace speedrun {

// Length in bytes of the piece that begins `text`, which must not be empty. The rule is GPT-2's pattern
// (Radford et al. 2019; encoder.py of the release):
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with Unicode's categories and White_Space for \s. A byte that is not part of valid UTF-8 counts as a
// character that is neither letter, number nor space, as the replacement character would, but stays itself.
size_t gpt2_piece_length(std::string_view text);

}  // namespace speedrun
