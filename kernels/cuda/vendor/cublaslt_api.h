// The functions of cuBLASLt that are used, found at run time: the program starts, and trains with its own
// kernels, on machines without the library.
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

    // Throws an internal error that names the call and the cause unless it went well.
    void check(cublasStatus_t status, const char* call) const;
};

// The functions of libcublasLt.so.<major of the toolkit>, looked for where the loader looks. False, with the
// reason in `why`, if they are not to be had.
bool load_cublaslt(CublasLtApi& api, std::string& why);

// Does what make_cublaslt does, with these functions.
class MatmulLibrary;
struct CublasLtOptions;
std::unique_ptr<MatmulLibrary> make_cublaslt(Device& device, const CublasLtOptions& options,
                                             const CublasLtApi& api);

}  // namespace speedrun
