// Findings of the doctor. The part about build and libraries is also the output of `speedrun --version`.
#pragma once

#include <string>
#include <vector>

#include "train/runlog/environment.h"
#include "train/runlog/machine.h"

namespace speedrun {

// ok: no problem; note: a limit; warn: should be fixed; fail: training is impossible.
enum class Status : uint8_t { ok, note, warn, fail };

struct Finding {
    Status status;
    std::string name, value, advice;
};
using Findings = std::vector<Finding>;

// Commit and compiler, libraries with their versions, and the instruction set level of the CPU's operations.
Findings build_findings(const Environment& environment, const Machine& machine);

// Returns the version, then a line with name and value for each of build_findings, without a newline at the end.
std::string version_text();

}  // namespace speedrun
