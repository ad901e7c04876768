// Reads whole files named by the user.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace speedrun {

inline constexpr size_t kMaxFileBytes = size_t{1} << 30;

// Returns the bytes of a regular file or an anonymous pipe (`<(command)` of a shell). Throws a data error with path and
// reason for other kinds of files and for more than `most` bytes: /dev/zero would fill the memory, and a named pipe
// without a writer would block.
std::string read_text_file(const std::string& path, size_t most = kMaxFileBytes);

bool is_utf8(std::string_view text);

// Returns the text for a message: shortened, with control characters and bytes outside UTF-8 escaped.
std::string shown_text(std::string_view text);

}  // namespace speedrun
