// What the doctor finds. The part that follows from build and libraries is also what `speedrun --version`
// says.
#pragma once

#include <string>
#include <vector>

#include "train/runlog/environment.h"
#include "train/runlog/machine.h"

namespace speedrun {

// ok: as it should be; note: a fact that limits; warn: something to mend; fail: nothing can be trained here.
enum class Status : uint8_t { ok, note, warn, fail };

struct Finding {
    Status status;
    std::string name, value, advice;
};
using Findings = std::vector<Finding>;

// Commit and compiler, libraries with their versions, and the instruction level that the CPU's operations run
// at.
Findings build_findings(const Environment& environment, const Machine& machine);

// The version, then a line of name and value for each of build_findings; no line end behind the last.
std::string version_text();

}  // namespace speedrun
