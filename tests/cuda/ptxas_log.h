// Output of `ptxas -v` for each kernel, from the logs that kernels/cuda/log_ptxas.sh stores.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedrun::testing {

struct KernelResources {
    int64_t registers = 0;      // registers per thread
    int64_t stack_bytes = 0;    // per thread: local arrays and spills
    int64_t spill_bytes = 0;    // stores and loads
    int64_t static_shared = 0;  // bytes
    bool operator==(const KernelResources&) const = default;
};

// From all logs in the folder, keyed by architecture ("sm_90a"), then by mangled name. Empty without logs.
std::map<std::string, std::map<std::string, KernelResources>> read_ptxas_logs(const std::string& folder);

// Lines of these logs that contain `text`.
std::vector<std::string> ptxas_lines(const std::string& folder, const std::string& text);

// Readable name without the namespace, return type and parameters: "norm_forward_kernel<Bf16, 8>".
std::string short_name(const std::string& mangled);

}  // namespace speedrun::testing
