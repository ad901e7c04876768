// Clock, power and temperature of the GPUs during a step, as sampled by nvidia-smi.
#pragma once

#include <string>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

// Period of a step: `began` in seconds since 1970, as printed by date +%s, and `seconds` of duration.
struct Period {
    double began = 0, seconds = 0;
};

// Returns the medians {"samples","mhz","watts","celsius"} of the samples in the period, over all GPUs; null without a sample.
// `csv`: output of nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu --format=csv, in local time.
Json clocks_of(const std::string& csv, const Period& period);

}  // namespace speedrun::bench
