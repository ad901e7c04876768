#include "kernels/cuda/cublaslt_api.h"

#include <dlfcn.h>

namespace speedrun {

void CublasLtApi::check(cublasStatus_t status, const char* call) const {
    if (status != CUBLAS_STATUS_SUCCESS) throw_internal("{}: {}", call, status_name(status));
}

bool load_cublaslt(CublasLtApi& api, std::string& why) {
    const std::string name = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000);
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
    if (!library) {
        why = dlerror();
        return false;
    }
    bool complete = true;
    const auto find = [&](auto& function, const char* symbol) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
        if (function) return;
        complete = false;
        why = fmt::format("{} has no {}", name, symbol);
    };
    find(api.create, "cublasLtCreate");
    find(api.destroy, "cublasLtDestroy");
    find(api.get_version, "cublasLtGetVersion");
    find(api.status_name, "cublasLtGetStatusName");
    find(api.desc_create, "cublasLtMatmulDescCreate");
    find(api.desc_destroy, "cublasLtMatmulDescDestroy");
    find(api.desc_set, "cublasLtMatmulDescSetAttribute");
    find(api.layout_create, "cublasLtMatrixLayoutCreate");
    find(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(api.preference_create, "cublasLtMatmulPreferenceCreate");
    find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(api.check_algorithm, "cublasLtMatmulAlgoCheck");
    find(api.matmul, "cublasLtMatmul");
    return complete;
}

}  // namespace speedrun
