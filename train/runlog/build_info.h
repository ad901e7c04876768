// Facts about this build, written by CMake into build_info.cpp at every build.
#pragma once

namespace speedrun {

struct BuildInfo {
    const char* version;  // from the file VERSION
    const char* git_sha;
    const char* compiler;
    const char* build_type;
    const char* flags;
    bool has_mpi, has_cuda;
};
const BuildInfo& build_info();

}  // namespace speedrun
