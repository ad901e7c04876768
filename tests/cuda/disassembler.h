// NVIDIA's disassembler, if installed: the programs cuobjdump and nvdisasm.
#pragma once

#include <map>
#include <string>

#include "tests/cuda/sass.h"

namespace speedrun::testing {

// Folder with both programs: from the environment variable SPEEDRUN_DISASSEMBLER, otherwise from PATH, the
// CUDA toolkit, or build/disassembler (scripts/install_dependencies.sh tests). "" if none has them. Throws if
// the variable names a folder that lacks them.
std::string find_disassembler();

// Kernels of a library or object file for one architecture ("sm_90a"), keyed by mangled name. Throws if a
// program fails.
std::map<std::string, SassListing> disassemble(const std::string& tools, const std::string& library,
                                               const std::string& architecture);

}  // namespace speedrun::testing
