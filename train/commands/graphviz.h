// Pictures by Graphviz, which may not be there.
#pragma once

#include <string>

namespace speedrun {

struct DotPicture {
    std::string text;    // in Graphviz's language
    std::string option;  // that asked for it: errors begin with it
};

// What `dot -Tsvg` makes of the text. Usage error if dot is not on the path or refuses it.
std::string svg_of(const DotPicture& picture);

}  // namespace speedrun
