// Commits of the repository that contains a folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace speedrun {

// True if git has the whole history of a file, by its path relative to the folder. False: no git, a shallow clone, or a file
// that is not committed.
bool has_history(const std::string& folder, const std::string& file);

// Returns the time of a commit in seconds since 1970; none: unknown commit. git_sha must be hexadecimal.
std::optional<int64_t> commit_time(const std::string& folder, const std::string& git_sha);

}  // namespace speedrun
