// Input files of a command: files, folders, patterns and lists.
#pragma once

#include <string>
#include <vector>

namespace speedrun {

// Returns the files of `inputs`, then of the list file (empty: none), which has an input per line; a line that starts with # is a
// comment. An input is
//   a file          as it is, also an anonymous pipe
//   a folder        all files in it and its folders, sorted by path; hidden ones (.name) and links to folders are skipped
//   a pattern       *, ?, [abc], {a,b}, ~: the matching files, sorted by path, see expand_globs()
// Paths of the list are relative to the working folder. Throws a data error for an input without files, and for a file that
// two inputs name.
std::vector<std::string> input_files(const std::vector<std::string>& inputs, const std::string& list);

}  // namespace speedrun
