// Pictures by Graphviz, which may not be there.
#pragma once

#include <string>

namespace speedrun {

// What `dot -Tsvg` makes of this text. Usage error, starting with `option`, if dot is not on the path or
// refuses the text.
std::string svg_of(const std::string& dot_text, const std::string& option);

}  // namespace speedrun
