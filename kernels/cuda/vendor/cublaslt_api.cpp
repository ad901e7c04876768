#include "kernels/cuda/vendor/cublaslt_api.h"

#include "kernels/device/shared_library.h"

namespace speedrun {

void CublasLtApi::check(cublasStatus_t status, const char* call) const {
    if (status != CUBLAS_STATUS_SUCCESS) throw_internal("{}: {}", call, status_name(status));
}

bool load_cublaslt(CublasLtApi& api, std::string& why) {
    SharedLibrary library(fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000));
    library.find(api.create, "cublasLtCreate");
    library.find(api.destroy, "cublasLtDestroy");
    library.find(api.get_version, "cublasLtGetVersion");
    library.find(api.status_name, "cublasLtGetStatusName");
    library.find(api.desc_create, "cublasLtMatmulDescCreate");
    library.find(api.desc_destroy, "cublasLtMatmulDescDestroy");
    library.find(api.desc_set, "cublasLtMatmulDescSetAttribute");
    library.find(api.layout_create, "cublasLtMatrixLayoutCreate");
    library.find(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.find(api.preference_create, "cublasLtMatmulPreferenceCreate");
    library.find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.find(api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.find(api.check_algorithm, "cublasLtMatmulAlgoCheck");
    library.find(api.matmul, "cublasLtMatmul");
    why = library.problem();
    return why.empty();
}

}  // namespace speedrun
