#include "kernels/cuda/device/cupti_api.h"

#include <fmt/format.h>

#include "kernels/device/shared_library.h"

namespace speedrun {

std::string CuptiApi::problem(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return "";
    const char* text = nullptr;
    const bool known = result_string(result, &text) == CUPTI_SUCCESS && text;
    return fmt::format("{}: {}", call, known ? text : fmt::format("error {}", static_cast<int>(result)));
}

bool load_cupti(CuptiApi& api, std::string& why) {
    SharedLibrary library(fmt::format("libcupti.so.{}", CUDA_VERSION / 1000));
    library.find(api.result_string, "cuptiGetResultString");
    library.find(api.timestamp, "cuptiGetTimestamp");
    library.find(api.stream_id, "cuptiGetStreamIdEx");
    library.find(api.graph_id, "cuptiGetGraphExecId");
    library.find(api.register_callbacks, "cuptiActivityRegisterCallbacks");
    library.find(api.enable, "cuptiActivityEnable");
    library.find(api.disable, "cuptiActivityDisable");
    library.find(api.flush_all, "cuptiActivityFlushAll");
    library.find(api.next_record, "cuptiActivityGetNextRecord");
    library.find(api.num_dropped, "cuptiActivityGetNumDroppedRecords");
    why = library.problem();
    return why.empty();
}

}  // namespace speedrun
