// "did you mean": the known name nearest to a wrong one.
#pragma once

#include <set>
#include <string>

namespace speedrun {

// Returns ", did you mean X?", or "; known here: …" if no name is near. Empty for no known names.
std::string suggestion(const std::string& wrong, const std::set<std::string>& known);

}  // namespace speedrun
