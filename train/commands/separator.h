// The token between documents.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace speedrun {

// Returns the separator of the config's data; -1 if unknown or without data.
int64_t separator_of(const Config& config);

}  // namespace speedrun
