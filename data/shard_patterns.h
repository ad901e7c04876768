// Finding shard files by the patterns of a config.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

// The files that shell patterns match (*, ?, [abc], {a,b}, ~), sorted by byte value so that the order does not depend on the
// locale. A file that two patterns match is there twice (check_overlap() in data_identity.h reports it). The leading parts of
// a path that exist as they are written are taken literally: data/t[1]/*.bin is in the folder "t[1]" if there is one.
// Throws a data error that names a pattern which matches nothing; a usage error for one that is longer than a path can be,
// or has too many or too deeply nested alternatives in braces.
std::vector<std::string> expand_globs(const std::vector<std::string>& patterns);

}  // namespace speedrun
