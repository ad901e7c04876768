// CUPTI functions, loaded at run time: the program starts on machines without the library.
#pragma once

#include <cupti.h>

#include <string>

namespace speedrun {

struct CuptiApi {
    decltype(&::cuptiGetResultString) result_string = nullptr;
    decltype(&::cuptiGetTimestamp) timestamp = nullptr;
    decltype(&::cuptiGetStreamIdEx) stream_id = nullptr;
    decltype(&::cuptiGetGraphExecId) graph_id = nullptr;
    decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
    decltype(&::cuptiActivityEnable) enable = nullptr;
    decltype(&::cuptiActivityDisable) disable = nullptr;
    decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
    decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;
    decltype(&::cuptiActivityGetNumDroppedRecords) num_dropped = nullptr;

    // "cuptiActivityEnable: CUPTI_ERROR_NOT_INITIALIZED"; empty on success.
    std::string problem(CUptiResult result, const char* call) const;
};

// False, with the reason in `why`, if the library or one of the functions is not available.
bool load_cupti(CuptiApi& api, std::string& why);

}  // namespace speedrun
