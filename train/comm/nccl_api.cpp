#include "train/comm/nccl_api.h"

#include <mutex>

#include "kernels/device/error.h"
#include "kernels/device/shared_library.h"

namespace speedrun {

std::string NcclApi::version() const {
    int code = 0;
    check(get_version(&code), "ncclGetVersion");
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::string NcclApi::describe(ncclResult_t result, const std::string& call) const {
    const char* const last = last_error(nullptr);
    return fmt::format("{}: {}{}{}", call, error_string(result), last && *last ? ": " : "", last ? last : "");
}

void NcclApi::check(ncclResult_t result, const std::string& call) const {
    if (result != ncclSuccess) throw Error(ExitCode::communication, describe(result, call));
}

const NcclApi* load_nccl(std::string& why) {
    static std::mutex mutex;
    static NcclApi api;
    static bool loaded = false;
    std::lock_guard lock(mutex);
    if (loaded) return &api;
    SharedLibrary library("libnccl.so.2");
    library.find(api.get_version, "ncclGetVersion");
    library.find(api.error_string, "ncclGetErrorString");
    library.find(api.last_error, "ncclGetLastError");
    library.find(api.get_unique_id, "ncclGetUniqueId");
    library.find(api.comm_init, "ncclCommInitRankConfig");
    library.find(api.comm_split, "ncclCommSplit");
    library.find(api.comm_destroy, "ncclCommDestroy");
    library.find(api.comm_abort, "ncclCommAbort");
    library.find(api.async_error, "ncclCommGetAsyncError");
    library.find(api.all_reduce, "ncclAllReduce");
    library.find(api.reduce_scatter, "ncclReduceScatter");
    library.find(api.all_gather, "ncclAllGather");
    library.find(api.broadcast, "ncclBroadcast");
    library.find(api.send, "ncclSend");
    library.find(api.receive, "ncclRecv");
    library.find(api.group_start, "ncclGroupStart");
    library.find(api.group_end, "ncclGroupEnd");
    why = library.problem();
    loaded = why.empty();
    return loaded ? &api : nullptr;
}

}  // namespace speedrun
