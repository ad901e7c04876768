// A program built from a commit of the repository around the current folder.
#pragma once

#include <string>

namespace speedrun {

// Builds `speedrun` of a commit in build/rerun/COMMIT unless it exists; returns the program's path. Prints the commands. Usage
// error without git, without the commit, or if a command fails.
std::string build_commit(const std::string& git_sha, bool cuda);

}  // namespace speedrun
