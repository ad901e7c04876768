// The JSON Schema of a config, with which editors complete and check keys: configs/schema.json.
#pragma once

#include <string>

namespace speedrun {

// Returns a schema of draft-07, the newest draft that common editors support in full. Types, defaults, choices, ranges and
// texts are read from the declarations in fields(). read_config refuses every config that the schema refuses. The schema does
// not check constraints between keys (Config::validate).
std::string config_schema();

}  // namespace speedrun
