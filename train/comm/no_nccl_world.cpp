// Replaces nccl_world.cpp in a build without NCCL.
#include "train/comm/nccl_world.h"

namespace speedrun {

std::string nccl_unavailable() {
    return "this build has no NCCL: it needs CUDA and nccl.h";
}

std::string nccl_version() {
    return "";
}

std::unique_ptr<World> make_nccl_world(World& /*world*/, Device& /*device*/, const NcclOptions& /*options*/) {
    throw_usage("{}", nccl_unavailable());
}

}  // namespace speedrun
