// model.safetensors.index.json: the files of weights that are stored in several.
#pragma once

#include <map>
#include <string>

namespace speedrun {

// Returns the file name of each tensor, without folders. Throws a data error with path and key for other content.
std::map<std::string, std::string> read_hf_index(const std::string& path);

}  // namespace speedrun
