// NVIDIA's disassembler, where it is installed: the programs cuobjdump and nvdisasm.
#pragma once

#include <map>
#include <string>

#include "tests/cuda/sass.h"

namespace speedrun::testing {

// Folder with both programs: of the environment variable SPEEDRUN_DISASSEMBLER; without it of PATH, of the
// CUDA toolkit, of build/disassembler (scripts/install_dependencies.sh tests). "" where they are in none of
// these. Throws where the variable names a folder that lacks them.
std::string find_disassembler();

// Kernels, by mangled name, that a library (or object file) has for one architecture ("sm_90a"). Throws where
// a program fails.
std::map<std::string, SassListing> disassemble(const std::string& tools, const std::string& library,
                                               const std::string& architecture);

}  // namespace speedrun::testing
