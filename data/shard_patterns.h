// Finds shard files by the patterns of a config.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

// Returns the files that match shell patterns (*, ?, [abc], {a,b}, ~), sorted by byte value, independent of the locale.
// A file that matches two patterns is listed twice (reported by expect_no_overlap() in data_identity.h). Leading
// components that exist literally are not patterns: data/t[1]/*.bin is in the folder "t[1]" if that exists. Throws a
// data error that names a pattern without matches. Throws a usage error for a pattern longer than a path, or with too
// many or too deeply nested alternatives.
std::vector<std::string> expand_globs(const std::vector<std::string>& patterns);

}  // namespace speedrun
