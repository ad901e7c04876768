// A build without the headers of cuDNN or cudnn-frontend.
#include "kernels/cuda/vendor/cudnn_api.h"

namespace speedrun {

bool built_with_cudnn() {
    return false;
}

std::unique_ptr<CudnnApi> load_cudnn(int /*compute_capability*/, std::string& why) {
    why = "this build has none";
    return nullptr;
}

std::unique_ptr<CudnnApi> load_cudnn_for(const std::string& /*properties*/, int compute_capability,
                                         std::string& why) {
    return load_cudnn(compute_capability, why);
}

}  // namespace speedrun
