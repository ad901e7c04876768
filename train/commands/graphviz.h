// Pictures by Graphviz, which is optional.
#pragma once

#include <string>

namespace speedrun {

struct DotPicture {
    std::string text;    // in the dot language
    std::string option;  // option that requested it: prefix of errors
};

// Returns the output of `dot -Tsvg`. Usage error if dot is not on PATH or fails.
std::string svg_of(const DotPicture& picture);

}  // namespace speedrun
