// Finds shard files by the patterns of a config.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

// Returns the files and folders that match a shell pattern (*, ?, [abc], {a,b}, ~), sorted by byte value, independent of
// the locale. Leading components that exist literally are not patterns: data/t[1]/*.bin is in the folder "t[1]" if that
// exists. Throws a usage error for a pattern longer than a path, or with too many or too deeply nested alternatives.
std::vector<std::string> matching_files(const std::string& pattern);

// Returns the matches of all patterns, sorted. A file that matches two patterns is listed twice (reported by
// expect_no_overlap() in data_identity.h). Throws a data error that names a pattern without matches.
std::vector<std::string> expand_globs(const std::vector<std::string>& patterns);

}  // namespace speedrun
