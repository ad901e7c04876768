// cuBLASLt functions, loaded at run time: without the library the program starts and trains with its own
// kernels.
#pragma once

#include <cublasLt.h>

#include <string>

#include "kernels/device/device.h"

namespace speedrun {

struct CublasLtApi {
    decltype(&::cublasLtCreate) create = nullptr;
    decltype(&::cublasLtDestroy) destroy = nullptr;
    decltype(&::cublasLtGetVersion) get_version = nullptr;
    decltype(&::cublasLtGetStatusName) status_name = nullptr;
    decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&::cublasLtMatmulDescDestroy) desc_destroy = nullptr;
    decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
    decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
    decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&::cublasLtMatmulAlgoCheck) check_algorithm = nullptr;
    decltype(&::cublasLtMatmul) matmul = nullptr;

    // Throws an internal error that names the call and the cause unless the status is success.
    void check(cublasStatus_t status, const char* call) const;
};

// Loads libcublasLt.so.<major of the toolkit> from the loader's search path. False, with the reason in `why`,
// if it is unavailable.
bool load_cublaslt(CublasLtApi& api, std::string& why);

// As make_cublaslt, with the given functions.
class MatmulLibrary;
struct CublasLtOptions;
std::unique_ptr<MatmulLibrary> make_cublaslt(Device& device, const CublasLtOptions& options,
                                             const CublasLtApi& api);

}  // namespace speedrun
