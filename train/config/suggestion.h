// "did you mean": the known name that is nearest to a wrong one.
#pragma once

#include <set>
#include <string>

namespace speedrun {

// ", did you mean X?", or "; known here: …" where none is near. Empty for no known names.
std::string suggestion(const std::string& wrong, const std::set<std::string>& known);

}  // namespace speedrun
