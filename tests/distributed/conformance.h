// What every World and Communicator must do, as cases that run on any world, once per rank at the same time.
#pragma once

#include <string>
#include <vector>

#include "train/distributed/communicator.h"

namespace speedrun::testing {

struct ConformanceCase {
    std::string name;
    void (*run)(World& world);  // with gtest expectations
};
const std::vector<ConformanceCase>& conformance_cases();

}  // namespace speedrun::testing
