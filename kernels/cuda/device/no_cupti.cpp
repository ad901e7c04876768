// CUPTI in a build without its headers: unavailable.
#include "kernels/cuda/device/cupti_trace.h"

namespace speedrun {

std::unique_ptr<ActivityTrace> start_cupti(std::string& why) {
    why = "this build had no cupti.h; configure with -DCUPTI_INCLUDE_DIR=<its folder>";
    return nullptr;
}

}  // namespace speedrun
