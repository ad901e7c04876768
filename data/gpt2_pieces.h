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

// A piece depends on at most this number of bytes after it: a space of 3 bytes and a character of 4.
inline constexpr size_t kPieceLookahead = 8;

// Longer pieces are cut, so that the memory of a reader is bounded. Text has no such pieces.
inline constexpr size_t kMaxPieceBytes = size_t{1} << 20;

// Returns the length of the first piece, at most kMaxPieceBytes; 0 if more text may change it. is_end: the text ends
// with `text`, which must not be empty.
size_t gpt2_next_piece(std::string_view text, bool is_end);

}  // namespace speedrun
