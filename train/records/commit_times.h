// Commits of the repository that holds a folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace speedrun {

// Whether git has the whole history of a file, by its path from the folder. False: no git, a shallow clone, a file that is not
// committed.
bool has_history(const std::string& folder, const std::string& file);

// When a commit was made, in seconds since 1970; none: the repository of the folder has no such commit. git_sha has
// digits 0-9 and a-f alone.
std::optional<int64_t> commit_time(const std::string& folder, const std::string& git_sha);

}  // namespace speedrun
