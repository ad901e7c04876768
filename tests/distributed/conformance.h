// Contract of World and Communicator: cases that run on any world, once per rank concurrently.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/comm/communicator.h"

namespace speedrun::testing {

struct ConformanceCase {
    std::string name;
    void (*run)(World& world);  // with gtest expectations
};
const std::vector<ConformanceCase>& conformance_cases();

// Makes the device of each rank; its streams run the collectives. Default: a CPU device. The host must be able to
// read its memory.
std::function<std::unique_ptr<Device>()>& conformance_device();
// Runs a case of an MPI program on its world, or on a wrapper that a test puts around that world.
std::function<void(const ConformanceCase&, World&)>& run_conformance();

}  // namespace speedrun::testing
