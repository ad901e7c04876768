// The token between documents.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace speedrun {

// Where the config's data say it; -1 where they do not, or are not there.
int64_t separator_of(const Config& config);

}  // namespace speedrun
