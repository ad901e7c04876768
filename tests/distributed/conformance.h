// What every World and Communicator must do, as cases that run on any world, once per rank at the same time.
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

// Makes the device of each rank, whose streams run the collectives: one of the CPU, unless a test says
// otherwise. The host must be able to read its memory.
std::function<std::unique_ptr<Device>()>& conformance_device();
// Runs a case of a program of MPI on its world, or on one that a test puts around it.
std::function<void(const ConformanceCase&, World&)>& run_conformance();

}  // namespace speedrun::testing
