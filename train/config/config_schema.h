// The JSON Schema of a config, for editors that complete and check while one types: configs/schema.json.
#pragma once

#include <string>

namespace speedrun {

// Draft-07, the newest draft that common editors support in full. Types, defaults, choices, ranges and
// documentation are those of the declarations in fields(): what the schema refuses, read_config refuses too.
// Not the reverse: how keys must agree with each other (Config::validate) is beyond it.
std::string config_schema();

}  // namespace speedrun
