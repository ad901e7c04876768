// Use of one source of a mixture by a run.
#pragma once

#include <cstdint>
#include <string>

#include "data/row_source.h"

namespace speedrun {

struct SourceUse {
    std::string files;  // its patterns, separated by commas
    double share = 1;   // share of all rows, 0 to 1
    int64_t rows = 0;   // drawn by the steps of the run
    int64_t tokens = 0;
    double epochs = 0;  // passes over the source
    EpochCounts epoch;  // counts of the first epoch
};

}  // namespace speedrun
