// Recognises files that are not text by their first bytes.
#pragma once

#include <string>
#include <string_view>

namespace speedrun {

// Returns the first bytes for a message, in hexadecimal and as characters.
std::string shown_bytes(std::string_view bytes);

// Returns why these first bytes of a file are not UTF-8 text, with the cure; "" if they may be text. Text has no NUL,
// no signature of a known format, and at most 1 of 10 bytes that are control characters or outside UTF-8.
std::string why_not_text(std::string_view bytes, const std::string& path);

}  // namespace speedrun
