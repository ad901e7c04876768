// The reference of all options of a config, as text and as pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace speedrun {

// Returns one line per option: dotted key, default, meaning.
std::string describe_options();

// Returns a Markdown page per section of a config, by its file name ("model.md", "model_layers.md"), and a page of the options
// outside sections ("general.md").
std::vector<std::pair<std::string, std::string>> option_pages();

}  // namespace speedrun
