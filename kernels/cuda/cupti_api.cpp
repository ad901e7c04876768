#include "kernels/cuda/cupti_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace speedrun {

std::string CuptiApi::problem(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return "";
    const char* text = nullptr;
    const bool known = result_string(result, &text) == CUPTI_SUCCESS && text;
    return fmt::format("{}: {}", call, known ? text : fmt::format("error {}", static_cast<int>(result)));
}

bool load_cupti(CuptiApi& api, std::string& why) {
    const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
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
    find(api.result_string, "cuptiGetResultString");
    find(api.timestamp, "cuptiGetTimestamp");
    find(api.stream_id, "cuptiGetStreamIdEx");
    find(api.graph_id, "cuptiGetGraphExecId");
    find(api.register_callbacks, "cuptiActivityRegisterCallbacks");
    find(api.enable, "cuptiActivityEnable");
    find(api.disable, "cuptiActivityDisable");
    find(api.flush_all, "cuptiActivityFlushAll");
    find(api.next_record, "cuptiActivityGetNextRecord");
    find(api.num_dropped, "cuptiActivityGetNumDroppedRecords");
    return complete;
}

}  // namespace speedrun
